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

from lambent.algebra.term import REDUCTIONS, Term, walk
from lambent.graph.dim import Size, axes_in, axis, representative, terms_of
from lambent.kernel.kernel import Kernel
from lambent.kernel.rewrite import bound, factors, free_axes, split, two_groups
from lambent.kernel.tile import Schedule

WHOLE = 0
TILES: dict[str, tuple[int, ...]] = {
    "rows": (16, 24, 32, 48, 64, 96, 128, 192, 256),
    "columns": (16, 32, 64, 96, 128, 192, 256, 512, WHOLE),
    "batch": (1, 4),
    "row": (1, 2, 4, 8, 16, 32),
    "lane": (64, 256, 1024, 4096, WHOLE),
    "outer": (1, 2, 4, 8, 16, 32, 64),
    "wide": (128, 256, 512, 1024, WHOLE),
    "contracted": (64, 128, 256, 384, 512, 1024, WHOLE),
    "streamed": (16, 32, 64, 96, 128, 192, 256, 512, WHOLE),
    "reduced": (64, 256, 1024, 4096, WHOLE),
}
BLOCKS = ((6, 2), (4, 3), (12, 1), (8, 1), (4, 2), (5, 2), (3, 4), (8, 3), (12, 2), (6, 4), (14, 2))
OPTIONS: dict[str, tuple[int, ...]] = {"pack_a": (0, 1), "pack_b": (0, 1), "rows_first": (0, 1)}
WHOLE_LIMIT = 16384  # indices of an axis that may stay whole


@dataclass(frozen=True, slots=True)
class Hardware:
    """What a first guess needs to know: `registers` vectors, cache bytes of a core, threads."""

    registers: int = 16
    cache: int = 512 << 10
    threads: int = 2


@dataclass(frozen=True, slots=True)
class Moves:
    """Legal alternatives: tiles of each axis, loop orders, grid sizes, register blocks, options."""

    roles: dict[int, str]
    tiles: dict[int, tuple[int, ...]]
    orders: tuple[tuple[int, ...], ...]
    grids: tuple[int, ...]
    blocks: tuple[tuple[int, int], ...]
    options: dict[str, tuple[int, ...]]


class _Structure:
    """Roles, sizes and the axes in the order of the outputs."""

    def __init__(self, kernel: Kernel) -> None:
        parts = split(kernel)
        self.kernel, self.twins = parts.kernel, parts.twins
        self.sizes = {i: max(1, representative(n)) for i, n in self.kernel.extents.items()}
        self.most = {i: max(1, bound(n)) for i, n in self.kernel.extents.items()}
        outputs = self.kernel.outputs
        order = [i for o in outputs for e in o.index for i in outermost_first(e)]
        self.order = tuple(dict.fromkeys(i for i in order if self.most[i] > 1))
        self.free = frozenset[int]().union(*(free_axes(o) for o in outputs))
        every = [*self.order, *sorted(self.kernel.extents)]
        self.rank = {i: n for n, i in enumerate(dict.fromkeys(every))}
        self.near = self.contiguous()
        self.tags: dict[int, set[str]] = {i: set() for i in self.kernel.extents}
        terms = list(walk(*(o.term for o in outputs)))
        for t in terms:
            if t.op in REDUCTIONS:
                self.tag(t)
        self.contracts = any("contracted" in tags for tags in self.tags.values())
        self.roles = {i: self.role(i) for i in sorted(self.kernel.extents) if self.most[i] > 1}

    def contiguous(self) -> frozenset[int]:
        """Axes along which an output or an input lies contiguously, small buffers aside."""
        terms = walk(*(o.term for o in self.kernel.outputs))
        found = [o.index for o in self.kernel.outputs]
        found += [t.args[1] for t in terms if t.op == "in"]
        volume = [
            (math.prod(self.sizes[i] for i in frozenset[int]().union(*map(axes_in, index))), index)
            for index in found
            if index
        ]
        most = max((v for v, _ in volume), default=0)
        last = [index[-1] for v, index in volume if 2 * v >= most]
        units = [i for e in last for i in axes_in(e) if _step(e, i) == 1]
        return frozenset(i for i in units if self.most[i] > 1)

    def tag(self, t: Term) -> None:
        if t.op in ("sum", "fold", "part"):
            parts = [t.kids[0], *factors(t.kids[1])] if len(t.kids) > 1 else factors(t.kids[0])
            axes = [frozenset(i for i in p.free - t.axes if self.most[i] > 1) for p in parts]
            found = two_groups(axes, lambda i: self.rank[i])
            if found is not None:
                first, second, batch = found
                for role, group, other in (("rows", first, second), ("columns", second, first)):
                    busy = any(u.op in REDUCTIONS for u in walk(*(parts[n] for n in other)))
                    for i in frozenset[int]().union(*(axes[n] for n in group)) - batch:
                        self.tags[i] |= {role, "wide"} if busy and role == "columns" else {role}
                for i in t.axes:
                    self.tags[i].add("contracted" if t.op == "sum" else "streamed")
                    self.tags[i].add("contracted")
                for i in batch:
                    self.tags[i].add("batch")
                return
        for i in t.axes:
            self.tags[i].add("reduced")
        for i in t.free:
            self.tags[i].add("row")

    def role(self, i: int) -> str:
        tags = self.tags[i]
        if "wide" in tags:
            return "wide"
        if i not in self.free:
            if {"contracted", "batch"} <= tags:
                return "batch"
            inner = tags & {"rows", "columns", "batch"}
            if "streamed" in tags or ("contracted" in tags and inner):
                return "streamed"
            return "reduced" if "reduced" in tags else "contracted"
        for role in ("columns", "rows", "batch"):
            if role in tags:
                return role
        if self.contracts:
            return "batch"
        if i in self.near:
            return "lane"
        return "row" if "row" in tags else "outer"

    def of(self, *roles: str) -> list[int]:
        """Axes of these roles, innermost in the outputs first."""
        found = [i for i, r in self.roles.items() if r in roles]
        return sorted(found, key=lambda i: -self.rank[i])


def _step(index: Size, i: int) -> int:
    for c, monomial in terms_of(index):
        if monomial == terms_of(axis(i))[0][1]:
            return c
    return 0


def outermost_first(index: Size) -> list[int]:
    """The axes of an output's dim; the one of the largest step is the outermost."""
    return sorted(axes_in(index), key=lambda i: (-_step(index, i), i))


def default_schedule(kernel: Kernel, hardware: Hardware | None = None) -> Schedule:
    """A sensible first guess, from roles and representative sizes alone."""
    hardware = hardware or Hardware()
    s = _Structure(kernel)
    tiles: dict[int, int] = {}

    def share(axes: list[int], total: int, least: int = 1) -> None:
        """Tiles whose product is about `total`, the innermost axis first."""
        for i in axes:
            tiles[i] = max(least, min(s.most[i], total))
            total = max(1, total // min(s.sizes[i], tiles[i]))

    for i in s.of("streamed"):
        tiles[i] = min(s.most[i], 64)
    while math.prod(tiles.values()) > 4096:
        widest = max(tiles, key=lambda i: (tiles[i], -i))
        tiles[widest] = -(-tiles[widest] // 2)
    share(_largest_last(s, s.of("contracted")), 512)
    share(s.of("reduced"), 8192)
    tiles.update((i, min(s.most[i], 1024)) for i in s.of("wide"))
    share(s.of("columns"), 128)
    share(s.of("rows"), 64 if s.of("streamed", "reduced") else 96)
    for i, step in [(i, 6) for i in s.of("rows")] + [(i, 16) for i in s.of("columns")]:
        tiles[i] = _even(s.sizes[i], tiles[i], step)
    for i in s.of("batch"):
        tiles[i] = 1
    reduced = math.prod(min(tiles[i], s.sizes[i]) for i in s.of("reduced"))
    lanes, bound_near = s.of("lane"), s.near - s.free
    if len(lanes) > 1:  # laid out anew: square tiles
        for i in lanes:
            tiles[i] = min(64, s.most[i])
    elif lanes and s.of("reduced") and not bound_near:  # reduced across the lanes
        share(lanes, 256)
        share(s.of("reduced"), 64)
    else:
        share(lanes, 4096)
    lane = math.prod(min(tiles[i], s.sizes[i]) for i in lanes)
    share(s.of("row"), max(1, min(16, 4096 // max(1, reduced))))
    share(s.of("outer"), max(1, 4096 // max(1, lane)))
    kept = set(s.of("wide"))
    for twin, i in s.twins.items():  # one tile serves both names
        if tiles.get(twin, 1) >= s.most[twin] and i in s.roles:
            tiles[i] = s.most[i]
            kept.add(i)
    return _balanced(s, tiles, kept, hardware)


def _even(size: int, tile: int, step: int) -> int:
    """A tile like the given one, of which the last is hardly smaller than the others."""
    if tile < step or tile >= size:
        return tile
    each = -(-size // -(-size // tile))
    return min(tile, -(-each // step) * step)


def _largest_last(s: _Structure, axes: list[int]) -> list[int]:
    return sorted(axes, key=lambda i: (s.sizes[i], i))


def _balanced(s: _Structure, tiles: dict[int, int], kept: set[int], hardware: Hardware) -> Schedule:
    """Enough tasks for the threads: halve the largest tiles; then as short a grid as gives them."""

    def tasks(axes: tuple[int, ...]) -> int:
        return math.prod(-(-s.sizes[i] // tiles.get(i, 1)) for i in axes)

    work = math.prod(s.sizes.values())
    wanted = 4 * hardware.threads if work > 1 << 16 else 1
    while tasks(s.order) < wanted:
        tall = [i for i in s.order if min(tiles.get(i, 1), s.sizes[i]) > _least(s.roles[i])]
        wide = [i for i in tall if i not in kept]
        if not wide:
            break
        i = max(wide, key=lambda i: (min(tiles[i], s.sizes[i]), -s.rank[i]))
        tiles[i] = -(-min(tiles[i], s.sizes[i]) // 2)
    grid = next(
        (n for n in range(len(s.order)) if tasks(s.order[:n]) >= 16 * hardware.threads),
        len(s.order),
    )
    block = BLOCKS[0] if hardware.registers <= 16 else (12, 2)
    return Schedule(tuple(sorted(tiles.items())), s.order, grid, block)


def _least(role: str) -> int:
    return {"rows": 16, "columns": 32, "lane": 256}.get(role, 1)


def moves(kernel: Kernel, hardware: Hardware | None = None) -> Moves:
    """The alternatives that a schedule of this kernel may take, each independent of the others."""
    hardware = hardware or Hardware()
    s = _Structure(kernel)
    first = dict(default_schedule(kernel, hardware).tiles)
    tiles = {}
    for i, role in s.roles.items():
        found = {min(t, s.most[i]) for t in TILES[role] if t != WHOLE}
        if WHOLE in TILES[role] and s.most[i] <= WHOLE_LIMIT:
            found.add(s.most[i])
        joint = s.contracts and i in s.twins.values() and s.most[i] <= 1024
        tiles[i] = (s.most[i],) if joint else tuple(sorted({*found, first.get(i, 1)}))
    rotations = [s.order[n:] + s.order[:n] for n in range(len(s.order))]
    swapped = [s.order[:-2] + s.order[:-3:-1]] if len(s.order) > 1 else []
    orders = tuple(dict.fromkeys([s.order, *swapped, *rotations]))
    blocks = tuple(b for b in BLOCKS if b[0] * b[1] + b[1] + 1 <= hardware.registers)
    return Moves(
        s.roles,
        tiles,
        orders,
        tuple(range(1, len(s.order) + 1)),
        blocks if s.contracts else (),
        OPTIONS if s.contracts else {},
    )


def neighbours(schedule: Schedule, table: Moves) -> Iterator[Schedule]:
    """Every schedule one move away: a tile up or down, another order, grid, block or option."""
    tiles = dict(schedule.tiles)
    for i, found in table.tiles.items():
        near = sorted(found, key=lambda t: (abs(math.log2(t / tiles.get(i, 1))), t))
        for t in [t for t in near if t != tiles.get(i, 1)][:2]:
            yield replace(schedule, tiles=tuple(sorted({**tiles, i: t}.items())))
    yield from (replace(schedule, order=o) for o in table.orders if o != schedule.order)
    yield from (replace(schedule, grid=g) for g in table.grids if g != schedule.grid)
    yield from (replace(schedule, block=b) for b in table.blocks if b != schedule.block)
    given = dict(schedule.options)
    for name, choices in table.options.items():
        for choice in choices:
            if given.get(name) != choice:
                options = tuple(sorted({**given, name: choice}.items()))
                yield replace(schedule, options=options)


def sample(schedule: Schedule, table: Moves, random: Random) -> Schedule:
    """A random schedule of the table: each choice is kept from the given one half of the time."""

    def keep() -> bool:
        return random.random() < 0.5

    tiles = dict(schedule.tiles)
    for i, found in table.tiles.items():
        if not keep():
            tiles[i] = random.choice(found)
    order = schedule.order if keep() or not table.orders else random.choice(table.orders)
    grid = schedule.grid if keep() or not table.grids else random.choice(table.grids)
    block = schedule.block if keep() or not table.blocks else random.choice(table.blocks)
    options = dict(schedule.options)
    for name, choices in table.options.items():
        if not keep():
            options[name] = random.choice(choices)
    return replace(
        schedule,
        tiles=tuple(sorted(tiles.items())),
        order=order,
        grid=grid,
        block=block,
        options=tuple(sorted(options.items())),
    )
