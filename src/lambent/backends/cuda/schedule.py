"""Schedules for a GPU: first guesses for a kernel, and the moves that the search samples.

Tiles are powers of two. The options are num_warps, num_stages (of the pipelined loops) and those
that `triton.render` names. Roles of axes are those of `backends.roles`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from lambent.backends.roles import Structure
from lambent.backends.triton.blocks import LARGEST, pow2
from lambent.kernel.kernel import Kernel
from lambent.kernel.schedule import WHOLE, Moves
from lambent.kernel.tile import Dot, For, Load, Schedule, TileProgram, Var, axes_of, statements

TILES: dict[str, tuple[int, ...]] = {
    "rows": (16, 32, 64, 128, 256),
    "columns": (16, 32, 64, 128, 256),
    "batch": (1,),
    "row": (1, 2, 4, 8, 16),
    "lane": (16, 32, 64, 128, 256, 512, 1024, 2048, 4096),
    "outer": (1, 2, 4, 8, 16),
    "wide": (64, 128, 256, WHOLE),
    "contracted": (16, 32, 64, 128, 256, 512, WHOLE),
    "streamed": (16, 32, 64, 128, WHOLE),
    "reduced": (16, 64, 256, 512, 1024, 2048, 4096, 8192, WHOLE),
}
OPTIONS: dict[str, tuple[int, ...]] = {"num_warps": (1, 2, 4, 8, 16), "num_stages": (1, 2, 3)}
PRODUCTS: dict[str, tuple[int, ...]] = {"num_warps": (4, 8), "num_stages": (1, 2, 3, 4, 5)}
GROUPS = (1, 4, 8, 16)
COPIES: dict[str, tuple[int, ...]] = {"descriptors": (0, 1), "specialize": (0, 1)}
HOPPER = 90  # the least compute capability with a copy engine for tiles
Guess = tuple[tuple[str, int], ...]
BACK: Guess = (("backwards", 1),)
COPY: Guess = (("descriptors", 1),)
TURN: Guess = (("turned", 1),)
FEW: Guess = (("persistent", 1),)  # programs a processor
SPLIT: Guess = (("descriptors", 1), ("single", 1), ("specialize", 1))  # one loop alone can be
FOLDS: tuple[Guess, ...] = tuple(
    (("rows", rows), ("streamed", streamed), ("num_warps", warps), ("num_stages", stages), *more)
    for rows, streamed, warps, stages, more in (
        (64, 64, 4, 3, BACK),
        (128, 128, 4, 2, (*BACK, *SPLIT)),
        (64, 64, 4, 3, (*BACK, *COPY)),
        (128, 64, 4, 3, BACK),
        (128, 128, 4, 2, SPLIT),
        (128, 128, 8, 3, BACK),
        (64, 128, 4, 2, BACK),
        (64, 32, 4, 3, BACK),
        (128, 128, 4, 3, COPY),
        (128, 64, 4, 2, ()),
        (128, 64, 4, 2, COPY),
        (128, 128, 8, 2, (*BACK, *COPY)),
        (128, 64, 8, 3, COPY),
    )
)  # fmt: skip
"""What served kernels that stream one product's result into another: tiles by role, and options."""
SQUARES: tuple[Guess, ...] = tuple(
    (("rows", rows), ("columns", columns), ("contracted", 64), ("num_warps", warps),
     ("num_stages", stages), *more)
    for rows, columns, warps, stages, more in (
        (128, 256, 8, 4, COPY),
        (128, 256, 8, 3, (*FEW, *SPLIT)),
        (128, 128, 4, 5, COPY),
        (128, 256, 8, 3, ()),
        (64, 256, 4, 5, COPY),
        (256, 128, 8, 4, COPY),
        (128, 128, 4, 5, (*COPY, *FEW)),
        (128, 256, 8, 3, (*COPY, *FEW)),
        (128, 128, 4, 4, COPY),
        (128, 256, 8, 3, COPY),
        (128, 256, 8, 4, ()),
    )
)  # fmt: skip
"""The same for products of matrices, of 2 bytes an element."""
WARP = 32
THIN = 16  # rows or columns; a product with no more of them waits for the other operand's bytes
STREAMS: tuple[Guess, ...] = tuple(
    (("rows", outer), ("columns", outer), ("contracted", contracted), ("num_warps", warps),
     ("num_stages", stages), *more)
    for outer, contracted, warps, stages, more in (
        (128, 128, 4, 4, TURN),
        (64, 128, 4, 4, TURN),
        (64, 256, 4, 3, ()),
        (32, 256, 4, 4, ()),
        (128, 256, 4, 3, TURN),
        (32, 512, 4, 3, ()),
        (16, 512, 4, 4, ()),
        (64, 128, 4, 3, TURN),
        (128, 128, 8, 4, TURN),
        (128, 128, 4, 4, ()),
        (64, 256, 4, 3, (*COPY, *TURN)),
    )
)  # fmt: skip
"""The same for products with few rows or columns: tiles that keep many bytes on the way."""
ROWS: tuple[Guess, ...] = (
    (),
    (("row", 4), ("reduced", 4096), ("num_warps", 8), ("num_stages", 2)),
    (("row", 8), ("reduced", 2048), ("num_warps", 8), ("num_stages", 2)),
    (("row", 2), ("reduced", 1 << 14), ("num_warps", 8), ("num_stages", 2)),
    (("row", 16), ("reduced", 1024), ("num_warps", 8), ("num_stages", 3)),
)
"""The same for sums of rows: what is computed once for several rows is computed less often."""
WHOLE_LIMIT = {"wide": 256, "contracted": 256, "streamed": 256, "reduced": 16384}
FIRST = {
    "rows": 128, "columns": 128, "lane": 1024, "contracted": 64, "streamed": 64, "reduced": 64
}  # fmt: skip
SUMS = 49152  # elements that all sums of a kernel have, for 8 warps
BUSY = 0.7  # of the processors, that what is guessed first keeps busy
FILLED = 64  # results at once, where lanes are fewer: rows make them up


def compiler_options(schedule: Schedule) -> dict[str, int]:
    """What of a schedule the compiler is told."""
    found = dict(schedule.options)
    return {"num_warps": found.get("num_warps", 4), "num_stages": found.get("num_stages", 3)}


def default_schedule(kernel: Kernel) -> Schedule:
    """A sensible first guess, from roles and representative sizes alone."""
    return _guess(Structure(kernel), {})


def guesses(kernel: Kernel, capability: int, processors: int = 108) -> list[Schedule]:
    """What is worth trying before anything is known of a kernel, the likeliest first."""
    s = Structure(kernel)
    known: tuple[Guess, ...] = ()
    if s.contracts:
        known = FOLDS if _folded(s) else STREAMS if _thin(s) else SQUARES if _square(s) else ()
    elif s.of("row") and s.of("reduced"):
        known = ROWS
    wishes = [w for w in map(dict, known) if capability >= HOPPER or not w.keys() & COPIES.keys()]
    narrow = min((b.dtype.itemsize for b in kernel.inputs), default=2)
    times = {"persistent": processors, "contracted": 2 / narrow if known is SQUARES else 1}
    wishes = [{n: int(x * times.get(n, 1)) for n, x in w.items()} for w in wishes]
    found = list(dict.fromkeys(_guess(s, w) for w in [*wishes, {}]))
    return sorted(found, key=lambda one: s.contracts and _tasks(s, one) < BUSY * processors)


def _tasks(s: Structure, one: Schedule) -> int:
    return math.prod(-(-s.sizes[i] // t) for i, t in one.tiles if i in s.order)


def _guess(s: Structure, wish: Mapping[str, int]) -> Schedule:
    """The first guess with other tiles (by role) and options."""
    tiles: dict[int, int] = {}
    for i, role in s.roles.items():
        whole = s.most[i] <= WHOLE_LIMIT.get(role, 0)
        if role == "reduced" and not s.contracts:
            whole = whole and wish.get(role, s.most[i]) >= s.most[i]
            tiles[i] = s.most[i] if whole else wish.get(role, 4096)
        elif role == "wide" or (role == "contracted" and s.contracts and whole and _folded(s)):
            tiles[i] = s.most[i] if whole else 64
        else:
            tiles[i] = min(wish.get(role, FIRST.get(role, 1)), pow2(s.most[i]))
    deep = 256 if _folded(s) else wish.get("contracted", 64)
    _share(s, tiles, s.of("rows"), wish.get("rows", 128))
    _share(s, tiles, s.of("columns"), wish.get("columns", 128))
    for together in dict.fromkeys(t.axes for t in s.terms):
        _share(s, tiles, [i for i in s.of("contracted") if i in together], deep)
    _share(s, tiles, s.of("lane"), 1024)
    _share(s, tiles, s.of("reduced"), 16384)
    for i in s.of("row")[:1] if s.of("lane") and not s.contracts else ():
        tiles[i] = min(pow2(s.most[i]), max(tiles[i], FILLED // _covered(s, tiles, "lane")))
    for twin, i in s.twins.items():  # one tile serves both names
        fits = not s.contracts or s.most[i] <= WHOLE_LIMIT["wide"]
        if tiles.get(twin, 1) >= s.most[twin] and i in s.roles and fits:
            tiles[i] = s.most[i]
    _fit(s, tiles)
    if s.contracts:
        rows, columns = (_covered(s, tiles, r) for r in ("rows", "columns"))
        warps = 8 if rows * columns >= 128 * 128 else 4
        options = {"num_warps": warps, "num_stages": 3} | ({"group": 8} if _square(s) else {})
    else:
        volume = math.prod(min(t, s.sizes[i]) for i, t in tiles.items() if i not in s.twins)
        options = {"num_warps": pow2(max(1, min(16, volume // 512))), "num_stages": 2}
    options |= {name: n for name, n in wish.items() if name not in TILES}
    return Schedule(
        tuple(sorted(tiles.items())), s.order, len(s.order), options=tuple(sorted(options.items()))
    )


def held(program: TileProgram) -> tuple[int, int]:
    """Bytes that a loop of products has on the way, at most, and elements of all sums a thread."""
    options = compiler_options(program.schedule)
    every = list(statements(program.body))

    def volume(axes: Iterable[int]) -> int:
        return math.prod(pow2(program.axes[i].tile) for i in axes)

    def moved(loop: For) -> int:
        dots = [s.value for s in loop.body if not isinstance(s, For | Var)]
        loads = {v for d in dots if isinstance(d, Dot) for v in (d.a, d.b) if isinstance(v, Load)}
        passing = [v for v in loads if loop.axis in axes_of(v)]
        return sum(volume(axes_of(v)) * v.dtype.itemsize for v in passing)

    most = max((moved(s) for s in every if isinstance(s, For)), default=0)
    sums = sum(volume(s.axes) for s in every if isinstance(s, Var))
    return options["num_stages"] * most, sums // (WARP * options["num_warps"])


def _fit(s: Structure, tiles: dict[int, int]) -> None:
    """Halve tiles, the largest first, until what is loaded and summed fits the registers."""
    held = [t.free for t in s.terms if t.op == "in" or t.axes]
    sums = [t.free for t in s.terms if t.axes]

    def size(i: int) -> int:
        return pow2(min(tiles.get(i, s.most[i]), s.most[i]))

    def volume(axes: frozenset[int]) -> int:
        return math.prod(map(size, axes))

    while volume(largest := max(held, key=volume)) > LARGEST // 2 or sum(map(volume, sums)) > SUMS:
        i = max(largest, key=lambda i: (size(i), i))
        tiles[i] = size(i) // 2


def _folded(s: Structure) -> bool:
    return bool(s.of("streamed"))


def _square(s: Structure) -> bool:
    """Whether rows and columns of a product are the innermost of the grid."""
    return [s.roles[i] for i in s.order[-2:]] == ["rows", "columns"]


def _thin(s: Structure) -> bool:
    """Whether a product has few rows or few columns."""
    return min(math.prod(s.sizes[i] for i in s.of(role)) for role in ("rows", "columns")) <= THIN


def _covered(s: Structure, tiles: dict[int, int], role: str) -> int:
    return math.prod(min(tiles[i], s.sizes[i]) for i in s.of(role))


def _share(s: Structure, tiles: dict[int, int], axes: Iterable[int], total: int) -> None:
    """Cut the tiles of these axes so that their product is about `total`, the outer ones first."""
    for i in axes:
        tiles[i] = max(1, min(tiles[i], pow2(total + 1) // 2 if total > 1 else 1))
        total = max(1, total // pow2(min(s.sizes[i], tiles[i])))


def moves(kernel: Kernel, capability: int = 80, processors: int = 108) -> Moves:
    """The alternatives that a schedule of this kernel may take, each independent of the others."""
    s = Structure(kernel)
    first = dict(default_schedule(kernel).tiles)
    knobs: Moves = {}
    for i, role in s.roles.items():
        found = {t for t in TILES[role] if t != WHOLE and t < 2 * s.most[i]}
        if WHOLE in TILES[role] and s.most[i] <= WHOLE_LIMIT[role]:
            found.add(s.most[i])
        if i in s.twins.values() and s.most[i] <= WHOLE_LIMIT["reduced"] and not s.contracts:
            found.add(s.most[i])
        knobs["tiles", i] = tuple(sorted({*found, first.get(i, 1)}))
    order = s.order
    swapped = [order[:-2] + order[:-3:-1]] if len(order) > 1 else []
    knobs["order", None] = tuple(dict.fromkeys([order, *swapped]))
    options = PRODUCTS if s.contracts else OPTIONS
    knobs.update((("options", name), choices) for name, choices in options.items())
    if _square(s):
        knobs["options", "group"] = GROUPS
    if s.contracts:
        knobs.update((("options", name), (0, 1)) for name in ("backwards", "single", "turned"))
        knobs["options", "persistent"] = (0, processors, 2 * processors)
    if s.contracts and capability >= HOPPER:
        knobs.update((("options", name), choices) for name, choices in COPIES.items())
    return knobs
