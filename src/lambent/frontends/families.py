"""Families of language models as rows of a table: how a config says what the decoder is.

A row names the family's keys and weights in Hugging Face checkpoints and its prefix in GGUF files.
What a row does not cover is refused by name: a model that is nearly a known one computes nonsense.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite, log, sqrt
from typing import Any

from lambent.nn.decoder import DecoderConfig
from lambent.nn.rotary import Rotary

__all__ = ["FAMILIES", "Family", "from_gguf", "from_hugging_face"]

Config = Mapping[str, Any]
_ACTIVATIONS = {
    "silu": "silu", "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
}  # fmt: skip
_BLOCK = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
_WHOLE = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
_GEMMA2 = _BLOCK | {
    "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}  # fmt: skip
_GPT2 = {
    "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down", "ln_1": "attn_norm", "ln_2": "ffn_norm",
}  # fmt: skip
_GPT2_WHOLE = {
    "wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm", "lm_head": "output",
}  # fmt: skip


def _gemma(c: DecoderConfig, given: Config) -> DecoderConfig:
    return replace(c, embed_scale=sqrt(c.hidden))


def _gemma2(c: DecoderConfig, given: Config) -> DecoderConfig:
    wide = c.layers == 46  # the 27B model alone; GGUF files do not say it
    size = given.get("query_pre_attn_scalar") or (c.hidden // c.heads if wide else c.head_dim)
    return replace(c, embed_scale=sqrt(c.hidden), scale=size**-0.5, window_every=2)


@dataclass(frozen=True, slots=True)
class Family:
    """
    gguf:     the architecture's name in GGUF files.
    block, whole: Hugging Face's names of weights, inside a layer and outside, to the decoder's.
    fixed:    fields of DecoderConfig that the family decides.
    pairs:    True where GGUF files have the rows of q and k in pairs, not in halves.
    shift:    what Hugging Face's norm weights lack to what GGUF files hold.
    windowed: whether a sliding window that the config names is used.
    tied:     whether the embeddings are the head where a Hugging Face config does not say.
    rotary:   False where positions are learned.
    last:     what else follows from the config.
    """

    gguf: str
    block: dict[str, str] = field(default_factory=lambda: _BLOCK)
    whole: dict[str, str] = field(default_factory=lambda: _WHOLE)
    fixed: dict[str, Any] = field(default_factory=dict)
    pairs: bool = False
    shift: float = 0.0
    windowed: bool = False
    tied: bool = False
    rotary: bool = True
    last: Callable[[DecoderConfig, Config], DecoderConfig] = lambda c, given: c


_GEMMA_FIXED = {"activation": "gelu_tanh"}
_POST = {"extras": ("post_attention_norm.weight", "post_ffw_norm.weight")}
_QWEN2 = {"extras": ("attn_q.bias", "attn_k.bias", "attn_v.bias")}
_QWEN3 = {"extras": ("attn_q_norm.weight", "attn_k_norm.weight")}
_BIASES = tuple(
    f"{m}.bias" for m in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_down")
)
_GPT2_FIXED = {"norm": "layer", "gated": False, "activation": "gelu_tanh", "extras": _BIASES}
FAMILIES: dict[str, Family] = {  # by Hugging Face's model_type
    "llama": Family("llama", pairs=True),
    "mistral": Family("llama", pairs=True, windowed=True),
    "qwen2": Family("qwen2", fixed=_QWEN2),
    "qwen3": Family("qwen3", fixed=_QWEN3),
    "gemma": Family("gemma", fixed=_GEMMA_FIXED, shift=1.0, tied=True, last=_gemma),
    "gemma2": Family(
        "gemma2", _GEMMA2, fixed=_GEMMA_FIXED | _POST, shift=1.0, windowed=True, tied=True,
        last=_gemma2,
    ),
    "gpt2": Family("gpt2", _GPT2, _GPT2_WHOLE, _GPT2_FIXED, tied=True, rotary=False),
}  # fmt: skip


_RENAMED = {  # other names of the keys of a config, GPT-2's and GGUF's; theirs -> Llama's
    "n_embd": "hidden_size", "n_head": "num_attention_heads", "n_layer": "num_hidden_layers",
    "n_inner": "intermediate_size", "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "rms_norm_eps", "activation_function": "hidden_act",
    "hidden_activation": "hidden_act", "rope_parameters": "rope_scaling",
    "block_count": "num_hidden_layers", "embedding_length": "hidden_size",
    "attention.head_count": "num_attention_heads", "attention.key_length": "head_dim",
    "attention.head_count_kv": "num_key_value_heads", "feed_forward_length": "intermediate_size",
    "context_length": "max_position_embeddings", "rope.freq_base": "rope_theta",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.layer_norm_epsilon": "rms_norm_eps", "attention.sliding_window": "sliding_window",
}  # fmt: skip
_RENAMED_ROPE = {
    "type": "rope_type", "attn_factor": "attention_factor", "yarn_beta_fast": "beta_fast",
    "original_context_length": "original_max_position_embeddings", "yarn_beta_slow": "beta_slow",
}  # fmt: skip
_REFUSED: dict[str, tuple[Any, ...]] = {  # what changes the mathematics: key -> values we have
    "partial_rotary_factor": (1,), "scale_attn_weights": (True,), "expert_count": (0,),
    "scale_attn_by_inverse_layer_idx": (False,), "num_local_experts": (0,),
}  # fmt: skip
_SCALINGS = {"default": (), "none": (), "linear": ("", ""), "yarn": ("beta_slow", "beta_fast"),
             "llama3": ("low_freq_factor", "high_freq_factor")}  # fmt: skip


class _Numbers:
    """Numbers of a config by key, checked."""

    def __init__(self, what: str, config: Config, renamed: dict[str, str]) -> None:
        self.what = what
        self.config = {renamed.get(k, k): v for k, v in config.items() if v is not None}

    def size(self, key: str, default: int | None = None) -> int:
        value = self.config.get(key, default)
        if type(value) is not int or not 0 < value < 1 << 31:
            raise ValueError(f"{self.what}: {key} is {value!r}, and must be a positive integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value: Any = self.config.get(key, default)
        if type(value) not in (int, float) or not isfinite(value) or value < 0:
            raise ValueError(f"{self.what}: {key} is {value!r}, and must be a number, not below 0")
        return float(value)

    def choose(self, key: str, choices: Iterable[Any], default: Any) -> Any:
        value, known = self.config.get(key, default), tuple(choices)
        if value not in known:
            raise ValueError(f"{self.what}: {key} = {value!r} is not supported, only {known}")
        return value


def from_hugging_face(config: Config) -> tuple[Family, DecoderConfig]:
    """The decoder of a `config.json`.

    Raises:
        ValueError: an unknown family, a size that is missing or wrong, or what we have not built.
    """
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise ValueError(f"model_type {kind!r} is not supported; {', '.join(FAMILIES)} are")
    return FAMILIES[kind], _decoder(FAMILIES[kind], f"config of {kind}", config)


def from_gguf(metadata: Config, vocabulary: int) -> tuple[Family, DecoderConfig]:
    """The decoder of a GGUF file's metadata; `vocabulary` as its embeddings have it.

    Raises:
        ValueError: as `from_hugging_face`.
    """
    kind = metadata.get("general.architecture")
    family = next((f for f in FAMILIES.values() if f.gguf == kind), None)
    if family is None:
        known = sorted({f.gguf for f in FAMILIES.values()})
        raise ValueError(f"architecture {kind!r} is not supported; {', '.join(known)} are")
    own = {k.removeprefix(f"{kind}."): v for k, v in metadata.items() if k.startswith(f"{kind}.")}
    scaling = {k.split(".")[-1]: v for k, v in own.items() if k.startswith("rope.scaling.")}
    own |= {"vocab_size": vocabulary, "rope_scaling": scaling}
    made = _decoder(replace(family, shift=0.0, tied=True), f"metadata of {kind}", own)
    for key in ("attention.value_length", "rope.dimension_count"):
        if own.get(key, made.head_dim) != made.head_dim and made.rotary is not None:
            raise ValueError(f"metadata of {kind}: {key} is not the size of a head")
    return family, made


def _decoder(family: Family, what: str, config: Config) -> DecoderConfig:
    n = _Numbers(what, config, _RENAMED)
    for key, values in _REFUSED.items():
        n.choose(key, values, values[0])
    hidden, heads = n.size("hidden_size"), n.size("num_attention_heads")
    head_dim = n.size("head_dim", hidden // heads)
    context = n.size("max_position_embeddings")
    activation = n.choose("hidden_act", _ACTIVATIONS, next(iter(_ACTIVATIONS)))
    sliding = n.choose("use_sliding_window", (family.windowed, False), family.windowed)
    made = DecoderConfig(
        n.size("num_hidden_layers"), hidden, heads, n.size("num_key_value_heads", heads), head_dim,
        n.size("intermediate_size", 4 * hidden), n.size("vocab_size"), context,
        n.number("rms_norm_eps", 1e-5), head_dim**-0.5, norm_shift=family.shift,
        rotary=_rotary(n, context) if family.rotary else None,
        window=int(n.number("sliding_window", 0)) if sliding else 0,
        attention_cap=n.number("attn_logit_softcapping", 0),
        logit_cap=n.number("final_logit_softcapping", 0),
        tied=n.choose("tie_word_embeddings", (True, False), family.tied),
        **({"activation": _ACTIVATIONS[activation]} | family.fixed),
    )  # fmt: skip
    return family.last(made, n.config)


def _rotary(n: _Numbers, context: int) -> Rotary:
    given = n.config.get("rope_scaling", {})
    if not isinstance(given, dict):
        raise ValueError(f"{n.what}: rope_scaling is {given!r}")
    r = _Numbers(f"{n.what}: rope scaling", given, _RENAMED_ROPE)
    base = n.number("rope_theta", r.number("rope_theta", 10000.0))
    kind = r.choose("rope_type", _SCALINGS, "none")
    if not _SCALINGS[kind]:
        return Rotary(base)
    factor = max(r.number("factor"), 1e-6)
    low, high = _SCALINGS[kind]
    yarn = kind == "yarn"
    gain = r.number("attention_factor", 1 + 0.1 * log(max(factor, 1))) if yarn else 1.0
    original = r.size("original_max_position_embeddings", context)
    ends = r.number(low, 1.0), r.number(high, 32.0 if yarn else 4.0)
    return Rotary(base, kind, factor, original, *ends, gain)


def decoder_name(family: Family, name: str) -> str | None:
    """The decoder's name of a Hugging Face weight; None where it is none of the family's."""
    found = re.fullmatch(
        r"(?:model\.|transformer\.)?(?:(?:layers|h)\.(\d+)\.)?(.+?)(\.weight|\.bias)", name
    )
    if found is None:
        return None
    layer, middle, kind = found.groups()
    ours = (family.whole if layer is None else family.block).get(middle)
    if ours is None:
        return None
    return f"{ours}{kind}" if layer is None else f"blk.{layer}.{ours}{kind}"
