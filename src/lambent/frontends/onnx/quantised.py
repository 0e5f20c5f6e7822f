"""Quantised operators: integers stand for `(q − zero point) · scale`."""

from __future__ import annotations

import numpy as np

import lambent as lt
from lambent.frontends.onnx.node import At, Row
from lambent.frontends.onnx.read import dtype_of
from lambent.frontends.onnx.spatial import convolution
from lambent.functional.operands import as_axis
from lambent.graph.dtypes import DType
from lambent.graph.tensor import Tensor


def exact_divide(a: Tensor, b: Tensor) -> Tensor:
    """a / b rounded once, as IEEE says: in float32 a reciprocal is off where it decides a tie."""
    return (a.astype("float64") / b.astype("float64")).astype(a.dtype)


def _saturated(x: Tensor, dtype: DType) -> Tensor:
    info = np.iinfo(dtype.numpy)
    return lt.clip(x, float(info.min), float(info.max)).astype(dtype)


def _along(at: At, v: Tensor, x: Tensor) -> Tensor:
    """A scale or zero point as x has it: one number, one for each index of the axis, or blocks."""
    if v.size == 1:
        return v.reshape(())
    axis, block = as_axis("axis", x, at.get("axis", 1)), at.get("block_size", 0)
    if block:
        at.need(v.ndim == x.ndim, f"blocks of {v.ndim} dims for {x.ndim}")
        return v.repeat(block, axis)[(slice(None),) * axis + (slice(0, x.shape[axis]),)]
    at.need(v.shape == (x.shape[axis],), f"{list(v.shape)} along axis {axis} of {list(x.shape)}")
    return v.reshape(*v.shape, *(1,) * (x.ndim - 1 - axis))


def _quantize(at: At, x: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    asked = at.get("output_dtype", 0)
    dtype = zero.dtype if zero is not None else dtype_of(asked, "its result") if asked else lt.uint8
    q = exact_divide(x.astype("float32"), _along(at, scale, x).astype("float32")).round()
    return _saturated(q if zero is None else q + _along(at, zero, x).astype("float32"), dtype)


def _dequantize(at: At, x: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    q = x.astype("int32")
    q = q if zero is None else q - _along(at, zero, x).astype("int32")
    asked = at.get("output_dtype", 0)
    dtype = dtype_of(asked, "its result") if asked else scale.dtype
    return (q.astype(scale.dtype) * _along(at, scale, x)).astype(dtype)


def _dynamic(at: At, x: Tensor) -> list[Tensor]:
    low, high = lt.minimum(x.min(), 0.0), lt.maximum(x.max(), 0.0)
    scale = exact_divide(high - low, lt.constant(255.0))
    zero = lt.clip((-exact_divide(low, scale)).round(), 0.0, 255.0)
    q = exact_divide(x, scale).round() + zero
    return [_saturated(q, lt.uint8), scale, zero.astype("uint8")]


# ---- products --------------------------------------------------------------------------------


def _centred(x: Tensor, zero: Tensor | None, rows: bool = False) -> Tensor:
    """x less its zero point in int32; one for each row, or for each column."""
    q = x.astype("int32")
    if zero is None:
        return q
    z = zero.astype("int32")
    z = z.reshape(()) if z.size == 1 else z.unsqueeze(-1) if rows and z.ndim == 1 else z
    return q - z


def _matmul_integer(at: At, a: Tensor, b: Tensor, za: Tensor | None, zb: Tensor | None) -> Tensor:
    return _centred(a, za, rows=True) @ _centred(b, zb)


def _weights(w: Tensor, zero: Tensor | None) -> Tensor:
    """Weights [o, …] less their zero points, one for each output channel."""
    if zero is not None and zero.ndim == 1:
        zero = zero.reshape(-1, *(1,) * (w.ndim - 1))
    return _centred(w, zero)


def _conv_integer(at: At, x: Tensor, w: Tensor, zx: Tensor | None, zw: Tensor | None) -> Tensor:
    return convolution(at, _centred(x, zx), _weights(w, zw))


def _requantized(total: Tensor, scale: Tensor, out: Tensor, zero: Tensor) -> Tensor:
    q = total.astype("float32") * exact_divide(scale, out.astype("float32"))
    return _saturated(q.round() + zero.astype("float32"), zero.dtype)


def _qlinear_matmul(
    at: At, a: Tensor, sa: Tensor, za: Tensor, b: Tensor, sb: Tensor, zb: Tensor, *out: Tensor
) -> Tensor:
    sa = sa.reshape(()) if sa.size == 1 else sa.unsqueeze(-1)
    return _requantized(_matmul_integer(at, a, b, za, zb), sa.astype("float32") * sb, *out)


def _qlinear_conv(
    at: At, x: Tensor, sx: Tensor, zx: Tensor, w: Tensor, sw: Tensor, zw: Tensor,
    sy: Tensor, zy: Tensor, bias: Tensor | None,
) -> Tensor:  # fmt: skip
    total = convolution(at, _centred(x, zx), _weights(w, zw), bias)
    scale = sx * (sw.reshape(()) if sw.size == 1 else sw.reshape(-1, *(1,) * (x.ndim - 2)))
    return _requantized(total, scale, sy, zy)


ROWS: dict[str, Row] = {
    "ConvInteger": Row(_conv_integer),
    "DequantizeLinear": Row(_dequantize, until=28),
    "DynamicQuantizeLinear": Row(_dynamic),
    "MatMulInteger": Row(_matmul_integer),
    "QLinearConv": Row(_qlinear_conv),
    "QLinearMatMul": Row(_qlinear_matmul),
    "QuantizeLinear": Row(_quantize, until=28),
}
