"""Random kernels: every op, axes bound again and again, masks that depend on loops, gathers."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import cache
from random import Random

from kernels import Build

from lambent.algebra.term import Term, Terms
from lambent.graph.dim import Dim, Size, axis, value
from lambent.graph.dtypes import float32, float64, int64
from lambent.kernel.kernel import Buffer, Kernel, Output
from lambent.kernel.rewrite import reindexed

RAGGED = Dim("ragged", 1, 13)


class RandomKernel:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.b = Build()
        r = self.random
        extents = [r.choice((1, 2, 3, 5, 8, 13, RAGGED)) for _ in range(r.randint(3, 5))]
        self.axes = self.b.axes(*extents)
        self.count = 0
        self.made: list[Term] = []

    def kernel(self) -> Kernel:
        r, b = self.random, self.b
        for n in range(r.choice((1, 1, 2))):
            free = r.sample(self.axes, r.randint(1, 2))
            b.out(f"Y{n}", self.term(frozenset(free), r.randint(2, 5)), *free)
        return b.kernel()

    def term(self, scope: frozenset[int], depth: int) -> Term:
        """A float term whose free axes lie in scope."""
        r, b, t = self.random, self.b, self.b.t
        known = [m for m in self.made if m.free <= scope]
        if known and r.random() < 0.25:
            return r.choice(known)
        if depth == 0:
            return self.leaf(scope)
        kind = r.choice(
            ("un", "add", "mul", "mul", "mask", "where", "sum", "sum", "sum", "max", "fold")
        )
        if kind == "un":
            x = self.term(scope, depth - 1)
            bounded = b.un("sin", x)
            out = r.choice(
                (
                    bounded,
                    b.un("exp2", bounded),
                    b.un("recip", b.add(b.c(2), b.mul(bounded, bounded))),
                    b.un("sqrt", b.mul(bounded, bounded)),
                    t.apply("mod", bounded, b.c(Fraction(3, 10))),
                )
            )
        elif kind in ("add", "mul"):
            out = t.apply(kind, self.term(scope, depth - 1), self.term(scope, depth - 1))
        elif kind == "mask":
            out = t.apply("mask", self.cond(scope), self.term(scope, depth - 1))
        elif kind == "where":
            x, y = self.term(scope, depth - 1), self.term(scope, depth - 1)
            out = b.where(self.cond(scope), x, y)
        else:
            out = self.reduction(kind, scope, depth)
        self.made.append(out)
        return out

    def reduction(self, kind: str, scope: frozenset[int], depth: int) -> Term:
        r, b, t = self.random, self.b, self.b.t
        axes = frozenset(r.sample(self.axes, r.choice((1, 1, 1, 2))))
        inner = scope | axes
        if r.random() < 0.8:  # not too many axes at once
            inner = axes | frozenset(r.sample(sorted(scope), min(len(scope), 2)))
        x = self.term(inner, depth - 1)
        if kind == "sum":
            if r.random() < 0.5:
                x = b.mul(x, self.term(inner, depth - 1))
            if r.random() < 0.4:
                x = t.apply("mask", self.cond(inner), x)
            return t.reduce("sum", axes, x)
        if r.random() < 0.6:
            x = b.where(self.cond(inner), x, b.ninf())
        elif r.random() < 0.3:
            x = b.add(x, t.apply("mask", self.cond(inner), b.ninf()))
        if kind == "max":
            return t.reduce("max", axes, x)
        if r.random() < 0.4:
            return t.reduce(r.choice(("fold", "part")), axes, x, b.c(1))
        v = self.term(inner, depth - 1)  # finite: a fold may skip what is masked
        v = t.apply("mask", t.apply("less", b.c(-(10**6)), v), v)
        return t.reduce(r.choice(("fold", "part")), axes, x, v)

    def cond(self, scope: frozenset[int]) -> Term:
        r, b, t = self.random, self.b, self.b.t
        if r.random() < 0.15:
            return b.t.apply("less", self.leaf(scope), b.c(0))
        out = b.less(self.index(scope), self.index(scope))
        if r.random() < 0.3:
            out = t.apply("mask", out, b.less(self.index(scope), self.index(scope)))
        if r.random() < 0.1:
            x, y = (t.cast(t.val(self.index(scope)), float32) for _ in range(2))
            out = t.apply("less", x, y)
        return t.apply("not", out) if r.random() < 0.3 else out

    def index(self, scope: frozenset[int]) -> Size:
        r = self.random
        out: Size = r.randint(-3, 6)
        for i in r.sample(sorted(scope), min(len(scope), r.randint(0, 2))):
            out = out + r.choice((1, 1, 1, -1, 2, 3)) * axis(i)
        return out // 2 if r.random() < 0.1 else out

    def leaf(self, scope: frozenset[int]) -> Term:
        r, b = self.random, self.b
        if r.random() < 0.1:
            return b.c(Fraction(r.randint(-3, 3), 2))
        if r.random() < 0.1:
            return b.t.cast(b.t.val(self.index(scope)), float32)
        axes = r.sample(sorted(scope), min(len(scope), r.randint(1, 2)))
        self.count += 1
        name = f"X{self.count}"
        if r.random() < 0.2:  # shifted, or read at a value; outside it is clamped
            b.buffer(name, (7, 9))
            first: Size = self.index(scope)
            if r.random() < 0.5:
                first = value(b.load(f"pick{self.count}", *axes[:1], dtype=int64))
            return b.at(name, first, self.index(scope))
        return b.load(name, *axes)


def random_kernel(seed: int) -> Kernel:
    """A kernel of a few terms in float64, the same for the same seed."""
    return in_float64(RandomKernel(seed).kernel())


def in_float64(kernel: Kernel) -> Kernel:
    """The same kernel in float64: what differs then is no rounding."""
    terms = Terms()

    @cache
    def wide(t: Term) -> Term:
        args = tuple(reindexed(a, wide, {}) for a in t.indices)
        args = (t.args[0], args) if t.op == "in" else args if t.op == "val" else t.args
        dtype = float64 if t.dtype == float32 else t.dtype
        return terms.make(t.op, args, [wide(k) for k in t.kids], dtype)

    def buffer(b: Buffer) -> Buffer:
        return replace(b, dtype=float64 if b.dtype == float32 else b.dtype)

    outputs = tuple(Output(buffer(o.buffer), o.index, wide(o.term)) for o in kernel.outputs)
    return Kernel(outputs, tuple(map(buffer, kernel.inputs)), kernel.extents)
