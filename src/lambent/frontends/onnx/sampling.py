"""Operators that interpolate: Resize, GridSample, RoiAlign."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

import lambent as lt
from lambent.frontends.onnx.errors import OnnxError
from lambent.frontends.onnx.node import At, Row
from lambent.frontends.onnx.read import Array
from lambent.functional.operands import as_axis
from lambent.graph.dim import Size, exact
from lambent.graph.tensor import Tensor

LARGEST = 1 << 26
"""Most pairs of a position before and after that Resize looks at along one axis."""


# ---- Resize: everything but x is known, so each axis has a list of taps ----------------------


def _resize(at: At, x: Tensor, roi: Any, scales: Any, sizes: Any) -> Tensor:
    axes = [as_axis("Resize", x, a) for a in at.get("axes") or range(x.ndim)]
    scales, sizes = scales or None, sizes or None
    given = scales if scales is not None else sizes
    if given is None or len(given) != len(axes):
        raise OnnxError(f"scales {scales} or sizes {sizes} for the axes {axes}")
    wanted: list[tuple[Any, Any]] = [(x.shape[a], g) for a, g in zip(axes, given, strict=True)]
    plans = [_by_scale(n, g) if scales else (g, None) for n, g in wanted]
    policy = at.get("keep_aspect_ratio_policy", "stretch")
    if sizes and policy != "stretch":
        pick = min if policy == "not_larger" else max
        scale = pick(g / n for n, g in wanted)
        plans = [(math.floor(n * scale + 0.5), scale) for n, _ in wanted]
    outside: list[tuple[int, Array]] = []
    for i, (axis, (count, scale)) in enumerate(zip(axes, plans, strict=True)):
        crop = (roi[i], roi[i + len(axes)]) if roi else (0.0, 1.0)
        same = count == x.shape[axis] and scale in (None, 1.0)
        if not same or at["coordinate_transformation_mode"] == "tf_crop_and_resize":
            x, beyond = _resize_axis(at, x, axis, count, scale, crop)
            outside += [(axis, beyond)] if beyond.any() else []
    for axis, beyond in outside:
        shape = [-1 if a == axis else 1 for a in range(x.ndim)]
        x = lt.where(beyond.reshape(shape), at["extrapolation_value"], x)
    return x


def _by_scale(n: Size, scale: float) -> tuple[Size, float | None]:
    exactly = Fraction(scale)
    if isinstance(n, int):
        return math.floor(n * exactly), scale
    return n * exactly.numerator // exactly.denominator, scale


def _resize_axis(
    at: At, x: Tensor, axis: int, count: Size, scale: float | None, crop: tuple[float, float]
) -> tuple[Tensor, Array]:
    """x with one axis resized, and which of its positions are outside of x."""
    n = x.shape[axis]
    factor = exact(count, n)
    none = np.zeros(0, bool)
    if isinstance(factor, int) and at["mode"] == "nearest" and _repeats(at, n, factor, crop):
        return x.repeat(factor, axis), none
    if not isinstance(n, int) or not isinstance(count, int):
        raise OnnxError(
            f"axis {axis} goes from {n} to {count}: a symbolic axis can only be repeated a whole "
            "number of times (mode nearest); fix its size by dims={…}"
        )
    at.need(n * count <= LARGEST, f"axis {axis} goes from {n} to {count}: too large")
    weights, beyond = _axis_weights(at, n, count, count / n if scale is None else scale, crop)
    used = weights != 0
    out: Tensor | None = None
    for _ in range(max(1, int(used.sum(1).max(initial=0)))):
        place = np.argmax(used, 1)
        weight = np.where(used.any(1), weights[np.arange(count), place], 0).astype(x.dtype.numpy)
        used[np.arange(count), place] = False
        part = lt.take(x, place, axis)
        if not (weight == 1).all():
            part = part * weight.reshape(-1, *(1,) * (x.ndim - 1 - axis))
        out = part if out is None else out + part
    assert out is not None
    return out, beyond


def _repeats(at: At, n: Size, factor: int, crop: tuple[float, float]) -> bool:
    """Whether nearest neighbours at this factor are each element so many times."""
    sizes = [n] if isinstance(n, int) else [2, 5, 8]
    for size in sizes:
        weights, _ = _axis_weights(at, size, size * factor, float(factor), crop)
        if not (weights.argmax(1) == np.repeat(np.arange(size), factor)).all():
            return False
    return bool(at["coordinate_transformation_mode"] != "tf_crop_and_resize")


def _axis_weights(
    at: At, n: int, count: int, scale: float, crop: tuple[float, float]
) -> tuple[Array, Array]:
    """[count, n]: how much each position after takes of each before; and which are outside."""
    mode = at["coordinate_transformation_mode"]
    at.need(mode in _COORDINATES, f"coordinate_transformation_mode {mode!r} is not known")
    at.need(at["mode"] in ("nearest", "linear", "cubic"), f"mode {at['mode']!r} is not known")
    position = _COORDINATES[mode](np.arange(count), n, count, scale, crop)
    beyond = np.zeros(count, bool)
    if mode == "tf_crop_and_resize":
        beyond = (position < 0) | (position > n - 1)
    if at["mode"] == "nearest":
        rounded = _ROUNDINGS[at["nearest_mode"]](position)
        taps, weights = rounded[:, None], np.ones((count, 1))
    else:
        stretch = min(scale, 1.0) if at.get("antialias", 0) else 1.0
        kernel = _triangle if at["mode"] == "linear" else _cubic(at["cubic_coeff_a"])
        reach = math.ceil((1 if at["mode"] == "linear" else 2) / stretch)
        low = np.floor(position).astype(int)
        taps = low[:, None] + np.arange(1 - reach, reach + 1)
        weights = kernel((position[:, None] - taps) * stretch)
        if at.get("exclude_outside", 0) or at.get("antialias", 0):
            inside = (taps >= 0) & (taps < n) if at.get("exclude_outside", 0) else True
            weights = np.where(inside, weights, 0)
            weights /= weights.sum(1, keepdims=True)
    out = np.zeros((count, n))
    np.add.at(out, (np.arange(count)[:, None], np.clip(taps, 0, n - 1).astype(int)), weights)
    return out, beyond


def _half_pixel(i: Array, n: int, count: int, scale: float, crop: Any) -> Array:
    return (i + 0.5) / scale - 0.5


def _symmetric(i: Array, n: int, count: int, scale: float, crop: Any) -> Array:
    return n / 2 * (1 - count / (scale * n)) + _half_pixel(i, n, count, scale, crop)


def _align_corners(i: Array, n: int, count: int, scale: float, crop: Any) -> Array:
    """By the size before it was rounded down, as the standard has it."""
    return np.zeros(1) if count == 1 else i * (n - 1) / (n * scale - 1)


def _crop_and_resize(i: Array, n: int, count: int, scale: float, crop: Any) -> Array:
    start, end = crop
    if count == 1:
        return np.full(1, 0.5 * (start + end) * (n - 1))
    return np.asarray(start * (n - 1) + i * (end - start) * (n - 1) / (count - 1))


_COORDINATES: dict[str, Callable[..., Array]] = {
    "align_corners": _align_corners,
    "asymmetric": lambda i, n, count, scale, crop: i / scale,
    "half_pixel": _half_pixel,
    "half_pixel_symmetric": _symmetric,
    "pytorch_half_pixel": lambda i, n, count, scale, crop: (
        _half_pixel(i, n, count, scale, crop) if count > 1 else np.zeros(1)
    ),
    "tf_crop_and_resize": _crop_and_resize,
}
_ROUNDINGS: dict[str, Callable[[Array], Array]] = {
    "ceil": np.ceil,
    "floor": np.floor,
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
}


def _triangle(d: Array) -> Array:
    return np.asarray(np.maximum(1 - np.abs(d), 0))


def _cubic(a: float) -> Callable[[Array], Array]:
    def kernel(d: Array) -> Array:
        d = np.abs(d)
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        return np.where(d <= 1, near, np.where(d < 2, far, 0))

    return kernel


# ---- sampling where data says: each axis has a matrix of weights -----------------------------


def _grid_sample(at: At, x: Tensor, grid: Tensor) -> Tensor:
    """x [n, c, *sizes] at grid [n, *positions, rank], −1 … 1 from edge to edge, innermost first."""
    rank = x.ndim - 2
    at.need(
        rank in (1, 2, 3) and grid.ndim == x.ndim and grid.shape[-1] == rank, "the grid's shape"
    )
    n, c = x.shape[:2]
    places = grid.shape[1:-1]
    weights = []
    for axis in range(rank):
        where = grid[..., rank - 1 - axis].reshape(n, -1)
        weights.append(_sampled_axis(at, where, x.shape[axis + 2]))
    dims = "dhw"[3 - rank :]
    spec = f"nc{dims}," + ",".join(f"np{d}" for d in dims) + "->ncp"
    return lt.einsum(spec, x, *weights).reshape(n, c, *places)


def _sampled_axis(at: At, where: Tensor, size: Size) -> Tensor:
    """[n, p] → [n, p, size]: the weight of each element in each sample."""
    mode, padding = at["mode"], at["padding_mode"]
    edge = float(size) if isinstance(size, int) else None
    if edge is None:
        raise OnnxError(f"the size {size} is symbolic; fix it by dims={{…}}")
    corners = at["align_corners"]
    at.need(padding in ("zeros", "border", "reflection"), f"padding_mode {padding!r} is not known")
    position = (where + 1.0) * ((edge - 1) / 2) if corners else (where + 1.0) * (edge / 2) - 0.5
    cubic = mode in ("cubic", "bicubic")
    if not cubic:
        position = _padded(position, edge, padding, corners)
    low = position.round() if mode == "nearest" else position.floor()
    f = position - low
    if cubic:
        shift, kernel = (-1, 0, 1, 2), _cubic_of_tensor
        taps = [(low + float(k), kernel(abs(f - float(k)))) for k in shift]
        taps = [(_padded(t, edge, padding, corners), w) for t, w in taps]
    elif mode == "nearest":
        taps = [(low, lt.ones_like(f))]
    else:
        at.need(mode in ("linear", "bilinear"), f"mode {mode!r} is not known")
        taps = [(low, 1.0 - f), (low + 1.0, f)]
    return _spread(taps, size)


def _spread(taps: Sequence[tuple[Tensor, Tensor]], size: Size) -> Tensor:
    """Weights […] at indices […] as […, size]; an index outside has no place."""
    total: Tensor | None = None
    for index, weight in taps:
        part = (index.unsqueeze(-1) == lt.iota(size).astype(index.dtype)) * weight.unsqueeze(-1)
        total = part if total is None else total + part
    assert total is not None
    return total


def _padded(x: Tensor, size: float, padding: str, corners: int) -> Tensor:
    """Positions moved into the array."""
    if padding == "zeros":
        return x
    if padding == "reflection":
        low, span = (0.0, size - 1) if corners else (-0.5, size)
        if span == 0:
            return x * 0.0
        u = (x - low) % (2 * span)
        x = low + lt.minimum(u, 2 * span - u)
    return lt.clip(x, 0.0, size - 1)


def _cubic_of_tensor(d: Tensor) -> Tensor:
    a = -0.75
    near = ((a + 2) * d - (a + 3)) * d * d + 1.0
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return lt.where(d <= 1.0, near, lt.where(d < 2.0, far, 0.0))


def _roi_align(at: At, x: Tensor, rois: Tensor, batch: Tensor) -> Tensor:
    """The mean of bilinear samples in each bin of each region [x1, y1, x2, y2]."""
    samples = at["sampling_ratio"]
    at.need(at["mode"] == "avg", "the mode max is not supported, avg is")
    at.need(samples > 0, "sampling_ratio 0 depends on the regions; give a number")
    half = at.get("coordinate_transformation_mode", "output_half_pixel") == "half_pixel"
    corners = rois * at["spatial_scale"] - (0.5 if half else 0.0)
    counts = at["output_height"], at["output_width"]
    weights = []
    for axis, count in enumerate(counts):
        start, size = corners[:, 1 - axis], x.shape[2 + axis]
        length = corners[:, 3 - axis] - start
        length = length if half else lt.maximum(length, 1.0)
        steps = (lt.iota(count * samples).astype(x.dtype) + 0.5) / float(samples * count)
        y = start.unsqueeze(1) + length.unsqueeze(1) * steps
        last = lt.constant(size, lt.int64).astype(x.dtype) - 1.0
        inside = (y >= -1.0) & (y <= last + 1.0)
        y = lt.clip(y, 0.0, last)
        f = y - y.floor()
        w = inside.unsqueeze(-1) * _spread([(y.floor(), 1.0 - f), (y.floor() + 1.0, f)], size)
        weights.append(w.reshape(-1, count, samples, size).mean(2))
    return lt.einsum("rchw,rih,rjw->rcij", lt.take(x, batch, 0), *weights)


ROWS: dict[str, Row] = {
    "GridSample": Row(_grid_sample, note="products with all positions of each axis"),
    "Resize": Row(_resize, static=(1, 2, 3)),
    "RoiAlign": Row(_roi_align, note="products with all positions of each axis"),
}
