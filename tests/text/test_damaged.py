"""Damaged files of whole models: an error that says what is wrong, or a model; never a crash."""

from __future__ import annotations

from pathlib import Path

from gguf_files import mutations
from small_model import write

from lambent.frontends.language import load_language_model
from lambent.text.tokens import from_metadata


def test_damaged_models_are_read_or_refused(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.gguf").read_bytes()
    path, refused = tmp_path / "bad.gguf", 0
    for data in mutations(whole, 500, 3000, seed=3):
        path.write_bytes(data)
        try:
            text = from_metadata(load_language_model(path).metadata)
            assert isinstance(text.decode(text.encode("ab a<|bot|>")), str)
        except ValueError:
            refused += 1
    assert 250 < refused < 480
