"""Attention and the encoder block, written naively: the fusing is the compiler's work."""

from __future__ import annotations

from collections.abc import Callable

from lambent.functional.linalg import attention
from lambent.functional.mathematics import gelu
from lambent.graph.dtypes import DType, float32
from lambent.graph.tensor import Tensor
from lambent.nn.layers import LayerNorm, Linear
from lambent.nn.module import Module

__all__ = ["EncoderBlock", "MultiHeadAttention", "merge_heads", "split_heads"]


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[…, s, heads · d] → […, heads, s, d]."""
    return x.unflatten(-1, (heads, -1)).transpose(-2, -3)


def merge_heads(x: Tensor) -> Tensor:
    """[…, heads, s, d] → […, s, heads · d]."""
    return x.transpose(-2, -3).flatten(-2)


class MultiHeadAttention(Module):
    """Attention of `heads` heads of size hidden / heads, between projections q, k, v and out.

    Args:
        kv_heads: fewer heads for k and v, each shared by heads / kv_heads of q.
    """

    def __init__(
        self,
        hidden: int,
        heads: int,
        kv_heads: int | None = None,
        bias: bool = True,
        *,
        dtype: DType = float32,
    ) -> None:
        kv_heads = heads if kv_heads is None else kv_heads
        if hidden % heads or heads % kv_heads:
            raise ValueError(f"MultiHeadAttention: {hidden=}, {heads=}, {kv_heads=} do not divide")
        self.heads, self.kv_heads = heads, kv_heads
        kv = hidden // heads * kv_heads
        self.q_proj = Linear(hidden, hidden, bias, dtype=dtype)
        self.k_proj = Linear(hidden, kv, bias, dtype=dtype)
        self.v_proj = Linear(hidden, kv, bias, dtype=dtype)
        self.out_proj = Linear(hidden, hidden, bias, dtype=dtype)

    def __call__(
        self, x: Tensor, context: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """x […, s, hidden] attends to `context` […, t, hidden], by default to itself.

        Args:
            mask: as for `attention`; broadcasts to […, heads, s, t].
        """
        context = x if context is None else context
        group = self.heads // self.kv_heads
        q = split_heads(self.q_proj(x), self.heads)
        k = split_heads(self.k_proj(context), self.kv_heads)
        v = split_heads(self.v_proj(context), self.kv_heads)
        if group > 1:  # […, heads, t, d] where `group` heads in a row are one and the same
            k, v = (_repeat(y, group) for y in (k, v))
        return self.out_proj(merge_heads(attention(q, k, v, mask)))


def _repeat(x: Tensor, times: int) -> Tensor:
    shape = (*x.shape[:-2], times, *x.shape[-2:])
    return x.unsqueeze(-3).broadcast_to(shape).flatten(-4, -3)


class EncoderBlock(Module):
    """A transformer encoder layer: attention and a two-layer perceptron, each with a residual.

    Args:
        activation: between the two layers of the perceptron.
        pre_norm: x + f(norm(x)); otherwise norm(x + f(x)), as in the first transformers.
    """

    def __init__(
        self,
        hidden: int,
        heads: int,
        intermediate: int,
        activation: Callable[[Tensor], Tensor] = gelu,
        eps: float = 1e-5,
        pre_norm: bool = True,
        *,
        dtype: DType = float32,
    ) -> None:
        self.activation, self.pre_norm = activation, pre_norm
        self.attention = MultiHeadAttention(hidden, heads, dtype=dtype)
        self.attention_norm = LayerNorm(hidden, eps, dtype=dtype)
        self.up = Linear(hidden, intermediate, dtype=dtype)
        self.down = Linear(intermediate, hidden, dtype=dtype)
        self.mlp_norm = LayerNorm(hidden, eps, dtype=dtype)

    def __call__(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """x […, s, hidden] → the same shape."""
        if self.pre_norm:
            x = x + self.attention(self.attention_norm(x), mask=mask)
            return x + self._mlp(self.mlp_norm(x))
        x = self.attention_norm(x + self.attention(x, mask=mask))
        return self.mlp_norm(x + self._mlp(x))

    def _mlp(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x)))
