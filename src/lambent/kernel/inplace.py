"""A kernel written over one of its inputs: only what changes is visited."""

from __future__ import annotations

from dataclasses import replace

from lambent.algebra.term import Terms
from lambent.kernel.check import check
from lambent.kernel.lower import lower
from lambent.kernel.ranges import updates
from lambent.kernel.rewrite import free_axes
from lambent.kernel.tile import TileProgram


def in_place(program: TileProgram, over: str) -> TileProgram:
    """The program with its output in the memory of an input, which must be `overwritable`.

    An axis along which a condition decides what changes is looped last, serially, one index at a
    time: its range then ends where the condition does.

    Raises:
        ValueError: the schedule does not suit this form.
    """
    kernel, schedule = program.kernel, program.schedule
    (output,) = kernel.outputs
    output = replace(output, over=over)
    conditions = [c for c, _ in updates(Terms(), output)]
    own = free_axes(output)
    cut = sorted(frozenset[int]().union(*(c.free for c in conditions)) & own)
    tiles = {**dict(schedule.tiles), **dict.fromkeys(cut, 1)}
    first = [i for i in schedule.order if i not in cut]
    grid = sum(i not in cut for i in schedule.order[: schedule.grid])
    found = replace(schedule, tiles=tuple(tiles.items()), order=(*first, *cut), grid=grid)
    updating = lower(replace(kernel, outputs=(output,)), found)
    check(updating)
    return updating
