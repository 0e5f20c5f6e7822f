"""A BERT-like sentence encoder with the weight names of Hugging Face checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from lambent.functional.arithmetic import maximum, sqrt
from lambent.functional.linalg import attention
from lambent.functional.mathematics import gelu, relu
from lambent.functional.operands import cast
from lambent.functional.reducing import mean, sum
from lambent.graph.tensor import Tensor, at_least, describe
from lambent.nn.attention import merge_heads, split_heads
from lambent.nn.layers import Embedding, LayerNorm, Linear
from lambent.nn.module import Module, skip_init

__all__ = ["NOT_USED", "Bert", "SentenceEncoder", "mean_pool"]

NOT_USED = ("embeddings.position_ids", "pooler.")
"""What such checkpoints hold beside the encoder: the `ignore` of `load_state_dict`."""

Config: TypeAlias = Mapping[str, Any]

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": gelu,
    "gelu_new": partial(gelu, approximate="tanh"),
    "relu": relu,
}

_KEYS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
    "layer_norm_eps",
    "hidden_act",
)


class Bert(Module):
    """ids [b, s] → token states [b, s, hidden].

    Args:
        config: a checkpoint's `config.json`: vocab_size, hidden_size, num_hidden_layers,
            num_attention_heads, intermediate_size, max_position_embeddings, type_vocab_size,
            layer_norm_eps, hidden_act ("gelu": by erf; "gelu_new": by tanh; "relu").

    Raises:
        ValueError: a key is missing, or asks for what this encoder is not.
    """

    def __init__(self, config: Config) -> None:
        if missing := [k for k in _KEYS if k not in config]:
            raise ValueError(f"Bert: the config lacks {', '.join(missing)}")
        if config.get("position_embedding_type", "absolute") != "absolute":
            raise ValueError("Bert: only position_embedding_type 'absolute' is supported")
        if config["hidden_act"] not in _ACTIVATIONS:
            known = ", ".join(_ACTIVATIONS)
            raise ValueError(f"Bert: hidden_act {config['hidden_act']!r} is none of {known}")
        self.embeddings = _Embeddings(config)
        self.encoder = _Encoder(config)

    def __call__(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """Token states.

        Args:
            ids: [b, s] integers; s at most max_position_embeddings. An id beyond the vocabulary
                reads as a word of zeros.
            mask: [b, s], bool or 0 and 1: which tokens are text and not padding; None: all.

        Raises:
            ValueError: shapes that do not fit.
        """
        if ids.ndim != 2 or (mask is not None and mask.shape != ids.shape):
            shown = describe(ids) if mask is None else describe(ids, mask)
            raise ValueError(f"Bert: ids and mask must both be [b, s], got {shown}")
        x = self.embeddings(ids)
        kept = None
        if mask is not None:
            kept = mask.astype(bool).reshape(ids.shape[0], 1, 1, ids.shape[1])
        for layer in self.encoder.layer:
            x = layer(x, kept)
        return x


class SentenceEncoder(Bert):
    """`Bert`, the mean over the tokens that are text, and unit length: ids [b, s] → [b, hidden]."""

    def __call__(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """Sentence vectors of length 1; arguments as for `Bert`. A text without tokens gives 0."""
        pooled = mean_pool(super().__call__(ids, mask), mask)
        length = sqrt(sum(pooled * pooled, axis=-1, keepdims=True))
        return pooled / maximum(length, 1e-12)

    @classmethod
    def from_state(cls, config: Config, state: Mapping[str, Any]) -> SentenceEncoder:
        """The encoder of a checkpoint: its config and its arrays by name.

        Raises:
            ValueError: the config or the arrays do not fit.
        """
        with skip_init():
            encoder = cls(config)
        encoder.load_state_dict(state, ignore=NOT_USED)
        return encoder


def mean_pool(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """[b, s, d] → [b, d]: the mean over s where mask [b, s] keeps; 0 where it keeps nothing."""
    if mask is None:
        return mean(x, axis=1)
    kept = mask.astype(bool).unsqueeze(-1)
    count = sum(cast(kept, x.dtype), axis=1)
    return sum(kept * x, axis=1) / maximum(count, 1.0)


class _Embeddings(Module):
    """Words + positions + the first token type, normalised."""

    def __init__(self, config: Config) -> None:
        hidden = config["hidden_size"]
        self.word_embeddings = Embedding(config["vocab_size"], hidden)
        self.position_embeddings = Embedding(config["max_position_embeddings"], hidden)
        self.token_type_embeddings = Embedding(config["type_vocab_size"], hidden)
        self.LayerNorm = LayerNorm(hidden, config["layer_norm_eps"])

    def __call__(self, ids: Tensor) -> Tensor:
        length, most = ids.shape[1], self.position_embeddings.weight.shape[0]
        if not at_least(most - length, 0):
            raise ValueError(f"Bert: {length} tokens may be more than the {most} positions")
        places = self.position_embeddings.weight[:length]
        kind = self.token_type_embeddings.weight[0]
        return self.LayerNorm(self.word_embeddings(ids) + places + kind)


class _Encoder(Module):
    def __init__(self, config: Config) -> None:
        self.layer = tuple(_Layer(config) for _ in range(config["num_hidden_layers"]))


class _Layer(Module):
    def __init__(self, config: Config) -> None:
        hidden, inner = config["hidden_size"], config["intermediate_size"]
        self.attention = _Attention(config)
        self.intermediate = _Dense(hidden, inner)
        self.output = _Residual(inner, hidden, config["layer_norm_eps"])
        self.activation = _ACTIVATIONS[config["hidden_act"]]

    def __call__(self, x: Tensor, kept: Tensor | None) -> Tensor:
        x = self.attention(x, kept)
        return self.output(self.activation(self.intermediate.dense(x)), x)


class _Attention(Module):
    def __init__(self, config: Config) -> None:
        hidden = config["hidden_size"]
        self.self = _SelfAttention(hidden, config["num_attention_heads"])
        self.output = _Residual(hidden, hidden, config["layer_norm_eps"])

    def __call__(self, x: Tensor, kept: Tensor | None) -> Tensor:
        return self.output(self.self(x, kept), x)


class _SelfAttention(Module):
    def __init__(self, hidden: int, heads: int) -> None:
        if hidden % heads:
            raise ValueError(f"Bert: {heads} heads do not divide hidden_size {hidden}")
        self.heads = heads
        self.query = Linear(hidden, hidden)
        self.key = Linear(hidden, hidden)
        self.value = Linear(hidden, hidden)

    def __call__(self, x: Tensor, kept: Tensor | None) -> Tensor:
        q, k, v = (split_heads(f(x), self.heads) for f in (self.query, self.key, self.value))
        return merge_heads(attention(q, k, v, kept))


class _Dense(Module):
    def __init__(self, n: int, m: int) -> None:
        self.dense = Linear(n, m)


class _Residual(Module):
    """norm(dense(x) + before)."""

    def __init__(self, n: int, m: int, eps: float) -> None:
        self.dense = Linear(n, m)
        self.LayerNorm = LayerNorm(m, eps)

    def __call__(self, x: Tensor, before: Tensor) -> Tensor:
        return self.LayerNorm(self.dense(x) + before)
