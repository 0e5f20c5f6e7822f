"""Progress: told once, shown until the search ends."""

from __future__ import annotations

import time
from typing import Any

import pytest
from rich.console import Console

from lambent.cli import progress
from lambent.search.driver import Progress as State


def test_fields_are_those_of_the_search() -> None:
    state = State(6, 800, 52, 0.0123, None, 7.9)
    shown = progress.Progress("layer")
    assert "first measurements" in shown.line()
    shown(state)
    line = "layer: segments 6, candidates 800, measured 52, best 12.3 ms, bound -, seconds 0"
    assert shown.line() == line


def test_lines_when_not_a_terminal(monkeypatch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress, "EVERY", 0.05)
    with progress.shown("mm") as shown:
        shown(State(1, 2, 3, 4e-3, 1e-3, 0.1))
        time.sleep(0.4)
    out, err = capsys.readouterr()
    assert not out
    assert err.count("mm: segments 1, candidates 2, measured 3, best 4 ms, bound 1 ms") >= 2


def test_table_on_a_terminal(monkeypatch: Any) -> None:
    shown = progress.Progress("mm")
    shown(State(1, 2, 3, 4e-3, 1e-3, 0.1))
    console = Console(width=100, force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print(shown)
    text = captured.get()
    assert "Ctrl-C" in text and "4 ms" in text and all(f in text for f in progress.FIELDS)
