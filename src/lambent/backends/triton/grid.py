"""Order: which loops' steps are tasks, in which order these come, and the sums within a step."""

from __future__ import annotations

from collections.abc import Sequence

from lambent.graph.dim import Size, axes_in
from lambent.kernel.tile import Accumulate, Dot, For, Ref, Stmt, TileProgram, operands, values


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


def products_first(body: Sequence[Stmt]) -> list[Stmt]:
    """Of sums that stand together those of products come first: matrix units work meanwhile."""
    found, sums = list[Stmt](), list[Accumulate]()
    for s in (*body, None):
        if isinstance(s, Accumulate):
            sums.append(s)
            continue
        every = (v for a in sums for top in operands(a) for v in values(top))
        read = {v.name for v in every if isinstance(v, Ref)}
        if not read & {a.name for a in sums}:
            sums.sort(key=lambda a: not isinstance(a.value, Dot))
        found += sums
        sums.clear()
        found += [s] if s is not None else []
    return found
