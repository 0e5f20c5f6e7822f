"""Rows of ATen's backward operators, by `lambent.grad` of what they are the gradients of.

Those that PyTorch takes apart itself (norms, activations, losses) need no row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import lambent as lt
from lambent.frontends.torch.networks import ROWS as FORWARD
from lambent.frontends.torch.networks import each
from lambent.frontends.torch.values import Unsupported
from lambent.functional.pool import max_pool_at
from lambent.graph.dim import Size
from lambent.graph.tensor import Tensor

Row = Callable[..., Any]


def _pulled(out: Tensor, g: Tensor, by: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of Σ out · g."""
    return lt.grad((out * g).sum(), by)


def _convolution(
    g: Tensor, x: Tensor, weight: Tensor, bias: Any, stride: Any, padding: Any, dilation: Any,
    transposed: bool, more: Any, groups: int, wanted: Sequence[bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    out = FORWARD["convolution"](
        x, weight, None, stride, padding, dilation, transposed, more, groups
    )
    by = [t for t, is_wanted in zip((x, weight), wanted, strict=False) if is_wanted]
    found = iter(_pulled(out, g, by) if by else ())
    others = tuple(i for i in range(g.ndim) if i != 1)
    return (*(next(found) if w else None for w in wanted[:2]), g.sum(others) if wanted[2] else None)


def _average(name: str) -> Row:
    def row(g: Tensor, x: Tensor, *numbers: Any) -> Tensor:
        return _pulled(FORWARD[name](x, *numbers), g, [x])[0]

    return row


def _adaptive_average(rank: int) -> Row:
    def row(g: Tensor, x: Tensor) -> Tensor:
        out = FORWARD[f"_adaptive_avg_pool{rank}d"](x, g.shape[g.ndim - rank :])
        return _pulled(out, g, [x])[0]

    return row


def _max_pool(rank: int) -> Row:
    """Each maximum's gradient goes to the one element that was found, as the indices say."""

    def row(
        g: Tensor, x: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any,
        ceil_mode: bool, indices: Tensor,
    ) -> Tensor:  # fmt: skip
        kernel, padding, dilation = (each(v, rank) for v in (kernel, padding, dilation))
        numbers = (kernel, each(stride, rank) if stride else None, padding, dilation)
        return _pulled(max_pool_at(rank, x, indices, numbers, ceil_mode), g, [x])[0]

    return row


def _embedding(
    g: Tensor, ids: Tensor, rows: Size, padding_idx: Size, scale_by_count: bool
) -> Tensor:
    """The rows of g added up by id: Σ_t (iota(rows) == id[t]) · g[t]."""
    if scale_by_count:
        raise Unsupported("an embedding's gradient scaled by how often each id occurs")
    g, ids = g.reshape(-1, g.shape[-1]), ids.flatten()
    table = lt.zeros((rows, g.shape[-1]), dtype=g.dtype)
    found = _pulled(lt.embedding(ids, table), g, [table])[0]
    return (
        found if padding_idx < 0 else lt.where(lt.iota(rows).unsqueeze(-1) == padding_idx, 0, found)
    )


ROWS: dict[str, Row] = {
    "_adaptive_avg_pool2d_backward": _adaptive_average(2),
    "_adaptive_avg_pool3d_backward": _adaptive_average(3),
    "avg_pool2d_backward": _average("avg_pool2d"),
    "avg_pool3d_backward": _average("avg_pool3d"),
    "convolution_backward": _convolution,
    "embedding_dense_backward": _embedding,
    "max_pool2d_with_indices_backward": _max_pool(2),
    "max_pool3d_with_indices_backward": _max_pool(3),
}
