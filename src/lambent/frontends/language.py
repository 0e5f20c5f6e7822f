"""A language model from its files: a GGUF file, or a folder as Hugging Face lays it out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lambent.frontends import gguf
from lambent.frontends.families import Family, decoder_name, from_gguf, from_hugging_face
from lambent.frontends.files import load_config
from lambent.frontends.gguf import Packed
from lambent.frontends.safetensors import load_safetensors
from lambent.graph.tensor import Tensor, input
from lambent.nn.decoder import DecoderConfig, Matrix, weight_shapes

__all__ = ["LanguageModel", "load_language_model"]

Array = np.ndarray[Any, Any]
_UNUSED = ("rotary_emb.inv_freq", "attn.bias", "attn.masked_bias")
_PLAIN = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


@dataclass(frozen=True, slots=True)
class LanguageModel:
    """`weights` by the decoder's names; `metadata` of a GGUF file, else empty; `path` as given."""

    path: Path
    config: DecoderConfig
    weights: dict[str, Packed]
    metadata: Mapping[str, Any]

    def inputs(self) -> dict[str, Tensor | Matrix]:
        """The weights as made of inputs of a graph, which are named as in `arrays`.

        As inputs they stay as they are in memory, a program holds none of them, and models that
        differ in their weights alone share it.
        """
        found: dict[str, Tensor | Matrix] = {}
        for name, whole in self.weights.items():
            parts = {p: input(f"{name}.{p}", a.shape, a.dtype) for p, a in whole.parts.items()}
            matrix = len(whole.shape) == 2 and not whole.plain
            found[name] = _Quantised(whole, parts) if matrix else whole.values(parts)
        return found

    def arrays(self) -> dict[str, Array]:
        """The parts of all weights, as a program takes them."""
        return {
            f"{name}.{part}": np.require(array, None, ["C", "A"])
            for name, whole in self.weights.items()
            for part, array in whole.parts.items()
        }


@dataclass(frozen=True, slots=True)
class _Quantised:
    """A quantised matrix of a graph: its parts are inputs."""

    whole: Packed
    parts: dict[str, Tensor]

    def linear(self, x: Tensor) -> Tensor:
        return self.whole.linear(self.parts, x)

    def rows(self, ids: Tensor) -> Tensor:
        return self.whole.rows(self.parts, ids)


def load_language_model(path: str | Path) -> LanguageModel:
    """The model in a GGUF file, or in a folder with `config.json` and safetensors.

    Raises:
        FileNotFoundError: there is no such file, or a part of it is missing.
        ValueError: the files are damaged, of a family that is not supported, or a weight is
            missing, unknown, or of another shape than the config says.
    """
    path = Path(path)
    try:
        return _folder(path) if path.is_dir() else _gguf(path)
    except ValueError as error:
        at = "" if str(path) in str(error) else f"{path}: "
        raise ValueError(f"{at}{error}") from None


def _gguf(path: Path) -> LanguageModel:
    file = gguf.read(path)
    embeddings = file.tensors.get("token_embd.weight")
    if embeddings is None or len(embeddings.shape) != 2:
        raise ValueError("the tensor token_embd.weight is missing or no matrix")
    family, config = from_gguf(file.metadata, embeddings.shape[0])
    factors = file.tensors.pop("rope_freqs.weight", None)
    if factors is not None and config.rotary is not None:
        if factors.shape != (config.head_dim // 2,):
            raise ValueError(f"rope_freqs.weight is {list(factors.shape)}")
        stretched = tuple(gguf.dequantise(factors).tolist())
        config = replace(config, rotary=replace(config.rotary, factors=stretched))
    weights = {name: gguf.packed(stored) for name, stored in file.tensors.items()}
    weights = _checked(config, weights)
    if family.pairs:
        weights |= _in_halves(config.head_dim, weights)
    weights = {name: whole.in_panels() for name, whole in weights.items()}
    return LanguageModel(path, config, _together(weights), file.metadata)


def _together(weights: Mapping[str, Packed]) -> dict[str, Packed]:
    """The parts of quantised matrices in one piece of memory, of which large pages are made: a
    token reads all of them once, from as few pages as can be."""
    ours = [a for whole in weights.values() if not whole.plain for a in whole.parts.values()]
    ends = np.cumsum([0, *(-(-a.nbytes // 64) * 64 for a in ours)])
    memory = np.empty(int(ends[-1]) + 64, np.uint8)
    memory = memory[-memory.ctypes.data % 64 :]
    places = iter(ends.tolist())

    def moved(a: Array) -> Array:
        new = memory[(at := next(places)) : at + a.nbytes].view(a.dtype).reshape(a.shape)
        new[...] = a
        return new

    return {
        name: whole if whole.plain else replace(
            whole, parts={part: moved(a) for part, a in whole.parts.items()}
        )
        for name, whole in weights.items()
    }  # fmt: skip


def _in_halves(d: int, weights: Mapping[str, Packed]) -> dict[str, Packed]:
    """q and k with the rows of each head as (2, d / 2), where the file has (d / 2, 2)."""
    found = {}
    for name, whole in weights.items():
        if ".attn_q." in name or ".attn_k." in name:
            rows = np.arange(whole.shape[0]).reshape(-1, d // 2, 2).swapaxes(1, 2).reshape(-1)
            found[name] = replace(whole, parts={k: p[rows] for k, p in whole.parts.items()})
    return found


def _folder(path: Path) -> LanguageModel:
    family, config = from_hugging_face(load_config(path / "config.json"))
    weights = dict(_named(family, load_safetensors(path)))
    return LanguageModel(path, config, _checked(config, weights), {})


def _named(family: Family, arrays: Mapping[str, Array]) -> Iterator[tuple[str, Packed]]:
    for name, array in arrays.items():
        ours = decoder_name(family, name)
        if ours is None:
            if name.endswith(_UNUSED):
                continue
            raise ValueError(f"the weight {name!r} is none that this family has")
        kind = _PLAIN.get(array.dtype.name)
        if kind is None:
            raise ValueError(f"the weight {name!r} is of dtype {array.dtype}; floats are readable")
        if family.gguf == "gpt2" and ours.endswith(".weight") and "_norm" not in ours:
            embedding = "embd" in ours or ours == "output.weight"
            array = array if embedding else np.ascontiguousarray(array.T)  # stored as [in, out]
        yield ours, Packed(array.shape, kind, {"x": array})


def _checked(config: DecoderConfig, given: dict[str, Packed]) -> dict[str, Packed]:
    """The weights that the decoder takes, all there and of the right shapes."""
    weights: dict[str, Packed] = {}
    for name, whole in given.items():
        weights |= _parted(config, name, whole) if ".attn_qkv." in name else {name: whole}
    if config.layers > len(weights):
        raise ValueError(f"{config.layers} layers are said to be in {len(weights)} weights")
    must, may = weight_shapes(config)
    faults = [f"missing: {name}" for name in must if name not in weights]
    for name, whole in weights.items():
        want = must.get(name) or may.get(name)
        if want is None:
            faults.append(f"not known: {name}")
        elif whole.shape != want:
            faults.append(f"{name} is {list(whole.shape)}, the config says {list(want)}")
    if faults:
        more = f" and {len(faults) - 5} more" if len(faults) > 5 else ""
        raise ValueError("weights do not fit: " + "; ".join(faults[:5]) + more)
    return weights


def _parted(c: DecoderConfig, name: str, whole: Packed) -> dict[str, Packed]:
    """q, k and v of one matrix or bias: rows, which blocks never cross."""
    sizes = [n * c.head_dim for n in (c.heads, c.kv_heads, c.kv_heads)]
    if not whole.shape or whole.shape[0] != sum(sizes):
        raise ValueError(f"{name} is {list(whole.shape)}, the config says {sum(sizes)} rows")
    ends = np.cumsum([0, *sizes])
    return {
        name.replace("qkv", letter): Packed(
            (size, *whole.shape[1:]), whole.format, {k: p[a : a + size] for k, p in
                                                     whole.parts.items()}
        )
        for letter, a, size in zip("qkv", ends, sizes, strict=False)
    }  # fmt: skip
