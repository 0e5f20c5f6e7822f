"""Language models from files: the same model from both kinds, and what does not fit together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_files import gguf_bytes

from lambent.frontends.families import FAMILIES, from_gguf, from_hugging_face
from lambent.frontends.language import load_language_model

Array = np.ndarray[Any, Any]
SMALL: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "intermediate_size": 24, "vocab_size": 10, "head_dim": 8,
    "max_position_embeddings": 32, "rms_norm_eps": 1e-6, "rope_theta": 500.0,
}  # fmt: skip
METADATA: dict[str, Any] = {
    "general.architecture": "llama", "llama.embedding_length": 16, "llama.block_count": 1,
    "llama.attention.head_count": 2, "llama.attention.head_count_kv": 1,
    "llama.feed_forward_length": 24, "llama.context_length": 32, "llama.rope.freq_base": 500.0,
    "llama.attention.layer_norm_rms_epsilon": 1e-6,
}  # fmt: skip
NAMES = {  # Hugging Face's, GGUF's, shape
    "model.embed_tokens": ("token_embd", (10, 16)),
    "model.norm": ("output_norm", (16,)),
    "lm_head": ("output", (10, 16)),
    "model.layers.0.self_attn.q_proj": ("blk.0.attn_q", (16, 16)),
    "model.layers.0.self_attn.k_proj": ("blk.0.attn_k", (8, 16)),
    "model.layers.0.self_attn.v_proj": ("blk.0.attn_v", (8, 16)),
    "model.layers.0.self_attn.o_proj": ("blk.0.attn_output", (16, 16)),
    "model.layers.0.mlp.gate_proj": ("blk.0.ffn_gate", (24, 16)),
    "model.layers.0.mlp.up_proj": ("blk.0.ffn_up", (24, 16)),
    "model.layers.0.mlp.down_proj": ("blk.0.ffn_down", (16, 24)),
    "model.layers.0.input_layernorm": ("blk.0.attn_norm", (16,)),
    "model.layers.0.post_attention_layernorm": ("blk.0.ffn_norm", (16,)),
}


def arrays() -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {n: rng.standard_normal(s).astype(np.float32) for n, (_, s) in NAMES.items()}


def folder(path: Path, config: dict[str, Any], held: dict[str, Array]) -> Path:
    from safetensors.numpy import save_file

    save_file({f"{n}.weight": a for n, a in held.items()}, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(config))
    return path


def in_pairs(weight: Array, heads: int) -> Array:
    """What llama.cpp's converter does to the rows of q and k."""
    split = weight.reshape(heads, 2, -1, weight.shape[1])
    return split.swapaxes(1, 2).reshape(weight.shape)


def test_both_kinds_of_files_give_the_same_model(tmp_path: Path) -> None:
    held = arrays()
    first = load_language_model(folder(tmp_path, SMALL, held))
    order = {"self_attn.q_proj": 2, "self_attn.k_proj": 1}
    for name in held:
        for part, heads in order.items():
            if name.endswith(part):
                held[name] = in_pairs(held[name], heads)
    tensors = {f"{NAMES[n][0]}.weight": (a.shape, 0, a.tobytes()) for n, a in held.items()}
    path = tmp_path / "x.gguf"
    path.write_bytes(gguf_bytes(METADATA, tensors))
    second = load_language_model(path)
    same = ("hidden", "heads", "kv_heads", "head_dim", "context", "vocabulary", "rotary", "scale")
    assert all(getattr(first.config, n) == getattr(second.config, n) for n in same)
    assert first.arrays().keys() == second.arrays().keys()
    for name, array in first.arrays().items():
        np.testing.assert_array_equal(array, second.arrays()[name], name)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model_type": "falcon"}, "'falcon' is not supported; llama, mistral"),
        ({"model_type": ["llama"]}, "is not supported"),
        ({"hidden_size": -4}, "hidden_size is -4"),
        ({"hidden_size": "16"}, "hidden_size is '16'"),
        ({"num_key_value_heads": 3}, "do not go with 3"),
        ({"vocab_size": None}, "vocab_size is None"),
        ({"rms_norm_eps": "x"}, "rms_norm_eps is 'x'"),
        ({"hidden_act": "swish2"}, "hidden_act = 'swish2' is not supported"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2}}, "'longrope' is not supported"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor is None"),
        ({"rope_scaling": 3}, "rope_scaling is 3"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        ({"num_local_experts": 8}, "num_local_experts = 8"),
        ({"model_type": "qwen2", "use_sliding_window": True}, "use_sliding_window = True"),
        ({"intermediate_size": 20}, "ffn_gate.weight is"),
        ({"num_hidden_layers": 2}, "missing: blk.1.attn_norm.weight"),
        ({"num_hidden_layers": 10**9}, "1000000000 layers are said to be in 12 weights"),
        ({"model_type": "qwen2"}, "missing: blk.0.attn_q.bias"),
        ({"model_type": "qwen3"}, "missing: blk.0.attn_q_norm.weight"),
    ],
)
def test_configs_that_do_not_fit(changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = folder(tmp_path, SMALL | changed, arrays())
    with pytest.raises(ValueError, match=message):
        load_language_model(path)


def test_weights_that_do_not_fit(tmp_path: Path) -> None:
    held = arrays()
    head = held.pop("lm_head")
    with pytest.raises(ValueError, match=r"missing: output\.weight"):
        load_language_model(folder(tmp_path, SMALL, held))
    tied = load_language_model(folder(tmp_path, SMALL | {"tie_word_embeddings": True}, held))
    assert "output.weight" not in tied.weights
    held |= {"lm_head": head, "model.layers.0.mlp.router": head}
    with pytest.raises(ValueError, match=r"router\.weight' is none that this family has"):
        load_language_model(folder(tmp_path, SMALL, held))
    del held["model.layers.0.mlp.router"]
    held["model.norm"] = held["model.norm"].astype(np.int32)
    with pytest.raises(ValueError, match="is of dtype int32"):
        load_language_model(folder(tmp_path, SMALL, held))


def test_what_families_have_of_their_own() -> None:
    def of(kind: str, **more: Any) -> Any:
        return from_hugging_face(SMALL | {"model_type": kind} | more)[1]

    assert of("mistral", sliding_window=7).window == 7 and of("llama", sliding_window=7).window == 0
    assert of("gemma").norm_shift == 1 and of("gemma").embed_scale == 4
    gemma2 = of("gemma2", attn_logit_softcapping=50.0, sliding_window=9, query_pre_attn_scalar=64)
    assert (gemma2.attention_cap, gemma2.window, gemma2.window_every) == (50, 9, 2)
    assert gemma2.scale == 1 / 8 and gemma2.activation == "gelu_tanh"
    told = {"gemma2.attention.sliding_window": 9, "gemma2.attn_logit_softcapping": 50.0}
    told |= {k.replace("llama.", "gemma2."): v for k, v in METADATA.items()}
    _, read = from_gguf(told | {"general.architecture": "gemma2"}, 10)
    assert (read.attention_cap, read.window, read.norm_shift) == (50, 9, 0)
    assert {f.gguf for f in FAMILIES.values()} == {
        "llama", "qwen2", "qwen3", "gemma", "gemma2", "gpt2",
    }  # fmt: skip
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}
    ggufs = {f"llama.rope.scaling.{k}": v for k, v in yarn.items() if k == "factor"}
    ggufs |= {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.original_context_length": 8}
    assert from_gguf(METADATA | ggufs, 10)[1].rotary == of("llama", rope_scaling=yarn).rotary


JUNK: tuple[Any, ...] = (
    None,
    -1,
    0,
    2**70,
    1.5,
    float("nan"),
    "x",
    "",
    [],
    [1],
    {},
    {"a": 1},
    True,
)


def test_junk_in_a_config_is_refused_or_read() -> None:
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}
    refused = 0
    for kind in FAMILIES:
        whole = SMALL | {"model_type": kind, "rope_scaling": rope, "sliding_window": 4}
        cases = [whole | {key: junk} for key in whole for junk in JUNK]
        cases += [whole | {"rope_scaling": rope | {key: junk}} for key in rope for junk in JUNK]
        for config in cases:
            try:
                from_hugging_face(config)
            except ValueError:
                refused += 1
    assert 400 < refused < 1400
