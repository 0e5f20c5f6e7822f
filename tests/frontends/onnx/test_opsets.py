"""Every opset from 11 to 23, and quantised models: equal to ONNX Runtime and ONNX's reference."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from models import F, check, info, model, node, ours
from onnx.reference import ReferenceEvaluator

rng = np.random.default_rng(0)
X = rng.standard_normal((3, 8)).astype(np.float32)


def test_softmax_before_and_since_opset_13() -> None:
    for opset in (11, 13):
        m = model([node("Softmax", "x", "y", axis=1)], [info("x", [2, 3, 4])], [info("y", None)],
                  opset=opset)  # fmt: skip
        check(m, {"x": rng.standard_normal((2, 3, 4)).astype(np.float32)})


def test_quantised() -> None:
    x = rng.standard_normal((4, 6)).astype(np.float32)
    q = rng.integers(0, 255, (6, 3)).astype(np.uint8)
    m = model(
        [
            node("DynamicQuantizeLinear", "x", "xq,xs,xz"),
            node("MatMulInteger", "xq,w,xz,wz", "i"),
            node("Cast", "i", "f", to=F),
            node("Mul", "xs,ws", "s"),
            node("Mul", "f,s", "y"),
        ],
        [info("x", [4, 6])], [info("y", [4, 3])],
        {"w": q, "wz": np.uint8(120), "ws": np.float32(0.02)},
    )  # fmt: skip
    check(m, {"x": x})


def test_quantised_values_between_operators() -> None:
    """QDQ: a channel of the weights has its own scale; equal to ONNX's reference."""
    w = rng.integers(-127, 127, (4, 3, 3, 3)).astype(np.int8)
    m = model(
        [
            node("QuantizeLinear", "x,xs,xz", "xq"), node("DequantizeLinear", "xq,xs,xz", "xd"),
            node("DequantizeLinear", "w,ws,wz", "wd", axis=0), node("Conv", "xd,wd", "c"),
            node("Relu", "c", "r"), node("QuantizeLinear", "r,ys,yz", "yq"),
            node("DequantizeLinear", "yq,ys,yz", "y"),
        ],
        [info("x", [1, 3, 6, 6])], [info("y", None), info("yq", None, onnx.TensorProto.UINT8)],
        {"xs": np.float32(0.03), "xz": np.uint8(120), "w": w, "wz": np.zeros(4, np.int8),
         "ws": np.array([0.01, 0.02, 0.005, 0.04], np.float32), "ys": np.float32(0.2),
         "yz": np.uint8(3)}, opset=21,
    )  # fmt: skip
    x = {"x": rng.standard_normal((1, 3, 6, 6)).astype(np.float32)}
    for found, want in zip(ours(m, x), ReferenceEvaluator(m).run(None, x), strict=True):
        assert found.dtype == want.dtype
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("opset", range(11, 24))
def test_every_opset(opset: int) -> None:
    """Operators that changed on the way: axes became operands, and Softmax one dim's."""
    axes = opset >= 13  # of Squeeze and ReduceSum; of ReduceMean from 18 on
    m = model(
        [
            node("MatMul", "x,w", "a"), node("Softmax", "a", "s", axis=1),
            node("Clip", "s,low", "c"), node("Pad", "c,pads", "p"),
            node("Slice", "p,one,three,one", "l"), node("TopK", "l,k", "v,i", axis=-1),
            node("ReduceSum", "v,one", "r") if axes else node("ReduceSum", "v", "r", axes=[1]),
            node("Squeeze", "r,one", "q") if axes else node("Squeeze", "r", "q", axes=[1]),
            node("ReduceMean", "v,one", "e") if opset >= 18
            else node("ReduceMean", "v", "e", axes=[1]),
            node("Unsqueeze", "q,one", "u") if axes else node("Unsqueeze", "q", "u", axes=[1]),
            node("Cast", "i", "f", to=F), node("Add", "u,e", "t"),
            node("Concat", "t,f", "y", axis=1),
        ],
        [info("x", [3, 8])], [info("y", None)],
        {"w": rng.standard_normal((8, 5)).astype(np.float32), "low": np.float32(0.01),
         "pads": np.array([1, 0, 0, 2]), "one": np.array([1]), "three": np.array([4]),
         "k": np.array([2])}, opset,
    )  # fmt: skip
    check(m, {"x": X})
