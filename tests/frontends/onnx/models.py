"""Small ONNX models for tests, and one way to run both sides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import lambent as lt

F, INT, B = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def info(name: str, shape: Sequence[Any] | None, kind: int = F) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """A node with operands and results by name, named after its operator and first result."""
    ins, outs = inputs.split(","), outputs.split(",")
    name = f"{op}_{outs[0]}"
    domain = attributes.pop("domain", "")
    return helper.make_node(op, ins if inputs else [], outs, name, domain=domain, **attributes)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    weights: Mapping[str, Any] | None = None,
    opset: int = 18,
    **more: Any,
) -> onnx.ModelProto:
    arrays = [numpy_helper.from_array(np.asarray(a), n) for n, a in (weights or {}).items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, arrays)
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, **more)


def ours(m: Any, arrays: Mapping[str, Any], **options: Any) -> list[np.ndarray]:
    """The outputs by from_onnx and the NumPy reference."""
    return lt.evaluate(list(lt.from_onnx(m, **options).values()), arrays)


def theirs(m: onnx.ModelProto, arrays: Mapping[str, Any]) -> list[np.ndarray]:
    """The outputs by ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        m.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, dict(arrays)))


def check(m: onnx.ModelProto, arrays: dict[str, Any], **options: Any) -> None:
    """Ours is what ONNX Runtime gives."""
    for a, b in zip(ours(m, arrays, **options), theirs(m, arrays), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
