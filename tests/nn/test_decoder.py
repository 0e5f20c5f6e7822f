"""The decoder of every family against the models that define them, at small sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lambent.backends.reference.graph import evaluate
from lambent.frontends.language import load_language_model
from lambent.graph.dim import Dim
from lambent.graph.prove import assume
from lambent.graph.tensor import input
from lambent.nn.decoder import cache_shape, decode

LENGTH = 9
SMALL: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "vocab_size": 50, "max_position_embeddings": 16, "head_dim": 8,
}  # fmt: skip
GPT2: dict[str, Any] = {
    "n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 50, "n_positions": 16,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8,
}  # fmt: skip
LINEAR = {"rope_type": "linear", "factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4}
CASES: dict[str, dict[str, Any]] = {
    "llama": SMALL | {"model_type": "llama"},
    "llama tied": SMALL | {"model_type": "llama", "tie_word_embeddings": True},
    "llama3": SMALL | {"model_type": "llama", "rope_scaling": LLAMA3},
    "linear": SMALL | {"model_type": "llama", "rope_scaling": LINEAR},
    "yarn": SMALL | {"model_type": "llama", "rope_scaling": YARN},
    "mistral": SMALL | {"model_type": "mistral", "sliding_window": 4},
    "qwen2": SMALL | {"model_type": "qwen2"},
    "qwen3": SMALL | {"model_type": "qwen3"},
    "gemma": SMALL | {"model_type": "gemma"},
    "gemma2": SMALL | {"model_type": "gemma2", "sliding_window": 4, "query_pre_attn_scalar": 16},
    "gpt2": GPT2 | {"model_type": "gpt2"},
}  # fmt: skip


def saved(kind: str, folder: Path) -> Any:
    """A random model of the family that defines it, and its files."""
    transformers = pytest.importorskip("transformers", reason="the yardstick is transformers")
    given = dict(CASES[kind])
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(given.pop("model_type"), **given)
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            spread = 0.3 if "norm" in name or "ln_" in name or "bias" in name else 0.0
            weight.add_(torch.randn_like(weight) * (spread or 0.2))
    model.save_pretrained(folder)
    return model


def scores_of(folder: Path, ids: np.ndarray[Any, Any], chunks: list[int]) -> np.ndarray[Any, Any]:
    """Scores of all tokens, which are taken in chunks of these sizes."""
    model = load_language_model(folder)
    c = model.config
    names = [f"{n}{i}" for i in range(c.layers) for n in "kv"]
    t, n = Dim("decoder_t", 1, LENGTH), Dim("decoder_n", 1, LENGTH)
    assume(n - t)
    inputs = [input(name, cache_shape(c, n)) for name in names]
    caches = list(zip(inputs[::2], inputs[1::2], strict=True))
    scores, kept = decode(c, model.inputs(), input("ids", (t,), "int64"), caches)
    outputs = [scores, *(x for pair in kept for x in pair)]
    state = [np.zeros(cache_shape(c, 0), np.float32) for _ in names]
    found, at = [], 0
    for size in chunks:
        room = [np.pad(x, [(0, size), (0, 0), (0, 0)], constant_values=np.nan) for x in state]
        given = {"ids": ids[at : at + size], **dict(zip(names, room, strict=True))}
        scores_now, *state = evaluate(outputs, given | model.arrays())
        found.append(scores_now)
        at += size
    return np.concatenate(found)


@pytest.mark.parametrize("kind", CASES)
def test_a_family_as_it_is_defined(kind: str, tmp_path: Path) -> None:
    reference = saved(kind, tmp_path)
    ids = np.random.default_rng(0).integers(0, 50, LENGTH)
    with torch.no_grad():
        want = reference(torch.from_numpy(ids)[None]).logits[0].numpy()
    assert np.abs(want).max() > 0.5
    np.testing.assert_allclose(scores_of(tmp_path, ids, [LENGTH]), want, atol=1e-4, rtol=1e-4)
    np.testing.assert_allclose(scores_of(tmp_path, ids, [4, 1, 1, 3]), want, atol=1e-4, rtol=1e-4)
