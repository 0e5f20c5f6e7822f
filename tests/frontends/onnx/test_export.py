"""to_onnx: what ONNX Runtime computes from the exported file is what the reference computes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import node_cases
import numpy as np
import onnx
import pytest
from models import theirs
from random_graphs import USUAL, random_graph

import lambent as lt
from lambent.frontends.onnx.errors import OnnxError
from lambent.frontends.onnx.export import to_onnx
from lambent.graph.dim import evaluate, symbols_in
from lambent.graph.node import topo
from lambent.graph.tensor import Tensor


def check(outputs: Any, arrays: dict[str, Any], rtol: float = 1e-4, atol: float = 1e-4) -> Any:
    """The exported model is valid, and right by ONNX Runtime."""
    m = to_onnx(outputs)
    onnx.checker.check_model(m, full_check=True)
    tensors = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    for found, want in zip(theirs(m, arrays), lt.evaluate(tensors, arrays), strict=True):
        assert found.dtype == want.dtype and found.shape == want.shape
        np.testing.assert_allclose(found, want, rtol=rtol, atol=atol)
    return m


@pytest.mark.parametrize("symbolic", [False, True])
def test_random_graphs(symbolic: bool) -> None:
    done = 0
    for seed in range(40):
        outputs = [Tensor(n) for n in random_graph(seed, symbolic=symbolic, steps=14)]
        nodes = topo(t.node for t in outputs)
        inputs = [n for n in nodes if n.op == "input"]
        names = frozenset().union(*(symbols_in(d) for n in inputs for d in n.shape if d != 1))
        free = frozenset().union(*(symbols_in(d) for n in nodes for d in n.shape))
        if free - names:
            continue  # a size that no input tells
        r = np.random.default_rng(seed)
        arrays = {
            n.attr: r.normal(size=[evaluate(d, USUAL) for d in n.shape]).astype(n.dtype.numpy)
            for n in inputs
        }
        try:
            check(outputs, arrays, rtol=1e-3, atol=1e-3)
        except OnnxError as reason:
            assert "symbol" in str(reason)
            continue
        done += 1
    assert done >= 12, done


def every_row() -> dict[str, Any]:
    x, y = lt.input("x", (3, 4)), lt.input("y", (3, 4))
    i, j = lt.input("i", (3, 4), "int32"), lt.input("j", (3, 4), "int8")
    b, n = lt.input("b", (3, 4), bool), lt.Dim("export_n", 1, 64)
    v = lt.input("v", (n, 4))
    return {
        "unary": abs(x).log2() + x.exp2() + x.sin() + abs(x).sqrt() + x.reciprocal(),
        "mod": x % y,
        "mod of integers": i % 3 + i // 4,
        "narrow integers": (j * j + j).max(0) + j.sum(0, dtype="int8"),
        "bools": (b & (x < y)) | ~b,
        "less of bools": lt.less(b, x < 0),
        "any": b.any(0),
        "mask": b * x,
        "mask of infinities": lt.where(b, 1.0 / (x - x), 0.0),
        "cast": (x * 100).astype("int8"),
        "matmul": x @ y.mT,
        "matmul with a vector": lt.einsum("ij,kj->ik", x, x[:1]),
        "sum of nothing": lt.sum(x.unsqueeze(0).expand(5, 3, 4) * 2.0, (0, 1)),
        "pads": b.pad([(1, 0), (0, 2)]).astype("int32") + j.pad([(1, 0), (0, 2)]).astype("int32"),
        "pad by a value": x.pad([(1, 0), (0, 2)], value=-np.inf),
        "backwards": x.flip(1)[:, ::2],
        "window": x.window(1, 2).sum(-1),
        "conv": lt.conv2d(x.reshape(1, 1, 3, 4), lt.tensor(np.ones((2, 1, 2, 2), "f")), padding=1),
        "gather": lt.take(lt.tensor(np.arange(12, dtype="f").reshape(6, 2)), abs(i) % 6, 0),
        "gather of what is computed": lt.take(x, abs(i) % 3, 0),
        "symbolic": lt.softmax(v @ x.mT, 0) * lt.constant(n * 2 + 1, "float32"),
        "symbolic window": v.pad([(1, 1), (0, 0)]).window(0, 2).max(-1),
        "symbolic sum": (v.unsqueeze(1) * v).sum(0) + lt.arange(n).sum().astype("float32"),
        "sort": lt.topk(v, 1, 0)[0],
    }


@pytest.mark.parametrize("name", every_row())
def test_every_row(name: str) -> None:
    out, r = every_row()[name], np.random.default_rng(3)
    arrays: dict[str, Any] = {}
    for n in topo([out.node]):
        if n.op == "input":
            shape = [5 if isinstance(s, lt.Dim) else s for s in n.shape]
            drawn = r.normal(size=shape) if n.dtype.is_float else r.integers(-90, 90, shape)
            arrays[n.attr] = (drawn > 0 if n.dtype == lt.bool_ else drawn).astype(n.dtype.numpy)
    if not arrays:
        return
    check(out, arrays)


def test_what_was_imported_can_be_exported() -> None:
    cases, done = node_cases.cases(), 0
    for case in random.Random(2).sample(cases, 60):
        try:
            outputs = node_cases.imported(case)
        except OnnxError:
            continue
        m = to_onnx(outputs)
        used = {entry.name for entry in m.graph.input}
        found = theirs(m, {n: a for n, a in case.inputs.items() if n in used})
        assert node_cases.compare(found, case) == "", case.name
        done += 1
    assert done > 40


def test_a_product_of_matrices_is_one_node(tmp_path: Path) -> None:
    x, y = lt.input("x", (64, 32)), lt.input("y", (32, 16))
    m = lt.to_onnx({"z": x @ y}, tmp_path / "m.onnx")
    assert [n.op_type for n in m.graph.node if n.op_type != "Reshape"] == ["Einsum", "Identity"]
    again = lt.from_onnx(tmp_path / "m.onnx")["z"]
    arrays = {n: np.ones(s, "f") for n, s in (("x", (64, 32)), ("y", (32, 16)))}
    np.testing.assert_array_equal(lt.evaluate([again], arrays)[0], np.full((64, 16), 32.0))


def test_what_is_refused() -> None:
    x = lt.input("x", (2,))
    two = lt.weight("w", np.ones(2, "f")) + lt.weight("w", np.zeros(2, "f")) + x
    with pytest.raises(OnnxError, match="two arrays have the name 'w'"):
        to_onnx(two)
    lonely = lt.iota(lt.Dim("lonely", 1, 9))
    with pytest.raises(OnnxError, match="lonely is no dim of an input"):
        to_onnx(lonely)
