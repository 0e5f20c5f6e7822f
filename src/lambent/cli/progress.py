"""Compiling with live progress: a moving table on a terminal, else a line every few seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

EVERY = 3.0
"""Seconds between plain lines."""

FIELDS = ("segments", "candidates", "measured", "best", "bound", "seconds")


class Progress:
    """Receives the state of a search and shows it on standard error."""

    def __init__(self, name: str, live: Live | None) -> None:
        self.name, self.live = name, live
        self.last = time.monotonic()
        self.shown = 0

    def __call__(self, state: Any) -> None:
        """Show a state: an object with the attributes FIELDS, in seconds, None if unknown."""
        if self.live is not None:
            self.live.update(self.table(state))
        elif time.monotonic() - self.last >= EVERY:
            self.last = time.monotonic()
            print(f"{self.name}: {line(state)}", file=sys.stderr, flush=True)
        self.shown += 1

    def table(self, state: Any) -> Table:
        """The state as one row under its headings."""
        out = Table(title=f"searching {self.name}", title_justify="left", box=None, pad_edge=False)
        for field in FIELDS:
            out.add_column(field, justify="right")
        out.add_row(*(text(field, getattr(state, field, None)) for field in FIELDS))
        return out


def text(field: str, value: Any) -> str:
    """A field of the state for people."""
    if value is None:
        return "-"
    if field in ("best", "bound"):
        return f"{value * 1e3:.3g} ms"
    return f"{value:.0f} s" if field == "seconds" else str(value)


def line(state: Any) -> str:
    """The state as one line."""
    return ", ".join(f"{field} {text(field, getattr(state, field, None))}" for field in FIELDS)


@contextmanager
def shown(name: str) -> Iterator[Progress]:
    """A Progress for the time of one search."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Progress(name, None)
        return
    with Live(console=console, transient=True, refresh_per_second=4) as live:
        yield Progress(name, live)


def compile_graph(graph: Any, name: str, device: str, budget: float) -> Any:
    """The program of a graph, searched with progress shown.

    Raises:
        UserError: the budget is not positive, there is no such device.
    """
    from lambent.cli.errors import UserError, choose

    if not budget > 0:
        raise UserError(f"--budget {budget:g}: give a positive number of seconds")
    import lambent as lt
    from lambent.backends.base import BACKENDS

    choose("device", device, BACKENDS)
    with shown(name) as progress:
        return lt.compile(graph, device=device, budget=budget, progress=progress)
