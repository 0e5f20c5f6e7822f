"""from_onnx: sizes, values, control flow, functions; what it refuses, and how it says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from models import INT, B, check, info, model, node, ours, theirs
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import lambent as lt
from lambent.frontends.onnx.errors import NeedsValue, OnnxError

rng = np.random.default_rng(0)
X = rng.standard_normal((3, 8)).astype(np.float32)


# ---- sizes -----------------------------------------------------------------------------------


def shape_chain() -> onnx.ModelProto:
    """[batch, 8] → heads of 4: the shape is computed by nodes, as exporters write it."""
    return model(
        [
            node("Shape", "x", "s"),
            node("Gather", "s,zero", "b", axis=0),
            node("Unsqueeze", "b,axes", "b1"),
            node("Concat", "b1,heads", "target", axis=0),
            node("Reshape", "x,target", "y"),
            node("Mul", "b,two", "bb"),
            node("Unsqueeze", "bb,axes", "bb1"),
            node("Concat", "bb1,four", "t2", axis=0),
            node("Reshape", "y,t2", "z"),
        ],
        [info("x", ["batch", 8])],
        [info("z", None)],
        {"zero": np.int64(0), "axes": np.array([0]), "heads": np.array([2, 4]),
         "two": np.int64(2), "four": np.array([4])},
    )  # fmt: skip


def test_shapes_of_symbols() -> None:
    out = lt.from_onnx(shape_chain())["z"]
    batch = lt.Dim("batch")
    assert out.shape == (batch * 2, 4)
    check(shape_chain(), {"x": X})
    assert lt.from_onnx(shape_chain(), dims={"batch": 5})["z"].shape == (10, 4)


def test_ranges_of_dims() -> None:
    m = model([node("Relu", "x", "y")], [info("x", ["in.1", None, 2])], [info("y", None)])
    first, second, _ = lt.from_onnx(m, dims={"in.1": (2, 9)})["y"].shape
    assert (first, second) == (lt.Dim("in_1", 2, 9), lt.Dim("x_1", 1, 4096))
    own = lt.Dim("rows_of_mine", 1, 7)
    assert lt.from_onnx(m, dims={"in.1": own, "x_1": 3})["y"].shape == (own, 3, 2)
    assert lt.from_onnx(m, shapes={"x": (1, "k", 2)}, dims={"k": 4})["y"].shape == (1, 4, 2)


def test_a_value_that_a_shape_needs() -> None:
    m = model([node("Reshape", "x,s", "y")], [info("x", [3, 8]), info("s", [2], INT)],
              [info("y", None)])  # fmt: skip
    with pytest.raises(NeedsValue, match=r"node 'Reshape_y'.*depends on 's'.*values=\{'s': …\}"):
        lt.from_onnx(m)
    assert lt.from_onnx(m, values={"s": [6, 4]})["y"].shape == (6, 4)


# ---- control flow ----------------------------------------------------------------------------


def branches() -> onnx.ModelProto:
    yes = helper.make_graph([node("Add", "x,one", "a")], "yes", [], [info("a", None)])
    no = helper.make_graph([node("Neg", "x", "b")], "no", [], [info("b", None)])
    return model(
        [node("If", "c", "y", then_branch=yes, else_branch=no)],
        [info("x", [3, 8]), info("c", [], B)], [info("y", [3, 8])], {"one": np.float32(1)},
    )  # fmt: skip


def test_if() -> None:
    for truth in (True, False):
        c = np.array(truth)
        found = ours(branches(), {"x": X}, values={"c": c})
        np.testing.assert_array_equal(found[0], theirs(branches(), {"x": X, "c": c})[0])
    with pytest.raises(OnnxError, match=r"node 'If_y', If: its operand 0 .* depends on 'c'"):
        lt.from_onnx(branches())


def loop(trips: int, going: str = "go") -> onnx.ModelProto:
    """Doubles x each time; `going` is what the body says of going on."""
    body = helper.make_graph(
        [
            node("Add", "h,h", "twice"),
            node("Less", "i,limit", "below"),
            node("Identity", "go", "same"),
            node("ReduceMax", "h", "top", keepdims=0),
            node("Greater", "top,zero", "data"),
            node("Identity", {"go": "same", "below": "below", "data": "data"}[going], "next"),
        ],
        "body",
        [info("i", [], INT), info("go", [], B), info("h", [3, 8])],
        [info("next", [], B), info("twice", [3, 8]), info("top", [])],
    )
    return model(
        [node("Loop", "n,yes,x", "y,tops", body=body)], [info("x", [3, 8])],
        [info("y", [3, 8]), info("tops", None)],
        {"n": np.int64(trips), "yes": np.array(True), "limit": np.int64(2), "zero": np.float32(0)},
    )  # fmt: skip


def test_loop() -> None:
    check(loop(4), {"x": X})
    check(loop(100, "below"), {"x": X})  # ends by itself, by a value that is known
    with pytest.raises(OnnxError, match=r"node 'Loop_y'.*depends on data"):
        lt.from_onnx(loop(4, "data"))
    with pytest.raises(OnnxError, match="more than 1024 iterations"):
        lt.from_onnx(loop(10**9))


def test_scan() -> None:
    body = helper.make_graph(
        [node("Add", "s,x", "t"), node("Identity", "t", "u")], "body",
        [info("s", [8]), info("x", [8])], [info("t", [8]), info("u", [8])],
    )  # fmt: skip
    back = node("Scan", "s0,x", "s,y", body=body, num_scan_inputs=1, scan_input_directions=[1])
    m = model([back], [info("s0", [8]), info("x", [3, 8])], [info("s", [8]), info("y", [3, 8])])
    check(m, {"s0": X[0], "x": X})


@pytest.mark.parametrize("op,gates", [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("with_lengths", [False, True])
def test_recurrent(op: str, gates: int, direction: str, with_lengths: bool) -> None:
    d, steps, batch, n, h = 2 if direction == "bidirectional" else 1, 5, 2, 3, 4
    w, r, b = (
        rng.standard_normal(s).astype(np.float32) * 0.5
        for s in ((d, gates * h, n), (d, gates * h, h), (d, 2 * gates * h))
    )
    lengths = np.array([5, 3], np.int32) if with_lengths else None
    weights = {"W": w, "R": r, "B": b} | ({"L": lengths} if with_lengths else {})
    names = f"x,W,R,B,{'L' if with_lengths else ''},h0" + (",c0" if op == "LSTM" else "")
    outs = "y,yh" + (",yc" if op == "LSTM" else "")
    states = [info(s, [d, batch, h]) for s in ("h0", "c0")[: 2 if op == "LSTM" else 1]]
    m = model(
        [node(op, names, outs, hidden_size=h, direction=direction)],
        [info("x", [steps, batch, n]), *states], [info(o, None) for o in outs.split(",")], weights,
    )  # fmt: skip
    arrays = {"x": rng.standard_normal((steps, batch, n)).astype(np.float32)}
    arrays |= {s.name: rng.standard_normal((d, batch, h)).astype(np.float32) for s in states}
    check(m, arrays)


# ---- functions, defaults, types --------------------------------------------------------------


def test_functions_of_the_model() -> None:
    scaled = helper.make_node("Constant", [], ["k"])
    scaled.attribute.append(helper.make_attribute("value_float", 0.0))
    scaled.attribute[0].ClearField("f")
    scaled.attribute[0].ref_attr_name = "scale"
    f = helper.make_function(
        "mine", "Scaled", ["a"], ["b"], [scaled, helper.make_node("Mul", ["a", "k"], ["b"])],
        [helper.make_opsetid("", 18)], ["scale"],
    )  # fmt: skip
    call = node("Scaled", "x", "y", domain="mine", scale=3.0)
    m = model([call], [info("x", [3, 8])], [info("y", [3, 8])], functions=[f])
    m.opset_import.append(helper.make_opsetid("mine", 1))
    check(m, {"x": X})


def test_an_initialiser_is_the_default_of_an_input() -> None:
    m = model([node("Add", "x,b", "y")], [info("x", [3, 8]), info("b", [8])], [info("y", None)],
              {"b": np.ones(8, np.float32)})  # fmt: skip
    np.testing.assert_allclose(ours(m, {"x": X})[0], X + 1)
    np.testing.assert_allclose(ours(m, {"x": X}, values={"b": np.full(8, 2)})[0], X + 2)


# ---- external data ---------------------------------------------------------------------------


def external(folder: Path, location: str = "w.bin", length: str = "2400", **more: str) -> Path:
    tensor = numpy_helper.from_array(np.zeros((600,), np.float32), "w")
    tensor.ClearField("raw_data")
    tensor.data_location = 1
    for key, value in {"location": location, "length": length, **more}.items():
        tensor.external_data.add(key=key, value=value)
    m = model([node("Add", "x,w", "y")], [info("x", [600])], [info("y", [600])])
    m.graph.initializer.append(tensor)
    path = folder / "m.onnx"
    path.write_bytes(m.SerializeToString())
    return path


def test_external_data_is_mapped(tmp_path: Path) -> None:
    w = rng.standard_normal(8600).astype(np.float32)
    (tmp_path / "w.bin").write_bytes(w.tobytes())
    found = lt.from_onnx(external(tmp_path, offset="4096"))["y"]
    weights = [n.attr.array for n in lt.graph.node.topo([found.node]) if n.op == "weight"]
    x = np.ones(600, np.float32)
    np.testing.assert_array_equal(lt.evaluate([found], {"x": x})[0], w[1024:1624] + 1)
    assert weights


@pytest.mark.parametrize(
    "more,message",
    [
        ({"location": "../w.bin"}, "outside of the model's folder"),
        ({"location": "/etc/passwd"}, "outside of the model's folder"),
        ({"location": ""}, "outside of the model's folder"),
        ({"location": "link.bin"}, "outside of the model's folder"),
        ({"location": "missing.bin"}, "no file"),
        ({"location": "folder"}, "no file"),
        ({"offset": "4000"}, "ends early"),
        ({"offset": "-4"}, "no numbers"),
        ({"length": "8"}, "should have 2400 bytes"),
    ],
)
def test_external_data_that_is_refused(tmp_path: Path, more: Any, message: str) -> None:
    folder = tmp_path / "model"
    (folder / "folder").mkdir(parents=True)
    (folder / "w.bin").write_bytes(bytes(2400))
    (tmp_path / "w.bin").write_bytes(bytes(2400))
    (folder / "link.bin").symlink_to(tmp_path / "w.bin")
    with pytest.raises(OnnxError, match=message):
        lt.from_onnx(external(folder, **more))


# ---- bad models ------------------------------------------------------------------------------

ONE = [info("x", [3, 8])]
OUT = [info("y", None)]
BAD: dict[str, tuple[Any, str]] = {
    "cycle": (
        model([node("Add", "x,b", "a"), node("Relu", "a", "b"), node("Relu", "b", "y")], ONE, OUT),
        r"node 'Add_a', Add: it reads 'b', which Relu \(node 1\) writes only later",
    ),
    "itself": (
        model([node("Add", "x,y", "y")], ONE, OUT),
        "node 'Add_y', Add: it reads 'y', which Add .node 0. writes only later",
    ),
    "written twice": (
        model([node("Relu", "x", "y"), node("Neg", "x", "y")], ONE, OUT),
        "node 'Neg_y', Neg: it writes 'y', which is written before",
    ),
    "over an input": (
        model([node("Relu", "x", "x")], ONE, [info("x", None)]),
        "node 'Relu_x', Relu: it writes 'x', which is written before",
    ),
    "nothing writes": (
        model([node("Relu", "q", "y")], ONE, OUT),
        "node 'Relu_y', Relu: it reads 'q', which nothing writes",
    ),
    "no such output": (model([node("Relu", "x", "a")], ONE, OUT), "no node writes the output 'y'"),
    "two inputs": (model([node("Relu", "x", "y")], ONE * 2, OUT), "two inputs have the name 'x'"),
    "two outputs": (model([node("Relu", "x", "y")], ONE, OUT * 2), "two outputs have the name 'y'"),
    "unknown": (
        model([node("Frobnicate", "x", "y")], ONE, OUT),
        "node 'Frobnicate_y', Frobnicate: the operator Frobnicate is unknown to ONNX",
    ),
    "not in this opset": (
        model([node("Gelu", "x", "y")], ONE, OUT, opset=12),
        "node 'Gelu_y', Gelu: the operator Gelu is not in opset 12",
    ),
    "old": (
        model([node("Softmax", "x", "y")], ONE, OUT, opset=1),
        "node 'Softmax_y', Softmax: version 1 of the operator",
    ),
    "opset of the future": (
        model([node("Relu", "x", "y")], ONE, OUT, opset=999),
        "opset 999",
    ),
    "domain": (
        model([node("Relu", "x", "y", domain="com.acme")], ONE, OUT),
        "node 'Relu_y', Relu: the model imports no opset of the domain 'com.acme'",
    ),
    "attribute": (
        model([node("Relu", "x", "y", fast=1)], ONE, OUT),
        "node 'Relu_y', Relu: it has no attribute 'fast'",
    ),
    "attribute's type": (
        model([node("Softmax", "x", "y", axis=1.5)], ONE, OUT),
        "node 'Softmax_y', Softmax: its attribute 'axis' has the wrong type",
    ),
    "operands": (
        model([node("Add", "x", "y")], ONE, OUT),
        "node 'Add_y', Add: it takes 2 to 2 operands, not 1",
    ),
    "dtypes": (
        model([node("Add", "x,n", "y")], [*ONE, info("n", [8], INT)], OUT),
        "node 'Add_y', Add: its operand 'B' is int64, but must be float32",
    ),
    "shapes": (
        model([node("MatMul", "x,x", "y")], ONE, OUT),
        r"node 'MatMul_y', MatMul: matmul: float32\[3, 8\] and float32\[3, 8\]",
    ),
    "result's dtype": (
        model([node("Relu", "x", "y")], ONE, [info("y", None, INT)]),
        "the output 'y' is declared as int64, but is float32",
    ),
    "strings": (
        model([node("Relu", "x", "y")], [info("x", [3], 8)], OUT),
        "the input 'x' has elements of the type string",
    ),
    "no shape": (model([node("Relu", "x", "y")], [info("x", None)], OUT), "'x' has no shape; give"),
    "absurd input": (
        model([node("Relu", "x", "y")], [info("x", [10**9, 10**9])], OUT),
        "the input 'x' .* bytes",
    ),
    "absurd result": (
        model([node("Expand", "x,s", "y")], [info("x", [1])], OUT, {"s": np.array([2**40, 2**20])}),
        "the output 'y' .* bytes",
    ),
    "random": (
        model([node("RandomNormalLike", "x", "y")], ONE, OUT),
        "node 'RandomNormalLike_y', RandomNormalLike: .* give them as an input",
    ),
    "data-dependent": (
        model([node("NonZero", "x", "y")], ONE, OUT),
        "node 'NonZero_y', NonZero: its operand 0 must be known",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_models(name: str) -> None:
    m, message = BAD[name]
    with pytest.raises(OnnxError, match=message):
        lt.from_onnx(m)


def test_tensors_that_lie() -> None:
    m = model([node("Add", "x,w", "y")], ONE, OUT, {"w": np.ones(8, np.float32)})
    m.graph.initializer[0].dims[0] = 10**15
    with pytest.raises(OnnxError, match=r"'w' should have 4000000000000000 bytes .* holds 32"):
        lt.from_onnx(m)
    m.graph.initializer[0].dims[0] = -8
    with pytest.raises(OnnxError, match="'w' has a negative dim"):
        lt.from_onnx(m)
    m = model([node("Add", "x,w", "y")], ONE, OUT, {"w": np.ones(8, np.float32)})
    m.graph.initializer.append(m.graph.initializer[0])
    with pytest.raises(OnnxError, match="two initialisers have the name 'w'"):
        lt.from_onnx(m)


def test_no_model_at_all(tmp_path: Path) -> None:
    whole = shape_chain().SerializeToString()
    for data in (b"", b"\x00" * 40, b"not a model", whole[: len(whole) // 2]):
        (tmp_path / "m.onnx").write_bytes(data)
        with pytest.raises(OnnxError, match=r"m\.onnx is no ONNX model, or is cut off|opset"):
            lt.from_onnx(tmp_path / "m.onnx")
    with pytest.raises(FileNotFoundError):
        lt.from_onnx(tmp_path / "none.onnx")
    with pytest.raises(OnnxError, match="the model has no input 'z'; it has x"):
        lt.from_onnx(whole, values={"z": 1})


def test_a_function_that_calls_itself() -> None:
    f = helper.make_function("mine", "F", ["a"], ["b"], [node("F", "a", "b", domain="mine")],
                             [helper.make_opsetid("mine", 1)])  # fmt: skip
    m = model([node("F", "x", "y", domain="mine")], ONE, OUT, functions=[f])
    m.opset_import.append(helper.make_opsetid("mine", 1))
    with pytest.raises(OnnxError, match="more than 32 subgraphs or functions"):
        lt.from_onnx(m)


# ---- what the node tests leave out -------------------------------------------------------------


def test_a_pool_of_zeros_finds_no_padding() -> None:
    pool = node("MaxPool", "x", "y,i", kernel_shape=[2, 2], pads=[1, 1, 1, 1])
    m = model([pool], [info("x", [1, 1, 3, 3], 2)], [info("y", None, 2), info("i", None, INT)])
    check(m, {"x": np.zeros((1, 1, 3, 3), np.uint8)})


def test_a_resize_to_the_same_size_still_moves() -> None:
    m = model([node("Resize", "x,_,s", "y", mode="linear")], [info("x", [1, 1, 5, 5])],
              [info("y", None)], {"s": np.array([1, 1, 1.1, 1], np.float32)})  # fmt: skip
    m.graph.node[0].input[1] = ""
    x = {"x": rng.standard_normal((1, 1, 5, 5)).astype(np.float32)}
    want = ReferenceEvaluator(m).run(None, x)[0]  # ONNX Runtime copies x here
    np.testing.assert_allclose(ours(m, x)[0], want, rtol=1e-5, atol=1e-6)


def test_integers_that_would_become_floats_are_refused() -> None:
    m = model([node("ReduceMean", "x", "y")], [info("x", [3], INT)], [info("y", None)])
    with pytest.raises(OnnxError, match=r"node 'ReduceMean_y'.*not supported for int64; cast"):
        lt.from_onnx(m)


def test_sizes_that_are_multiples() -> None:
    """Down by 4 and up again meets the skipped path only where 4 divides the size."""
    m = model(
        [node("MaxPool", "x", "p", kernel_shape=[4], strides=[4]),
         node("Resize", "p,_,s", "u", mode="nearest"), node("Add", "u,x", "y")],
        [info("x", [1, 2, "n"])], [info("y", None)], {"s": np.array([1, 1, 4], np.float32)},
    )  # fmt: skip
    m.graph.node[1].input[1] = ""
    with pytest.raises(OnnxError, match=r"node 'Add_y'.* fix or narrow it: dims=\{'n.*': …\}"):
        lt.from_onnx(m, dims={"n": (4, 64)})
    out = lt.from_onnx(m, dims={"n": (4, 64, 4)})["y"]
    x = rng.standard_normal((1, 2, 12)).astype(np.float32)
    np.testing.assert_allclose(lt.evaluate([out], {"x": x})[0], theirs(m, {"x": x})[0])
