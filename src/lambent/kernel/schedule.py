"""Schedules: the first guess for a kernel, and the table of moves that the search samples.

A role says what an axis does in the kernel's structure, whatever the kernel computes:

    free    rows, columns   own axes of the first and the second group of a contraction's factors
            batch           shared by all factors of a contraction
            row             kept by a reduction that is no contraction
            lane, outer     elementwise; lane is contiguous in an output or an input
    bound   contracted      summed by a contraction
            streamed        summed by a contraction that takes what another reduction gives
            reduced         summed or maximised otherwise
    either  wide            own axis of one group of factors whose other group holds reductions:
                            cutting it computes those again

Schedules speak of the axes of `rewrite.split(kernel)`, where clashing binders have their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from lambent.algebra.term import REDUCTIONS, Term, walk
from lambent.graph.dim import Size, axes_in, representative
from lambent.kernel.kernel import Buffer, Kernel
from lambent.kernel.panels import dims
from lambent.kernel.rewrite import bound, factors, free_axes, split, steps, two_groups
from lambent.kernel.tile import Schedule

ROLES: tuple[tuple[str, set[str]], ...] = (
    ("wide", {"wide"}),
    ("batch", {"bound", "contracted", "batch"}),
    ("streamed", {"bound", "streamed"}),
    ("streamed", {"bound", "contracted", "rows"}),
    ("streamed", {"bound", "contracted", "columns"}),
    ("reduced", {"bound", "reduced"}),
    ("contracted", {"bound"}),
    ("columns", {"columns"}),
    ("rows", {"rows"}),
    ("batch", {"batch"}),
    ("batch", {"beside"}),
    ("lane", {"near"}),
    ("row", {"row"}),
    ("outer", set()),
)
"""An axis has the first role all of whose marks it has. Marks say what the axis is to a reduction;
bound: no output has it; near: it is contiguous; beside: the kernel has a contraction."""
WHOLE = 0
TILES: dict[str, tuple[int, ...]] = {
    "rows": (16, 24, 32, 48, 64, 96, 128, 192, 256),
    "columns": (16, 32, 64, 96, 128, 192, 256, 512, WHOLE),
    "batch": (1, 4),
    "row": (1, 2, 4, 8, 16, 32),
    "lane": (64, 256, 1024, 4096, 8192, WHOLE),
    "outer": (1, 2, 4, 8, 16, 32, 64),
    "wide": (128, 256, 512, 1024, WHOLE),
    "contracted": (64, 128, 256, 384, 512, 1024, WHOLE),
    "streamed": (16, 32, 64, 96, 128, 192, 256, 512, WHOLE),
    "reduced": (4, 8, 16, 64, 256, 1024, 4096, WHOLE),
}
BLOCKS = ((6, 2), (4, 3), (12, 1), (8, 1), (4, 2), (5, 2), (3, 4), (8, 3), (12, 2), (6, 4), (14, 2))
OPTIONS: dict[str, tuple[int, ...]] = {"pack_a": (0, 1), "pack_b": (0, 1), "rows_first": (0, 1)}
PANELS = (16, 24, 32, 64)
LARGE = 8 << 20  # bytes of a buffer that no cache is taken to keep
REGISTERS, THREADS = 16, 2  # what a first guess assumes of a core, and of a machine
WHOLE_LIMIT = 16384  # indices of an axis that may stay whole


Knob = tuple[str, int | str | None]
"""A field of a schedule, and which entry of it: an axis in tiles, a name in options."""


@dataclass(frozen=True, slots=True)
class Moves:
    """The role of each axis, and what each knob of a schedule may legally be set to."""

    roles: dict[int, str]
    knobs: dict[Knob, tuple[Any, ...]]


class Structure:
    """Roles, sizes and the axes in the order of the outputs."""

    def __init__(self, kernel: Kernel) -> None:
        parts = split(kernel)
        self.kernel, self.twins = parts.kernel, parts.twins
        self.sizes = {i: max(1, representative(n)) for i, n in self.kernel.extents.items()}
        self.most = {i: max(1, bound(n)) for i, n in self.kernel.extents.items()}
        outputs = self.kernel.outputs
        order = [i for o in outputs for e in o.index for i in outermost_first(e)]
        self.order = tuple(i for i in dict.fromkeys(order) if self.most[i] > 1)
        every = dict.fromkeys([*self.order, *sorted(self.kernel.extents)])
        self.rank = {i: n for n, i in enumerate(every)}
        self.terms = list(walk(*(o.term for o in outputs)))
        self.near = self.contiguous()
        marks = [mark for t in self.terms if t.op in REDUCTIONS for mark in self.marks(t)]
        self.contracts = any(mark == "contracted" for mark, _ in marks)
        touched = {"ahead": kernel.inputs, "stream": [o.buffer for o in outputs]}
        self.beyond = tuple(name for name, some in touched.items() if any(map(_large, some)))
        self.bound = frozenset(every).difference(*map(free_axes, outputs))
        marks += [("near", self.near), ("bound", self.bound)]
        marks += [("beside", frozenset(every))] if self.contracts else []
        self.roles = {}
        for i in sorted(i for i in every if self.most[i] > 1):
            own = {mark for mark, axes in marks if i in axes}
            self.roles[i] = next(role for role, needed in ROLES if needed <= own)

    def contiguous(self) -> frozenset[int]:
        """Axes along which an output or an input lies contiguously, small buffers aside."""
        found = [o.index for o in self.kernel.outputs]
        found += [t.args[1] for t in self.terms if t.op == "in"]
        axes = [frozenset[int]().union(*map(axes_in, index)) for index in found]
        volumes = [math.prod(self.sizes[i] for i in own) for own in axes]
        large = [index for v, index in zip(volumes, found, strict=True) if 2 * v >= max(volumes)]
        units = [i for index in large for e in index[-1:] for i, c in steps(e).items() if c == 1]
        return frozenset(i for i in units if self.most[i] > 1)

    def marks(self, t: Term) -> list[tuple[str, frozenset[int]]]:
        """What a reduction makes of the axes: (mark, axes)."""
        if t.op != "max":
            parts = [*t.kids[:-1], *factors(t.kids[-1])]
            axes = [frozenset(i for i in p.free - t.axes if self.most[i] > 1) for p in parts]
            found = two_groups(axes, lambda i: self.rank[i])
            if found is not None:
                first, second, batch = found
                rows, columns = (
                    frozenset[int]().union(*(axes[n] for n in group)) - batch
                    for group in (first, second)
                )
                busy = any(u.op in REDUCTIONS for u in walk(*(parts[n] for n in first)))
                marks = [("rows", rows), ("columns", columns), ("batch", batch)]
                marks += [("wide", columns)] if busy else []
                marks += [("streamed", t.axes)] if t.op != "sum" else []
                return [*marks, ("contracted", t.axes)]
        return [("reduced", t.axes), ("row", t.free)]

    def of(self, *roles: str) -> list[int]:
        """Axes of these roles, innermost in the outputs first."""
        found = [i for i, r in self.roles.items() if r in roles]
        return sorted(found, key=lambda i: -self.rank[i])


def _large(b: Buffer) -> bool:
    return b.dtype.itemsize * math.prod(map(representative, b.shape)) >= LARGE


def outermost_first(index: Size) -> list[int]:
    """The axes of an output's dim; the one of the largest step is the outermost."""
    step = steps(index)
    return sorted(axes_in(index), key=lambda i: (-step.get(i, 0), i))


def default_schedule(kernel: Kernel) -> Schedule:
    """A sensible first guess, from roles and representative sizes alone."""
    s = Structure(kernel)
    tiles: dict[int, int] = {}

    def share(axes: list[int], total: int) -> None:
        """Tiles whose product is about `total`, the innermost axis first."""
        for i in axes:
            tiles[i] = max(1, min(s.most[i], total))
            total = max(1, total // min(s.sizes[i], tiles[i]))

    def covered(*roles: str) -> int:
        return math.prod(min(tiles[i], s.sizes[i]) for i in s.of(*roles))

    tiles.update((i, min(s.most[i], 64)) for i in s.of("streamed"))
    while math.prod(tiles.values()) > 4096:
        widest = max(tiles, key=lambda i: (tiles[i], -i))
        tiles[widest] = -(-tiles[widest] // 2)
    share(sorted(s.of("contracted"), key=lambda i: (s.sizes[i], i)), 512)
    inside = s.of("streamed", "reduced")
    for role, total in (("reduced", 8192), ("columns", 128), ("rows", 64 if inside else 96)):
        share(s.of(role), total)
    for role, step in (("rows", 6), ("columns", 16)):
        tiles.update((i, _even(s.sizes[i], tiles[i], step)) for i in s.of(role))
    tiles.update((i, min(s.most[i], 1024)) for i in s.of("wide"))
    tiles.update((i, 1) for i in s.of("batch"))
    share(s.of("row"), max(1, min(16, 4096 // max(1, covered("reduced")))))
    lanes, kept = s.of("lane"), set(s.of("wide"))
    if len(lanes) > 1:  # laid out anew: square tiles
        tiles.update((i, min(64, s.most[i])) for i in lanes)
    elif lanes and s.of("reduced") and not s.near & s.bound:
        # reduced across the lanes: few long rows at a time are read as one stream
        share(lanes, min(8192, _even(s.sizes[lanes[0]], -(-s.sizes[lanes[0]] // THREADS), 64)))
        share(s.of("reduced"), 8)
        kept |= set(lanes)
    else:
        share(lanes, 4096)
    share(s.of("outer"), max(1, 4096 // max(1, covered("lane"))))
    for twin, i in s.twins.items():  # one tile serves both names
        if tiles.get(twin, 1) >= s.most[twin] and i in s.roles:
            tiles[i] = s.most[i]
            kept.add(i)
    first = _balanced(s, tiles, kept)
    options = [("panel", PANELS[0])] if s.contracts and dims(kernel, PANELS[0]) else []
    options += [(name, 1) for name in s.beyond if not s.contracts]
    return replace(first, options=tuple(options))


def _even(size: int, tile: int, step: int) -> int:
    """A tile like the given one, of which the last is hardly smaller than the others."""
    if tile < step or tile >= size:
        return tile
    each = -(-size // -(-size // tile))
    return min(tile, -(-each // step) * step)


def _balanced(s: Structure, tiles: dict[int, int], kept: set[int]) -> Schedule:
    """Enough tasks for the threads: halve the largest tiles; then as short a grid as gives them."""
    least = {"rows": 16, "columns": 32, "lane": 256}

    def tile(i: int) -> int:
        return min(tiles.get(i, 1), s.sizes[i])

    def tasks(axes: tuple[int, ...]) -> int:
        return math.prod(-(-s.sizes[i] // tiles.get(i, 1)) for i in axes)

    wanted = 4 * THREADS if math.prod(s.sizes.values()) > 1 << 16 else 1
    while tasks(s.order) < wanted:
        tall = [i for i in s.order if i not in kept and tile(i) > least.get(s.roles[i], 1)]
        if not tall:
            break
        i = max(tall, key=lambda i: (tile(i), -s.rank[i]))
        tiles[i] = -(-tile(i) // 2)
    grids = (n for n in range(len(s.order)) if tasks(s.order[:n]) >= 16 * THREADS)
    return Schedule(tuple(sorted(tiles.items())), s.order, next(grids, len(s.order)))


def moves(kernel: Kernel) -> Moves:
    """The alternatives that a schedule of this kernel may take, each independent of the others."""
    s = Structure(kernel)
    first = dict(default_schedule(kernel).tiles)
    knobs: dict[Knob, tuple[Any, ...]] = {}
    for i, role in s.roles.items():
        found = {min(t, s.most[i]) for t in TILES[role] if t != WHOLE}
        if WHOLE in TILES[role] and s.most[i] <= WHOLE_LIMIT:
            found.add(s.most[i])
        joint = s.contracts and i in s.twins.values() and s.most[i] <= 1024
        found = {s.most[i]} if joint else {*found, first.get(i, 1)}
        knobs["tiles", i] = tuple(sorted(found))
    order = s.order
    rotations = (order[n:] + order[:n] for n in range(len(order)))
    knobs["order", None] = tuple(dict.fromkeys([order, order[:-2] + order[:-3:-1], *rotations]))
    knobs["grid", None] = tuple(range(1, len(order) + 1))
    fitting = (b for b in BLOCKS if b[0] * b[1] + b[1] + 1 <= REGISTERS)
    knobs["block", None] = tuple(fitting) if s.contracts else ()
    if s.contracts:
        knobs.update((("options", name), choices) for name, choices in OPTIONS.items())
    if widths := [w for w in PANELS if dims(kernel, w)]:
        knobs["options", "panel"] = (0, *widths)
    knobs.update((("options", name), (0, 1)) for name in s.beyond)
    return Moves(s.roles, knobs)


def turned(schedule: Schedule, knob: Knob, choice: Any) -> Schedule:
    """The schedule with one knob set."""
    field, entry = knob
    if entry is not None:
        entries = {**dict(getattr(schedule, field)), entry: choice}
        choice = tuple(sorted(entries.items()))
    return replace(schedule, **{field: choice})


def neighbours(schedule: Schedule, table: Moves) -> Iterator[Schedule]:
    """Every schedule one move away: a tile up or down, another order, grid, block or option."""
    for knob, choices in table.knobs.items():
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
    for knob, choices in table.knobs.items():
        if random.random() >= 0.5 and choices:
            schedule = turned(schedule, knob, random.choice(choices))
    return schedule
