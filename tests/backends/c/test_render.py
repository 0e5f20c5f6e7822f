"""Rendered C of hand-made tile programs against NumPy: layouts, tails, dtypes, NaN and inf."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from programs import (
    Library,
    a,
    attention,
    gelu,
    index,
    layernorm,
    lit,
    load,
    loops,
    matmul,
    op,
    program,
    ref,
    softmax,
)  # fmt: skip

from lambent.backends.base import LACKING
from lambent.backends.c.layout import Layout
from lambent.backends.c.render import Renderer
from lambent.backends.c.target import Target
from lambent.backends.cpu.features import detect
from lambent.backends.roles import later
from lambent.graph.dim import Dim, axis, evaluate, value
from lambent.graph.dtypes import (
    DTYPES,
    DType,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
)  # fmt: skip
from lambent.kernel.tile import (
    Accumulate,
    Dot,
    For,
    Let,
    Reduce,
    Schedule,
    Store,
    TileProgram,
    Value,
    Var,
)  # fmt: skip

Array = np.ndarray[Any, Any]
NATIVE = Target(detect().vector_bytes)
s = Dim("render_s", 0, 300)
INTS = (int8, int16, int32, int64, uint8)


def opts(**options: int) -> dict[str, Any]:
    return {"options": tuple(sorted(options.items()))}


def reduction(how: str, axes: set[int], dtype: DType = float32, **tiles: int) -> TileProgram:
    """Y = how over axes of X[s, 70, 3]."""
    extents = {0: (s, tiles.get("a", 300)), 1: (70, tiles.get("b", 70)), 2: (3, 3)}
    left = [i for i in range(3) if i not in axes]
    x = load("X", a(0), a(1), a(2), dtype=dtype)
    value_ = Reduce(how, frozenset(axes), x)
    body = (Let("r", value_), Store("Y", tuple(map(a, left)), ref("r", *left, dtype=dtype)))
    looped = [i for i in left if i < 2 and "ab"[i] in tiles]
    statement = [loops(extents, looped, *body)] if looped else list(body)
    shapes = {"Y": tuple(extents[i][0] for i in left)}
    return program(statement, extents, shapes, {"X": (s, 70, 3)}, {"X": dtype, "Y": dtype})


def product(
    sums: set[int], x: Value, y: Value, out: list[int], shapes: dict[str, Any], **extents: int
) -> TileProgram:
    """Y[out] = Σ over sums of x·y, all axes whole; extents by axis as e0, e1, …"""
    axes = {int(name[1:]): (n, n) for name, n in extents.items()}
    body = (
        Let("p", Dot(frozenset(sums), x, y)),
        Store("Y", tuple(map(a, out)), op("add", ref("p", *out), lit(1.0))),
    )
    shape = tuple(axes[i][0] for i in out)
    return program(body, axes, {"Y": shape}, shapes)


def convolution() -> TileProgram:
    """Y[o, y, x] = Σ valid · X[c, y + i − 1, x + j − 1] · W[o, c, i, j]"""
    o, y, x, c, i, j = range(6)
    axes = {o: (7, 7), y: (9, 4), x: (21, 21), c: (3, 3), i: (3, 3), j: (3, 3)}
    u, v = a(y) + a(i) - 1, a(x) + a(j) - 1

    def less(p: Value, q: Value) -> Value:
        return op("less", p, q, dtype=bool_)

    def both(p: Value, q: Value) -> Value:
        return op("mask", p, q, dtype=bool_)

    inside = both(
        both(
            op("less", index(-1), index(u), dtype=bool_),
            op("less", index(u), index(9), dtype=bool_),
        ),
        both(
            op("less", index(-1), index(v), dtype=bool_),
            op("less", index(v), index(21), dtype=bool_),
        ),
    )
    body = (
        Let("x", op("mask", inside, load("X", a(c), u, v))),
        Let(
            "p",
            Dot(frozenset({c, i, j}), ref("x", c, y, i, x, j), load("W", a(o), a(c), a(i), a(j))),
        ),
        Store("Y", (a(o), a(y), a(x)), ref("p", o, y, x)),
    )
    shapes = {"X": (3, 9, 21), "W": (7, 3, 3, 3)}
    return program([loops(axes, (y,), *body)], axes, {"Y": (7, 9, 21)}, shapes)


def embedding() -> TileProgram:
    """Y[t, c] = E[ids[t] + 1, 19 − c]: gathered rows that may be outside, read backwards."""
    axes = {0: (s, 16), 1: (20, 20)}
    body = (
        Let("id", load("ids", a(0), dtype=int32)),
        Store("Y", (a(0), a(1)), load("E", value(ref("id", 0, dtype=int32)) + 1, 19 - a(1))),
    )
    shapes = {"ids": (s,), "E": (12, 20)}
    return program([loops(axes, (0,), *body)], axes, {"Y": (s, 20)}, shapes, {"ids": int32})


def copies() -> dict[str, TileProgram]:
    i, j = 0, 1
    axes = {i: (s, 40), j: (45, 24)}
    turned = Store("Y", (a(i), a(j)), load("X", a(j), a(i)))
    folded = Store("Y", (a(i) * 45 + a(j),), load("X", (a(i) * 45 + a(j)) // 7))
    shifted = Store("Y", (a(i), a(j)), load("X", a(i), a(j) - 20 + a(i)))
    return {
        "transpose": program([loops(axes, (i, j), turned)], axes, {"Y": (s, 45)}, {"X": (45, s)}),
        "folded": program([loops(axes, (i, j), folded)], axes, {"Y": (s * 45,)}, {"X": (s * 7,)}),
        "shifted": program([loops(axes, (i, j), shifted)], axes, {"Y": (s, 45)}, {"X": (s, 45)}),
    }


def two_sums() -> TileProgram:
    """Accumulators of one value each beside a tile; every kind of Accumulate."""
    i, k = 0, 1
    axes = {i: (37, 16), k: (50, 8)}
    x = load("X", a(i), a(k))
    body = (
        Var("sum", (i,), float32, 0.5),
        Var("top", (i,), float32, -math.inf),
        Var("any", (), float32, -math.inf),
        Var("count", (i,), int64, 0),
        For(
            k, 0, 50,
            (
                Accumulate("sum", "sum", Reduce("sum", frozenset({k}), x), lit(0.5)),
                Accumulate("top", "max", Reduce("max", frozenset({k}), x)),
                Accumulate("any", "fmax", Reduce("fmax", frozenset({i, k}), x)),
                Accumulate("count", "sum", Reduce("sum", frozenset({k}), index(a(i) * a(k)))),
            ),
        ),
        Store("S", (a(i),), ref("sum", i)),
        Store("T", (a(i),), op("sub", ref("top", i), ref("any"))),
        Store("C", (a(i),), ref("count", i, dtype=int64)),
    )  # fmt: skip
    outputs = {"S": (37,), "T": (37,), "C": (37,)}
    return program([loops(axes, (i,), *body)], axes, outputs, {"X": (37, 50)}, {"C": int64})


def together(outputs: dict[str, Value], **inputs: DType) -> TileProgram:
    """Several elementwise outputs of one loop over s."""
    axes = {0: (s, 50)}
    dtypes = {name: v.dtype for name, v in outputs.items()} | inputs
    body = [loops(axes, (0,), *(Store(name, (a(0),), v) for name, v in outputs.items()))]
    shapes = dict.fromkeys(outputs, (s,)), dict.fromkeys(inputs, (s,))
    return program(body, axes, *shapes, dtypes)


BINARY = ("add", "sub", "mul", "mod", "fmax", "less", "eq", "select")
FLOATING = ("log2", "exp2", "sin", "sqrt", "recip")


def binary(name: str, x: Value, z: Value) -> Value:
    less, same = (op(n, x, z, dtype=bool_) for n in ("less", "eq"))
    if name == "select":
        return op("select", less, x, op("mask", same, z))
    return {"less": less, "eq": same}.get(name) or op(name, x, z, dtype=x.dtype)


KNOWN = [d for d in DTYPES.values() if d.name not in LACKING["cpu"]]


def names_of(dtype: DType) -> list[str]:
    return [n for n in BINARY if dtype != bool_ or n in ("less", "eq", "select")]


def maps() -> dict[str, TileProgram]:
    """Elementwise programs: every op of every dtype that it makes sense for, all casts."""
    out: dict[str, TileProgram] = {}
    for d in KNOWN:
        x, z = load("X", a(0), dtype=d), load("Z", a(0), dtype=d)
        out[f"maps_{d}"] = together({n: binary(n, x, z) for n in names_of(d)}, X=d, Z=d)
        casts = {str(e): op("cast", x, dtype=e) for e in KNOWN}
        out[f"casts_{d}"] = together(casts, X=d)
    x, f = load("X", a(0)), load("X", a(0), dtype=float64)
    out["floating"] = together({n: op(n, f) for n in FLOATING}, X=float64)
    out["mods"] = together({n: op("mod", x, lit(by)) for n, by in MODS.items()}, X=float32)
    p, q = (load(n, a(0), dtype=bool_) for n in "XZ")
    out["logic"] = together({"Y": op("not", op("mask", p, q))}, X=bool_, Z=bool_)
    return out


MODS = {"one": 1.0, "half": 0.5, "third": 3.0}
SHAPES = [(False, False), (True, False), (False, True), (True, True)]


def everything() -> dict[str, TileProgram]:
    out = {
        f"mm{ta:d}{tb:d}{o}": matmul(45, 70, 50, (30, 32, 16), ta, tb, **schedule)
        for ta, tb in SHAPES
        for o, schedule in enumerate(
            (opts(), opts(pack_a=1, pack_b=1) | {"block": (4, 3)}, opts(pack_a=0, pack_b=0))
        )
    }
    out |= {f"mm_sym{tb:d}": matmul(s, 33, s, (48, 40, 64), tb=tb) for tb in (False, True)}
    out |= {f"mm_{d}": matmul(29, 30, 31, (29, 16, 31), dtype=d) for d in (float64, int32, float16)}
    out |= {
        "attention": attention(2, s, 16, 30, 32), "causal": attention(2, s, 16, 24, 8, causal=True),
        "softmax": softmax(s, s), "softmax_rows": softmax(s, s, 7), "layernorm": layernorm(s, 90),
        "layernorm_rows": layernorm(s, 33, 4), "gelu": gelu(s, 100), "conv": convolution(),
        "embedding": embedding(), "two_sums": two_sums(),
        "matvec": product({1}, load("A", a(0), a(1)), load("x", a(1)), [0],
                          {"A": (40, 77), "x": (77,)}, e0=40, e1=77),
        "vecmat": product({1}, load("x", a(1)), load("A", a(1), a(0)), [0],
                          {"x": (77,), "A": (77, 44)}, e0=44, e1=77),
        "batched": product({3}, load("A", a(0), a(1), a(3)), load("B", a(0), a(3), a(2)), [0, 1, 2],
                           {"A": (3, 11, 9), "B": (3, 9, 13)}, e0=3, e1=11, e2=13, e3=9),
        "depthwise": product({1}, load("A", a(2), a(1), a(0)), load("w", a(1), a(0)), [2, 0],
                             {"A": (5, 3, 40), "w": (3, 40)}, e0=40, e1=3, e2=5),
        "two_axes": product({2, 3}, load("A", *map(a, (0, 2, 3))), load("B", *map(a, (2, 3, 1))),
                            [1, 0],
                            {"A": (19, 4, 6), "B": (4, 6, 26)}, e0=19, e1=26, e2=4, e3=6),
        "outer": product({2}, load("x", a(0), a(2)), load("y", a(1), a(2)), [0, 1],
                         {"x": (9, 1), "y": (17, 1)}, e0=9, e1=17, e2=1),
    }  # fmt: skip
    for how in ("sum", "max", "fmax"):
        out |= {f"{how}_{name}": reduction(how, axes) for name, axes in REDUCED.items()}
    out["sum_blocks"] = reduction("sum", {0}, b=16)
    out |= {f"sum_{d}": reduction("sum", {1, 2}, d, a=8) for d in (*INTS, float64, bool_)}
    out |= {f"max_{d}": reduction("max", {0}, d, b=70) for d in (*INTS, float64, bool_)}
    return out | copies() | maps()


REDUCED = {"all": {0, 1, 2}, "rows": {0}, "columns": {1, 2}, "inner": {2}, "outer": {0, 1}}


@pytest.fixture(scope="module")
def run() -> Library:
    return Library(everything(), NATIVE)


@pytest.fixture(scope="module")
def narrow_and_wide() -> list[Library]:
    some = {n: p for n, p in everything().items() if not n.startswith(("maps", "casts"))}
    few = dict(list(some.items())[::5])
    return [Library(few, Target(16)), Library(few, Target(64))]


def at(n: int) -> dict[str, int]:
    return {"render_s": n}


def random(*shape: int, dtype: DType = float32, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    if dtype == bool_:
        return rng.random(shape) < 0.4
    if dtype.is_float:
        return (rng.standard_normal(shape) * 3).astype(dtype.numpy)
    info = np.iinfo(dtype.numpy)
    return rng.integers(info.min, info.max, shape, dtype.numpy, endpoint=True)


def close(got: Array, want: Array, rtol: float = 2e-6) -> None:
    scale = float(np.abs(want[np.isfinite(want)]).max(initial=1e-3))
    np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * scale)


@pytest.mark.parametrize(("ta", "tb"), SHAPES)
@pytest.mark.parametrize("schedule", range(3))
def test_matmul(run: Library, ta: bool, tb: bool, schedule: int) -> None:
    x, y = random(45, 50), random(50, 70, seed=1)
    given = [x.T if ta else x, y.T if tb else y]
    (c,) = run(f"mm{ta:d}{tb:d}{schedule}", given, [(45, 70)])
    close(c, x.astype(np.float64) @ y)


@pytest.mark.parametrize("n", [0, 1, 5, 31, 100, 150])
def test_symbolic_matmul(run: Library, n: int) -> None:
    x, y = random(n, n), random(n, 33, seed=1)
    for tb in (False, True):
        (c,) = run(f"mm_sym{tb:d}", [x, y.T if tb else y], [(n, 33)], at(n))
        close(c, x.astype(np.float64) @ y)


@pytest.mark.parametrize("dtype", [float64, int32, float16])
def test_matmul_of_other_dtypes(run: Library, dtype: DType) -> None:
    x, y = random(29, 31, dtype=dtype), random(31, 30, dtype=dtype, seed=1)
    (c,) = run(f"mm_{dtype}", [x, y], [(29, 30)])
    if dtype == int32:
        assert np.array_equal(c, x @ y)
    else:
        close(c, x.astype(float) @ y.astype(float), 1e-3 if dtype == float16 else 1e-13)


def normalised(scores: Array) -> Array:
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("n", [0, 1, 7, 30, 64, 100])
def test_one_pass_weights(run: Library, n: int) -> None:
    q, k, v = (random(2, n, 16, seed=i) for i in range(3))
    scores = q.astype(np.float64) @ k.swapaxes(1, 2) / 4
    keep = np.tril(np.ones((n, n), bool))
    if n:
        (o,) = run("attention", [q, k, v], [q.shape], at(n))
        close(o, normalised(scores) @ v)
        (o,) = run("causal", [q, k, v], [q.shape], at(n))
        close(o, normalised(np.where(keep, scores, -np.inf)) @ v)
    else:
        assert run("attention", [q, k, v], [q.shape], at(0))[0].size == 0


@pytest.mark.parametrize("n", [0, 1, 9, 33, 200])
def test_rows(run: Library, n: int) -> None:
    x = random(n, n)
    if n:
        for name in ("softmax", "softmax_rows"):
            close(run(name, [x], [x.shape], at(n))[0], normalised(x.astype(np.float64)))
    for name, width in (("layernorm", 90), ("layernorm_rows", 33)):
        x, g, b = random(n, width), random(width, seed=1), random(width, seed=2)
        y = x.astype(np.float64)
        want = (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + 1e-5) * g + b
        close(run(name, [x, g, b], [x.shape], at(n))[0], want, 1e-5)
    x = random(n)
    want = x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x.astype(np.float64) ** 3)))
    close(run("gelu", [x], [x.shape], at(n))[0], want)


def test_a_row_of_nan_or_infinities_stays_its_own(run: Library) -> None:
    x = random(8, 8)
    x[1, 3], x[2, 5], x[3, :], x[4, 0] = np.nan, np.inf, -np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        want = normalised(x.astype(np.float64))
    close(run("softmax_rows", [x], [x.shape], at(8))[0], want)
    assert np.isnan(want[1:4]).all() and np.isfinite(want[4:]).all()


def test_products(run: Library) -> None:
    def check(name: str, x: Array, y: Array, spec: str) -> None:
        want = np.einsum(spec, x.astype(float), y.astype(float)) + 1
        close(run(name, [x, y], [want.shape])[0], want)

    check("matvec", random(40, 77), random(77), "mk,k->m")
    check("vecmat", random(77), random(77, 44), "k,kn->n")
    check("batched", random(3, 11, 9), random(3, 9, 13), "bmk,bkn->bmn")
    check("depthwise", random(5, 3, 40), random(3, 40), "mkc,kc->mc")
    check("two_axes", random(19, 4, 6), random(4, 6, 26), "mkl,kln->nm")
    check("outer", random(9, 1), random(17, 1), "mk,nk->mn")


def test_convolution_with_a_border(run: Library) -> None:
    x, w = random(3, 9, 21), random(7, 3, 3, 3)
    padded = np.pad(x.astype(np.float64), ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))
    want = np.einsum("cyxij,ocij->oyx", windows, w)
    close(run("conv", [x, w], [want.shape])[0], want)
    x[:] = np.nan  # what lies outside is masked, never multiplied
    assert np.isnan(run("conv", [x, w], [want.shape])[0]).all()


@pytest.mark.parametrize("n", [0, 1, 17, 100])
def test_gathers_and_copies(run: Library, n: int) -> None:
    ids = np.random.default_rng(n).integers(-4, 16, n).astype(np.int32)
    table = random(12, 20)
    (y,) = run("embedding", [ids, table], [(n, 20)], at(n))
    assert np.array_equal(y, table[np.clip(ids + 1, 0, 11)][:, ::-1])
    x = random(45, n)
    assert np.array_equal(run("transpose", [x], [(n, 45)], at(n))[0], x.T)
    x = random(n * 7)
    assert np.array_equal(run("folded", [x], [(n * 45,)], at(n))[0], x[np.arange(n * 45) // 7])
    x = random(n, 45)
    i, j = np.indices((n, 45))
    where = np.clip(j - 20 + i, 0, 44)
    assert np.array_equal(run("shifted", [x], [(n, 45)], at(n))[0], x[i, where])


def test_accumulators(run: Library) -> None:
    x = random(37, 50)
    x[3, 4] = np.nan
    got, top, count = run("two_sums", [x], [(37,)] * 3)
    want = np.full(37, 0.5)
    for k in range(0, 50, 8):
        want = want * 0.5 + x[:, k : k + 8].sum(1, dtype=np.float64)
    close(got, want, 1e-5)
    tiles = np.concatenate(
        [np.repeat(np.nanmax(x[i : i + 16]), len(x[i : i + 16])) for i in (0, 16, 32)]
    )
    close(top, x.max(1) - tiles)
    assert np.isnan(top[3]) and np.array_equal(count, np.arange(37) * (49 * 50 // 2))


@pytest.mark.parametrize("how", ["sum", "max", "fmax"])
@pytest.mark.parametrize("n", [0, 1, 8, 45])
def test_reductions(run: Library, how: str, n: int) -> None:
    x = random(n, 70, 3)
    if n > 8:
        x[5, 7, 1], x[6, :, :] = np.nan, -np.inf
    for name, axes in REDUCED.items():
        dims = tuple(axes)
        if how == "sum":
            with np.errstate(invalid="ignore"):
                want = x.sum(dims, dtype=np.float64)
        else:
            f = np.maximum if how == "max" else np.fmax
            want = f.reduce(x, axis=dims, initial=-np.inf)
        close(run(f"{how}_{name}", [x], [want.shape], at(n))[0], want, 1e-5)
    if how == "sum":
        close(run("sum_blocks", [x], [(70, 3)], at(n))[0], x.sum(0, dtype=np.float64), 1e-5)


@pytest.mark.parametrize("n", [1, 8, 45])
@pytest.mark.parametrize("dtype", [*INTS, float64, bool_])
def test_reductions_of_other_dtypes(run: Library, dtype: DType, n: int) -> None:
    x = random(n, 70, 3, dtype=dtype)
    want = x.any((1, 2)) if dtype == bool_ else np.add.reduce(x, axis=(1, 2), dtype=x.dtype)
    close(run(f"sum_{dtype}", [x], [want.shape], at(n))[0], want, 1e-12)
    want = x.max(0)
    assert np.array_equal(run(f"max_{dtype}", [x], [want.shape], at(n))[0], want)


def special(n: int, dtype: DType, seed: int) -> Array:
    """Random values with everything odd among them."""
    x = random(n, dtype=dtype, seed=seed)
    if dtype.is_float and n > 8:
        x[:: 7 + seed] = np.nan
        x[1 :: 8 + seed], x[2 :: 9 + seed], x[3::11], x[4::13] = np.inf, -np.inf, 0.0, -0.0
    elif n > 8:
        x[:: 5 + seed], x[1::7] = 0, x.min()
        x[2 :: 3 + seed] = np.asarray(-1).astype(x.dtype) if dtype.kind == "i" else x.max()
    return x


@pytest.mark.parametrize("dtype", KNOWN, ids=str)
def test_maps(run: Library, dtype: DType) -> None:
    n = 107
    x, z = special(n, dtype, 0), special(n, dtype, 1)
    c, d = (v.astype(dtype.compute.numpy) for v in (x, z))
    functions: dict[str, Any] = {
        "add": np.add, "sub": np.subtract, "mul": np.multiply, "mod": np.mod, "fmax": np.fmax,
        "less": np.less, "eq": np.equal,
        "select": lambda p, q: np.where(p < q, p, np.where(p == q, q, np.zeros((), q.dtype))),
    }  # fmt: skip
    names = names_of(dtype)
    for name, got in zip(
        names, run(f"maps_{dtype}", [x, z], [(n,)] * len(names), at(n)), strict=True
    ):
        with np.errstate(all="ignore"):
            want = functions[name](c, d).astype(got.dtype)
        same(got, want, name)
        if dtype.is_float and name == "mod":
            assert np.array_equal(np.signbit(got), np.signbit(want))


def same(got: Array, want: Array, name: str = "") -> None:
    if got.dtype.itemsize == 2:  # ml_dtypes: NaN is not equal to itself
        got, want = got.astype(np.float64), want.astype(np.float64)
    np.testing.assert_array_equal(got, want, err_msg=name)


def test_mod_by_a_constant(run: Library) -> None:
    x = special(200, float32, 0) * np.float32(1e3)
    x[50:60] = [-1e-20, 1e-20, -0.25, 0.25, 1e9, -1e9, 3e38, -3e38, 8388609.5, -0.5]
    for by, got in zip(MODS.values(), run("mods", [x], [x.shape] * 3, at(200)), strict=True):
        with np.errstate(all="ignore"):
            same(got, np.mod(x, np.float32(by)), str(by))


def test_logic(run: Library) -> None:
    x, z = random(100, dtype=bool_), random(100, dtype=bool_, seed=1)
    assert np.array_equal(run("logic", [x, z], [(100,)], at(100))[0], ~(x & z))


@pytest.mark.parametrize("source", KNOWN, ids=str)
def test_casts(run: Library, source: DType) -> None:
    n = 101
    x = special(n, source, 0)
    if source.is_float:
        with np.errstate(over="ignore"):
            x[20:26] = np.asarray([300, -300, 1e5, -70000, 3e9, -5e9]).astype(x.dtype)
        x[np.isinf(x)] = 7  # NumPy leaves infinities as integers to the machine
    every = run(f"casts_{source}", [x], [(n,)] * len(KNOWN), at(n))
    for d, got in zip(KNOWN, every, strict=True):
        c: Array = x.astype(source.compute.numpy)
        with np.errstate(all="ignore"):
            if d.is_integer and source.is_float:
                c = np.nan_to_num(np.trunc(c), nan=0.0, posinf=7).astype(np.int64)
                c[np.isinf(x.astype(float))] = 7
            if d.is_float and d.itemsize < 4:
                c = c.astype(np.float32)  # narrow floats are made of a float32
            want = c.astype(d.numpy)
        same(got, want, str(d))


def test_float64_functions(run: Library) -> None:
    x = np.abs(random(90, dtype=float64)) + 0.1
    functions = (np.log2, np.exp2, np.sin, np.sqrt, np.reciprocal)
    for f, got in zip(functions, run("floating", [x], [x.shape] * 5, at(90)), strict=True):
        close(got, f(x), 1e-15)


def test_other_vector_widths_give_the_same(run: Library, narrow_and_wide: list[Library]) -> None:
    """Whatever the width, a program means the same (the results of sums differ by rounding)."""
    for library in narrow_and_wide:
        for name, p in library.programs.items():
            buffers = [*p.kernel.inputs, *(o.buffer for o in p.kernel.outputs)]
            shapes = {b.name: tuple(evaluate(n, at(43)) for n in b.shape) for b in buffers}
            given = [random(*shapes[b.name], dtype=b.dtype) for b in p.kernel.inputs]
            out = [shapes[o.buffer.name] for o in p.kernel.outputs]
            want = run(name, given, out, at(43))
            for x, y in zip(library(name, given, out, at(43)), want, strict=True):
                x, y = x.astype(float), y.astype(float)
                scale = max(1.0, float(np.abs(np.nan_to_num(y)).max(initial=0)))
                np.testing.assert_allclose(x, y, rtol=2e-3, atol=1e-5 * scale, err_msg=name)


def test_past_the_caches_and_ahead_of_the_next_task_the_same_is_computed(run: Library) -> None:
    """To the bit, at lengths whose rows are aligned and not; each kernel says it in its text."""
    names = ("softmax_rows", "layernorm_rows", "gelu", "transpose")
    schedule = Schedule(**opts(ahead=1, stream=1))
    programs = {name: replace(run.programs[name], schedule=schedule) for name in names}
    texts = [Renderer(p, "k", NATIVE).text() for p in programs.values()]
    assert all("stn_f32" in text for text in texts)
    assert ["prefetch" in text for text in texts] == [True, True, False, False]
    library = Library(programs, NATIVE)
    for name, p in programs.items():
        for n in (0, 1, 40, 43, 256):
            (out,) = (tuple(evaluate(e, at(n)) for e in o.buffer.shape) for o in p.kernel.outputs)
            shapes = [tuple(evaluate(e, at(n)) for e in b.shape) for b in p.kernel.inputs]
            given = [random(*shape, seed=i) for i, shape in enumerate(shapes)]
            x, y = (made(name, given, [out], at(n))[0] for made in (run, library))
            np.testing.assert_array_equal(x, y, err_msg=f"{name} at {n}")


def test_what_no_near_cache_holds_is_asked_for_some_way_ahead() -> None:
    sizes = (512, 64)  # of a square; of 64 only the nearest cache knows
    programs = [
        replace(matmul(n, n, n, (32, 32, 64)), schedule=Schedule(**opts(ahead=1))) for n in sizes
    ]
    texts = [Renderer(p, "k", NATIVE).text() for p in programs]
    assert ["__builtin_prefetch(" in text for text in texts] == [True, False]


def test_of_rows_that_are_apart_whole_rows_are_skipped() -> None:
    row, place = axis(0), axis(1)
    assert later(192 * row + place, (0,), 32, 512) == 16 * 192
    assert later(64 * row + place, (0,), 64, 512) == 512
    assert later(4096 * row + place, (0,), 1024, 512) == 512


def test_scratch_is_counted() -> None:
    p = matmul(512, 512, 512, (96, 128, 256))
    renderer = Renderer(p, "k", NATIVE)
    renderer.text()
    assert 4 * 96 * 128 <= renderer.scratch <= 4 * (96 * 128 + 256 * 128 + 96 * 256)


def test_what_one_statement_reads_is_no_tile() -> None:
    i, k = 0, 1
    axes = {i: (32, 32), k: (64, 64)}
    let = Let("t", op("exp2", load("X", a(i), a(k))))
    total = Let("s", Reduce("sum", frozenset({k}), op("mul", let.ref, let.ref)))
    body = (let, total, Store("Y", (a(i),), total.ref))
    more = Store("Z", (a(i), a(k)), let.ref)
    shapes = {"Y": (32,), "Z": (32, 64)}
    once = program(list(body), axes, {"Y": (32,)}, {"X": (32, 64)})
    twice = program([*body, more], axes, shapes, {"X": (32, 64)})
    texts = [Renderer(p, "k", NATIVE).text() for p in (once, twice)]
    assert [text.count("// t") for text in texts] == [0, 1]


@pytest.mark.parametrize(
    "of, n, tiles", [("add", 2, 0), ("add", 3, 1), ("mod", 2, 0), ("max", 2, 0)]
)
def test_what_is_quick_is_computed_twice_rather_than_kept(of: str, n: int, tiles: int) -> None:
    i, j, k = 0, 1, 2
    axes = {i: (32, 32), j: (n, n), k: (64, 64)}
    let = Let("t", op(of, load("X", a(i), a(k)), lit(16)))
    store = Store("Y", (a(i), a(j), a(k)), op("mul", let.ref, load("W", a(j))))
    p = program([let, store], axes, {"Y": (32, n, 64)}, {"X": (32, 64), "W": (n,)})
    assert Renderer(p, "k", NATIVE).text().count("// t") == tiles


def test_what_is_slow_is_kept() -> None:
    i, j = 0, 1
    let = Let("t", op("exp2", load("X", a(i))))
    store = Store("Y", (a(j), a(i)), op("mul", let.ref, load("W", a(j))))
    axes = {i: (32, 32), j: (2, 2)}
    p = program([let, store], axes, {"Y": (2, 32)}, {"X": (32,), "W": (2,)})
    assert Renderer(p, "k", NATIVE).text().count("// t") == 1


def test_a_chain_of_values_lies_as_the_first_is_read() -> None:
    i, k = 0, 1
    chain = [Let("t", load("X", a(k), a(i)))]
    for n in range(3):
        chain.append(Let(f"u{n}", op("add", chain[-1].ref, lit(1))))
    body = [*chain, Store("Y", (0,), lit(0))]
    p = program(body, {i: (32, 32), k: (32, 32)}, {"Y": (1,)}, {"X": (32, 32)})
    assert {Layout(p, NATIVE).inner[let.name] for let in chain} == {i}


@pytest.mark.parametrize(("rows", "packs"), [(3, 0), (4, 1)])
def test_what_few_rows_are_multiplied_with_is_read_as_it_lies(rows: int, packs: int) -> None:
    h, g, n, d = range(4)
    axes = {h: (3, 3), g: (rows, rows), n: (64, 64), d: (32, 32)}
    dot = Dot(frozenset({d}), load("Q", a(h), a(g), a(d)), load("K", a(n), a(h), a(d)))
    body = [Let("t", dot), Store("S", (a(h), a(g), a(n)), ref("t", h, g, n))]
    p = program(body, axes, {"S": (3, rows, 64)}, {"Q": (3, rows, 32), "K": (64, 3, 32)})
    text = Renderer(p, "k", NATIVE).text()
    assert text.count("%pack") == packs
    if not packs:  # the loops over the rows of K and its heads come first
        ends = [line.split("<")[1].split(";")[0] for line in text.splitlines() if "LOOP" in line]
        assert [int(end.split("=")[-1]) for end in ends[:3]] == [64, 3, 3]


@pytest.mark.parametrize(("rows", "sums"), [(3, 12), (2, 12), (6, 12)])
def test_a_block_of_few_rows_is_wider(rows: int, sums: int) -> None:
    p = matmul(rows, 8 * NATIVE.lanes, 16, (rows, 8 * NATIVE.lanes, 16), block=(6, 2))
    text = Renderer(p, "k", NATIVE).text()
    first = text.index("LOOP", text.index(" r_"))
    assert text[:first].count(" r_") == sums
