"""Compiling with live progress: a moving table on a terminal, else a line every few seconds."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from lambent.cli.errors import UserError, choose

if TYPE_CHECKING:
    from lambent.search.driver import Progress as State

EVERY = 3.0
"""Seconds between plain lines."""

FIELDS = ("segments", "candidates", "measured", "best", "bound", "seconds")


class Progress:
    """Keeps the last state that a search told; seconds are counted here and never stop."""

    def __init__(self, name: str) -> None:
        self.name, self.start = name, time.monotonic()
        self.state: State | None = None

    def __call__(self, state: State) -> None:
        self.state = state

    def texts(self) -> dict[str, str]:
        """The fields for people."""
        found = {f: text(f, getattr(self.state, f, None)) for f in FIELDS}
        return found | {"seconds": f"{time.monotonic() - self.start:.0f}"}

    def line(self) -> str:
        """The state as one line."""
        if self.state is None:
            return f"{self.name}: preparing and first measurements, {self.texts()['seconds']} s"
        return f"{self.name}: " + ", ".join(f"{f} {value}" for f, value in self.texts().items())

    def __rich__(self) -> Table:
        title = f"searching {self.name} (Ctrl-C: take the best so far)"
        out = Table(title=title, title_justify="left", box=None, pad_edge=False)
        for field in FIELDS:
            out.add_column(field, justify="right", min_width=10)
        out.add_row(*self.texts().values())
        return out


def text(field: str, value: Any) -> str:
    """A field of the state for people."""
    if value is None:
        return "-"
    return f"{value * 1e3:.3g} ms" if field in ("best", "bound") else str(value)


@contextmanager
def shown(name: str) -> Iterator[Progress]:
    """A Progress that is shown on standard error for the time of one search."""
    progress = Progress(name)
    console = Console(stderr=True)
    if console.is_terminal:
        with Live(progress, console=console, transient=True, refresh_per_second=4):
            yield progress
        return
    ended = threading.Event()

    def tell() -> None:
        while not ended.wait(EVERY):
            print(progress.line(), file=sys.stderr, flush=True)

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield progress
    finally:
        ended.set()
        teller.join()


def compile_graph(
    graph: Any, name: str, device: str, budget: float, fresh: bool = True, **options: Any
) -> Any:
    """The program of a graph, searched with progress shown; or a kept one, if it may be.

    `options` go to `lambent.compile`.

    Raises:
        UserError: the budget is not positive, there is no such device.
    """
    if not budget > 0:
        raise UserError(f"--budget {budget:g}: give a positive number of seconds")
    import lambent
    from lambent.backends.base import BACKENDS
    from lambent.frontends import kept

    choose("device", device, BACKENDS)
    with shown(name) as progress:
        make = lambent.compile if fresh else kept.compiled
        return make(graph, device=device, budget=budget, progress=progress, **options)
