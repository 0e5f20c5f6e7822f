"""A language model of a few kilobytes in a GGUF file, and programs that the reference runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from gguf_files import Tensors, gguf_bytes

from lambent.backends.reference.graph import evaluate
from lambent.frontends.gguf import FORMATS
from lambent.frontends.language import LanguageModel, load_language_model
from lambent.graph.node import topo
from lambent.nn.decoder import DecoderConfig, weight_shapes
from lambent.nn.rotary import Rotary
from lambent.text.generate import Session, graph
from lambent.text.tokens import from_metadata

WORDS = ["<|end|>", "<|user|>", "<|bot|>", "a", "b", "c", "d", "e", "f", "Ġ", "ab", "cd", "Ġa"]
CONFIG = DecoderConfig(2, 32, 2, 1, 16, 64, len(WORDS), 100, 1e-5, 0.25, rotary=Rotary())
TEMPLATE = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}<|bot|>"


def metadata() -> dict[str, Any]:
    return {
        "general.architecture": "llama",
        "llama.block_count": 2,
        "llama.context_length": 100,
        "llama.embedding_length": 32,
        "llama.feed_forward_length": 64,
        "llama.attention.head_count": 2,
        "llama.attention.head_count_kv": 1,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": WORDS,
        "tokenizer.ggml.token_type": [3, 3, 3, *[1] * (len(WORDS) - 3)],
        "tokenizer.ggml.merges": ["a b", "c d", "Ġ a"],
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }


def tensors() -> Tensors:
    rng = np.random.default_rng(0)
    out: Tensors = {}
    for name, shape in weight_shapes(CONFIG)[0].items():
        if len(shape) == 1:
            data = (1 + 0.1 * rng.standard_normal(shape)).astype(np.float32).tobytes()
            out[name] = (shape, 0, data)
            continue
        blocks = rng.integers(0, 256, (shape[0], shape[1] // 32, FORMATS["Q4_1"].bytes), np.uint8)
        scales = np.stack([np.full(blocks.shape[:2], 0.05), np.full(blocks.shape[:2], -0.375)], -1)
        blocks[..., :4] = scales.astype(np.float16).view(np.uint8)
        out[name] = (shape, 3, blocks.tobytes())
    return out


def write(path: Path, told: dict[str, Any] | None = None, held: Tensors | None = None) -> Path:
    path.write_bytes(gguf_bytes(metadata() if told is None else told, held or tensors()))
    return path


class Reference:
    """What `graph` says, run by the reference."""

    def __init__(self, model: LanguageModel) -> None:
        self.outputs = graph(model)
        self.runs = 0

    @property
    def manifest(self) -> Any:
        return manifest(self.outputs)

    def run(self, given: Sequence[Any]) -> dict[str, Any]:
        return self(**{s.name: a for s, a in zip(self.manifest.inputs, given, strict=True)})

    def __call__(self, **arrays: Any) -> dict[str, Any]:
        self.runs += 1
        return in_place(self.outputs, arrays)


def manifest(outputs: dict[str, Any]) -> Any:
    """The names of a graph's inputs, as a Program has them."""
    found = [n for n in topo([t.node for t in outputs.values()]) if n.op == "input"]
    return SimpleNamespace(inputs=[SimpleNamespace(name=n.name) for n in found])


def in_place(outputs: dict[str, Any], arrays: dict[str, Any]) -> dict[str, Any]:
    """The outputs; those that are named as inputs are written into these."""
    values = dict(zip(outputs, evaluate(list(outputs.values()), arrays), strict=True))
    for name in values.keys() & arrays.keys():
        arrays[name][...] = values[name]
    return values


def session(path: Path) -> Session:
    model = load_language_model(path)
    text = from_metadata(model.metadata)
    return Session(model, text, Reference(model))
