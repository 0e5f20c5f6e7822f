"""One decoder for the families of language models: what differs between them is data.

Weights come by the names that GGUF files use (`blk.0.attn_q.weight`); what a family has beside the
common parts (biases, norms of q and k or behind a block, a head of its own) is used where its
weights are there. Everything is written naively; key and value caches are ordinary inputs and
outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from lambent.functional.arithmetic import where
from lambent.functional.indexing import embedding
from lambent.functional.linalg import linear
from lambent.functional.mathematics import gelu, silu, tanh
from lambent.functional.norm import layer_norm, rms_norm
from lambent.functional.padding import pad
from lambent.functional.reducing import softmax
from lambent.graph.dim import Size
from lambent.graph.tensor import Tensor, iota
from lambent.nn.attention import merge_heads, split_heads
from lambent.nn.rotary import Rotary, rotate

__all__ = [
    "ACTIVATIONS",
    "DecoderConfig",
    "Matrix",
    "Weights",
    "cache_shape",
    "decode",
    "weight_shapes",
]

Shape = tuple[int, ...]


class Matrix(Protocol):
    """A weight [out, in] that is kept in a form of its own."""

    def linear(self, x: Tensor) -> Tensor:
        """x […, in] → […, out]."""
        ...

    def rows(self, ids: Tensor) -> Tensor:
        """Rows [t, in] for ids [t]; zeros for one that is not there."""
        ...


Weights = Mapping[str, Tensor | Matrix]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": silu,
    "gelu": gelu,
    "gelu_tanh": partial(gelu, approximate="tanh"),
}


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Sizes, and what the families do differently.

    norm:        "rms" or "layer", with `eps`; `norm_shift` is added to its weights (Gemma: 1).
    activation:  of ACTIVATIONS; `gated`: activation(gate x) · up x, else activation(up x).
    rotary:      None where positions are learned.
    window:      how many tokens back a layer sees, itself included, in every `window_every`th
                 layer from the first on (Gemma 2: 2); 0: all.
    scale:       of the scores; attention_cap, logit_cap: cap · tanh(x / cap), 0: none.
    embed_scale: of the token embeddings (Gemma: √hidden).
    tied:        the head may be missing, as the embeddings are one.
    extras:      weights of a layer beside those of all families that must be there.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    context: int
    eps: float
    scale: float
    norm: str = "rms"
    norm_shift: float = 0.0
    activation: str = "silu"
    gated: bool = True
    rotary: Rotary | None = None
    window: int = 0
    window_every: int = 1
    attention_cap: float = 0.0
    logit_cap: float = 0.0
    embed_scale: float = 1.0
    tied: bool = True
    extras: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        sizes = (self.layers, self.hidden, self.heads, self.kv_heads, self.head_dim)
        if min(*sizes, self.intermediate, self.vocabulary, self.context) < 1:
            raise ValueError(f"decoder: a size is not positive in {self}")
        if self.heads % self.kv_heads or self.head_dim % 2:
            raise ValueError(
                f"decoder: {self.heads} heads of {self.head_dim} do not go with {self.kv_heads} "
                "key and value heads; the sizes must divide, and a head be even"
            )
        if not (self.eps > 0 and math.isfinite(self.scale)) or self.activation not in ACTIVATIONS:
            raise ValueError(f"decoder: eps, scale or activation is wrong in {self}")


def cache_shape(config: DecoderConfig, length: Size) -> tuple[Size, ...]:
    """The shape of the keys of a layer, and of its values: so many tokens are contiguous."""
    return (length, config.kv_heads, config.head_dim)


def weight_shapes(c: DecoderConfig) -> tuple[dict[str, Shape], dict[str, Shape]]:
    """Shapes of the weights by name: what must be there, and what may be."""
    h, inner = c.hidden, c.intermediate
    q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
    must: dict[str, Shape] = {"token_embd.weight": (c.vocabulary, h), "output_norm.weight": (h,)}
    may: dict[str, Shape] = {"output.weight": (c.vocabulary, h)}
    if c.norm == "layer":
        must["output_norm.bias"] = (h,)
    if c.rotary is None:
        must["position_embd.weight"] = (c.context, h)
    matrices = {"attn_q": (q, h), "attn_k": (kv, h), "attn_v": (kv, h), "attn_output": (h, q),
                "ffn_up": (inner, h), "ffn_down": (h, inner)}  # fmt: skip
    if c.gated:
        matrices["ffn_gate"] = (inner, h)
    for i in range(c.layers):
        at = f"blk.{i}."
        for name in ("attn_norm", "ffn_norm"):
            must[f"{at}{name}.weight"] = (h,)
            if c.norm == "layer":
                must[f"{at}{name}.bias"] = (h,)
        for name, shape in matrices.items():
            must[f"{at}{name}.weight"] = shape
            may[f"{at}{name}.bias"] = shape[:1]
        for name in ("attn_q_norm", "attn_k_norm"):
            may[f"{at}{name}.weight"] = (c.head_dim,)
        for name in ("post_attention_norm", "post_ffw_norm"):
            may[f"{at}{name}.weight"] = (h,)
        must |= {f"{at}{name}": may[f"{at}{name}"] for name in c.extras}
    if not c.tied:
        must["output.weight"] = may["output.weight"]
    return must, may


def decode(
    c: DecoderConfig,
    weights: Weights,
    ids: Tensor,
    caches: Sequence[tuple[Tensor, Tensor]],
    last: bool = False,
) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Scores of the next token, and the caches with the new tokens in them.

    Args:
        ids: [t] the new tokens; an id beyond the vocabulary is a word of zeros.
        caches: keys and values of each layer, [n, kv_heads, head_dim]: of all tokens so far, the
            last t rows being the place of the new ones; n >= t is proved or assumed.
        last: only the scores behind the last token.

    Returns:
        (scores [t or 1, vocabulary], new caches)
    """
    t, n = ids.shape[0], caches[0][0].shape[0]
    positions = iota(n)[n - t :]
    rows, columns = positions.unsqueeze(-1), iota(n)
    seen = columns <= rows
    whole = _Part(weights, "")
    x = whole.rows("token_embd", ids)
    x = x if c.embed_scale == 1.0 else x * c.embed_scale
    if c.rotary is None:
        x = x + whole.rows("position_embd", positions)
    kept = []
    for i, cache in enumerate(caches):
        near = seen
        if c.window and i % c.window_every == 0:
            near = seen.logical_and(rows - columns < c.window)
        x, cache = _layer(c, _Part(weights, f"blk.{i}."), x, positions, cache, near)
        kept.append(cache)
    if last:
        x = x[t - 1 :]
    x = _norm(c, whole, "output_norm", x)
    head = "output" if "output.weight" in weights else "token_embd"
    return _capped(whole.linear(head, x), c.logit_cap), kept


@dataclass(frozen=True, slots=True)
class _Part:
    """The weights below a prefix."""

    weights: Weights
    prefix: str

    def get(self, name: str) -> Tensor | None:
        """A vector, where it is there."""
        found = self.weights.get(self.prefix + name)
        return found if isinstance(found, Tensor) else None

    def linear(self, name: str, x: Tensor) -> Tensor:
        w, bias = self.weights[f"{self.prefix}{name}.weight"], self.get(f"{name}.bias")
        if isinstance(w, Tensor):
            return linear(x, w, bias)
        return w.linear(x) if bias is None else w.linear(x) + bias

    def rows(self, name: str, ids: Tensor) -> Tensor:
        w = self.weights[f"{self.prefix}{name}.weight"]
        return embedding(ids, w) if isinstance(w, Tensor) else w.rows(ids)


def _layer(
    c: DecoderConfig, w: _Part, x: Tensor, positions: Tensor, cache: tuple[Tensor, Tensor],
    seen: Tensor,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:  # fmt: skip
    y, cache = _attention(c, w, _norm(c, w, "attn_norm", x), positions, cache, seen)
    x = x + _norm(c, w, "post_attention_norm", y)
    y = _norm(c, w, "ffn_norm", x)
    active = ACTIVATIONS[c.activation]
    up = w.linear("ffn_up", y)
    inner = active(w.linear("ffn_gate", y)) * up if c.gated else active(up)
    return x + _norm(c, w, "post_ffw_norm", w.linear("ffn_down", inner)), cache


def _attention(
    c: DecoderConfig, w: _Part, x: Tensor, positions: Tensor, cache: tuple[Tensor, Tensor],
    seen: Tensor,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:  # fmt: skip
    """x [t, hidden] against everything in the cache, itself included."""
    q, k = (
        _norm(c, w, f"attn_{name}_norm", split_heads(w.linear(f"attn_{name}", x), heads))
        for name, heads in (("q", c.heads), ("k", c.kv_heads))
    )
    v = split_heads(w.linear("attn_v", x), c.kv_heads)
    if c.rotary is not None:
        q, k = rotate(q, positions, c.rotary), rotate(k, positions, c.rotary)
    keys, values = kept = _written(cache[0], k), _written(cache[1], v)
    q = q.unflatten(0, (c.kv_heads, c.heads // c.kv_heads))
    scores = _capped(q @ keys.permute(1, 2, 0).unsqueeze(1) * c.scale, c.attention_cap)
    weights = softmax(where(seen, scores, -math.inf), -1)
    mixed = (weights @ values.transpose(0, 1).unsqueeze(1)).flatten(0, 1)
    return w.linear("attn_output", merge_heads(mixed)), kept


def _written(old: Tensor, new: Tensor) -> Tensor:
    """old [n, h, d] with new [h, t, d] in its last t rows."""
    past = old.shape[0] - new.shape[1]
    behind = pad(new.transpose(0, 1), [(past, 0), (0, 0), (0, 0)])
    return where((iota(old.shape[0]) < past).unsqueeze(-1).unsqueeze(-1), old, behind)


def _norm(c: DecoderConfig, w: _Part, name: str, x: Tensor) -> Tensor:
    """The norm of this name over the last dim; x itself where a model has none."""
    weight, bias = w.get(f"{name}.weight"), w.get(f"{name}.bias")
    if weight is None:
        return x
    weight = weight + c.norm_shift if c.norm_shift else weight
    if c.norm == "layer":
        return layer_norm(x, x.shape[-1], weight, bias, c.eps)
    return rms_norm(x, x.shape[-1], weight, c.eps)


def _capped(x: Tensor, cap: float) -> Tensor:
    return tanh(x / cap) * cap if cap else x
