"""Fourier transforms, as products with a matrix of sines, and mel filters."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import lambent as lt
from lambent.frontends.onnx.errors import OnnxError
from lambent.frontends.onnx.known import Known, known
from lambent.frontends.onnx.node import At, Row, one
from lambent.frontends.onnx.read import dtype_of
from lambent.functional.operands import as_axis
from lambent.functional.spatial import resize
from lambent.graph.dim import Size
from lambent.graph.dtypes import DType
from lambent.graph.tensor import Tensor


def _angles(rows: Size, n: int, dtype: DType) -> tuple[Tensor, Tensor]:
    """cos and sin of 2π · k · j / n, [rows, n], exact as k · j is taken modulo n."""
    turn = (lt.iota(rows).unsqueeze(1) * lt.iota(n)) % n
    angle = turn.astype("float64") * (2 * math.pi / n)
    return lt.cos(angle).astype(dtype), lt.sin(angle).astype(dtype)


def transform(x: Tensor, n: int, inverse: bool, onesided: bool) -> Tensor:
    """x […, n, 1 or 2] → […, n or n / 2 + 1, 2], real and imaginary parts last."""
    rows = n // 2 + 1 if onesided and not inverse else n
    cos, sin = _angles(rows, n, x.dtype)
    sin = -sin if inverse else sin
    real = x[..., 0]
    re, im = real @ cos.mT, -(real @ sin.mT)
    if x.shape[-1] == 2:
        re, im = re + x[..., 1] @ sin.mT, im + x[..., 1] @ cos.mT
    out = lt.stack([re, im], -1)
    return out / float(n) if inverse else out


def _dft(at: At, x: Tensor, length: Any, axis: Any = None) -> Tensor:
    axis = at.get("axis", 1) if at.version < 20 else -2 if axis is None else axis
    axis = as_axis("DFT", x, one(axis))
    at.need(axis < x.ndim - 1 and x.shape[-1] in (1, 2), "the last dim is real and imaginary")
    inverse, onesided = bool(at["inverse"]), bool(at["onesided"])
    length = one(length)
    back = inverse and onesided  # from one half of a symmetric spectrum to real numbers
    n = length if length is not None else (2 * (x.shape[axis] - 1) if back else x.shape[axis])
    if not isinstance(n, int) or n < 1:
        raise OnnxError(f"the length {n} must be a known number")
    y = x.moveaxis(axis, -2)
    have = n // 2 + 1 if back else n
    y = resize(y, [(0, have - y.shape[-2]), (0, 0)])
    if back:
        at.need(y.shape[-1] == 2, "the spectrum is complex")
        mirror = y[..., 1 : n - have + 1, :].flip(-2)
        y = lt.concat([y, lt.stack([mirror[..., 0], -mirror[..., 1]], -1)], -2)
    out = transform(y, n, inverse, onesided)
    return (out[..., :1] if back else out).moveaxis(-2, axis)


def _stft(at: At, x: Tensor, step: Any, window: Tensor | None, length: Any) -> Tensor:
    """x [batch, samples, 1 or 2] → [batch, frames, bins, 2]."""
    step, length = one(step), one(length)
    n = length if length is not None else window.shape[0] if window is not None else x.shape[1]
    if not isinstance(n, int):
        raise OnnxError(f"the frame length {n} must be a known number")
    x = x.unsqueeze(-1) if x.ndim == 2 else x
    frames = x.window(1, n, step).transpose(-1, -2)  # [batch, frames, n, parts]
    frames = frames if window is None else frames * window.unsqueeze(-1)
    return transform(frames, n, False, bool(at["onesided"]))


def _mel_weights(at: At, bins: Any, n: Any, rate: Any, low: Any, high: Any) -> Known:
    """Triangles between points that are evenly spaced on the mel scale, [n / 2 + 1, bins]."""
    bins, n, rate, low, high = map(one, (bins, n, rate, low, high))
    at.need(0 < bins <= 4096 and 0 < n <= 1 << 20, f"{bins} bins of {n} points")
    first, last = (2595 * np.log10(1 + f / 700) for f in (low, high))
    mel = first + np.arange(bins + 2) * (last - first) / (bins + 2)
    edges = np.floor((n + 1) * (700 * (10 ** (mel / 2595) - 1)) / rate).astype(int)
    place = np.arange(n // 2 + 1)[:, None]
    left, middle, right = edges[:-2], edges[1:-1], edges[2:]
    with np.errstate(divide="ignore", invalid="ignore"):
        up = np.where(middle > left, (place - left) / (middle - left), place == middle)
        down = (right - place) / (right - middle)
    rising = (place >= left) & (place <= middle)
    weights = np.where(rising, up, np.where((place > middle) & (place < right), down, 0))
    return known(weights, dtype_of(at["output_datatype"], "its result"))


ROWS: dict[str, Row] = {
    "DFT": Row(_dft, static=(1, 2), note="n² products a line"),
    "MelWeightMatrix": Row(_mel_weights, static=(0, 1, 2, 3, 4)),
    "STFT": Row(_stft, static=(1, 3), note="n² products a frame"),
}
