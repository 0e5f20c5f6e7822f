"""Both sides of a rule of the table, evaluated alone on random named values.

Values are (axes, array, dtype) with infinities, zeros, NaN and huge numbers among them; guards are
looked at in the values themselves. A sample that breaks a guard or mixes dtypes is drawn again.
"""

from __future__ import annotations

import random
import re
from fractions import Fraction

import numpy as np
from named_values import BINARY, UNARY, align, close, constant, fold, reduce

from lambent.algebra.rules import CODE, VARIES
from lambent.graph.dtypes import bool_, float32, int8, int64

DTYPE = {code: dtype for dtype, code in CODE.items()}
EXTENTS = {0: 2, 1: 3, 2: 2, 3: 2}
# m: axes, b: one axis, n: integer, q: rational, d: dtype, s: buffer; T L I as in the table
SORTS = {
    "In": "sL", "C": "qnd", "Inf": "nd", "Nan": "d", "Val": "I", "Next": "md", "Scale": "qnT",
    "Cast": "dT", "Sum": "mT", "Max": "mT", "Fold": "mTT", "Part": "mTT", "At": "bIT",
    "Nil": "", "Cons": "IL", "AtL": "bIL", "Ax": "b", "IC": "n", "IS": "s",
    "IAdd": "II", "IMul": "nI",
    "IMulI": "II", "IDiv": "II", "IMin": "II", "IMax": "II", "IOf": "T", "AtI": "bII",
    "fits": "bd",
}  # fmt: skip
SORTS |= dict.fromkeys(("Exp2", "Log2", "Sin", "Recip", "Sqrt", "Not"), "T")
SORTS |= dict.fromkeys(("Add", "Mul", "Mod", "Less", "Eq", "Mask"), "TT")
NAMES = {
    "ZERO": Fraction(0), "ONE": Fraction(1), "NEG": Fraction(-1), "EMPTY": 0, "SYMBOLIC": 0,
    "VARIES": VARIES, "FLOAT": 16,
    "BOOL": CODE[bool_], "INT64": CODE[int64],
}  # fmt: skip
FLOATS = [-np.inf, np.inf, np.nan, 0.0, 0.0, 1.0, -1.0, 1030.0, 2.0**20]


class Rejected(Exception):
    """A sample that the rule does not speak of."""


def read(text):
    """An s-expression as nested lists."""
    stack = [[]]
    for token in re.findall(r"[()]|[^\s()]+", text):
        if token == "(":
            stack.append([])
        elif token == ")":
            done = stack.pop()
            stack[-1].append(done)
        else:
            stack[-1].append(token)
    return stack[0][0]


def bits(mask):
    return frozenset(b for b in EXTENTS if mask >> b & 1)


def mask_of(axes):
    return sum(1 << a for a in axes)


class Sample:
    """One drawing of the variables of a rule."""

    def __init__(self, rule, seed, specials=FLOATS):
        self.specials = specials
        self.rng = random.Random(seed)
        self.r = np.random.default_rng(seed)
        self.rule, self.env, self.buffers = rule, {}, {}
        self.number = self.rng.choice([float32, float32, float32, int64, int8])
        self.wild = self.rng.choice([0.0, 0.0, 0.15, 0.5])
        self.sorts, self.cut, self.unused = {}, 0, ()
        before = read(rule.before)
        self.collect(before)
        for guard in rule.guards:
            if guard.startswith("(fits"):
                self.collect(read(guard))

    def collect(self, e, sort="T", of=""):
        if isinstance(e, str):
            if e[0].islower() and self.sorts.get(e) != "b":
                first_of_mask = of in ("Mask0", "Not0")
                self.sorts[e] = "B" if first_of_mask else sort
            return
        for i, (k, s) in enumerate(zip(e[1:], SORTS[e[0]], strict=True)):
            self.collect(k, s, f"{e[0]}{i}")

    # ---- drawing -----------------------------------------------------------------------------

    def draw(self):
        if any(guard.startswith("(cut") for guard in self.rule.guards):
            self.draw_cut()
        for name, sort in self.sorts.items():
            self.env[name] = getattr(self, f"draw_{sort}")()

    def draw_cut(self):
        """The axis of 3 points in two parts of 2, the last of them ragged."""
        o, i = self.rng.sample([0, 2, 3], 2)
        at = tuple(sorted((o, i))), np.asarray([[0, 1], [2, 3]] if o < i else [[0, 2], [1, 3]])
        self.cut = 1 << 1
        self.env |= {"n": self.cut, "o": 1 << o, "i": 1 << i, "at": (*at, int64)}
        self.env["in"] = at[0], at[1] < EXTENTS[1], bool_
        self.unused = self.rng.choice([(o, i)] * 9 + [()])

    def axes(self):
        return tuple(b for b in EXTENTS if self.rng.random() < 0.5 and b not in self.unused)

    def array(self, axes, dtype):
        shape = [EXTENTS[a] for a in axes]
        if dtype == bool_:
            return self.r.random(shape) < 0.5
        if dtype.is_float:
            x = np.asarray(self.r.normal(size=shape) * self.rng.choice([1, 1, 3]))
            if self.rng.random() < 0.4:
                x = abs(x) * self.rng.choice([1, 1, -1])
            special = self.r.choice(self.specials, shape)
            return np.where(self.r.random(shape) < self.wild, special, x)
        far = self.rng.choice([4, 4, 100])
        return self.r.integers(-far, far + 1, shape).astype(dtype.numpy)

    def draw_T(self):
        axes = self.axes()
        dtype = self.rng.choice([self.number] * 9 + [int64, bool_])
        return axes, self.array(axes, dtype), dtype

    def draw_B(self):
        axes = self.axes()
        return axes, self.array(axes, bool_), bool_

    def draw_I(self):
        axes = self.axes()
        return axes, self.array(axes, int64) % 2, int64

    def draw_L(self):
        return [self.draw_I(), self.draw_I()]

    def draw_s(self):
        self.buffers["buffer"] = self.r.normal(size=(3, 3))
        return "buffer"

    def draw_m(self):
        return (self.rng.randrange(1, 16) | self.cut) & ~mask_of(self.unused)

    def draw_b(self):
        return 1 << self.rng.randrange(4)

    def draw_n(self):
        return self.rng.choice([0, 0, 1, -1])

    def draw_q(self):
        return Fraction(self.rng.choice([-2, -1, 0, 1, 2, 3]), self.rng.choice([1, 2]))

    def draw_d(self):
        return CODE[self.number]

    # ---- evaluating --------------------------------------------------------------------------

    def __call__(self, e):
        if isinstance(e, str):
            if e in NAMES:
                return NAMES[e]
            return self.env[e] if e in self.env else int(e)
        op, *args = e
        if op in ("&", "|", "^", "+", "*"):
            a, b = (self(x) for x in args)
            return {"&": a.__and__, "|": a.__or__, "^": a.__xor__}[op](b) if op in "&|^" else (
                a + b if op == "+" else a * b
            )  # fmt: skip
        kids = [self(x) for x in args]
        return getattr(self, f"do_{op}", lambda *k: self.elementwise(op, *k))(*kids)

    def elementwise(self, op, *kids):
        dtypes = [k[2] for k in kids]
        if op in ("Exp2", "Log2", "Sin", "Recip", "Sqrt"):
            self.need(dtypes[0].is_float)
        elif op in ("Not", "Mask"):
            self.need(dtypes[0] == bool_)
        else:
            self.need(dtypes[0] == dtypes[1] and (op in ("Less", "Eq") or dtypes[0] != bool_))
        name = op.lower()
        axes, arrays = align(*(k[:2] for k in kids))
        x = (UNARY | BINARY)[name](*arrays)
        dtype = bool_ if op in ("Less", "Eq", "Not") else dtypes[-1]
        return axes, np.asarray(x), dtype

    def need(self, ok):
        if not ok:
            raise Rejected

    def do_C(self, value, k, code):
        dtype = DTYPE[code]
        self.need(dtype.is_float or (k == 0 and value.denominator == 1))
        x = np.asarray(constant(value, k), np.float64)
        return (), x if dtype.is_float else x.astype(dtype.numpy), dtype

    def do_Scale(self, value, k, t):
        self.need(t[2].is_float)
        return t[0], t[1] * constant(value, k), t[2]

    def do_Cast(self, code, t):
        dtype = DTYPE[code]
        self.need(dtype != bool_ and not (t[2].is_float and not dtype.is_float))
        return t[0], t[1].astype(np.float64 if dtype.is_float else dtype.numpy), dtype

    def do_Next(self, mask, code):
        n = int(np.prod([EXTENTS[b] for b in bits(mask)]))
        dtype = DTYPE[code]
        return (), np.asarray(n, np.float64 if dtype.is_float else dtype.numpy), dtype

    def do_Sum(self, mask, t):
        self.need(t[2] != bool_)
        return (*reduce("sum", bits(mask), t[:2], EXTENTS), t[2])

    def do_Max(self, mask, t):
        return (*reduce("max", bits(mask), t[:2], EXTENTS), t[2])

    def do_Fold(self, mask, a, v, part=False):
        self.need(a[2] == v[2] and v[2].is_float)
        return (*fold(bits(mask), a[:2], v[:2], EXTENTS, part), v[2])

    def do_Part(self, mask, a, v):
        return self.do_Fold(mask, a, v, True)

    def do_Inf(self, sign, code):
        self.need(DTYPE[code].is_float)
        return (), np.asarray(np.inf * (sign or 1)), DTYPE[code]

    def do_Nan(self, code):
        self.need(DTYPE[code].is_float)
        return (), np.asarray(np.nan), DTYPE[code]

    def do_IC(self, n):
        return (), np.asarray(n), int64

    def do_IS(self, name):
        return (), np.asarray(3), int64

    def do_Val(self, i):
        return i

    def do_Ax(self, mask):
        (b,) = bits(mask)
        return (b,), np.arange(EXTENTS[b]), int64

    def do_IOf(self, t):
        self.need(t[2] == int64)
        return t

    def do_IMul(self, n, i):
        return i[0], n * i[1], int64

    def index_op(self, f, a, b):
        axes, (x, y) = align(a[:2], b[:2])
        return axes, np.asarray(f(x, y)), int64

    def do_IAdd(self, a, b):
        return self.index_op(np.add, a, b)

    def do_IMulI(self, a, b):
        return self.index_op(np.multiply, a, b)

    def do_IDiv(self, a, b):
        return self.index_op(lambda x, y: x // np.maximum(y, 1), a, b)

    def do_IMin(self, a, b):
        return self.index_op(np.minimum, a, b)

    def do_IMax(self, a, b):
        return self.index_op(np.maximum, a, b)

    def do_Nil(self):
        return []

    def do_Cons(self, i, rest):
        return [i, *rest]

    def do_In(self, s, index):
        from named_values import gather

        self.need(len(index) == 2)
        return (*gather(self.buffers[s], [i[:2] for i in index]), float32)

    def do_AtL(self, mask, i, index):
        return [self.do_At(mask, i, x) for x in index]

    def do_At(self, mask, i, t):
        (n,) = bits(mask)
        axes, x, dtype = t
        if n not in axes:
            return t
        x = np.moveaxis(x, axes.index(n), -1)
        rest = tuple(a for a in axes if a != n)
        out = tuple(sorted({*rest, *i[0]}))
        _, (x2, at) = align((rest, x[..., 0]), i[:2])
        shape = np.broadcast_shapes(x2.shape, at.shape)
        x = x.reshape(*x2.shape, x.shape[-1])
        at = np.broadcast_to(np.clip(at, 0, x.shape[-1] - 1), shape)[..., None]
        x = np.broadcast_to(x, (*shape, x.shape[-1]))
        return out, np.take_along_axis(x, at, -1)[..., 0], dtype

    do_AtI = do_At

    # ---- guards ------------------------------------------------------------------------------

    def holds(self, guard):
        op, *args = guard
        if op == "=":
            left, right = args
            if isinstance(left, str) and left[0].islower() and left not in self.env:
                self.env[left] = self.fact(right)
                return True
            return self.fact(left) == self.fact(right)
        if op in ("<", ">", ">=", "!="):
            a, b = (self.fact(x) for x in args)
            return {"<": a < b, ">": a > b, ">=": a >= b, "!=": a != b}[op]
        if op == "cut":
            return True
        if op == "fits":
            return DTYPE[self(args[1])].is_integer
        _, x, dtype = self(args[0])
        if op == "flt":
            return dtype.is_float
        if not dtype.is_float:
            return op in ("fin", "real")
        nan = np.isnan(x)
        return bool(
            {
                "fin": np.isfinite(x),
                "real": nan | np.isfinite(x),
                "pos": nan | (x > 0),
                "nneg": nan | ((x >= 0) & ~np.signbit(x)),
                "npos": nan | (x <= 0),
            }[op].all()
        )

    def fact(self, e):
        if isinstance(e, list) and e[0] == "freeL":
            return mask_of({a for i in self(e[1]) for a in i[0]})
        if isinstance(e, list) and e[0] in ("free", "freeI"):
            return mask_of(self(e[1])[0])
        if isinstance(e, list) and e[0] == "dt":
            return CODE[self(e[1])[2]]
        if isinstance(e, list) and e[0] in ("&", "|", "^", "*", "min"):
            a, b = (self.fact(x) for x in e[1:])
            return {"&": a & b, "|": a | b, "^": a ^ b, "*": a * b, "min": min(a, b)}[e[0]]
        return self(e)


def counterexample(rule, wanted=50, tries=6000):
    """(None, samples) if both sides agreed on all samples; else (a description, samples)."""
    before, after = read(rule.before) if "(" in rule.before else rule.before, rule.after
    after = read(after) if "(" in after else after
    guards = [read(g) for g in rule.guards]
    done = 0
    with np.errstate(all="ignore"):
        for seed in range(tries):
            sample = Sample(rule, seed)
            try:
                sample.draw()
                left = sample.env["e"] = sample(before)
                if not all(sample.holds(g) for g in guards):
                    continue
            except Rejected:
                continue
            right = sample(after)
            done += 1
            if not equal(left, right):
                return f"{rule.name}: {sample.env}\n{left}\n{right}", done
            if done == wanted:
                break
    return None, done


def equal(left, right):
    if isinstance(left, list):
        return len(left) == len(right) and all(map(equal, left, right))
    _, (x, y) = align(left[:2], right[:2])
    return left[2] == right[2] and close(x, y)
