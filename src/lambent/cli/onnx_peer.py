"""The built-in examples as small ONNX models, for onnxruntime as a peer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from lambent.cli.examples import Array, Example

Step = tuple[str, tuple[str, ...], str, dict[str, Any]]
"""Operator, operands, result, attributes."""

_ATTENTION: tuple[Step, ...] = (
    ("Transpose", ("k",), "kt", {"perm": [0, 2, 1]}),
    ("MatMul", ("q", "kt"), "dots", {}),
    ("Mul", ("dots", "scale"), "scores", {}),
)
_WEIGH: tuple[Step, ...] = (
    ("Softmax", ("scores",), "p", {"axis": -1}),
    ("MatMul", ("p", "v"), "out", {}),
)
_STEPS: dict[str, tuple[Step, ...]] = {
    "attention": _ATTENTION + _WEIGH,
    "attention-causal": (
        *_ATTENTION[:2],
        ("Mul", ("dots", "scale"), "free", {}),
        ("Add", ("free", "mask"), "scores", {}),
        *_WEIGH,
    ),
    "attention-bias": (
        *_ATTENTION[:2],
        ("Mul", ("dots", "scale"), "free", {}),
        ("Add", ("free", "bias"), "scores", {}),
        *_WEIGH,
    ),
    "matmul": (("MatMul", ("a", "b"), "out", {}),),
    "matmul-t": (("Gemm", ("a", "b"), "out", {"transA": 1}),),
    "matvec-float32": (("MatMul", ("x", "w"), "out", {}),),
    "swiglu": (
        ("MatMul", ("x", "w1"), "y1", {}),
        ("Sigmoid", ("y1",), "y2", {}),
        ("Mul", ("y1", "y2"), "y3", {}),
        ("MatMul", ("x", "w3"), "y4", {}),
        ("Mul", ("y3", "y4"), "y5", {}),
        ("MatMul", ("y5", "w2"), "out", {}),
    ),
    "bottleneck": (
        ("Conv", ("x", "w1", "b1"), "y1", {}),
        ("Relu", ("y1",), "y2", {}),
        ("Conv", ("y2", "w2", "b2"), "y3", {"pads": [1, 1, 1, 1]}),
        ("Relu", ("y3",), "y4", {}),
        ("Conv", ("y4", "w3", "b3"), "y5", {}),
        ("Add", ("y5", "x"), "y6", {}),
        ("Relu", ("y6",), "out", {}),
    ),
    "softmax": (("Softmax", ("x",), "out", {"axis": -1}),),
    "layernorm": (("LayerNormalization", ("x", "g", "b"), "out", {"axis": -1, "epsilon": 1e-5}),),
    "gelu": (("Gelu", ("x",), "out", {"approximate": "tanh"}),),
    "mlp": (
        ("MatMul", ("x", "w1"), "y1", {}),
        ("Add", ("y1", "b1"), "y2", {}),
        ("Gelu", ("y2",), "y3", {"approximate": "tanh"}),
        ("MatMul", ("y3", "w2"), "y4", {}),
        ("Add", ("y4", "b2"), "out", {}),
    ),
    "conv": (("Conv", ("x", "w"), "out", {"pads": [1, 1, 1, 1]}),),
    "depthwise": (("Conv", ("x", "w"), "out", {"pads": [1, 1, 1, 1], "group": -1}),),
}


def runner(example: Example, threads: int) -> Callable[[], Array] | None:
    """Runs the example in onnxruntime; None if there is no ONNX form of it here."""
    steps = _STEPS.get(example.name)
    if steps is None:
        return None
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        _model(example, steps), options, providers=["CPUExecutionProvider"]
    )

    def call() -> Array:
        out: Array = session.run(["out"], example.inputs)[0]
        return out

    return call


def _model(example: Example, steps: tuple[Step, ...]) -> bytes:
    from onnx import TensorProto, helper, numpy_helper

    constants = dict(example.weights)
    if example.name.startswith("attention"):
        n, d = example.shape[1:]
        constants["scale"] = np.array(1 / math.sqrt(d), np.float32)
        constants["mask"] = np.where(np.tri(n, dtype=bool), 0, -np.inf).astype(np.float32)
    used = {name for _, operands, _, _ in steps for name in operands}
    graph = helper.make_graph(
        [
            helper.make_node(op, operands, [result], **_filled(attr, example))
            for op, operands, result, attr in steps
        ],
        example.name,
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape)
            for name, array in example.inputs.items()
        ],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a, name) for name, a in constants.items() if name in used],
    )
    opset = [helper.make_opsetid("", 20)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=9)
    data: bytes = model.SerializeToString()
    return data


def _filled(attributes: dict[str, Any], example: Example) -> dict[str, Any]:
    """A group of -1 means a group for every channel."""
    return {k: example.shape[1] if (k, v) == ("group", -1) else v for k, v in attributes.items()}
