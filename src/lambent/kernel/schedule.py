"""Schedules: the table of moves that the search samples, which each backend makes for a kernel.

Schedules speak of the axes of `rewrite.split(kernel)`, where clashing binders have their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

from lambent.kernel.kernel import Kernel
from lambent.kernel.rewrite import bound, split
from lambent.kernel.tile import Schedule

Knob = tuple[str, int | str | None]
"""A field of a schedule, and which entry of it: an axis in tiles, a name in options."""
Moves = dict[Knob, tuple[Any, ...]]
"""What each knob of a schedule may legally be set to."""
WHOLE = 0  # in the place of a tile: as large as its axis


def turned(schedule: Schedule, knob: Knob, choice: Any) -> Schedule:
    """The schedule with one knob set."""
    field, entry = knob
    if entry is not None:
        entries = {**dict(getattr(schedule, field)), entry: choice}
        choice = tuple(sorted(entries.items()))
    return replace(schedule, **{field: choice})


def unsized(schedule: Schedule, kernel: Kernel) -> Schedule:
    """With WHOLE in the place of tiles that cover their axis: for kernels of other sizes."""
    most = split(kernel).kernel.extents
    tiles = ((i, t if t < bound(most[i]) else WHOLE) for i, t in schedule.tiles if i in most)
    return replace(schedule, tiles=tuple(tiles))


def sized(schedule: Schedule, kernel: Kernel) -> Schedule:
    """An unsized schedule for a kernel of the same kind."""
    most = {i: max(1, bound(n)) for i, n in split(kernel).kernel.extents.items()}
    tiles = ((i, min(t or most[i], most[i])) for i, t in schedule.tiles if i in most)
    return replace(schedule, tiles=tuple(tiles))


def neighbours(schedule: Schedule, table: Moves) -> Iterator[Schedule]:
    """Every schedule one move away: a tile up or down, another order, grid, block or option."""
    for knob, choices in table.items():
        field, entry = knob
        now = getattr(schedule, field)
        if entry is not None:
            now = dict(now).get(entry, 1 if field == "tiles" else None)
        others = [c for c in choices if c != now]
        if field == "tiles":
            others = sorted(others, key=lambda t: (abs(math.log2(t / now)), t))[:2]
        yield from (turned(schedule, knob, c) for c in others)


def sample(schedule: Schedule, table: Moves, random: Random) -> Schedule:
    """A random schedule of the table: each choice is kept from the given one half of the time."""
    for knob, choices in table.items():
        if random.random() >= 0.5 and choices:
            schedule = turned(schedule, knob, random.choice(choices))
    return schedule
