"""Hand-made kernels for the tests of this folder: (name, kernel, symbols), and data for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from lambent.algebra.term import Term, Terms
from lambent.graph.dim import Dim, Size, axis, evaluate, value
from lambent.graph.dtypes import (
    DType,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int32,
    int64,
    uint8,
)
from lambent.kernel.kernel import Buffer, Kernel, Output

F = Fraction


class Build:
    """A kernel under construction: axes by extent, buffers by their loads."""

    def __init__(self) -> None:
        self.t = Terms()
        self.extents: dict[int, Size] = {}
        self.inputs: dict[str, Buffer] = {}
        self.outputs: list[Output] = []

    def axes(self, *extents: Size) -> tuple[int, ...]:
        first = len(self.extents)
        self.extents |= {first + n: e for n, e in enumerate(extents)}
        return tuple(range(first, first + len(extents)))

    def buffer(self, name: str, shape: tuple[Size, ...], dtype: DType = float32) -> str:
        self.inputs[name] = Buffer(name, dtype, shape)
        return name

    def load(self, name: str, *axes: int, dtype: DType = float32) -> Term:
        """The buffer of these axes' extents, at home."""
        self.buffer(name, tuple(self.extents[i] for i in axes), dtype)
        return self.t.load(name, [axis(i) for i in axes], dtype)

    def at(self, name: str, *index: Size) -> Term:
        return self.t.load(name, index, self.inputs[name].dtype)

    def mul(self, *ts: Term) -> Term:
        out = ts[0]
        for t in ts[1:]:
            out = self.t.apply("mul", out, t)
        return out

    def add(self, *ts: Term) -> Term:
        out = ts[0]
        for t in ts[1:]:
            out = self.t.apply("add", out, t)
        return out

    def un(self, *ops_and_term: Any) -> Term:
        *ops, t = ops_and_term
        for op in reversed(ops):
            t = self.t.apply(op, t)
        return t

    def c(self, x: Fraction | int, k: int = 0, dtype: DType = float32) -> Term:
        return self.t.const(x, dtype, k)

    def sum(self, axes: Any, t: Term) -> Term:
        return self.t.reduce("sum", axes if isinstance(axes, tuple) else (axes,), t)

    def less(self, a: Size, b: Size) -> Term:
        return self.t.apply("less", self.t.val(a), self.t.val(b))

    def where(self, c: Term, x: Term, y: Term) -> Term:
        no = self.t.apply("not", c)
        return self.add(self.t.apply("mask", c, x), self.t.apply("mask", no, y))

    def ninf(self) -> Term:
        return self.t.inf(-1, float32)

    def out(self, name: str, t: Term, *axes: int, dtype: DType | None = None) -> None:
        shape = tuple(self.extents[i] for i in axes)
        index = tuple(axis(i) for i in axes)
        self.outputs.append(Output(Buffer(name, dtype or t.dtype, shape), index, t))

    def kernel(self) -> Kernel:
        return Kernel(tuple(self.outputs), tuple(self.inputs.values()), self.extents)


def matmul(ta: bool = False, tb: bool = False, m: Size = 37, n: Size = 50, k: Size = 45) -> Kernel:
    b = Build()
    i, j, p = b.axes(m, n, k)
    x = b.load("A", *((p, i) if ta else (i, p)))
    y = b.load("B", *((j, p) if tb else (p, j)))
    b.out("C", b.sum(p, b.mul(x, y)), i, j)
    return b.kernel()


def products() -> Kernel:
    """Σ over p of two products of matrices and of what is neither."""
    b = Build()
    i, j, p = b.axes(17, 20, 33)
    both = [b.mul(b.load(x, i, p), b.load(y, p, j)) for x, y in ("AB", "CD")]
    b.out("E", b.sum(p, b.add(b.add(*both), b.load("F", i, j))), i, j)
    return b.kernel()


def batched(dtype: DType = float32) -> Kernel:
    b = Build()
    g, i, j, p = b.axes(3, 17, 20, 33)
    x, y = b.load("A", g, i, p, dtype=dtype), b.load("B", g, p, j, dtype=dtype)
    b.out("C", b.mul(b.c(F(1, 3), dtype=dtype), b.sum(p, b.mul(x, y))), g, i, j)
    return b.kernel()


def gelu_chain() -> Kernel:
    b = Build()
    i, j, p = b.axes(23, 40, 19)
    x = b.add(b.sum(p, b.mul(b.load("A", i, p), b.load("W", p, j))), b.load("bias", j))
    cube = b.mul(x, x, x, b.c(F(44715, 1000000)))
    e = b.un("exp2", b.mul(b.add(x, cube), b.c(F(-16, 10), 1)))
    b.out("Y", b.mul(x, b.un("recip", b.add(b.c(1), e))), i, j)
    return b.kernel()


def fold(mask: str = "", heads: int = 2, n: Size = 70, m: Size = 70, d: int = 24) -> Kernel:
    """exp2(a − max a) weighted over v, over its own sum; a is a product, masked or biased."""
    b = Build()
    h, q, k, p, v = b.axes(heads, n, m, d, 16)
    a = b.mul(b.sum(p, b.mul(b.load("Q", h, q, p), b.load("K", h, k, p))), b.c(F(1, 5), 1))
    i, j = axis(q), axis(k)
    t = b.t
    if mask == "apart":  # a window, as computed from the distance of two places
        far = b.add(t.val(i), b.mul(b.c(-1, dtype=int64), t.val(j)))
        ahead = t.apply("less", far, b.c(0, dtype=int64))
        near = t.apply("less", far, b.c(9, dtype=int64))
        a = b.where(t.apply("mask", t.apply("not", ahead), near), a, b.ninf())
    if mask in ("causal", "window"):
        keep = b.less(j, i + 1)
        if mask == "window":
            keep = t.apply("mask", keep, b.less(i, j + 9))
        a = b.where(keep, a, b.ninf())
    if mask == "added":  # a + (0 or −inf)
        a = b.add(a, t.apply("mask", t.apply("not", b.less(j, i + 1)), b.ninf()))
    if mask == "strict":  # the first row is masked everywhere
        a = b.where(b.less(j, i), a, b.ninf())
    if mask == "bias":
        a = b.add(a, b.load("bias", h, q, k))
    if mask == "buffer":
        a = b.where(b.load("keep", q, k, dtype=bool_), a, b.ninf())
    top = t.reduce("fold", (k,), a, b.load("V", h, k, v))
    bottom = t.reduce("fold", (k,), a, b.c(1))
    b.out("O", b.mul(top, b.un("recip", bottom)), h, q, v)
    return b.kernel()


def softmax(two_pass: bool) -> Kernel:
    b = Build()
    r, c = b.axes(13, 65)
    x = b.mul(b.load("X", r, c), b.c(1, 1))
    most = b.t.reduce("max", (c,), x)
    e = b.un("exp2", b.add(x, b.mul(b.c(-1), most)))
    total = b.sum(c, e) if two_pass else b.t.reduce("fold", (c,), x, b.c(1))
    b.out("Y", b.mul(e, b.un("recip", total)), r, c)
    return b.kernel()


def moments(m: Size = 8, n: Size = 16) -> Kernel:
    """M = m + g, V = v + g·g and P = p + M·V."""
    b = Build()
    i, j = b.axes(m, n)
    old, v, p, g = (b.load(name, i, j) for name in "mvpg")
    new, v = b.add(old, g), b.add(v, b.mul(g, g))
    b.out("P", b.add(p, b.mul(new, v)), i, j)
    b.out("M", new, i, j)
    b.out("V", v, i, j)
    return b.kernel()


def layernorm() -> Kernel:
    b = Build()
    r, c = b.axes(11, 60)
    x = b.load("X", r, c)
    mean = b.mul(b.sum(c, x), b.c(F(1, 60)))
    d = b.add(x, b.mul(b.c(-1), mean))
    var = b.mul(b.sum(c, b.mul(d, d)), b.c(F(1, 60)))
    scale = b.un("recip", "sqrt", b.add(var, b.c(F(1, 100000))))
    b.out("Y", b.add(b.mul(d, scale, b.load("G", c)), b.load("B", c)), r, c)
    b.out("M", mean, r)
    return b.kernel()


def rms_linear() -> Kernel:
    """A row norm behind a product: out = r · Σ x·(g·W)."""
    b = Build()
    t, c, o = b.axes(21, 48, 33)
    x = b.load("X", t, c)
    r = b.un("recip", "sqrt", b.add(b.mul(b.sum(c, b.mul(x, x)), b.c(F(1, 48))), b.c(F(1, 1000))))
    body = b.mul(x, r, b.mul(b.load("G", c), b.load("W", o, c)))
    b.out("Y", b.sum(c, body), t, o)
    return b.kernel()


def conv(stride: int = 2) -> Kernel:
    b = Build()
    n, co, y, x, ci, i, j = b.axes(2, 8, 5, 6, 3, 3, 3)
    b.buffer("X", (2, 3, 9, 11))
    u, v = axis(y) * stride + axis(i) - 1, axis(x) * stride + axis(j) - 1
    inside = [b.less(-1, u), b.less(u, 9), b.less(-1, v), b.less(v, 11)]
    read = b.at("X", axis(n), axis(ci), u, v)
    for cond in inside:
        read = b.t.apply("mask", cond, read)
    b.out("Y", b.sum((ci, i, j), b.mul(read, b.load("W", co, ci, i, j))), n, co, y, x)
    return b.kernel()


def masked_product() -> Kernel:
    """The mask stands outside of the product: exact even where a factor is inf."""
    b = Build()
    i, j, k = b.axes(30, 20, 40)
    body = b.mul(b.load("A", i, k), b.load("B", k, j))
    b.out("C", b.sum(k, b.t.apply("mask", b.less(axis(k), axis(i) + 1), body)), i, j)
    return b.kernel()


def counted() -> Kernel:
    """Sums over axes that the body lacks, or has only in a mask."""
    b = Build()
    i, k = b.axes(9, 35)
    x = b.load("X", i)
    keep = b.less(axis(k), 2 * axis(i) + 3)
    b.out("Y", b.add(b.sum(k, b.t.apply("mask", keep, x)), b.sum(k, x)), i)
    return b.kernel()


def embedding() -> Kernel:
    b = Build()
    r, c = b.axes(15, 20)
    ids = b.load("ids", r, dtype=int32)
    b.buffer("E", (12, 20))
    row = b.at("E", value(ids), axis(c))
    mean = b.mul(b.sum(c, row), b.c(F(1, 20)))
    b.out("Y", b.add(row, b.mul(b.c(-1), mean)), r, c)
    return b.kernel()


def take_twice() -> Kernel:
    """An index that is itself read at an index, inside a looped sum."""
    b = Build()
    r, k = b.axes(7, 30)
    order = b.load("order", k, dtype=int64)
    b.buffer("pick", (30,), int64)
    b.buffer("X", (7, 30))
    inner = b.at("pick", value(order))
    b.out("Y", b.sum(k, b.mul(b.at("X", axis(r), value(inner)), b.load("W", k))), r)
    return b.kernel()


def maxima(dtype: DType) -> Kernel:
    b = Build()
    r, c = b.axes(9, 50)
    x = b.load("X", r, c, dtype=dtype)
    b.out("M", b.t.reduce("max", (c,), x), r)
    b.out("E", b.t.apply("eq", x, b.t.reduce("max", (c,), x)), r, c)
    return b.kernel()


def integers(dtype: DType) -> Kernel:
    b = Build()
    i, j, k = b.axes(12, 10, 40)
    x, y = b.load("A", i, k, dtype=dtype), b.load("B", k, j, dtype=dtype)
    b.out("C", b.sum(k, b.mul(x, y)), i, j)
    b.out("S", b.t.apply("mod", b.sum(k, x), b.c(7, dtype=dtype)), i)
    return b.kernel()


def remainders(dtype: DType, *by: int) -> Kernel:
    """Floored remainders by constants, some of them powers of two."""
    b = Build()
    i, j = b.axes(6, 21)
    x = b.load("X", i, j, dtype=dtype)
    for n in by:
        out = f"by{n}".replace("-", "_")
        b.out(out, b.t.apply("mod", x, b.c(n, dtype=dtype)), i, j)
    return b.kernel()


def casts() -> Kernel:
    b = Build()
    i, j = b.axes(14, 30)
    x = b.load("X", i, j, dtype=bfloat16)
    rows = b.t.cast(b.t.val(3 * axis(i) + axis(j)), float32)
    y = b.add(b.t.cast(x, float32), b.mul(rows, b.c(F(1, 64))))
    b.out("Y", b.t.cast(y, bfloat16), i, j)
    b.out("I", b.t.cast(b.mul(y, b.c(100)), int8), i, j)
    b.out("S", b.t.cast(b.sum(j, b.t.cast(x, float64)), float64), i)
    return b.kernel()


def chain() -> Kernel:
    """A product whose operand is a product that is worked on in between."""
    b = Build()
    i, j, k, p = b.axes(26, 18, 44, 31)
    hidden = b.sum(p, b.mul(b.load("X", i, p), b.load("U", p, k)))
    hidden = b.mul(hidden, b.un("recip", b.add(b.c(2), b.mul(hidden, hidden))))
    b.out("Y", b.add(b.sum(k, b.mul(hidden, b.load("V", k, j))), b.load("R", i, j)), i, j)
    return b.kernel()


def self_product() -> Kernel:
    """One axis bound inside the reduction that binds it, where it cannot move out."""
    b = Build()
    i, c, d = b.axes(10, 21, 18)
    inner = b.sum(c, b.mul(b.load("G", c, d), b.load("X", i, c)))
    body = b.mul(b.sum(d, b.mul(b.load("H", c, d), b.mul(inner, inner))), b.load("X", i, c))
    b.out("Y", b.sum(c, body), i)
    return b.kernel()


def masked_twice(kind: str) -> Kernel:
    """A sum and, in its body, a statistic over the same axis under the same mask."""
    b = Build()
    q, k = b.axes(40, 40)
    c, x, y = b.less(axis(k), axis(q) + 1), b.load("X", k), b.load("Y", k)
    total, most = (
        b.sum(k, b.t.apply("mask", c, y)),
        b.t.reduce("max", (k,), b.where(c, y, b.ninf())),
    )
    body = {
        "product": b.t.apply("mask", c, b.mul(x, total)),
        "beside": b.add(b.t.apply("mask", c, x), total),
        "exponent": b.t.apply("mask", c, b.un("exp2", b.add(y, b.mul(b.c(-1), most)))),
    }[kind]
    b.out("O", b.sum(k, body), q)
    return b.kernel()


def split_fold() -> Kernel:
    """Parts over an inner axis, folded over the outer one; the inner is masked at its end."""
    b = Build()
    q, o, n = b.axes(12, 5, 8)
    b.buffer("S", (12, 37))
    b.buffer("V", (37,))
    k = axis(o) * 8 + axis(n)
    a = b.where(b.less(k, 37), b.at("S", axis(q), k), b.ninf())
    v = b.t.apply("mask", b.less(k, 37), b.at("V", k))
    part = b.t.reduce("part", (n,), a, v)
    most = b.t.reduce("max", (n,), a)
    b.out("Y", b.t.reduce("fold", (o,), most, part), q)
    return b.kernel()


def merged_heads() -> Kernel:
    """Two axes stored as one dim; a weight read at a sum of axes."""
    b = Build()
    t, h, d, o = b.axes(14, 3, 8, 20)
    b.buffer("W", (20, 24))
    x = b.load("X", h, t, d)
    y = b.sum((h, d), b.mul(x, b.at("W", axis(o), axis(h) * 8 + axis(d))))
    b.out("Y", y, t, o)
    shape = Buffer("Z", float32, (14, 24))
    b.outputs.append(Output(shape, (axis(t), axis(h) * 8 + axis(d)), b.mul(x, x)))
    return b.kernel()


def logsumexp() -> Kernel:
    b = Build()
    r, c = b.axes(8, 90)
    x = b.load("X", r, c)
    total = b.t.reduce("fold", (c,), x, b.c(1))
    b.out("L", b.add(b.t.reduce("max", (c,), x), b.un("log2", total)), r)
    return b.kernel()


def empty_rows(n: int) -> Kernel:
    b = Build()
    r, c = b.axes(5, n)
    b.out("S", b.sum(c, b.load("X", r, c)), r)
    b.out("Y", b.mul(b.load("X", r, c), b.c(2)), r, c)
    return b.kernel()


s = Dim("kernels_s", 1, 96)
z = Dim("kernels_z", 1, 40)
HALF = float16

CASES: dict[str, Callable[[], Kernel]] = {
    "matmul": matmul,
    "matmul_ta": lambda: matmul(ta=True),
    "matmul_tb": lambda: matmul(tb=True),
    "matmul_tatb": lambda: matmul(ta=True, tb=True),
    "products": products,
    "batched": batched,
    "batched_bf16": lambda: batched(bfloat16),
    "batched_f16": lambda: batched(HALF),
    "batched_f64": lambda: batched(float64),
    "gelu_chain": gelu_chain,
    "fold": fold,
    "fold_causal": lambda: fold("causal"),
    "fold_window": lambda: fold("window"),
    "fold_apart": lambda: fold("apart"),
    "fold_added": lambda: fold("added"),
    "fold_strict": lambda: fold("strict"),
    "fold_bias": lambda: fold("bias"),
    "fold_buffer": lambda: fold("buffer"),
    "softmax": lambda: softmax(two_pass=False),
    "softmax_two_pass": lambda: softmax(two_pass=True),
    "layernorm": layernorm,
    "rms_linear": rms_linear,
    "conv": conv,
    "conv_unit": lambda: conv(1),
    "masked_product": masked_product,
    "counted": counted,
    "embedding": embedding,
    "take_twice": take_twice,
    "maxima_f32": lambda: maxima(float32),
    "maxima_i32": lambda: maxima(int32),
    "maxima_bool": lambda: maxima(bool_),
    "integers_i8": lambda: integers(int8),
    "integers_u8": lambda: integers(uint8),
    "integers_i32": lambda: integers(int32),
    "integers_i64": lambda: integers(int64),
    "remainders_i8": lambda: remainders(int8, 1, 16, 64, 5, -4),
    "remainders_u8": lambda: remainders(uint8, 1, 16, 128, 255, 7),
    "remainders_i32": lambda: remainders(int32, 1, 4096, 1 << 30, 10, -16),
    "remainders_i64": lambda: remainders(int64, 2, 1 << 40, 1000),
    "casts": casts,
    "chain": chain,
    "self_product": self_product,
    "masked_twice": lambda: masked_twice("product"),
    "masked_beside": lambda: masked_twice("beside"),
    "masked_exponent": lambda: masked_twice("exponent"),
    "split_fold": split_fold,
    "merged_heads": merged_heads,
    "logsumexp": logsumexp,
    "empty": lambda: empty_rows(0),
}
SYMBOLIC: dict[str, Callable[[], Kernel]] = {
    "matmul_sym": lambda: matmul(m=s, k=z),
    "fold_sym": lambda: fold("", n=s, m=z),
    "fold_causal_sym": lambda: fold("causal", n=s, m=s),
    "fold_window_sym": lambda: fold("window", n=s, m=s),
}


def data(kernel: Kernel, seed: int = 0, symbols: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Random inputs: floats around 0, whole numbers over a range that wraps, indices in range."""
    random = np.random.default_rng(seed)
    found = {}
    for b in kernel.inputs:
        shape = [int(evaluate(n, symbols or {})) for n in b.shape]
        if b.dtype == bool_:
            x: Any = random.random(shape) < 0.6
        elif b.name.startswith(("ids", "order", "pick")):
            x = random.integers(0, 12 if b.name == "ids" else 30, shape)
        elif b.dtype.is_float:
            x = random.standard_normal(shape)
        else:
            info = np.iinfo(b.dtype.numpy)
            x = random.integers(max(info.min, -(2**40)), min(info.max, 2**40), shape)
        found[b.name] = np.asarray(x).astype(b.dtype.numpy)
    return found
