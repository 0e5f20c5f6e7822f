"""Programs kept as files: found again by meaning, and by nothing less."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lambent as lt
from lambent import compiler
from lambent.frontends import kept

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def graph(scale: float = 2.0, weight: float = 1.0, name: str = "x", rows: Any = 3) -> Any:
    w = lt.weight("w", np.full((4, 4), weight, np.float32))
    return {"y": (lt.input(name, (rows, 4)) * scale) @ w + 1.0}


@pytest.fixture
def compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """One entry for every search; the cache of programs is empty."""
    made: list[Any] = []
    compile = compiler.compile

    def counted(*args: Any, **options: Any) -> Any:
        made.append(args)
        return compile(*args, **options)

    monkeypatch.setattr(compiler, "compile", counted)
    monkeypatch.setattr(kept, "cache_dir", lambda: tmp_path)
    return made


def made(graph: Any, **options: Any) -> Any:
    return kept.compiled(graph, **{"budget": 0.1, "progress": False} | options)


def test_an_equal_graph_is_not_searched_again(compiles: list[Any]) -> None:
    first, again = made(graph()), made(graph())
    assert len(compiles) == 1
    np.testing.assert_array_equal(first(x=X)["y"], again(x=X)["y"])
    np.testing.assert_allclose(again(x=X)["y"], (X * 2).sum(1, keepdims=True) + np.ones(4))


DIFFERENT: dict[str, dict[str, Any]] = {
    "a constant": {"scale": 3.0},
    "the contents of a weight": {"weight": 2.0},
    "the name of an input": {"name": "z"},
    "a size": {"rows": lt.Dim("kept_rows", 1, 8)},
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_what_differs_is_searched(compiles: list[Any], what: str) -> None:
    made(graph())
    made(graph(**DIFFERENT[what]))
    assert len(compiles) == 2


def test_options_and_form_differ(compiles: list[Any]) -> None:
    made(graph())
    made(graph(), budget=0.2)
    made(graph(), seed=1)
    made(list(graph().values()))
    made(graph()["y"])
    assert len(compiles) == 5


def test_a_longer_search_serves_who_asks_for_less(
    compiles: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(graph(), budget=0.2)
    made(graph(), budget=0.1)
    assert len(compiles) == 1
    made(graph(), budget=0.3, progress=lambda state: None)
    assert len(compiles) == 2
    assert "had 0.2 s of search; searching on, for 0.3 s" in capsys.readouterr().err
    (file,) = (tmp_path / "programs").iterdir()  # nobody asks for the shorter one any more
    assert file.name.endswith(".0.3.lambent")


def test_weights_that_are_read_as_they_are_stay_the_graphs(compiles: list[Any]) -> None:
    array = np.arange(8, dtype=np.float32)

    def out() -> Any:
        return lt.input("x", (3, 8)) + lt.weight("w", array)

    made(out())
    program = made(out())
    assert len(compiles) == 1 and any(w is array for w in program.weights)


def test_a_damaged_file_is_searched_again(
    compiles: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(graph())
    (file,) = (tmp_path / "programs").iterdir()
    file.write_bytes(file.read_bytes()[:-40])
    np.testing.assert_allclose(made(graph())(x=X)["y"][0, 0], 13.0)
    assert len(compiles) == 2 and "searching anew" in capsys.readouterr().err


def test_the_oldest_go_when_there_are_too_many(
    compiles: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(graph())
    (first,) = (tmp_path / "programs").iterdir()
    monkeypatch.setattr(kept, "LIMIT", int(first.stat().st_size * 1.5))
    made(graph(weight=3.0))
    (second,) = (tmp_path / "programs").iterdir()
    assert second != first
