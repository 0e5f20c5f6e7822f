"""Operators that move, cut, join and repeat, and those that compute shapes."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

import lambent as lt
from lambent.frontends.onnx.known import SMALL, Known, as_known, known
from lambent.frontends.onnx.node import At, Row, of, one
from lambent.frontends.onnx.read import dtype_of
from lambent.functional.joining import concat
from lambent.functional.operands import as_axis, broadcast_shapes, constant
from lambent.graph.dim import Size
from lambent.graph.tensor import Tensor

# ---- shapes ----------------------------------------------------------------------------------


def _shape(at: At, x: Tensor) -> Known:
    end = at.get("end")
    return as_known(x.shape[at.get("start", 0) : x.ndim if end is None else end])


def _reshape(at: At, x: Tensor, shape: list[Size]) -> Tensor:
    keep = not at.get("allowzero", 0)
    at.need(keep or not (0 in shape and -1 in shape), "with allowzero the shape has 0 and -1")
    zeros = [i for i, s in enumerate(shape) if keep and isinstance(s, int) and s == 0]
    at.need(not zeros or zeros[-1] < x.ndim, f"{shape} keeps a dim that {list(x.shape)} lacks")
    return x.reshape([x.shape[i] if i in zeros else s for i, s in enumerate(shape)])


def _reshape_known(at: At, x: Known, shape: Known) -> Known | None:
    if shape.symbolic:
        return None
    return known(x.array.reshape(shape.array.tolist()), x.dtype)


def _flatten(at: At, x: Tensor) -> Tensor:
    axis = at["axis"]
    at.need(-x.ndim <= axis <= x.ndim, f"axis {axis} of {x.ndim} dims")
    cut = axis + x.ndim if axis < 0 else axis
    return x.reshape(prod(x.shape[:cut]), prod(x.shape[cut:]))


def _squeeze(at: At, x: Tensor, axes: Any = None) -> Tensor:
    chosen = at.numbers("axes", axes)
    for axis in chosen or ():
        at.need(-x.ndim <= axis < x.ndim and x.shape[axis] == 1, f"axis {axis} is not of size 1")
    return x.squeeze(chosen)


def _unsqueeze(at: At, x: Tensor, axes: Any = None) -> Tensor:
    return x.unsqueeze(at.numbers("axes", axes) or [])


def _squeezed_array(at: At, x: Known, axes: Known | None = None) -> Known:
    chosen = at.numbers("axes", axes and axes.array.tolist())
    return Known(np.squeeze(x.array, None if chosen is None else tuple(chosen)), x.dtype)


def _unsqueezed_array(at: At, x: Known, axes: Known | None = None) -> Known:
    chosen = at.numbers("axes", axes and axes.array.tolist())
    return Known(np.expand_dims(x.array, tuple(chosen or ())), x.dtype)


def _transpose(at: At, x: Tensor) -> Tensor:
    return x.permute(at.get("perm", list(range(x.ndim))[::-1]))


# ---- joining and cutting ---------------------------------------------------------------------


def _concat(at: At, *xs: Tensor) -> Tensor:
    return concat(xs, at["axis"])


def _concat_known(at: At, *xs: Known) -> Known:
    return known(np.concatenate([x.array for x in xs], at["axis"]), xs[0].dtype)


def _split(at: At, x: Tensor, sizes: Any = None) -> list[Tensor]:
    axis, given = at["axis"], at.numbers("split", sizes)
    if given is None:
        count, n = at.get("num_outputs", at.outputs), x.shape[axis]
        at.need(count == at.outputs, f"{count} parts for {at.outputs} results")
        each = -(-n // count)
        given = [each] * (count - 1) + [n - each * (count - 1)]
    return x.split(given, axis)


def _slice(at: At, x: Tensor, starts: Any, ends: Any, axes: Any, steps: Any) -> Tensor:
    return x[_slices(at, x.ndim, starts, ends, axes, steps)]


def _slices(at: At, rank: int, starts: Any, ends: Any, axes: Any, steps: Any) -> tuple[slice, ...]:
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    at.need(len(starts) == len(ends) == len(axes) == len(steps), "starts, ends, axes, steps differ")
    at.need(all(-rank <= a < rank for a in axes), f"axes {axes} of {rank} dims")
    at.need(len({a % rank for a in axes}) == len(axes), f"axes {axes} name a dim twice")
    key = [slice(None)] * rank
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        key[axis] = slice(start, end, step)
    return tuple(key)


def _slice_known(at: At, x: Known, *more: Known | None) -> Known:
    lists = [None if m is None else m.array.tolist() for m in more]
    return known(x.array[_slices(at, x.array.ndim, *(*lists, None, None)[:4])], x.dtype)


# ---- repeating and padding -------------------------------------------------------------------


def _expand(at: At, x: Tensor, shape: list[Size]) -> Tensor:
    both = broadcast_shapes("Expand", x.shape, tuple(shape))
    return x.broadcast_to(both)


def _expand_known(at: At, x: Known, shape: Known) -> Known | None:
    if shape.symbolic or prod(shape.array.tolist()) > SMALL:
        return None
    both = np.broadcast_shapes(x.array.shape, tuple(shape.array.tolist()))
    return known(np.broadcast_to(x.array, both), x.dtype)


def _tile(x: Tensor, repeats: list[Size]) -> Tensor:
    return x.tile(repeats)


def _pad(at: At, x: Tensor, pads: Any, value: Any, axes: Any = None) -> Tensor:
    pads = at.numbers("pads", pads)
    chosen = range(x.ndim) if axes is None else [as_axis("Pad", x, a) for a in axes]
    at.need(len(pads) == 2 * len(chosen), f"{len(pads)} pads for {len(chosen)} axes")
    both: list[tuple[Size, Size]] = [(0, 0)] * x.ndim
    for i, axis in enumerate(chosen):
        both[axis] = (pads[i], pads[i + len(chosen)])
    modes = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}
    at.need(at["mode"] in modes, f"the mode {at['mode']!r} is not known")
    value = one(value)
    if value is None:
        value = at.get("value", False if x.dtype == lt.bool_ else 0)
    return x.pad(both, modes[at["mode"]], value)


# ---- from nothing ----------------------------------------------------------------------------


def _constant(at: At) -> Known:
    given = list(at.attributes.items())
    at.need(len(given) == 1, f"it has {len(given)} values")
    name, value = given[0]
    kinds = {"value_int": "int64", "value_ints": "int64", "value_float": "float32"}
    kinds["value_floats"] = "float32"
    at.need(name in kinds or name == "value", f"a constant from {name!r} is not supported")
    return known(value, kinds.get(name))


def _constant_of_shape(at: At, shape: list[Size]) -> Tensor:
    value = at.get("value", np.zeros(1, np.float32))
    at.need(value.size == 1, "its value is not one number")
    return constant(value.reshape(()).item(), str(value.dtype), shape)


def _range(at: At, start: Any, stop: Any, step: Any) -> Tensor:
    start, stop, step = one(start), one(stop), one(step)
    at.need(step != 0, "the step is 0")
    if at.result is not None and at.result.is_float:
        count = max(0, int(np.ceil((stop - start) / step)))
        steps: Tensor = lt.iota(count).astype("float64") * step + start
        return steps.astype(at.result)
    return lt.arange(start, stop, step)


def _eye_like(at: At, x: Tensor) -> Tensor:
    at.need(x.ndim == 2, f"{x.ndim} dims")
    dtype = dtype_of(at["dtype"], "its result") if "dtype" in at.attributes else x.dtype
    rows, columns = (lt.iota(n) for n in x.shape)
    k: int = at["k"]
    return (rows.unsqueeze(1) + k == columns).astype(dtype)


def _trilu(at: At, x: Tensor, k: Any) -> Tensor:
    k = 0 if k is None else max(-(2**40), min(2**40, one(k)))
    if x.dtype == lt.bool_:
        keep = lt.tri(x.shape[-2], x.shape[-1], k - 1 if at["upper"] else k)
        return x & (~keep if at["upper"] else keep)
    return x.triu(k) if at["upper"] else x.tril(k)


# ---- blocks of space -------------------------------------------------------------------------


def _depth_to_space(at: At, x: Tensor) -> Tensor:
    b, (n, c, h, w) = at["blocksize"], x.shape
    at.need(b >= 1 and c % (b * b) == 0, f"{c} channels in blocks of {b}²")
    if at["mode"] == "DCR":
        y = x.reshape(n, b, b, c // (b * b), h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        y = x.reshape(n, c // (b * b), b, b, h, w).permute(0, 1, 4, 2, 5, 3)
    return y.reshape(n, c // (b * b), h * b, w * b)


def _space_to_depth(at: At, x: Tensor) -> Tensor:
    b, (n, c, h, w) = at["blocksize"], x.shape
    at.need(b >= 1 and h % b == 0 and w % b == 0, f"{h} × {w} in blocks of {b}")
    crd = at.get("mode", "DCR") == "CRD"
    order = (0, 1, 3, 5, 2, 4) if crd else (0, 3, 5, 1, 2, 4)
    y = x.reshape(n, c, h // b, b, w // b, b).permute(*order)
    return y.reshape(n, c * b * b, h // b, w // b)


def _reverse_sequence(at: At, x: Tensor, lengths: Tensor) -> Tensor:
    batch, time = at["batch_axis"], at["time_axis"]
    at.need({batch, time} == {0, 1}, "batch and time must be the first two dims")
    return reverse_sequence(x.moveaxis(time, 0), lengths).moveaxis(0, time)


def reverse_sequence(x: Tensor, lengths: Tensor) -> Tensor:
    """x [time, batch, …] with the first `lengths` steps of each sequence backwards."""
    place, count = lt.iota(x.shape[0]).unsqueeze(1), lengths.astype("int64")
    source = lt.where(place < count, count - 1 - place, place)
    return lt.take_along_axis(x, source.reshape(*source.shape, *(1,) * (x.ndim - 2)), 0)


ROWS: dict[str, Row] = {
    "Concat": Row(_concat, fold=_concat_known),
    "Constant": Row(_constant, until=28),
    "ConstantOfShape": Row(_constant_of_shape, static=(0,), until=28),
    "DepthToSpace": Row(_depth_to_space, until=28),
    "Expand": Row(_expand, static=(1,), fold=_expand_known),
    "EyeLike": Row(_eye_like),
    "Flatten": Row(_flatten, until=28),
    "Pad": Row(_pad, static=(1, 2, 3), until=28),
    "Range": Row(_range, static=(0, 1, 2), until=28),
    "Reshape": Row(_reshape, static=(1,), fold=_reshape_known, until=28),
    "ReverseSequence": Row(_reverse_sequence, until=28),
    "Shape": Row(_shape, until=28),
    "Size": of(lambda x: known(x.size), until=28),
    "Slice": Row(_slice, static=(1, 2, 3, 4), fold=_slice_known),
    "SpaceToDepth": Row(_space_to_depth, until=28),
    "Split": Row(_split, static=(1,)),
    "Squeeze": Row(_squeeze, static=(1,), fold=_squeezed_array, until=28),
    "Tile": of(_tile, static=(1,)),
    "Transpose": Row(_transpose, until=28),
    "Trilu": Row(_trilu, static=(1,)),
    "Unsqueeze": Row(_unsqueeze, static=(1,), fold=_unsqueezed_array, until=28),
}
