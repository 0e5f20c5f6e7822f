"""Convolution, pooling and normalisation over spatial dims."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import lambent as lt
from lambent.frontends.onnx.errors import OnnxError
from lambent.frontends.onnx.node import At, Row, of
from lambent.functional.conv import conv, conv_transpose
from lambent.functional.operands import as_axis, constant
from lambent.functional.pool import lowest
from lambent.functional.spatial import resize, windows
from lambent.graph.dim import Size
from lambent.graph.prove import maximum, minimum
from lambent.graph.tensor import Tensor

Pads = list[tuple[Size, Size]]


def _per_dim(at: At, name: str, rank: int, default: int | None = 1) -> list[int]:
    """An attribute with one number for each spatial dim."""
    given = at.get(name)
    if given is None:
        at.need(default is not None, f"it needs {name}")
        return [default or 0] * rank
    at.need(len(given) == rank and min(given) >= 1, f"{name} {given} for {rank} spatial dims")
    return list(given)


def _pads(at: At, sizes: Sequence[Size], spans: Sequence[Size], strides: Sequence[int]) -> Pads:
    """What is added before and after each spatial dim; negative where it is cropped."""
    mode, rank = at.get("auto_pad", "NOTSET"), len(sizes)
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        pads: Pads = []
        for n, span, s in zip(sizes, spans, strides, strict=True):
            total = maximum(((n + s - 1) // s - 1) * s + span - n, 0)
            half, rest = total // 2, total - total // 2
            pads.append((half, rest) if mode == "SAME_UPPER" else (rest, half))
        return pads
    at.need(mode in ("NOTSET", "VALID"), f"auto_pad {mode!r} is not known")
    given = at.get("pads") if mode == "NOTSET" else None
    given = [0] * (2 * rank) if given is None else given
    at.need(len(given) == 2 * rank, f"{len(given)} pads for {rank} spatial dims")
    return list(zip(given[:rank], given[rank:], strict=True))


# ---- convolution -----------------------------------------------------------------------------


def convolution(at: At, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    """Conv with the node's attributes; also of integers."""
    rank = x.ndim - 2
    at.need(rank >= 1 and w.ndim == x.ndim, f"x has {x.ndim} dims, the weight {w.ndim}")
    kernel = at.get("kernel_shape") or list(w.shape[2:])
    at.need(tuple(kernel) == w.shape[2:], f"kernel_shape {kernel} with weights {list(w.shape)}")
    strides, dilations = _per_dim(at, "strides", rank), _per_dim(at, "dilations", rank)
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    x = resize(x, _pads(at, x.shape[2:], spans, strides))
    return conv(rank, x, w, bias, strides, 0, dilations, at["group"])


def _conv_transpose(at: At, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    """All of the transpose, then cropped, so that pads may differ and extra rows are 0."""
    rank = x.ndim - 2
    at.need(rank >= 1 and w.ndim == x.ndim, f"x has {x.ndim} dims, the weight {w.ndim}")
    strides, dilations = _per_dim(at, "strides", rank), _per_dim(at, "dilations", rank)
    extra = at.get("output_padding") or [0] * rank
    at.need(len(extra) == rank, f"output_padding {extra} for {rank} spatial dims")
    y = conv_transpose(rank, x, w, None, strides, 0, 0, at["group"], dilations)
    wanted = at.get("output_shape")
    upper, mode = at.get("auto_pad") == "SAME_UPPER", at.get("auto_pad", "NOTSET")
    if wanted is None and mode.startswith("SAME"):
        wanted = [n * s for n, s in zip(x.shape[2:], strides, strict=True)]
    if wanted is None:
        pads = _pads(at, x.shape[2:], x.shape[2:], strides)
    else:
        at.need(len(wanted) in (rank, rank + 2), f"output_shape {wanted}")
        totals = [
            n + e - want for n, e, want in zip(y.shape[2:], extra, wanted[-rank:], strict=True)
        ]
        pads = [(t // 2, t - t // 2) if upper else (t - t // 2, t // 2) for t in totals]
    y = resize(y, [(-low, e - high) for (low, high), e in zip(pads, extra, strict=True)])
    return y if bias is None else y + bias.reshape(-1, *(1,) * rank)


def _col2im(at: At, x: Tensor, image: list[Size], block: list[int]) -> Tensor:
    """Overlapping blocks added up: a transposed convolution by a one-hot weight."""
    rank, taps = len(block), prod(block)
    strides, dilations = _per_dim(at, "strides", rank), _per_dim(at, "dilations", rank)
    pads = _pads(at, image, block, strides)
    spans = [(k - 1) * d + 1 for k, d in zip(block, dilations, strict=True)]
    counts = [
        (n + low + high - span) // s + 1
        for n, (low, high), span, s in zip(image, pads, spans, strides, strict=True)
    ]
    n, channels, places = x.shape
    if not isinstance(channels, int) or channels % taps or prod(counts) != places:
        raise OnnxError(f"blocks of {block} do not fit {list(x.shape)}")
    c = channels // taps
    weight = lt.eye(taps, dtype=x.dtype).reshape(1, taps, 1, *block)
    weight = weight.broadcast_to(c, taps, 1, *block).reshape(c * taps, 1, *block)
    y = conv_transpose(
        rank, x.reshape(n, c * taps, *counts), weight, None, strides, 0, 0, c, dilations
    )
    after = [
        want - (size - low) for want, size, (low, _) in zip(image, y.shape[2:], pads, strict=True)
    ]
    return resize(y, [(-low, high) for (low, _), high in zip(pads, after, strict=True)])


# ---- pooling ---------------------------------------------------------------------------------

Windows = tuple[Tensor, list[tuple[Size, int, int, Size, Size, Size]]]


def _windows(at: At, x: Tensor, fill: Any) -> Windows:
    """[…, *positions, taps], and of each spatial dim: size, kernel, stride, its pads, and what the
    last window reaches over them."""
    kernel = at["kernel_shape"]
    rank = len(kernel)
    at.need(x.ndim == rank + 2, f"kernel_shape {kernel} for {x.ndim} dims")
    kernel, strides = _per_dim(at, "kernel_shape", rank), _per_dim(at, "strides", rank)
    dilations = _per_dim(at, "dilations", rank)
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    dims = []
    pads = _pads(at, x.shape[2:], spans, strides)
    for n, k, span, s, (low, high) in zip(x.shape[2:], kernel, spans, strides, pads, strict=True):
        over: Size = 0
        if at.get("ceil_mode", 0):  # a last window must start inside of x or before it
            last = minimum((n + low + high - span + s - 1) // s, (n + low - 1) // s)
            over = maximum(last * s + span - n - low - high, 0)
        dims.append((n, k, s, low, high, over))
    padded = resize(x, [(low, high + over) for *_, low, high, over in dims], fill)
    y = windows("pool", padded, tuple(kernel), tuple(strides), tuple(dilations))
    return y.reshape(*y.shape[:-rank], prod(kernel)), dims


def _max_pool(at: At, x: Tensor) -> list[Tensor]:
    y, _ = _windows(at, x, lowest(x.dtype))
    if at.outputs == 1:
        return [y.max(-1)]
    spatial = x.shape[2:]
    order = range(len(spatial))[::-1] if at.get("storage_order", 0) else range(len(spatial))
    place = lt.iota(prod(spatial)).reshape([spatial[i] for i in order])
    place = place.permute(*order).reshape(1, 1, *spatial)
    places, _ = _windows(at, place, 0)
    inside, _ = _windows(at, constant(True, shape=place.shape), False)
    first = (inside & (y >= y.max(-1, keepdims=True))).argmax(-1)
    hits = first.unsqueeze(-1) == lt.iota(y.shape[-1])
    within = lt.where(hits, places, 0).sum(-1)
    lead = lt.iota(prod(x.shape[:2])) * constant(prod(spatial), lt.int64)
    return [y.max(-1), within + lead.reshape(*x.shape[:2], *(1,) * len(spatial))]


def _average_pool(at: At, x: Tensor) -> Tensor:
    y, dims = _windows(at, x, 0)
    y, padded = y.sum(-1, dtype=x.dtype), bool(at.get("count_include_pad", 0))
    dilations = _per_dim(at, "dilations", len(dims))
    for i, ((n, k, s, low, high, over), d) in enumerate(zip(dims, dilations, strict=True)):
        around = (0, over) if padded else (low, high + over)
        if around == (0, 0):
            y = y / float(k)
            continue
        ones = constant(1, x.dtype, (n + low + high if padded else n,))
        count = resize(ones, [around]).window(0, k, s, d).sum(-1)
        y = y / count.reshape(*count.shape, *(1,) * (len(dims) - 1 - i))
    return y


def _lp_pool(at: At, x: Tensor) -> Tensor:
    y, _ = _windows(at, x, 0)
    return _root(at, _power(at, y).sum(-1))


def _power(at: At, x: Tensor) -> Tensor:
    return lt.pow(abs(x), at.get("p", 2))


def _root(at: At, x: Tensor) -> Tensor:
    return lt.pow(x, 1 / at.get("p", 2))


def _spatial(x: Tensor) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


def _global_lp(at: At, x: Tensor) -> Tensor:
    return _root(at, _power(at, x).sum(_spatial(x), keepdims=True))


def _max_unpool(at: At, x: Tensor, indices: Tensor, shape: Any) -> Tensor:
    """Each value at its place in the flattened result; the others are 0."""
    rank = x.ndim - 2
    kernel, strides = _per_dim(at, "kernel_shape", rank, None), _per_dim(at, "strides", rank)
    pads = _pads(at, x.shape[2:], kernel, strides)
    inner = [
        (n - 1) * s + k - low - high
        for n, s, k, (low, high) in zip(x.shape[2:], strides, kernel, pads, strict=True)
    ]
    small = (*x.shape[:2], *inner)
    wanted = small if shape is None else tuple(shape)
    at.need(len(wanted) == x.ndim, f"output_shape {wanted}")
    flat = lt.zeros(prod(small), dtype=x.dtype)
    flat = lt.scatter(flat, 0, indices.flatten(), x.flatten())
    ends = [(0, want - n) for want, n in zip(wanted, small, strict=True)]
    return flat.reshape(small).pad(ends) if shape is not None else flat.reshape(small)


# ---- normalisation ---------------------------------------------------------------------------


def _batch_norm(
    at: At, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor
) -> list[Tensor]:
    eps = at["epsilon"]
    if not at.get("training_mode", 0):
        at.need(at.outputs == 1, "results beside the first are for training")
        return [lt.batch_norm(x, mean, var, scale, bias, eps)]
    y, m, v = lt.batch_norm_train(x, scale, bias, eps)
    keep = at["momentum"]
    return [y, mean * keep + m * (1 - keep), var * keep + v * (1 - keep)]


def _layer_norm(at: At, x: Tensor, scale: Tensor, bias: Tensor | None) -> list[Tensor]:
    axes = tuple(range(as_axis("LayerNormalization", x, at["axis"]), x.ndim))
    wide = x.astype(x.dtype.compute)
    mean = wide.mean(axes, keepdims=True)
    centred = wide - mean
    inverse = (centred.square().mean(axes, keepdims=True) + at["epsilon"]).rsqrt()
    y = (centred * inverse).astype(x.dtype) * scale
    return [y if bias is None else y + bias, mean, inverse]


def _rms_norm(at: At, x: Tensor, scale: Tensor) -> Tensor:
    axes = tuple(range(as_axis("RMSNormalization", x, at["axis"]), x.ndim))
    wide = x.astype(x.dtype.compute)
    y: Tensor = wide * (wide.square().mean(axes, keepdims=True) + at["epsilon"]).rsqrt()
    return y.astype(x.dtype) * scale


def _group_norm(at: At, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """Before opset 21 scale and bias were given by group, since then by channel."""
    groups, each = at["num_groups"], x.shape[1] // at["num_groups"]
    if at.version < 21:
        scale, bias = (v.repeat(each) for v in (scale, bias))
    return lt.group_norm(x, groups, scale, bias, at["epsilon"])


def _lrn(at: At, x: Tensor) -> Tensor:
    size = at["size"]
    at.need(size >= 1, f"size={size}")
    low = (size - 1) // 2
    pads = [(low, size - 1 - low) if axis == 1 else (0, 0) for axis in range(x.ndim)]
    total = x.square().pad(pads).window(1, size).sum(-1)
    return x * lt.pow(total * (at["alpha"] / size) + at["bias"], -at["beta"])


ROWS: dict[str, Row] = {
    "AveragePool": Row(_average_pool),
    "BatchNormalization": Row(_batch_norm),
    "Col2Im": Row(_col2im, static=(1, 2)),
    "Conv": Row(convolution),
    "ConvTranspose": Row(_conv_transpose),
    "GlobalAveragePool": of(lambda x: x.mean(_spatial(x), keepdims=True)),
    "GlobalLpPool": Row(_global_lp),
    "GlobalMaxPool": of(lambda x: x.max(_spatial(x), keepdims=True)),
    "GroupNormalization": Row(_group_norm),
    "InstanceNormalization": Row(lambda at, x, g, b: lt.instance_norm(x, g, b, at["epsilon"])),
    "LRN": Row(_lrn),
    "LayerNormalization": Row(_layer_norm),
    "LpPool": Row(_lp_pool),
    "MaxPool": Row(_max_pool),
    "MaxUnpool": Row(_max_unpool, static=(2,), note="n · m comparisons"),
    "RMSNormalization": Row(_rms_norm),
}
