"""Convolutions of any rank: windows are views and the rest is one contraction; no patch is stored."""

from __future__ import annotations

from collections.abc import Sequence

from lambent.graph.dim import Size
from lambent.graph.functional.spatial import (
    PerDim,
    batched,
    each,
    flip,
    reduce_last,
    resize,
    unbatched,
    windows,
)
from lambent.graph.tensor import (
    Tensor,
    TensorLike,
    as_tensor,
    binary,
    describe,
    promoted,
    reshape,
    view,
)

__all__ = [
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
]


def conv1d(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: PerDim = 1,
    padding: PerDim | str = 0,
    dilation: PerDim = 1,
    groups: int = 1,
) -> Tensor:
    """Cross-correlation as PyTorch: [n, c, l] (or [c, l]) and [o, c / groups, k] → [n, o, l'].

    Composed: pad, a window view of every spatial dim, `mul` with the weights, `sum_reduce` over
    the input channels of a group and the taps, `add` of the bias. l' = (l + pads − dilation ·
    (k − 1) − 1) // stride + 1.

    Args:
        padding: zeros on both sides of each spatial dim; "valid" is 0; "same" keeps the size (an
            odd zero goes to the end) and needs stride 1.

    Raises:
        TypeError, ValueError: shapes, dtypes or numbers that do not go together.
    """
    return _conv("conv1d", 1, x, weight, bias, stride, padding, dilation, groups)


def conv2d(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: PerDim = 1,
    padding: PerDim | str = 0,
    dilation: PerDim = 1,
    groups: int = 1,
) -> Tensor:
    """`conv1d` over two spatial dims: [n, c, h, w] and [o, c / groups, i, j] → [n, o, h', w']."""
    return _conv("conv2d", 2, x, weight, bias, stride, padding, dilation, groups)


def conv3d(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: PerDim = 1,
    padding: PerDim | str = 0,
    dilation: PerDim = 1,
    groups: int = 1,
) -> Tensor:
    """`conv1d` over three spatial dims."""
    return _conv("conv3d", 3, x, weight, bias, stride, padding, dilation, groups)


def conv_transpose1d(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: PerDim = 1,
    padding: PerDim = 0,
    output_padding: PerDim = 0,
    groups: int = 1,
    dilation: PerDim = 1,
) -> Tensor:
    """The transpose of `conv1d`: [n, c, l] (or [c, l]) and [c, o / groups, k] → [n, o, l'].

    Composed: stride − 1 zeros after every element (reshape, pad, reshape: views), then `conv1d`
    with the taps backwards. l' = (l − 1) · stride − 2 · padding + dilation · (k − 1) +
    output_padding + 1.

    Raises:
        TypeError, ValueError: shapes, dtypes or numbers that do not go together.
    """
    numbers = (stride, padding, output_padding, dilation)
    return _conv_transpose("conv_transpose1d", 1, x, weight, bias, numbers, groups)


def conv_transpose2d(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: PerDim = 1,
    padding: PerDim = 0,
    output_padding: PerDim = 0,
    groups: int = 1,
    dilation: PerDim = 1,
) -> Tensor:
    """`conv_transpose1d` over two spatial dims."""
    numbers = (stride, padding, output_padding, dilation)
    return _conv_transpose("conv_transpose2d", 2, x, weight, bias, numbers, groups)


def conv_transpose3d(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: PerDim = 1,
    padding: PerDim = 0,
    output_padding: PerDim = 0,
    groups: int = 1,
    dilation: PerDim = 1,
) -> Tensor:
    """`conv_transpose1d` over three spatial dims."""
    numbers = (stride, padding, output_padding, dilation)
    return _conv_transpose("conv_transpose3d", 3, x, weight, bias, numbers, groups)


def _conv(
    op: str,
    rank: int,
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None,
    stride: PerDim,
    padding: PerDim | str,
    dilation: PerDim,
    groups: int,
) -> Tensor:
    x, w = promoted(x, weight)
    x, had_batch = batched(op, x, rank)
    _check(op, x, w, rank, groups, w.shape[1:2] and w.shape[1] * groups, w.shape[:1] and w.shape[0])
    stride, dilation = each(op, "stride", stride, rank), each(op, "dilation", dilation, rank)
    if padding == "same":
        if any(s != 1 for s in stride):
            raise ValueError(f"{op}: padding 'same' needs stride 1, not {stride}")
        totals = [d * (k - 1) for k, d in zip(w.shape[2:], dilation, strict=True)]
        pads = [(t // 2, t - t // 2) for t in totals]
    elif isinstance(padding, str) and padding != "valid":
        raise ValueError(f"{op}: padding must be numbers, 'same' or 'valid', not {padding!r}")
    else:
        ends = 0 if isinstance(padding, str) else padding
        pads = [(p, p) for p in each(op, "padding", ends, rank, 0)]
    y = _contract(op, resize(x, pads), w, stride, dilation, groups)
    return unbatched(_biased(op, y, bias, rank), had_batch)


def _conv_transpose(
    op: str,
    rank: int,
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None,
    numbers: tuple[PerDim, PerDim, PerDim, PerDim],
    groups: int,
) -> Tensor:
    x, w = promoted(x, weight)
    x, had_batch = batched(op, x, rank)
    _check(op, x, w, rank, groups, w.shape[:1] and w.shape[0], w.shape[1:2] and w.shape[1] * groups)
    stride, dilation = each(op, "stride", numbers[0], rank), each(op, "dilation", numbers[3], rank)
    padding = each(op, "padding", numbers[1], rank, 0)
    extra = each(op, "output_padding", numbers[2], rank, 0)
    pads: list[tuple[Size, Size]] = []
    for k, s, p, e, d in zip(w.shape[2:], stride, padding, extra, dilation, strict=True):
        if not (e < s or e < d):
            raise ValueError(
                f"{op}: output_padding {e} must be less than stride {s} or dilation {d}"
            )
        reach = d * (k - 1) - p
        pads.append((reach, reach + e - (s - 1)))
    y = _contract(
        op, resize(_spread(x, stride), pads), _swapped(w, groups), (1,) * rank, dilation, groups
    )
    return unbatched(_biased(op, y, bias, rank), had_batch)


def _check(
    op: str, x: Tensor, w: Tensor, rank: int, groups: int, channels: object, outputs: object
) -> None:
    """`channels` and `outputs` are what the weights ask for."""
    if not isinstance(groups, int) or groups < 1:
        raise ValueError(f"{op}: groups must be an integer >= 1, not {groups!r}")
    if w.ndim != rank + 2:
        raise ValueError(f"{op}: the weight needs {rank + 2} dims, got {describe(w)}")
    if x.shape[1] != channels:
        raise ValueError(
            f"{op}: {describe(x, w)} with groups={groups}: the weight is for {channels} input "
            f"channels, the input has {x.shape[1]}"
        )
    for what, count in (("input", channels), ("output", outputs)):
        if count % groups != 0:  # type: ignore[operator]
            raise ValueError(f"{op}: {groups} groups do not divide {count} {what} channels")


def _contract(
    op: str,
    x: Tensor,
    w: Tensor,
    stride: Sequence[Size],
    dilation: Sequence[Size],
    groups: int,
) -> Tensor:
    """Padded [n, c, *spatial] and [o, c / groups, *k] → [n, o, *positions]."""
    rank = len(stride)
    n, c, o = x.shape[0], w.shape[1], w.shape[0]
    taps = windows(op, x, w.shape[2:], stride, dilation)
    places = taps.shape[2 : 2 + rank]
    taps = reshape(taps, (n, groups, 1, c, *taps.shape[2:]))
    taps = view("permute", taps, (0, 1, 2, *range(4, 4 + rank), 3, *range(4 + rank, 4 + 2 * rank)))
    w = reshape(w, (groups, o // groups, *(1,) * rank, c, *w.shape[2:]))
    y = reduce_last("sum_reduce", binary("mul", taps, w), 1 + rank)
    return reshape(y, (n, o, *places))


def _swapped(w: Tensor, groups: int) -> Tensor:
    """[c, o / groups, *k] → [o, c / groups, *k], with the taps backwards."""
    c, o, *k = w.shape
    rank = len(k)
    w = reshape(flip(w, rank), (groups, c // groups, o, *k))
    w = view("permute", w, (0, 2, 1, *range(3, 3 + rank)))
    return reshape(w, (o * groups, c // groups, *k))


def _spread(x: Tensor, stride: Sequence[Size]) -> Tensor:
    """stride − 1 zeros after every element of the last dims."""
    first = x.ndim - len(stride)
    for axis, s in enumerate(stride, first):
        if s == 1:
            continue
        before, n, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
        x = reshape(x, (*before, n, 1, *after))
        x = view("pad", x, tuple((0, s - 1) if i == axis + 1 else (0, 0) for i in range(x.ndim)))
        x = reshape(x, (*before, n * s, *after))
    return x


def _biased(op: str, y: Tensor, bias: TensorLike | None, rank: int) -> Tensor:
    if bias is None:
        return y
    b = as_tensor(bias)
    if b.shape != y.shape[1:2]:
        raise ValueError(f"{op}: the bias must be [{y.shape[1]}], got {describe(b)}")
    return binary("add", y, reshape(b, (*b.shape, *(1,) * rank)))
