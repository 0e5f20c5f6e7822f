"""Convolutions of any rank: windows are views, the rest is one contraction; no patch is stored."""

from __future__ import annotations

from lambent.functional.operands import TensorLike, as_tensor, promoted
from lambent.functional.spatial import PerDim, Sizes, each, of_rank, resize, windows
from lambent.graph.dim import Size
from lambent.graph.tensor import Tensor, at_least, describe


def conv(
    rank: int,
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: PerDim = 1,
    padding: PerDim | str = 0,
    dilation: PerDim = 1,
    groups: int = 1,
) -> Tensor:
    """Cross-correlation as PyTorch: [n, c, *size] and [o, c / groups, *k] → [n, o, *size'].

    Composed: pad, a window view of every spatial dim, `mul` with the weights, `sum_reduce` over
    the input channels of a group and the taps, `add` of the bias. For each spatial dim,
    size' = (size + pads − dilation · (k − 1) − 1) // stride + 1.

    Args:
        x: may come without n. Every number but groups may be one for all spatial dims.
        padding: zeros on both sides; "valid" is 0; "same" keeps the size (an odd zero goes to the
            end) and needs stride 1.

    Raises:
        TypeError, ValueError: shapes, dtypes or numbers that do not go together.
    """
    op = f"conv{rank}d"
    x, w = _checked(op, rank, x, weight, groups, 1)
    strides, dilations = each(op, "stride", stride, rank), each(op, "dilation", dilation, rank)
    if padding == "same" and strides == (1,) * rank:
        totals = [d * (k - 1) for k, d in zip(w.shape[2:], dilations, strict=True)]
        pads = [(t // 2, t - t // 2) for t in totals]
    elif isinstance(padding, str) and padding != "valid":
        raise ValueError(f"{op}: padding {padding!r}: give numbers, 'valid', or 'same' at stride 1")
    else:
        ends = 0 if isinstance(padding, str) else padding
        pads = [(p, p) for p in each(op, "padding", ends, rank, 0)]
    return _contract(op, resize(x, pads), w, bias, strides, dilations, groups)


def conv_transpose(
    rank: int,
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: PerDim = 1,
    padding: PerDim = 0,
    output_padding: PerDim = 0,
    groups: int = 1,
    dilation: PerDim = 1,
) -> Tensor:
    """The transpose of `conv`, as PyTorch: [n, c, *size] and [c, o / groups, *k] → [n, o, *size'].

    Composed: stride − 1 zeros after every element (reshape, pad, reshape: views), then `conv`
    with the taps backwards. For each spatial dim, size' = (size − 1) · stride − 2 · padding +
    dilation · (k − 1) + output_padding + 1.

    Raises:
        TypeError, ValueError: shapes, dtypes or numbers that do not go together.
    """
    op = f"conv_transpose{rank}d"
    x, w = _checked(op, rank, x, weight, groups, 0)
    strides, dilations = each(op, "stride", stride, rank), each(op, "dilation", dilation, rank)
    less, more = (
        each(op, "padding", padding, rank, 0),
        each(op, "output_padding", output_padding, rank, 0),
    )
    pads: list[tuple[Size, Size]] = []
    for tap, s, p, e, d in zip(w.shape[2:], strides, less, more, dilations, strict=True):
        if not (at_least(s - e, 1) or at_least(d - e, 1)):
            raise ValueError(f"{op}: output_padding {e} must be below stride {s} or dilation {d}")
        pads.append((d * (tap - 1) - p, d * (tap - 1) - p + e - (s - 1)))
    c, o, *k = w.shape
    w = w.flip(range(2, w.ndim)).reshape(groups, c // groups, o, *k)
    w = w.transpose(1, 2).reshape(groups * o, c // groups, *k)
    x = resize(_spread(x, strides), pads)
    return _contract(op, x, w, bias, (1,) * rank, dilations, groups)


def _checked(
    op: str, rank: int, x: TensorLike, weight: TensorLike, groups: int, own: int
) -> tuple[Tensor, Tensor]:
    """Operands that fit. Dim `own` of the weight is the one that counts only one group."""
    x, w = promoted(x, weight)
    if x.ndim not in (rank + 1, rank + 2) or w.ndim != rank + 2:
        raise ValueError(
            f"{op}: needs [n, c, *{rank} spatial dims] (or without n) and a weight of {rank + 2} "
            f"dims, got {describe(x, w)}"
        )
    c, want, outputs = x.shape[-rank - 1], w.shape[1] * groups, w.shape[0]
    if own == 0:
        want, outputs = outputs, want
    if not isinstance(groups, int) or groups < 1 or want % groups != 0 or outputs % groups != 0:
        raise ValueError(f"{op}: {groups!r} groups do not divide the channels of {describe(w)}")
    if c != want:
        raise ValueError(f"{op}: {describe(x, w)} with groups={groups}: {c} channels, not {want}")
    return x, w


def _contract(
    op: str,
    x: Tensor,
    w: Tensor,
    bias: TensorLike | None,
    stride: Sizes,
    dilation: Sizes,
    groups: int,
) -> Tensor:
    """Padded [n, c, *spatial] and [o, c / groups, *k] → [n, o, *positions]; all without n alike."""
    rank, (o, c, *k) = len(stride), w.shape
    taps = windows(op, x, w.shape[2:], stride, dilation)
    lead, places = x.shape[: -rank - 1], taps.shape[-2 * rank : -rank]
    taps = taps.reshape(*lead, groups, 1, c, *places, *k).moveaxis(-2 * rank - 1, -rank - 1)
    w = w.reshape(groups, o // groups, *(1,) * rank, c, *k)
    y = (taps * w).sum(tuple(range(-rank - 1, 0)), dtype=x.dtype).reshape(*lead, o, *places)
    if bias is None:
        return y
    b = as_tensor(bias)
    if b.shape != (o,):
        raise ValueError(f"{op}: the bias must be [{o}], got {describe(b)}")
    return y + b.reshape(o, *(1,) * rank)


def _spread(x: Tensor, stride: Sizes) -> Tensor:
    """stride − 1 zeros after every element of the last dims."""
    for axis, s in enumerate(stride, x.ndim - len(stride)):
        shape = (*x.shape[:axis], x.shape[axis] * s, *x.shape[axis + 1 :])
        zeros = [(0, s - 1) if i == axis + 1 else (0, 0) for i in range(x.ndim + 1)]
        x = x.unsqueeze(axis + 1).pad(zeros).reshape(shape)
    return x


conv1d, conv2d, conv3d = (of_rank(conv, rank) for rank in (1, 2, 3))
conv_transpose1d, conv_transpose2d, conv_transpose3d = (
    of_rank(conv_transpose, rank) for rank in (1, 2, 3)
)
