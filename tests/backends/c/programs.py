"""Hand-made tile programs and a way to run them: what the tests of the C renderer share."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lambent.algebra.term import Terms
from lambent.backends.base import kernel_symbols
from lambent.backends.c.prelude import prelude
from lambent.backends.c.render import render
from lambent.backends.c.target import Target
from lambent.backends.cpu.build import build, place
from lambent.graph.dim import Size, axis
from lambent.graph.dtypes import DType, bool_, float32, int64
from lambent.graph.prove import minimum
from lambent.kernel.kernel import Buffer, Kernel, Output
from lambent.kernel.tile import (
    Accumulate,
    Axis,
    Dot,
    For,
    Index,
    Let,
    Lit,
    Load,
    Map,
    Reduce,
    Ref,
    Schedule,
    Stmt,
    Store,
    TileProgram,
    Value,
    Var,
)  # fmt: skip


def a(i: int) -> Size:
    return axis(i)


def load(name: str, *index: Size, dtype: DType = float32) -> Load:
    return Load(name, index, dtype)


def lit(x: float, dtype: DType = float32) -> Lit:
    return Lit(x, dtype)


def ref(name: str, *axes: int, dtype: DType = float32) -> Ref:
    return Ref(name, frozenset(axes), dtype)


def op(name: str, *args: Value, dtype: DType | None = None) -> Map:
    return Map(name, args, dtype or args[-1].dtype)


def index(e: Size) -> Index:
    return Index(e, int64)


def program(
    body: Sequence[Stmt],
    axes: Mapping[int, tuple[Size, int]],
    outputs: Mapping[str, tuple[Size, ...]],
    inputs: Mapping[str, tuple[Size, ...]],
    dtypes: Mapping[str, DType] = {},
    **schedule: Any,
) -> TileProgram:
    """A tile program whose kernel has the right buffers and extents; its terms do not matter."""
    term = Terms().const(0, float32)
    extents = {i: e for i, (e, _) in axes.items()}

    def buffer(name: str, shape: tuple[Size, ...]) -> Buffer:
        return Buffer(name, dtypes.get(name, float32), shape)

    kernel = Kernel(
        tuple(Output(buffer(n, s), (), term) for n, s in outputs.items()),
        tuple(buffer(n, s) for n, s in inputs.items()),
        extents,
    )
    return TileProgram(
        kernel, {i: Axis(e, t) for i, (e, t) in axes.items()}, tuple(body), Schedule(**schedule)
    )


class Library:
    """Programs compiled together."""

    def __init__(self, programs: Mapping[str, TileProgram], target: Target) -> None:
        self.programs = programs
        parts = [prelude(target)]
        for name, p in programs.items():
            parts.append(render(p, name, target))
            parts.append(
                f'__attribute__((visibility("default"))) void run_{name}(void *const *buf, '
                f"const int64_t *size, int64_t first) {{ int64_t n = {name}_tasks(size); "
                f"for (int64_t t = first; t < n; t++) {name}_run(t, buf, size); }}"
            )
        self.text = "\n".join(parts)
        self.library = ctypes.CDLL(str(place(build(self.text, keep=False))))

    def entry(self, name: str) -> Any:
        f = getattr(self.library, f"run_{name}")
        f.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
        f.restype = None
        return f

    def __call__(
        self, name: str, inputs: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]],
        symbols: Mapping[str, int] = {},
    ) -> list[np.ndarray]:  # fmt: skip
        """Run it. Outputs start as garbage and end at guard elements, which are checked."""
        kernel = self.programs[name].kernel
        outputs, guarded = [], []
        for o, shape in zip(kernel.outputs, shapes, strict=True):
            n = int(np.prod(shape))
            whole = np.full(n + 64, 77, o.buffer.dtype.numpy)
            guarded.append(whole[n:])
            outputs.append(whole[:n].reshape(shape))
        arrays = [*outputs, *(np.ascontiguousarray(x) for x in inputs)]
        buf = (ctypes.c_void_p * len(arrays))(*(x.ctypes.data for x in arrays))
        sizes = [symbols[s] for s in kernel_symbols(kernel)]
        self.entry(name)(buf, (ctypes.c_int64 * (len(sizes) + 1))(*sizes, 0), 0)
        for guard in guarded:
            assert (guard == np.asarray(77, guard.dtype)).all(), f"{name} wrote beyond its output"
        return outputs


# ---- programs that several tests run ----

LOG2E = math.log2(math.e)
M, N, K = 0, 1, 2


def loops(axes: Mapping[int, tuple[Size, int]], order: Sequence[int], *body: Stmt) -> Stmt:
    """Parallel loops over whole axes, outermost first."""
    inner = body
    for i in reversed(order):
        inner = (For(i, 0, axes[i][0], tuple(inner), True),)
    return inner[0]


def matmul(
    m: Size, n: Size, k: Size, tiles: tuple[int, int, int], ta: bool = False, tb: bool = False,
    dtype: DType = float32, **schedule: Any,
) -> TileProgram:  # fmt: skip
    """C = A·B, its sum cut in tiles."""
    axes = {M: (m, tiles[0]), N: (n, tiles[1]), K: (k, tiles[2])}
    x = load("A", a(K), a(M), dtype=dtype) if ta else load("A", a(M), a(K), dtype=dtype)
    y = load("B", a(N), a(K), dtype=dtype) if tb else load("B", a(K), a(N), dtype=dtype)
    body = (
        Var("acc", (M, N), dtype, 0.0),
        For(K, 0, k, (Accumulate("acc", "sum", Dot(frozenset({K}), x, y)),)),
        Store("C", (a(M), a(N)), ref("acc", M, N, dtype=dtype)),
    )
    shapes = {"A": (k, m) if ta else (m, k), "B": (n, k) if tb else (k, n)}
    dtypes = dict.fromkeys("ABC", dtype)
    return program([loops(axes, (M, N), *body)], axes, {"C": (m, n)}, shapes, dtypes, **schedule)


def attention(
    heads: int, n: Size, d: int, tq: int, tk: int, causal: bool = False, **schedule: Any
) -> TileProgram:
    """The one-pass form, with the loop cut in two where it is causal."""
    h, q, k, p, v = range(5)
    s, m, top, w = ref("s", q, k), ref("m", q), ref("top", q), ref("w", q, k)

    def part(masked: bool) -> tuple[Stmt, ...]:
        dot = Dot(frozenset({p}), load("Q", a(h), a(q), a(p)), load("K", a(h), a(k), a(p)))
        scaled = op("mul", ref("dot", q, k), lit(LOG2E / math.sqrt(d)))
        if masked:
            later = op("less", index(a(q)), index(a(k)), dtype=bool_)
            scaled = op("select", later, lit(-math.inf), scaled)
        none = op("eq", top, lit(-math.inf), dtype=bool_)
        return (
            Let("dot", dot),
            Let("s", scaled),
            Let("best", Reduce("fmax", frozenset({k}), s)),
            Let("top", op("fmax", m, ref("best", q))),
            Let("safe", op("select", none, lit(0.0), top)),
            Let("alpha", op("exp2", op("sub", m, ref("safe", q)))),
            Let("w", op("exp2", op("sub", s, ref("safe", q)))),
            Accumulate("l", "sum", Reduce("sum", frozenset({k}), w), ref("alpha", q)),
            Accumulate(
                "acc", "sum", Dot(frozenset({k}), w, load("V", a(h), a(k), a(v))), ref("alpha", q)
            ),
            Accumulate("m", "max", top),
        )

    cut = (a(q) // tk) * tk
    ranges = [For(k, 0, n, part(False))]
    if causal:
        ranges = [For(k, 0, cut, part(False)), For(k, cut, minimum(a(q) + tq, n), part(True))]
    body = (
        Var("m", (q,), float32, -math.inf),
        Var("l", (q,), float32, 0.0),
        Var("acc", (q, v), float32, 0.0),
        *ranges,
        Store("O", (a(h), a(q), a(v)), op("mul", ref("acc", q, v), op("recip", ref("l", q)))),
    )
    axes: dict[int, tuple[Size, int]] = {
        h: (heads, 1),
        q: (n, tq),
        k: (n, tk),
        p: (d, d),
        v: (d, d),
    }
    shape = (heads, n, d)
    inputs = {"Q": shape, "K": shape, "V": shape}
    return program([loops(axes, (h, q), *body)], axes, {"O": shape}, inputs, **schedule)


def softmax(rows: Size, columns: Size, tile: int = 1) -> TileProgram:
    r, c = 0, 1
    axes = {r: (rows, tile), c: (columns, 4096)}
    x = load("X", a(r), a(c))
    e = op("exp2", op("mul", op("sub", x, ref("m", r)), lit(LOG2E)))
    body = (
        Let("m", Reduce("max", frozenset({c}), x)),
        Let("e", e),
        Let("z", Reduce("sum", frozenset({c}), ref("e", r, c))),
        Store("Y", (a(r), a(c)), op("mul", ref("e", r, c), op("recip", ref("z", r)))),
    )
    shape = (rows, columns)
    return program([loops(axes, (r,), *body)], axes, {"Y": shape}, {"X": shape})


def layernorm(rows: Size, columns: Size, tile: int = 1) -> TileProgram:
    r, c = 0, 1
    axes = {r: (rows, tile), c: (columns, 4096)}
    share = op("recip", op("cast", index(columns), dtype=float32))
    x = load("X", a(r), a(c))
    centred = op("sub", x, ref("mean", r))
    scale = op("recip", op("sqrt", op("add", op("mul", ref("v", r), share), lit(1e-5))))
    out = op("add", op("mul", op("mul", centred, ref("s", r)), load("G", a(c))), load("B", a(c)))
    body = (
        Let("t", Reduce("sum", frozenset({c}), x)),
        Let("mean", op("mul", ref("t", r), share)),
        Let("v", Reduce("sum", frozenset({c}), op("mul", centred, centred))),
        Let("s", scale),
        Store("Y", (a(r), a(c)), out),
    )
    shapes = {"X": (rows, columns), "G": (columns,), "B": (columns,)}
    return program([loops(axes, (r,), *body)], axes, {"Y": (rows, columns)}, shapes)


def gelu(n: Size, tile: int) -> TileProgram:
    """The tanh form, as x·(1 − 1 / (1 + e^2z))."""
    x = load("X", a(0))
    cube = op("mul", op("mul", op("mul", x, x), x), lit(0.044715))
    z2 = op("mul", op("add", x, cube), lit(2 * LOG2E * math.sqrt(2 / math.pi)))
    y = op("mul", x, op("sub", lit(1.0), op("recip", op("add", lit(1.0), op("exp2", z2)))))
    return elementwise(y, n, tile)


def elementwise(y: Value, n: Size, tile: int = 4096) -> TileProgram:
    """Y[i] = y over a buffer X of one dim."""
    axes = {0: (n, tile)}
    body = [loops(axes, (0,), Store("Y", (a(0),), y))]
    return program(body, axes, {"Y": (n,)}, {"X": (n,)})
