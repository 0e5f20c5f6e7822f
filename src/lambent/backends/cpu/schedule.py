"""Schedules for a CPU: the first guess for a kernel, and the moves that the search samples.

Roles of axes are those of `backends.roles`; the options those of the C renderer.
"""

from __future__ import annotations

import math
from dataclasses import replace

from lambent.backends.c.emit import NEAR
from lambent.backends.cpu.features import detect
from lambent.backends.roles import FEW, Structure
from lambent.kernel.kernel import Kernel
from lambent.kernel.panels import dims
from lambent.kernel.schedule import WHOLE, Moves
from lambent.kernel.tile import Schedule

TILES: dict[str, tuple[int, ...]] = {
    "rows": (16, 24, 32, 48, 64, 96, 128, 192, 256),
    "columns": (16, 32, 64, 96, 128, 192, 256, 512, WHOLE),
    "batch": (1, 4),
    "row": (1, 2, 4, 8, 16, 32, 128),
    "lane": (64, 256, 1024, 4096, 8192, WHOLE),
    "outer": (1, 2, 4, 8, 16, 32, 64),
    "wide": (128, 256, 512, 1024, WHOLE),
    "contracted": (64, 128, 256, 384, 512, 1024, WHOLE),
    "streamed": (16, 32, 64, 96, 128, 192, 256, 512, WHOLE),
    "reduced": (4, 8, 16, 64, 256, 1024, 4096, WHOLE),
}
BLOCKS = ((6, 2), (4, 3), (12, 1), (8, 1), (4, 2), (5, 2))  # that 16 registers hold
PACKING = ("pack_a", "pack_b", "pairs")
PANELS = (16, 24, 32, 64)
STREAMS = 4  # panels that a task reads side by side
LARGE = 8 << 20  # bytes of a buffer that no cache is taken to keep
THREADS = 2  # what a first guess assumes of a machine
WHOLE_LIMIT = 16384  # indices of an axis that may stay whole


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

    tiles.update((i, min(s.most[i], 128)) for i in s.of("streamed"))
    while math.prod(tiles.values()) > 4096:
        widest = max(tiles, key=lambda i: (tiles[i], -i))
        tiles[widest] = -(-tiles[widest] // 2)
    share(sorted(s.of("contracted"), key=lambda i: (s.sizes[i], i)), 512)
    tiles.update((i, _even(s.sizes[i], tiles[i], 1)) for i in s.of("contracted"))
    most = 48 if s.of("streamed") else 64 if s.of("reduced") else 128
    reduced = [i for i in s.of("reduced") if i not in s.apart]
    tiles.update((i, s.most[i]) for i in s.apart)
    share(reduced, 8192)
    for role, total, step in (("columns", 128, 16), ("rows", most, 6)):
        share(s.of(role), total)
        tiles.update((i, _even(s.sizes[i], tiles[i], step)) for i in s.of(role))
    tiles.update((i, min(s.most[i], 1024)) for i in s.of("wide"))
    few = FEW if s.narrow else 1  # read as they lie
    tiles.update((i, min(s.most[i], few)) for i in s.of("batch"))
    share(s.of("row"), max(1, min(16, 4096 // max(1, covered("reduced")))))
    lanes, kept = s.of("lane"), set(s.of("wide"))
    across = lanes and reduced and not s.near & s.bound  # it is reduced across the lanes
    panels = bool((s.contracts or across) and dims(kernel, PANELS[0]))
    if len(lanes) > 1:  # laid out anew: square tiles
        tiles.update((i, min(64, s.most[i])) for i in lanes)
    elif across and panels and not s.of("row"):  # a row times weights: few streams, whole
        share(lanes, STREAMS * PANELS[0])
    elif across:  # few long rows at a time, and tasks, are read as one stream
        half = max(64, -(-s.sizes[lanes[0]] // THREADS))
        share(lanes, min(8192, _even(s.sizes[lanes[0]], half, 64)))
        share(reduced, max(8, (1 << 15) // covered("lane")))
        rows = -(-math.prod(s.sizes[i] for i in s.of("row")) // (4 * THREADS))
        share(s.of("row"), min(16, rows))
        kept |= set(lanes)
    else:
        share(lanes, 4096)
    share(s.of("outer"), max(1, 4096 // max(1, covered("lane"))))
    for twin, i in s.twins.items():  # one tile serves both names
        if tiles.get(twin, 1) >= s.most[twin] and i in s.roles and twin not in s.apart:
            tiles[i] = s.most[i]
            kept.add(i)
    first = _balanced(s, tiles, kept)
    beyond = _beyond(s) * (s.narrow or not s.contracts)
    wished = {"panel": PANELS[0]} if panels else dict.fromkeys(beyond, 1)
    return replace(first, options=tuple(wished.items()))


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

    wanted = 2 * THREADS if math.prod(s.sizes.values()) > 1 << 16 else 1
    while tasks(s.order) < wanted:
        tall = [i for i in s.order if i not in kept and tile(i) > least.get(s.roles[i], 1)]
        if not tall:
            break
        i = max(tall, key=lambda i: (tile(i), -s.rank[i]))
        tiles[i] = -(-tile(i) // 2)
    grids = (n for n in range(len(s.order)) if tasks(s.order[:n]) >= 16 * THREADS)
    return Schedule(tuple(sorted(tiles.items())), s.order, next(grids, len(s.order)))


def _beyond(s: Structure) -> list[str]:
    """The options for buffers that no near cache keeps; products read their operands in blocks."""
    least, kernel = LARGE if s.contracts and not s.narrow else NEAR, s.kernel
    found = ["ahead"] if any(b.bytes >= least for b in kernel.inputs) else []
    return found + ["stream"] * any(o.buffer.bytes >= LARGE for o in kernel.outputs)


def moves(kernel: Kernel) -> Moves:
    """The alternatives that a schedule of this kernel may take, each independent of the others."""
    s = Structure(kernel)
    first = dict(default_schedule(kernel).tiles)
    knobs: Moves = {}
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
    if s.contracts:
        knobs["block", None] = BLOCKS
        pairs = sum(b.dtype.name == "bfloat16" for b in kernel.inputs) > 1 and detect().pairs
        knobs.update((("options", name), (0, 1)) for name in PACKING[: 2 + pairs])
    if widths := [w for w in PANELS if dims(kernel, w)]:
        knobs["options", "panel"] = (0, *widths)
    knobs.update((("options", name), (0, 1)) for name in _beyond(s))
    return knobs
