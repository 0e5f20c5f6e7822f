"""Random graphs: views, reductions, masks, products and softmaxes, also over symbolic sizes."""

from __future__ import annotations

import itertools
import math
import random
from math import prod

from lambent.functional import arithmetic as m
from lambent.functional import operands
from lambent.functional import shaping as s
from lambent.graph import tensor as t
from lambent.graph.dim import Dim, Refused, Undecided, evaluate, exact

SIZES = (1, 2, 2, 3, 4, 4, 6)
USUAL = {"rs": 4, "rt": 4, "rn": 5}
OPTIONS = ({}, {"reuse": True})


def exp2(x):
    return operands.unary("exp2", x)


def sin(x):
    return operands.unary("sin", x)


def total(op, x, axis, keep=False):
    return operands.reduce(f"{op}_reduce", x, axis, keep)


def softmax(x, axis=-1):
    e = exp2((x - total("max", x, axis, True)) * 1.4426950408889634)
    return e * operands.unary("recip", total("sum", e, axis, True))


def matmul(x, y):
    a = s.reshape(x, *x.shape, 1)
    b = s.reshape(y, *y.shape[:-2], 1, *y.shape[-2:])
    return total("sum", a * b, -2)


def cat(parts, axis):
    whole = sum(p.shape[axis] for p in parts)
    at, out = 0, None
    for p in parts:
        pads = [(0, 0)] * p.ndim
        pads[axis] = (at, whole - at - p.shape[axis])
        at = at + p.shape[axis]
        x = p if pads[axis] == (0, 0) else t.view("pad", p, tuple(pads))
        out = x if out is None else out + x
    return out


def swapped(x, axis, other=-1):
    order = list(range(x.ndim))
    order[axis], order[other] = order[other], order[axis]
    return s.permute(x, *order)


class Maker:
    """Grows a pool of tensors by random steps."""

    def __init__(self, rng, symbolic):
        self.rng, self.pool = rng, []
        self.sizes, self.offsets = list(SIZES), [0, 1, 2]
        if symbolic:
            rs, rt, rn = Dim("rs", 1, 64), Dim("rt", 1, 64), Dim("rn", 3, 64)
            self.sizes = [1, 2, 3, 4, rs, rs, rs, rt, rt, rn, rs + 1, 2 * rs, rs + rt, rn - 2]
            self.sizes += [(rs + 1) // 2, rs * rt, 2 * rt, (rn - 3) // 2 + 1, rs + 3]
            self.offsets += [rs, rt, rn, rs + 1, rs - 1, rt - 1, rn - 3]
            self.factors = [2, 3, rs, rt, rn, rs + 1, 2 * rs, rn - 2, rs + rt, (rs + 1) // 2]
        else:
            self.factors = [2, 3, 4, 6]
        self.input()
        if rng.random() < 0.5:
            side = rng.choice([n for n in self.sizes if n != 1])
            self.pool.append(t.input("square", (side, side)))

    def input(self):
        shape = [self.rng.choice(self.sizes) for _ in range(self.rng.randint(1, 3))]
        self.pool.append(t.input(f"i{len(self.pool)}", shape))

    def cost(self, shape):
        return evaluate(prod(shape), USUAL)

    def pick(self):
        if self.rng.random() < 0.25:
            return self.rng.choice(self.pool)
        return self.pool[-1 - min(len(self.pool) - 1, int(self.rng.expovariate(0.5)))]

    def cuts(self, n):
        found = [(1, n), (n, 1)]
        for f in self.factors:
            q = exact(n, f)
            if q is not None:
                found += [(f, q), (q, f)]
        return found

    def view(self, x):
        rng, r = self.rng, x.ndim
        if r == 0:
            return s.expand(s.reshape(x, 1), rng.choice([2, 3]))
        d = rng.randrange(r)
        n, before, after = x.shape[d], x.shape[:d], x.shape[d + 1 :]
        kind = rng.choice(
            [
                "permute",
                "merge",
                "cut",
                "reshape",
                "slice",
                "slice",
                "flip",
                "pad",
                "window",
                "expand",
                "round",
                "cat",
                "shuffle",
            ]
        )
        if kind == "permute":
            return s.permute(x, *rng.sample(range(r), r))
        if kind == "merge" and r > 1:
            d = rng.randrange(r - 1)
            return s.reshape(x, *x.shape[:d], x.shape[d] * x.shape[d + 1], *x.shape[d + 2 :])
        if kind == "cut" and r < 5:
            return s.reshape(x, *before, *rng.choice(self.cuts(n)), *after)
        if kind == "shuffle":
            return s.reshape(x, *rng.sample(x.shape, r))
        if kind == "reshape":
            rest, out = x.size, []
            for _ in range(2):
                a, rest = rng.choice(self.cuts(rest))
                out.append(a)
            return s.reshape(x, *rng.sample([*out, rest], 3))
        if kind == "round" and r > 1:
            y = s.permute(x, *rng.sample(range(r), r))
            return s.reshape(s.reshape(y, y.size), *x.shape)
        if kind == "slice":
            a, b = rng.choice(self.offsets), rng.choice(self.offsets)
            step = rng.choice([1, 1, 2])
            parts = [(0, 1, k) for k in x.shape]
            parts[d] = (a, step, (n - a - b + step - 1) // step)
            y = t.view("slice", x, tuple(parts))
            t.at_least(y.shape[d], 1) or self.refuse()
            return s.flip(y, d) if rng.random() < 0.3 else y
        if kind == "flip":
            return s.flip(x, d)
        if kind == "pad":
            pads = [(0, 0)] * r
            pads[d] = rng.choice(self.offsets), rng.choice(self.offsets)
            return s.pad(x, pads, rng.choice([0.0, 0.0, 1.5, -2.0]))
        if kind == "window" and r < 5:
            return s.window(x, d, rng.choice([1, 2, 3]), rng.choice([1, 2]), rng.choice([1, 1, 2]))
        if kind == "expand" and r < 5:
            many = rng.choice([2, 3, self.sizes[4]])
            return s.expand(s.reshape(x, *before, 1, n, *after), *before, many, n, *after)
        if kind == "cat":
            c = rng.choice([1, 2])
            t.at_least(n, c + 1) or self.refuse()
            a, b = x[(slice(None),) * d + (slice(0, c),)], x[(slice(None),) * d + (slice(c, n),)]
            return cat([sin(b) if rng.random() < 0.5 else b, a], d)
        return x

    def refuse(self):
        raise Refused("not here")

    def fit(self, x, shape):
        """Some view of x that broadcasts to the shape, or None."""
        rng = self.rng
        if x.shape == shape:
            if rng.random() < 0.4:
                orders = itertools.permutations(range(len(shape)))
                orders = [p for p in orders if tuple(shape[i] for i in p) == shape]
                x = s.permute(x, *rng.choice(orders)) if shape else x
            return s.flip(x, rng.randrange(len(shape))) if shape and rng.random() < 0.15 else x
        free, at = list(range(len(shape))), []
        kept = [n for n in x.shape if n != 1]
        for n in kept:
            choices = [i for i in free if shape[i] == n]
            if not choices:
                return s.reshape(x, *shape) if x.size == prod(shape) else None
            at.append(rng.choice(choices))
            free.remove(at[-1])
        y = s.reshape(x, *kept)
        order = sorted(range(len(at)), key=at.__getitem__)
        y = s.permute(y, *order) if order else y
        return s.reshape(y, *[n if i in at else 1 for i, n in enumerate(shape)])

    def along(self, x):
        i = self.rng.randrange(x.ndim)
        shape = [n if j == i else 1 for j, n in enumerate(x.shape)]
        return s.reshape(t.iota(x.shape[i]), *shape), x.shape[i]

    def step(self):
        rng = self.rng
        x, k = self.pick(), rng.random()
        if k < 0.05 and len(self.pool) < 6:
            return self.input()
        if k < 0.15:
            choices = (
                lambda: sin(x),
                lambda: exp2(sin(x)),
                lambda: operands.unary("sqrt", x * x + 1.0),
                lambda: operands.unary("recip", x * x + 1.0),
                lambda: operands.unary("log2", x * x + 0.5),
            )
            return rng.choice(choices)()
        if k < 0.42:
            return self.view(x)
        if k < 0.58 and x.shape:
            op = rng.choice(["sum", "sum", "max"])
            return total(op, x, rng.randrange(x.ndim), rng.random() < 0.4)
        if k < 0.64 and x.shape:
            return softmax(x, rng.randrange(x.ndim))
        if k < 0.66 and x.ndim >= 2:  # causal; rows that are masked everywhere happen
            q, n = x.shape[-2:]
            keep = m.less(
                s.reshape(t.iota(n), 1, n), s.reshape(t.iota(q), q, 1) + rng.choice([1, 0])
            )
            return softmax(m.where(keep, x, -math.inf))
        if k < 0.70 and x.shape:
            i, n = self.along(x)
            bound = rng.choice([1, 2, 3])
            choices = (
                lambda: m.where(m.less(i, bound), x, rng.choice([0.0, 2.0])),
                lambda: i * 1.0 + x,
                lambda: m.remainder(x, i + 1.0),
                lambda: m.equal(i, bound - 1) * x,
                lambda: operands.cast(m.remainder(i * 3, 4), t.float32) * x,
            )
            return rng.choice(choices)()
        if k < 0.76 and x.ndim >= 2:
            z = self.pick()
            if z.ndim and z.shape[-1] == x.shape[-1]:
                a = s.reshape(x, prod(x.shape[:-1]), x.shape[-1])
                b = s.reshape(z, prod(z.shape[:-1]), z.shape[-1])
                return matmul(a, swapped(b, 0)) * 0.5
            return None
        others = rng.sample(self.pool, min(4, len(self.pool)))
        fits = [f for z in others if (f := self.fit(z, x.shape)) is not None]
        if not fits:
            return None
        z = rng.choice(fits)
        choices = (
            lambda: x + z,
            lambda: x * z,
            lambda: x - z,
            lambda: m.less(x, z + 0.3701) * x,
            lambda: m.where(m.less(x, z + 0.3701), z, x),
            lambda: m.remainder(x, z * z + 1.0),
        )
        return rng.choice(choices)()


def random_graph(seed, symbolic=False, steps=30):
    """Output nodes of a random graph."""
    rng = random.Random(seed)
    maker = Maker(rng, symbolic)
    for _ in range(rng.randint(4, steps)):
        try:
            y = maker.step()
        except (Refused, Undecided, ValueError):
            continue
        if y is None or y.ndim > 6 or not 0 < maker.cost(y.shape) <= 1500:
            continue
        maker.pool.append(y if rng.random() < 0.6 else sin(y))
    used = {src for p in maker.pool for src in p.node.srcs}
    outputs = [p.node for p in maker.pool if p.node not in used and p.node.op != "input"]
    return outputs[-rng.randint(1, 3) :] or [maker.pool[-1].node]
