"""Composed ops, compiled for this machine, against the reference in float64.

A few ops at a time are the outputs of one graph: a search with next to no budget takes the first
program that verifies, which is enough to run every stage on every op.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import lambent as lt
from lambent.graph.dtypes import DTYPES
from lambent.graph.node import topo
from lambent.graph.tensor import Tensor

Array = np.ndarray[Any, Any]
Outputs = dict[str, Tensor]
FUNCTIONS = """
    exp exp2 expm1 sin cos tan tanh sigmoid erf relu gelu silu softplus mish hardswish hardsigmoid
    leaky_relu elu
"""
SPECIAL = "isnan isinf isfinite abs sign floor exp tanh sigmoid erf relu gelu silu sqrt"
EPS = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 2e-5, "float64": 1e-12}


class Given:
    """Inputs of one graph with their arrays; a symbolic shape gets one array for each size."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(0)
        self.draws: dict[str, Callable[[dict[str, int]], Array]] = {}

    def of(self, shape: tuple[Any, ...], dtype: str, draw: Callable[[Any], Any]) -> Tensor:
        name = f"x{len(self.draws)}"
        tensor = lt.input(name, shape, dtype)

        def make(sizes: dict[str, int]) -> Array:
            numbers = [d if isinstance(d, int) else sizes[str(d)] for d in shape]
            return np.asarray(draw(numbers)).astype(tensor.dtype.numpy)

        self.draws[name] = make
        return tensor

    def floats(self, *shape: Any, dtype: str = "float32") -> Tensor:
        return self.of(shape, dtype, self.random.standard_normal)

    def positive(self, *shape: Any, dtype: str = "float32") -> Tensor:
        return self.of(shape, dtype, lambda s: self.random.uniform(0.2, 3.0, s))

    def ints(self, *shape: Any, low: int = -9, high: int = 10, dtype: str = "int32") -> Tensor:
        return self.of(shape, dtype, lambda s: self.random.integers(low, high, s))

    def bools(self, *shape: Any) -> Tensor:
        return self.of(shape, "bool", lambda s: self.random.random(s) < 0.5)

    def values(self, *values: Any, dtype: str = "float32") -> Tensor:
        array = np.array(values)
        return self.of(array.shape, dtype, lambda s: array)

    def arrays(self, **sizes: int) -> dict[str, Array]:
        return {name: make(sizes) for name, make in self.draws.items()}


def close(name: str, got: Array, want: Array, eps: float) -> None:
    assert got.shape == want.shape, f"{name}: shape {got.shape}, not {want.shape}"
    if want.dtype.kind in "biu":
        np.testing.assert_array_equal(got, want, err_msg=name)
        return
    a, b = got.astype(np.float64), want.astype(np.float64)
    finite = b[np.isfinite(b)]
    scale = float(np.abs(finite).mean()) if finite.size else 0.0
    np.testing.assert_allclose(a, b, rtol=eps, atol=eps * scale, err_msg=name)


def compiled(outputs: Outputs) -> Any:
    return lt.compile(outputs, budget=0.01, progress=False)


def parts(outputs: Outputs, together: int = 6) -> Iterator[Outputs]:
    """A few outputs at a time: search takes more than linear time in their number."""
    names = list(outputs)
    for i in range(0, len(names), together):
        yield {name: outputs[name] for name in names[i : i + together]}


def compare(program: Any, outputs: Outputs, given: Given, eps: float = 0.0, **sizes: int) -> None:
    names = {n.attr for n in topo([t.node for t in outputs.values()]) if n.op == "input"}
    arrays = {k: a for k, a in given.arrays(**sizes).items() if k in names}
    found = program(**arrays)
    wanted = lt.evaluate(list(outputs.values()), arrays, float64=True)
    faults = []
    for (name, tensor), want in zip(outputs.items(), wanted, strict=True):
        assert found[name].dtype == tensor.dtype.numpy, name
        try:
            close(name, found[name], want, max(eps, EPS.get(tensor.dtype.name, 0.0)))
        except AssertionError as fault:
            faults.append(str(fault))
    assert not faults, "\n".join(faults)


# ---- element by element ----------------------------------------------------------------------


def arithmetic(g: Given) -> Outputs:
    x, y, p = g.floats(3, 7), g.floats(7), g.positive(3, 1)
    return {
        "add": x + y, "sub": x - p, "mul": x * y, "div": x / p, "rsub": 1.0 - x, "neg": -x,
        "pow": p**x, "square": lt.square(x), "cube": x**3, "abs": lt.abs(x), "sign": lt.sign(x),
        "floor": lt.floor(x), "ceil": lt.ceil(x), "trunc": lt.trunc(x), "round": lt.round(x),
        "clip": lt.clip(x, -0.5, 0.5), "maximum": lt.maximum(x, y), "minimum": lt.minimum(x, p),
        "floor_divide": x // p, "remainder": x % p, "reciprocal": lt.reciprocal(p),
        "where": lt.where(x > y, x, p), "sqrt": lt.sqrt(p), "rsqrt": lt.rsqrt(p),
    }  # fmt: skip


def functions(g: Given) -> Outputs:
    x, p = g.floats(4, 9), g.positive(5)
    names = FUNCTIONS.split()
    found = {n: getattr(lt, n)(x) for n in names}
    found |= {n: getattr(lt, n)(p) for n in ("log", "log2", "log10", "log1p")}
    return found | {"gelu tanh": lt.gelu(x, "tanh"), "far": lt.sin(x * 1000.0)}


def comparisons(g: Given) -> Outputs:
    x, y, b, c = g.ints(4, 5), g.ints(5), g.bools(4, 5), g.bools(4, 1)
    return {
        "eq": lt.equal(x, y), "ne": lt.not_equal(x, y), "lt": x < y, "le": x <= y, "gt": x > y,
        "ge": x >= y, "and": lt.logical_and(b, c), "or": lt.logical_or(b, c),
        "xor": lt.logical_xor(b, c), "not": lt.logical_not(b), "&": b & c, "|": b | c, "~": ~b,
        "where": lt.where(b, x, y), "any": lt.any(b, 1), "all": lt.all(b, 0), "sum": b.sum(),
        "max": b.max(0), "min": b.min(1), "int": lt.cast(b, "int8") + 1,
    }  # fmt: skip


def special(g: Given) -> Outputs:
    inf, nan = np.inf, np.nan
    x = g.values(0.0, -0.0, 1.0, -2.5, inf, -inf, nan, 1e30, -1e-30)
    y = g.values(nan, 1.0, inf, -inf, inf, inf, nan, 0.0, -0.0)
    names = SPECIAL.split()
    found = {n: getattr(lt, n)(x) for n in names}
    return found | {
        "max": lt.maximum(x, y), "min": lt.minimum(x, y), "add": x + y, "mul": x * y,
        "less": x < y, "eq": lt.equal(x, y), "where": lt.where(x < 1.0, x, y), "log": lt.log(x),
        "reduce max": x.max(), "reduce sum": x.sum(), "clip": lt.clip(x, -1.0, 1.0),
        "recip": lt.reciprocal(x),
    }  # fmt: skip


def integers(g: Given) -> Outputs:
    found = {}
    for dtype in ("int8", "uint8", "int16", "int32", "int64"):
        unsigned = dtype == "uint8"
        x = g.ints(3, 5, low=0 if unsigned else -100, high=100, dtype=dtype)
        y = g.ints(5, low=1, high=9, dtype=dtype)
        found |= {
            f"{dtype} add": x + y, f"{dtype} mul": x * y, f"{dtype} //": x // y,
            f"{dtype} %": x % y, f"{dtype} sum": x.sum(1), f"{dtype} max": x.max(0),
            f"{dtype} min": lt.minimum(x, y), f"{dtype} clip": lt.clip(x, 3, 50),
            f"{dtype} less": x < y, f"{dtype} matmul": x @ y, f"{dtype} argmax": lt.argmax(x, 1),
        }  # fmt: skip
        if not unsigned:
            found |= {f"{dtype} %-": x % -y, f"{dtype} //-": x // -y, f"{dtype} abs": lt.abs(x)}
    return found


def casts(g: Given) -> Outputs:
    """Every dtype to every other one, on values that both have."""
    found = {}
    known = [d for d in DTYPES if not d.startswith("float8")]  # which CPUs do not take
    for source in known:
        values = [0, 1, 1, 0, 1] if source == "bool" else [0, 1, 7, 100, 3]
        if source[0] in "fb" and source != "bool":
            values = [0.0, -0.0, 1.5, 100.0, 0.25]
        if source in ("int8", "int16", "int32", "int64"):
            values += [-100, -1]
        x = g.values(*values, dtype=source)
        unsigned = -100 not in values
        for target in known:
            if unsigned or target != "uint8":
                found[f"{source} → {target}"] = lt.cast(x, target)
    wide = g.values(300, -300, 70000, -1, 1 << 33, dtype="int64")
    return found | {f"wrap {t}": lt.cast(wide, t) for t in ("int8", "uint8", "int16", "int32")}


def narrow(g: Given) -> Outputs:
    found = {}
    for dtype in ("float16", "bfloat16", "float64"):
        x, y = g.floats(5, 8, dtype=dtype), g.floats(8, 6, dtype=dtype)
        found |= {
            f"{dtype} matmul": x @ y, f"{dtype} softmax": lt.softmax(x), f"{dtype} sum": x.sum(0),
            f"{dtype} norm": lt.layer_norm(x, (8,)), f"{dtype} gelu": lt.gelu(x),
            f"{dtype} max": x.max(1), f"{dtype} add": x + 1.5, f"{dtype} less": x < 0.25,
            f"{dtype} conv": lt.conv1d(x.reshape(1, 5, 8), y.reshape(48)[:45].reshape(3, 5, 3)),
        }  # fmt: skip
    return found


# ---- reductions ------------------------------------------------------------------------------


def reductions(g: Given) -> Outputs:
    x, i = g.floats(4, 5, 7), g.ints(4, 9, low=0, high=4)
    b = g.floats(2, 70)
    return {
        "sum": x.sum(), "sum 0": x.sum(0), "sum 12": x.sum((1, 2)), "keep": x.sum(1, keepdims=True),
        "mean": x.mean(-1), "var": x.var(1), "std": x.std((0, 2), correction=1),
        "max": x.max((0, 1)), "min": x.min(2), "prod": lt.prod(x, 1), "argmax": lt.argmax(i, 1),
        "argmin": lt.argmin(i, 0), "argmax all": lt.argmax(x), "logsumexp": lt.logsumexp(x, 1),
        "softmax": lt.softmax(x, 1), "softmax long": lt.softmax(b),
        "softmax 2": lt.softmax(x, (0, 2)),
        "log_softmax": lt.log_softmax(x, -1), "cumsum": lt.cumsum(x, 1),
        "cumsum int": lt.cumsum(i, 1),
        "any": lt.any(x > 2.0, (0, 1)), "all": lt.all(x > -2.0, 2),
    }  # fmt: skip


def norms(g: Given) -> Outputs:
    x, w, b = g.floats(2, 6, 5, 4), g.floats(6), g.floats(6)
    v, mean, var = g.floats(4), g.floats(6), g.positive(6)
    return {
        "layer": lt.layer_norm(x, (4,), v, v), "layer 2": lt.layer_norm(x, (5, 4)),
        "rms": lt.rms_norm(x, (4,), v), "group": lt.group_norm(x, 3, w, b),
        "instance": lt.instance_norm(x), "batch": lt.batch_norm(x, mean, var, w, b),
        "train": lt.batch_norm_train(x, w, b)[0],
    }  # fmt: skip


# ---- products --------------------------------------------------------------------------------


def products(g: Given) -> Outputs:
    x, y, z = g.floats(2, 3, 4), g.floats(2, 4, 5), g.floats(4, 6)
    m, v = g.floats(33, 17), g.floats(17)
    i = g.ints(5, 7, dtype="int8")
    return {
        "batch": x @ y, "shared": x @ z, "vector": m @ v, "row": v @ m.mT, "inner": v @ v,
        "outer": lt.outer(v, x[0, 0]), "linear": lt.linear(x, g.floats(6, 4), g.floats(6)),
        "gram": m.mT @ m, "broadcast": x.reshape(2, 1, 3, 4) @ y.reshape(1, 2, 4, 5),
        "ij,jk": lt.einsum("ij,jk->ik", m, m.mT), "trace": lt.einsum("ii->", m[:17]),
        "bij,bjk->bik": lt.einsum("bij,bjk->bik", x, y), "sum": lt.einsum("bij->j", x),
        "three": lt.einsum("bij,bjk,jl->bikl", x, y, z), "diagonal": lt.diagonal(m[:17]),
        "by hand": (m.reshape(33, 17, 1) * m.mT.reshape(1, 17, 33)).sum(1), "int8": i @ i.mT,
        "chain": lt.softmax(x @ x.mT) @ x, "sum of": (x @ y).sum(-1),
        "attention": lt.attention(x, x, x, causal=True), "size 1": m[:, :1] @ m[:1, :],
    }  # fmt: skip


def convolutions(g: Given) -> Outputs:
    a, b, c = g.floats(2, 4, 11), g.floats(1, 4, 9, 8), g.floats(1, 2, 5, 6, 4)
    return {
        "1d": lt.conv1d(a, g.floats(6, 4, 3), g.floats(6)),
        "1d strided": lt.conv1d(a, g.floats(6, 4, 3), stride=2, padding=1, dilation=2),
        "2d": lt.conv2d(b, g.floats(3, 4, 3, 2), padding=(1, 0)),
        "2d groups": lt.conv2d(b, g.floats(8, 2, 3, 3), groups=2, stride=(2, 1)),
        "depthwise": lt.conv2d(b, g.floats(4, 1, 3, 3), groups=4, padding=1),
        "3d": lt.conv3d(c, g.floats(3, 2, 2, 3, 2)),
        "transposed": lt.conv_transpose1d(a, g.floats(4, 3, 3), stride=2, padding=1),
        "transposed 2d": lt.conv_transpose2d(b, g.floats(4, 2, 2, 3), stride=2),
    }


def pools(g: Given) -> Outputs:
    a, b = g.floats(2, 3, 13), g.floats(1, 2, 9, 8)
    return {
        "max": lt.max_pool1d(a, 3, 2), "max padded": lt.max_pool2d(b, 3, 2, 1),
        "avg": lt.avg_pool2d(b, 2), "avg padded": lt.avg_pool1d(a, 3, 2, 1),
        "adaptive": lt.adaptive_avg_pool1d(a, 5), "adaptive max": lt.adaptive_max_pool2d(b, (3, 4)),
        "unfold": lt.unfold(a, 2, 4, 3), "dilated": lt.max_pool1d(a, 3, 1, 0, 2),
    }  # fmt: skip


# ---- shapes and indices ----------------------------------------------------------------------


def shapes(g: Given) -> Outputs:
    x, y = g.floats(4, 6), g.floats(4, 3)
    return {
        "permute": x.permute(1, 0), "reshape": x.reshape(3, 8), "flat": x.reshape(24),
        "split": x.reshape(2, 2, 3, 2).permute(2, 0, 3, 1), "slice": x[1:, ::2],
        "back": x[::-1, -2],
        "flip": lt.flip(x, 1), "pad": lt.pad(x, ((1, 2), (0, 3)), value=7.0),
        "reflect": lt.pad(x, ((2, 1), (3, 2)), "reflect"),
        "replicate": lt.pad(x, ((2, 1), (0, 4)), "replicate"), "concat": lt.concat([x, y], 1),
        "stack": lt.stack([x, x * 2.0], 1), "repeat": lt.repeat(x, 3, 1),
        "tile": lt.tile(x, (2, 3)),
        "roll": lt.roll(x, 2, 1), "tril": lt.tril(x), "triu": lt.triu(x, 1), "eye": lt.eye(3, 5),
        "arange": lt.arange(2, 9, 3), "linspace": lt.linspace(0.0, 1.0, 7),
        "expand": lt.expand(y.reshape(4, 3, 1), 4, 3, 5),
        "sum of pad": lt.pad(x, ((1, 1), (1, 1))).sum(0),
        "flip twice": lt.flip(lt.flip(x)), "full": lt.full((2, 3), 5, "int64"),
    }  # fmt: skip


def indices(g: Given) -> Outputs:
    x, table = g.floats(5, 7), g.floats(11, 6)
    i, ids = g.ints(5, 3, low=0, high=5), g.ints(2, 3, low=-11, high=11)
    one, src = g.ints(4, low=0, high=5), g.floats(5, 3)
    return {
        "along 1": lt.take_along_axis(x, i, 1), "along 0": lt.take_along_axis(x, i[:, :1], 0),
        "embedding": lt.embedding(lt.abs(ids) % 11, table), "take": lt.take(table, ids, 0),
        "gather": lt.gather(x, 1, i), "scatter": lt.scatter(x, 1, i, src),
        "scatter_add": lt.scatter_add(x, 1, i, src), "select": lt.index_select(x, 0, one),
        "index_add": lt.index_add(x, 0, one, g.floats(4, 7)), "one_hot": lt.one_hot(ids, 11),
        "getitem": x[one], "two": x[one, g.ints(4, low=0, high=7)],
        "out of range": lt.take(table, g.values(11, -12, 3, dtype="int64"), 0),
        "gather of sum": lt.take((x + 1.0) @ table[:7], one, 0), "sum of gather": x[one].sum(0),
    }  # fmt: skip


def sorting(g: Given) -> Outputs:
    x, i = g.floats(3, 8), g.ints(3, 8, low=0, high=4)
    values, order = lt.sort(i, 1, descending=True)
    top, where = lt.topk(x, 3)
    return {
        "sort": lt.sort(x)[0], "argsort": lt.argsort(i), "down": values, "order": order,
        "top": top, "where": where, "axis 0": lt.sort(x, 0)[0],
    }  # fmt: skip


# ---- odd sizes -------------------------------------------------------------------------------


def empty(g: Given) -> Outputs:
    x, y, none = g.floats(0, 4), g.floats(4, 5), g.floats(3, 0)
    return {
        "map": lt.exp(x), "sum": x.sum(0), "sum 1": x.sum(1), "matmul": x @ y, "inner": none @ x,
        "softmax": lt.softmax(x), "concat": lt.concat([x, y.mT[:2]]),
        "pad": lt.pad(x, ((1, 1), (0, 0))),
        "prod": lt.prod(x, 0), "all": lt.all(x > 0.0, 0), "any": lt.any(x > 0.0, 0),
        "take": lt.take(y, g.ints(0), 0), "mean": none.mean(1), "layer": lt.layer_norm(x, (4,)),
        "cumsum": lt.cumsum(x, 0), "int": g.ints(0, 3) + 1,
    }  # fmt: skip


def ones(g: Given) -> Outputs:
    x, s = g.floats(1, 1), g.floats()
    return {
        "map": lt.exp(x), "sum": x.sum(), "matmul": x @ x, "softmax": lt.softmax(x),
        "layer": lt.layer_norm(x, (1,)), "scalar": s * 2.0, "scalar sum": s.sum(), "both": x + s,
        "argmax": lt.argmax(x), "cumsum": lt.cumsum(x, 0), "var": x.var(), "sort": lt.sort(x)[0],
        "conv": lt.conv1d(x.reshape(1, 1, 1), x.reshape(1, 1, 1)), "max": x.max(1),
    }  # fmt: skip


GROUPS = (
    arithmetic, functions, comparisons, special, integers, casts, narrow, reductions, norms,
    products, convolutions, pools, shapes, indices, sorting, empty, ones,
)  # fmt: skip
MANY = {"casts": 25, "integers": 17, "comparisons": 20}  # cheap to search
LOOSE = {"functions": 2e-4, "products": 1e-4, "convolutions": 1e-4}


@pytest.mark.parametrize("group", GROUPS, ids=lambda f: f.__name__)
def test_compiled_ops(group: Callable[[Given], Outputs]) -> None:
    given = Given()
    for outputs in parts(group(given), MANY.get(group.__name__, 6)):
        compare(compiled(outputs), outputs, given, LOOSE.get(group.__name__, 0.0))


def test_compiled_ops_of_symbolic_sizes() -> None:
    g = Given()
    n, m = lt.Dim("sweep_n", 1, 70), lt.Dim("sweep_m", 8, 64, multiple=8)
    x, y, i = g.floats(n, m), g.floats(n, 5), g.ints(n, low=0, high=4)
    grid = lt.arange(n)
    outputs = {
        "map": lt.gelu(x), "sum 0": x.sum(0), "sum 1": x.sum(1), "matmul": x.mT @ y,
        "gram": x @ x.mT, "softmax": lt.softmax(x), "softmax 0": lt.softmax(y, 0),
        "norm": lt.layer_norm(x, (m,)), "cumsum": lt.cumsum(y, 0), "mean": x.mean(),
        "concat": lt.concat([x, y], 1), "pad": lt.pad(y, ((1, 2), (0, 0))), "flip": lt.flip(y, 0),
        "slice": lt.pad(y, ((0, 1), (0, 0)))[1:], "argmax": lt.argmax(y, 0), "arange": grid * 2,
        "causal": lt.softmax(lt.where(grid <= grid.reshape(n, 1), y @ y.mT, float("-inf"))) @ y,
        "take": lt.take(g.floats(4, 3), i, 0), "unfold": lt.unfold(x, 1, 4, 2).sum(-1),
        "max": x.max(), "flat": x.reshape(n * m) * 2.0, "halves": x.reshape(n, 2, -1).sum(1),
    }  # fmt: skip
    for some in parts(outputs):
        program = compiled(some)
        for rows, columns in ((1, 8), (2, 64), (17, 24), (64, 32), (70, 56)):
            compare(program, some, g, 1e-4, **{str(n): rows, str(m): columns})
