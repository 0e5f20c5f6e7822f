"""A kernel written over its inputs: only what changes is visited."""

from __future__ import annotations

from dataclasses import replace

from lambent.algebra.term import Terms
from lambent.kernel.lower import lower
from lambent.kernel.ranges import updates
from lambent.kernel.rewrite import free_axes
from lambent.kernel.tile import Load, Store, TileProgram, operands, statements, values


def overwritable(program: TileProgram) -> frozenset[tuple[str, str]]:
    """The kernel's, without inputs that a statement reads after another output took their place."""
    able, stored = program.kernel.overwritable, set[str]()
    for s in statements(program.body) if len(program.kernel.outputs) > 1 else ():
        read = {v.buffer for top in operands(s) for v in values(top) if isinstance(v, Load)}
        able -= {(o, b) for o in stored for b in read}
        stored |= {s.buffer} if isinstance(s, Store) else set()
    return able


def in_place(program: TileProgram, out: str, over: str) -> TileProgram:
    """The program with an output in the memory of an input: a pair that is `overwritable`.

    An axis along which a condition decides what changes is looped last, serially, one index at a
    time: its range then ends where the condition does.
    """
    kernel, schedule = program.kernel, program.schedule
    outputs = [replace(o, over=over) if o.buffer.name == out else o for o in kernel.outputs]
    changes = [(c.free & free_axes(o)) for o in outputs if o.over for c, _ in updates(Terms(), o)]
    cut = sorted(frozenset[int]().union(*changes))
    tiles = {**dict(schedule.tiles), **dict.fromkeys(cut, 1)}
    first = [i for i in schedule.order if i not in cut]
    grid = sum(i not in cut for i in schedule.order[: schedule.grid])
    found = replace(schedule, tiles=tuple(tiles.items()), order=(*first, *cut), grid=grid)
    return lower(replace(kernel, outputs=tuple(outputs)), found)
