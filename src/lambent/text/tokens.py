"""Tokenizers from `tokenizer.json` or from the vocabulary in a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lambent.frontends.files import load_config

__all__ = ["Text", "from_folder", "from_metadata"]

_GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,%d}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLITS = {  # GGUF's name of how text is cut before merging -> a regular expression, or GPT-2's
    "gpt-2": None, "default": None, "smollm": r"\p{N}", "llama-bpe": _GPT4 % 3,
    "qwen2": _GPT4 % 1,
}  # fmt: skip
_CONTROL, _USER = 3, 4  # types of tokens in GGUF files


@dataclass(frozen=True, slots=True)
class Text:
    """Text to tokens and back, the tokens with a meaning of their own, and the chat template.

    ends: tokens after which a model says nothing more. bos: what goes in front, or None.
    template: jinja2, or None. names: bos and eos as text, for the template.
    """

    tokenizer: Any
    ends: frozenset[int]
    bos: int | None
    template: str | None
    names: Mapping[str, str]

    def encode(self, text: str, start: bool = True) -> list[int]:
        """Ids; control tokens in the text are themselves. start: put bos in front where wanted."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        wanted = start and self.bos is not None and ids[:1] != [self.bos]
        return [self.bos, *ids] if wanted and self.bos is not None else ids

    def decode(self, ids: list[int]) -> str:
        """Text of tokens; half a character at the end comes out as U+FFFD."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))


def _tokenizers() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise ImportError(
            "tokens need the package tokenizers: pip install 'lambent[text]'", name="tokenizers"
        ) from error
    return tokenizers


# ---- a folder --------------------------------------------------------------------------------


def from_folder(folder: Path) -> Text:
    """The tokenizer of a folder with `tokenizer.json` and, if there, `tokenizer_config.json`.

    Raises:
        FileNotFoundError, ValueError: it is missing, or cannot be read.
        ImportError: `tokenizers` is not installed.
    """
    library = _tokenizers()
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}: the model comes without a tokenizer")
    try:
        made = library.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more special
        raise ValueError(f"{path} is no tokenizer: {error}") from None
    made.no_truncation()
    made.no_padding()
    found = {}
    for name in ("tokenizer_config.json", "generation_config.json"):
        if (folder / name).is_file():
            found[name] = load_config(folder / name)
    told, generation = (found.get(f"{n}_config.json", {}) for n in ("tokenizer", "generation"))
    names = {k: _content(told.get(k)) for k in ("bos_token", "eos_token")}
    ends = generation.get("eos_token_id", [])
    known = [e for e in (ends if isinstance(ends, list) else [ends]) if type(e) is int]
    eos = made.token_to_id(names["eos_token"])
    bos = made.token_to_id(names["bos_token"]) if _starts(made, told, names["bos_token"]) else None
    template = told.get("chat_template")
    file = folder / "chat_template.jinja"
    if file.is_file():
        template = file.read_text(encoding="utf-8")
    return Text(
        made, frozenset([*known, *([] if eos is None else [eos])]), bos,
        template if isinstance(template, str) else None, names,
    )  # fmt: skip


def _content(token: Any) -> str:
    """A token's text; some files hold an object that describes it."""
    return str(token.get("content", "")) if isinstance(token, dict) else str(token or "")


def _starts(made: Any, told: Mapping[str, Any], bos: str) -> bool:
    """Whether a text begins with bos: as the config says, else as the tokenizer does."""
    said = told.get("add_bos_token")
    return said if isinstance(said, bool) else made.encode("a").tokens[:1] == [bos] != [""]


# ---- a GGUF file -----------------------------------------------------------------------------


def from_metadata(metadata: Mapping[str, Any]) -> Text:
    """The tokenizer in a GGUF file: byte pairs as GPT-2 has them, or SentencePiece as Llama has.

    Raises:
        ValueError: it is missing, of another kind, or its parts do not fit together.
        ImportError: `tokenizers` is not installed.
    """
    library = _tokenizers()
    told = {k.removeprefix("tokenizer.ggml."): v for k, v in metadata.items()}
    kind, tokens = told.get("model"), told.get("tokens")
    if not isinstance(tokens, list) or not all(isinstance(t, str) for t in tokens):
        raise ValueError("the file holds no tokenizer (tokenizer.ggml.tokens)")
    types = np.asarray(told.get("token_type", np.ones(len(tokens))))
    if kind not in _KINDS or types.shape != (len(tokens),):
        raise ValueError(
            f"a tokenizer of the kind {kind!r} with {len(tokens)} tokens of {types.shape} types; "
            f"readable are {', '.join(_KINDS)}"
        )
    vocabulary = {token: i for i, token in enumerate(tokens)}
    try:
        made = _KINDS[kind](library, vocabulary, told)
    except Exception as error:  # the library raises nothing more special
        raise ValueError(f"the tokenizer in the file does not fit together: {error}") from None
    control = [t for t, k in zip(tokens, types, strict=True) if k == _CONTROL and t]
    user = [t for t, k in zip(tokens, types, strict=True) if k == _USER and t]
    made.add_special_tokens([library.AddedToken(t, special=True, normalized=False)
                             for t in control])  # fmt: skip
    made.add_tokens([library.AddedToken(t, normalized=False) for t in user])
    ids = {n: _id(told.get(f"{n}_token_id"), len(tokens)) for n in ("bos", "eos", "eot", "eom")}
    bos = ids["bos"] if told.get("add_bos_token", kind == "llama") else None
    ends = [i for n, i in ids.items() if n != "bos" and i is not None]
    ends += [vocabulary[t] for t in _ENDS if t in control]
    template = metadata.get("tokenizer.chat_template")
    names = {f"{n}_token": "" if ids[n] is None else tokens[ids[n]] for n in ("bos", "eos")}  # type: ignore[index]
    return Text(made, frozenset(ends), bos, template if isinstance(template, str) else None, names)


_ENDS = ("<|im_end|>", "<|eot_id|>", "<|end_of_turn|>", "<end_of_turn>", "<|endoftext|>")


def _id(value: Any, count: int) -> int | None:
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < count:
        raise ValueError(f"the special token {value!r} is none of {count} tokens")
    return value


def _byte_pairs(library: Any, vocabulary: dict[str, int], told: Mapping[str, Any]) -> Any:
    pre = told.get("pre", "default")
    if pre not in _SPLITS:
        raise ValueError(f"text is cut by {pre!r}, which is none of {', '.join(_SPLITS)}")
    merges = told.get("merges")
    if not isinstance(merges, list):
        raise ValueError("the merges are missing")
    pairs = [tuple(str(m).split(" ", 1)) for m in merges]
    model = library.models.BPE(vocabulary, pairs, ignore_merges=pre == "llama-bpe")
    made = library.Tokenizer(model)
    cut, split = library.pre_tokenizers, _SPLITS[pre]
    parts = [cut.ByteLevel(add_prefix_space=False, use_regex=split in (None, r"\p{N}"))]
    if split is not None:
        parts.insert(0, cut.Split(library.Regex(split), "isolated"))
    made.pre_tokenizer = cut.Sequence(parts)
    made.decoder = library.decoders.ByteLevel()
    if pre == "qwen2":
        made.normalizer = library.normalizers.NFC()
    return made


def _sentence_piece(library: Any, vocabulary: dict[str, int], told: Mapping[str, Any]) -> Any:
    """Pieces with scores as byte pairs: every way to join two pieces to one, best score first."""
    scores = np.asarray(told.get("scores", ()), np.float64)
    if scores.shape != (len(vocabulary),):
        raise ValueError(f"{len(vocabulary)} pieces with {scores.shape} scores")
    merges = [
        (-scores[i], vocabulary[piece[:cut]], vocabulary[piece[cut:]], piece, cut)
        for piece, i in vocabulary.items()
        for cut in range(1, len(piece))
        if piece[:cut] in vocabulary and piece[cut:] in vocabulary
    ]
    pairs = [(piece[:cut], piece[cut:]) for *_, piece, cut in sorted(merges)]
    unknown = next((t for t in ("<unk>",) if t in vocabulary), None)
    model = library.models.BPE(
        vocabulary, pairs, unk_token=unknown, fuse_unk=True, byte_fallback=True
    )
    made = library.Tokenizer(model)
    space = library.normalizers.Replace(" ", "▁")
    first = [library.normalizers.Prepend("▁")] if told.get("add_space_prefix", True) else []
    made.normalizer = library.normalizers.Sequence([*first, space])
    steps = library.decoders
    strip = [steps.Strip(" ", 1, 0)] if first else []
    made.decoder = steps.Sequence(
        [steps.Replace("▁", " "), steps.ByteFallback(), steps.Fuse(), *strip]
    )
    return made


_KINDS = {"gpt2": _byte_pairs, "llama": _sentence_piece}
