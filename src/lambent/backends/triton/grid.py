"""The grid: which loops' steps are tasks, and in which order tasks come."""

from __future__ import annotations

from collections.abc import Sequence

from lambent.graph.dim import Size, axes_in
from lambent.kernel.tile import For, Stmt, TileProgram


def grid(program: TileProgram) -> tuple[list[For], tuple[Stmt, ...]]:
    """The loops whose steps are tasks, and what each task does."""
    loops: list[For] = []
    body = program.body
    while len(body) == 1 and isinstance(s := body[0], For) and s.parallel:
        if loops and (axes_in(s.start) | axes_in(s.stop)):
            break
        loops.append(s)
        body = s.body
    return loops, body


def trips(program: TileProgram, f: For) -> Size:
    """How many steps a loop has."""
    tile = program.axes[f.axis].tile
    return (f.stop - f.start + (tile - 1)) // tile


def grouped(numbers: Sequence[str], counts: Sequence[str], group: int) -> list[str]:
    """The two innermost axes: `group` rows of tasks go through all columns together."""
    (row, column), (rows, columns) = numbers, counts
    return [
        f"pid = {row} * {columns} + {column}",
        f"first = pid // ({columns} * {group}) * {group}",
        f"high = tl.minimum({rows} - first, {group})",
        f"{row} = first + pid % ({columns} * {group}) % high",
        f"{column} = pid % ({columns} * {group}) // high",
    ]
