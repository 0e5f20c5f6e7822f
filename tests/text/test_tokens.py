"""Tokenizers from GGUF metadata and from folders."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from small_model import WORDS, metadata

from lambent.text.tokens import from_folder, from_metadata


def test_byte_pairs_of_a_gguf_file() -> None:
    text = from_metadata(metadata())
    assert text.encode("ab a") == [WORDS.index(w) for w in ("ab", "Ġa")]
    assert text.encode("<|user|>abcd<|bot|>") == [WORDS.index(w) for w in
                                                 ("<|user|>", "ab", "cd", "<|bot|>")]  # fmt: skip
    assert text.decode(text.encode("ab a<|bot|>cd")) == "ab acd"
    assert text.ends == {0} and text.bos is None and text.names["eos_token"] == "<|end|>"
    with_bos = metadata() | {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": 1}
    text = from_metadata(with_bos)
    assert text.encode("a") == [1, 3] and text.encode("<|user|>a") == [1, 3]
    assert text.encode("a", start=False) == [3]


PIECES = ["<unk>", "<s>", "</s>", "<0xC3>", "<0xA9>", "▁", "a", "b", "c", "ab", "▁ab", "bc", "abc"]
SCORES = [0.0, 0.0, 0.0, 0.0, 0.0, -8.0, -9.0, -10.0, -11.0, -3.0, -2.0, -1.0, -4.0]


def pieces(**changed: Any) -> dict[str, Any]:
    told = {"model": "llama", "tokens": PIECES, "scores": SCORES, "bos_token_id": 1,
            "token_type": [2, 3, 3, 6, 6, *[1] * 8], "eos_token_id": 2}  # fmt: skip
    return {f"tokenizer.ggml.{k}": v for k, v in (told | changed).items()}


def merged(text: str) -> list[str]:
    """SentencePiece by its definition: the best-scored pair first, the leftmost of equals."""
    parts = list("▁" + text.replace(" ", "▁"))
    while True:
        pairs = [(-SCORES[PIECES.index(a + b)], i) for i, (a, b) in
                 enumerate(pairwise(parts)) if a + b in PIECES]  # fmt: skip
        if not pairs:
            return parts
        i = min(pairs)[1]
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


@pytest.mark.parametrize("given", ["ab", "abc", "a bc", "abab c", "cab", "aabbcc abc"])
def test_sentence_pieces_of_a_gguf_file(given: str) -> None:
    text = from_metadata(pieces())
    ids = text.encode(given)
    assert [PIECES[i] for i in ids] == ["<s>", *merged(given)]
    assert text.decode(ids) == given


def test_bytes_that_are_no_piece() -> None:
    text = from_metadata(pieces())
    ids = text.encode("é", start=False)
    assert [PIECES[i] for i in ids] == ["▁", "<0xC3>", "<0xA9>"] and text.decode(ids) == "é"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"tokens": None}, "holds no tokenizer"),
        ({"model": "bert"}, "of the kind 'bert'"),
        ({"token_type": [1, 2]}, "types"),
        ({"merges": None}, "the merges are missing"),
        ({"merges": ["a x"]}, "does not fit together"),
        ({"pre": "unheard"}, "none of gpt-2"),
        ({"eos_token_id": 99}, "none of 13 tokens"),
    ],
)
def test_metadata_that_does_not_fit(changed: dict[str, Any], message: str) -> None:
    told = metadata() | {f"tokenizer.ggml.{k}": v for k, v in changed.items()}
    with pytest.raises(ValueError, match=message):
        from_metadata(told)


def test_a_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="without a tokenizer"):
        from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="is no tokenizer"):
        from_folder(tmp_path)
    from_metadata(metadata()).tokenizer.save(str(tmp_path / "tokenizer.json"))
    text = from_folder(tmp_path)
    assert text.template is None and text.encode("ab a") == [10, 12] and text.ends == frozenset()
    config = {"bos_token": {"content": "<|user|>"}, "eos_token": "<|end|>", "add_bos_token": True,
              "chat_template": "x"}  # fmt: skip
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [0, 2]}')
    text = from_folder(tmp_path)
    assert text.bos == 1 and text.ends == {0, 2} and text.template == "x"
    (tmp_path / "chat_template.jinja").write_text("y")
    assert from_folder(tmp_path).template == "y"
