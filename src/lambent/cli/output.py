"""Where text goes: results to standard output, progress and remarks to standard error."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console
from rich.table import Table


def say(message: str) -> None:
    """A remark for people; never part of the result."""
    print(message, file=sys.stderr, flush=True)


def print_json(document: Any) -> None:
    """The one document of a `--json` run: strict JSON, numbers that are not finite as null."""
    print(json.dumps(finite(document), indent=2, allow_nan=False))


def finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if hasattr(value, "tolist"):  # arrays and numbers of NumPy
        return finite(value.tolist())
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    if isinstance(value, float):
        return value if value - value == 0 else None
    return value


def console() -> Console:
    """Standard output as a rich console; wide enough for tables when it is no terminal."""
    width = None if sys.stdout.isatty() else 120
    return Console(file=sys.stdout, width=width, highlight=False, markup=False)


def table(title: str, *columns: str) -> Table:
    """A table whose first column is text and whose others are numbers."""
    made = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for i, column in enumerate(columns):
        made.add_column(column, justify="left" if i == 0 else "right", overflow="fold")
    return made


def number(value: float | None, unit: str = "", digits: int = 3) -> str:
    """A number with so many significant digits; `-` where there is none."""
    return (
        "-"
        if value is None
        else f"{value:,.{digits}g}{unit}"
        if abs(value) < 1000
        else f"{value:,.0f}{unit}"
    )


def size(count: int | None) -> str:
    """Bytes as people read them."""
    if count is None:
        return "-"
    amount = float(count)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"
