"""A plain PyTorch forward pass of a BERT sentence encoder, to compare with."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

State = dict[str, torch.Tensor]


def encode(
    state: State, config: dict[str, Any], ids: torch.Tensor, mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token states [b, s, hidden] and unit sentence vectors [b, hidden] of ids and mask [b, s]."""
    eps = config["layer_norm_eps"]

    def linear(name: str, x: torch.Tensor) -> torch.Tensor:
        return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, x.shape[-1:], state[f"{name}.weight"], state[f"{name}.bias"], eps)

    def attention(name: str, x: torch.Tensor) -> torch.Tensor:
        heads = config["num_attention_heads"]
        q, k, v = (
            linear(f"{name}.{part}", x).unflatten(-1, (heads, -1)).transpose(1, 2)
            for part in ("query", "key", "value")
        )
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        scores = scores.masked_fill(mask[:, None, None, :] == 0, float("-inf"))
        return (torch.softmax(scores, -1) @ v).transpose(1, 2).flatten(-2)

    words = state["embeddings.word_embeddings.weight"][ids]
    kinds = state["embeddings.token_type_embeddings.weight"][0]
    places = state["embeddings.position_embeddings.weight"][: ids.shape[1]]
    x = norm("embeddings.LayerNorm", words + kinds + places)
    for i in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{i}"
        mixed = linear(f"{at}.attention.output.dense", attention(f"{at}.attention.self", x))
        x = norm(f"{at}.attention.output.LayerNorm", mixed + x)
        inner = F.gelu(linear(f"{at}.intermediate.dense", x))
        x = norm(f"{at}.output.LayerNorm", linear(f"{at}.output.dense", inner) + x)
    kept = mask[:, :, None].to(x.dtype)
    pooled = (x * kept).sum(1) / kept.sum(1)
    return x, F.normalize(pooled, dim=-1)
