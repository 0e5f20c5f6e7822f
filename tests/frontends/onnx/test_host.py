"""Operators that the host runs, and the programs around them: equal to ONNX Runtime's."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import onnx
import pytest
from models import INT, F, info, model, node, theirs

import lambent as lt
from lambent.frontends.onnx.build import imported
from lambent.frontends.onnx.errors import HostWarning
from lambent.frontends.onnx.host import HOSTED
from lambent.frontends.onnx.staged import staged

R = np.random.default_rng(0)
WEIGHT = R.standard_normal((4, 5)).astype(np.float32)


class Evaluated:
    """A program by the NumPy reference."""

    def __init__(self, graph: dict[str, lt.Tensor], share: float) -> None:
        from lambent.graph.node import topo
        from lambent.runtime.program import Manifest, Slot

        self.graph = graph
        read = [n for n in topo([t.node for t in graph.values()]) if n.op == "input"]
        slots = tuple(Slot(n.name, n.dtype.name, tuple(map(str, n.shape))) for n in read)
        self.manifest = Manifest("cpu", (), (), (), slots, (), (), (), (), "one", 0, (), "{}")

    def __call__(self, **arrays: Any) -> dict[str, Any]:
        return dict(zip(self.graph, lt.evaluate(list(self.graph.values()), arrays), strict=True))


def ours(m: onnx.ModelProto) -> Any:
    """The stages of a model by the reference, after the warning that names them."""
    outputs, calls = imported(m, None, None, None, host=True)
    with pytest.warns(HostWarning, match="the host runs"):
        return staged(outputs, calls, Evaluated)  # type: ignore[arg-type]


def check(m: onnx.ModelProto, *several: dict[str, Any]) -> None:
    program = ours(m)
    for arrays in several:
        for a, b in zip(program(**arrays).values(), theirs(m, arrays), strict=True):
            assert a.shape == b.shape and a.dtype == b.dtype
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def gathering() -> onnx.ModelProto:
    """A product, the places where it is positive, their values, and their sum with the product."""
    return model(
        [
            node("MatMul", "x,w", "y"), node("Relu", "y", "r"), node("NonZero", "r", "i"),
            node("Transpose", "i", "t", perm=[1, 0]), node("GatherND", "r,t", "g"),
            node("ReduceSum", "g,axes", "s", keepdims=0), node("Mul", "r,s", "o"),
        ],
        [info("x", [3, 4])], [info("o", None), info("g", None), info("i", None, INT)],
        {"w": WEIGHT, "axes": np.array([0])},
    )  # fmt: skip


def test_what_is_not_zero_is_gathered_and_nothing_is_run_twice() -> None:
    x = R.standard_normal((3, 4)).astype(np.float32)
    check(gathering(), {"x": x}, {"x": np.zeros_like(x)}, {"x": -x})
    first, second = ours(gathering()).stages
    nodes = [n.op for t in second.graph.values() for n in lt_topo(t)]
    assert len(first.calls) == 1 and "weight" not in nodes  # the product is in the first alone


def lt_topo(t: lt.Tensor) -> Any:
    from lambent.graph.node import topo

    return topo([t.node])


def test_the_real_backend() -> None:
    x = R.standard_normal((3, 4)).astype(np.float32)
    with pytest.warns(HostWarning, match=r"NonZero_i.*NonZero"):
        program = lt.compile_onnx(gathering(), budget=1, progress=False)
    for given in (x, np.zeros_like(x)):
        want = theirs(gathering(), {"x": given})
        for a, b in zip(program(x=given).values(), want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    with pytest.raises(TypeError, match="inputs are x"):
        program(y=x)


def test_a_model_without_such_operators_is_one_program() -> None:
    m = model([node("Relu", "x", "y")], [info("x", [3])], [info("y", [3])])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program = lt.compile_onnx(m, budget=0.1, progress=False)
    assert isinstance(program, lt.Program)


def test_without_leave_it_is_an_error_that_says_the_way_out() -> None:
    with pytest.raises(ValueError, match=r"NonMaxSuppression.*compile_onnx"):
        lt.from_onnx(suppressing())


def suppressing(centred: int = 0, **more: Any) -> onnx.ModelProto:
    """The boxes that stay, of 2 pictures with 3 classes each, and their coordinates."""
    return model(
        [
            node("Mul", "b,two", "boxes"),
            node("NonMaxSuppression", "boxes,scores,most,overlap,least", "n",
                 center_point_box=centred),
            node("Cast", "n", "f", to=F), node("Add", "f,two", "o"),
        ],
        [info("b", [2, 40, 4]), info("scores", [2, 3, 40])],
        [info("n", None, INT), info("o", None)],
        {"most": np.array([7]), "overlap": np.array([0.3], np.float32),
         "least": np.array([0.2], np.float32), "two": np.array([2.0], np.float32), **more},
    )  # fmt: skip


@pytest.mark.parametrize("centred", [0, 1])
def test_boxes_that_overlap(centred: int) -> None:
    arrays = {
        "b": R.random((2, 40, 4)).astype(np.float32),
        "scores": R.random((2, 3, 40)).astype(np.float32),
    }
    none = {**arrays, "scores": np.zeros((2, 3, 40), np.float32)}
    check(suppressing(centred), arrays, none)


@pytest.mark.parametrize("largest", [0, 1])
def test_a_long_line_is_sorted_by_the_host(largest: int) -> None:
    m = model(
        [node("Exp", "x", "e"), node("TopK", "e,k", "v,i", axis=0, largest=largest),
         node("Neg", "v", "o")],
        [info("x", [3000, 2])], [info("o", None), info("i", None, INT)], {"k": np.array([9])},
    )  # fmt: skip
    check(m, {"x": R.integers(0, 50, (3000, 2)).astype(np.float32)})


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_a_long_running_sum_is_the_hosts(exclusive: int, reverse: int) -> None:
    m = model(
        [node("Exp", "x", "e"), node("CumSum", "e,a", "c", exclusive=exclusive, reverse=reverse),
         node("Neg", "c", "o")],
        [info("x", [2, 1500])], [info("o", None)], {"a": np.array(-1)},
    )  # fmt: skip
    check(m, {"x": R.standard_normal((2, 1500)).astype(np.float32) * np.float32(1e-2)})
    with pytest.warns(HostWarning, match=r"CumSum_c.*pair.*compile_onnx"):
        lt.from_onnx(m)


@pytest.mark.parametrize("how", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("op", ["ScatterElements", "ScatterND"])
def test_many_writes_are_the_hosts(op: str, how: str) -> None:
    m = model(
        [node("Exp", "x", "e"), node(op, "e,i,u", "s", reduction=how), node("Neg", "s", "o")],
        [info("x", [1200, 2]), info("i", [1000, 2 if op == "ScatterElements" else 1], INT),
         info("u", [1000, 2])],
        [info("o", None)],
    )  # fmt: skip
    m.opset_import[0].version = 18
    places = R.permutation(1200)[:1000] - 1200 * (how == "add")  # of the end, where below zero
    i = np.stack([places] * (2 if op == "ScatterElements" else 1), -1)
    arrays = {n: R.standard_normal(s).astype(np.float32) for n, s in
              (("x", (1200, 2)), ("u", (1000, 2)))}  # fmt: skip
    check(m, {**arrays, "i": i})


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("ordered", [0, 1])
def test_distinct_values(axis: int | None, ordered: int) -> None:
    more = {} if axis is None else {"axis": axis}
    m = model(
        [node("Floor", "x", "y"), node("Unique", "y", "u,i,b,c", sorted=ordered, **more),
         node("Neg", "u", "o")],
        [info("x", [4, 3])], [info("o", None), *(info(n, None, INT) for n in "ibc")],
    )  # fmt: skip
    x = np.array([[2, 1, 2], [0, 3, 0], [2, 1, 2], [1, 1, 1]], np.float32)
    check(m, {"x": x})


@pytest.mark.parametrize("axis", [None, 1])
def test_what_a_condition_keeps(axis: int | None) -> None:
    more = {} if axis is None else {"axis": axis}
    m = model(
        [node("Greater", "m,zero", "c"), node("Compress", "x,c", "y", **more),
         node("Neg", "y", "o")],
        [info("x", [3, 4]), info("m", [4])], [info("o", None)], {"zero": np.float32(0)},
    )  # fmt: skip
    x = R.standard_normal((3, 4)).astype(np.float32)
    several = ([1, 0, 2, 0], [0, 0, 0, 0], [1, 1, 1, 1])
    check(m, *({"x": x, "m": np.array(c, np.float32)} for c in several))


def test_every_row_says_what_it_costs() -> None:
    assert all(hosted.cost for hosted in HOSTED.values())
