"""`lambent chat` and `lambent generate` with a small model, without a search."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from small_model import in_place, manifest, metadata, tensors, write

from lambent import compiler

Call = Callable[..., tuple[int, str, str]]


class Evaluated:
    """A Program whose graph the reference runs; kept by name, as programs in a cache are."""

    def __init__(self, outputs: dict[str, Any]) -> None:
        self.outputs = outputs
        self.manifest = manifest(outputs)

    def __call__(self, **arrays: Any) -> dict[str, Any]:
        return in_place(self.outputs, arrays)

    def run(self, given: Sequence[Any]) -> dict[str, Any]:
        names = [slot.name for slot in self.manifest.inputs]
        return self(**dict(zip(names, given, strict=True)))

    def save(self, path: Path) -> None:
        path.write_text("kept")


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Evaluated]:
    """What was compiled, in order; a program in the cache is loaded from here."""
    from lambent.frontends import kept as store

    made: list[Evaluated] = []
    kept: dict[str, Evaluated] = {}

    def compile(graph: Any, **options: Any) -> Evaluated:
        made.append(Evaluated(graph))
        return made[-1]

    monkeypatch.setattr(compiler, "compile", compile)
    monkeypatch.setattr(store, "load_program", kept.get)
    monkeypatch.setattr(store, "save_program", kept.__setitem__)
    return made


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write(tmp_path_factory.mktemp("model") / "small.gguf"))


def test_a_text_goes_on(call: Call, compiled: list[Evaluated], model: str) -> None:
    code, out, err = call("generate", model, "--prompt", "ab a", "--max-tokens", "5", "--json")
    told = json.loads(out)
    assert code == 0 and told["compiled"] == len(compiled) == 1
    assert told["prompt_tokens"] == 2 and told["tokens"] == len(told["ids"]) <= 5
    code, again, err = call("generate", model, "--prompt", "ab a", "--max-tokens", "5")
    assert code == 0 and again.strip() == told["text"].strip()
    assert "2 new tokens read" in err and len(compiled) == 1
    drawn = ("generate", model, "--prompt", "ab", "--temperature", "2", "--json", "--max-tokens")
    first, second = (json.loads(call(*drawn, "9", "--seed", s)[1])["ids"] for s in "12")
    assert first != second


def test_a_conversation(
    call: Call, compiled: list[Evaluated], model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("ab\n\ncd a\n"))
    code, out, _ = call("chat", model, "--max-tokens", "3", "--json")
    told = json.loads(out)
    assert code == 0 and told["compiled"] == 1
    assert [t["question"] for t in told["turns"]] == ["ab", "cd a"]
    assert told["turns"][1]["prompt_tokens"] < 12


@pytest.mark.parametrize(
    ("changed", "arguments", "message"),
    [
        ({}, ["--prompt", "a" * 120], "the model's context is 100"),
        ({}, ["--prompt", "a", "--max-tokens", "0"], "--max-tokens"),
        ({}, ["--prompt", "a", "--top-p", "7"], "top-p out of range"),
        ({"general.architecture": "bloom"}, ["--prompt", "a"], "'bloom' is not supported; gemma"),
        ({"llama.embedding_length": 16}, ["--prompt", "a"], "the config says [13, 16]"),
        ({"llama.block_count": 3}, ["--prompt", "a"], "missing: blk.2.attn_norm.weight"),
        ({"llama.attention.head_count": 0}, ["--prompt", "a"], "must be a positive integer"),
        ({"llama.expert_count": 8}, ["--prompt", "a"], "expert_count = 8 is not supported"),
        ({"tokenizer.ggml.model": "x"}, ["--prompt", "a"], "a tokenizer of the kind 'x'"),
    ],
)
def test_what_does_not_fit_is_one_line(
    changed: dict[str, Any],
    arguments: list[str],
    message: str,
    call: Call,
    compiled: list[Evaluated],
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "bad.gguf", metadata() | changed)
    code, _, err = call("generate", str(path), *arguments)
    assert code == 2 and message in err and err.count("\n") == 1


def test_files_that_are_no_models(call: Call, tmp_path: Path) -> None:
    code, _, err = call("generate", str(tmp_path / "none"), "--prompt", "a")
    assert code == 2 and "give a GGUF file, a model's folder, or smollm2" in err
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(100))
    code, _, err = call("generate", str(tmp_path / "bad.gguf"), "--prompt", "a")
    assert code == 2 and "version 0" in err
    code, _, err = call("chat", str(tmp_path))
    assert code == 2 and "no file" in err and "config.json" in err
    held = {k: v for k, v in tensors().items() if k != "blk.1.ffn_up.weight"}
    code, _, err = call("chat", str(write(tmp_path / "less.gguf", None, held)))
    assert code == 2 and "missing: blk.1.ffn_up.weight" in err


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "comes without a chat template"),
        ("{{ ''.__class__.__mro__ }}", "the chat template failed: SecurityError"),
        ("{{ 'a' * 10**10 }}", "too much memory"),
    ],
)
def test_templates_that_do_not_work(
    template: str | None,
    message: str,
    call: Call,
    compiled: list[Evaluated],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = {k: v for k, v in metadata().items() if "template" not in k}
    told |= {"tokenizer.chat_template": template} if template else {}
    monkeypatch.setattr("sys.stdin", io.StringIO("ab\n"))
    code, _, err = call("chat", str(write(tmp_path / "x.gguf", told)))
    assert code == 2 and message in err
    assert len(compiled) == (1 if template else 0)
