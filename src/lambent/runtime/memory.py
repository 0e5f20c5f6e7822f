"""The memory plan: one arena for all values between the first kernel and the last.

Buffers of fixed size are packed into the first block, best fit among the gaps that those alive at
the same time leave. Buffers with symbolic sizes share blocks of their own, one at a time; offsets
of blocks are sums of their sizes, computed in each run: a small run takes a small arena.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lambent.graph.dim import Size, maximum, representative
from lambent.runtime.plan import Plan

ALIGN = 64


@dataclass(frozen=True, slots=True)
class Memory:
    """`blocks`: bytes of each block, multiples of 64. `places`: (block, offset) by buffer name."""

    blocks: tuple[Size, ...]
    places: dict[str, tuple[int, int]]

    @property
    def total(self) -> Size:
        """Bytes of the whole arena."""
        total: Size = 0
        for block in self.blocks:
            total = total + block
        return total


def nbytes(plan: Plan, name: str) -> Size:
    """Bytes of a buffer, rounded up to the alignment."""
    buffer = plan.buffers[name]
    size: Size = buffer.dtype.itemsize
    for dim in buffer.shape:
        size = size * dim
    return (size + ALIGN - 1) // ALIGN * ALIGN


def lifetimes(plan: Plan) -> dict[str, tuple[int, int]]:
    """(step that writes it, last step that reads it) of each buffer that lives in the arena."""
    found: dict[str, tuple[int, int]] = {}
    outside = {*plan.inputs, *plan.outputs, *plan.weights}
    for number, step in enumerate(plan.steps):
        for name in step.writes:
            if name not in outside:
                found[name] = (number, number)
        for name in step.reads:
            if name in found:
                found[name] = (found[name][0], number)
    return found


def plan_memory(plan: Plan) -> Memory:
    """Place every intermediate. Deterministic; two buffers alive at one step never overlap."""
    alive = lifetimes(plan)
    sizes = {name: nbytes(plan, name) for name in alive}
    fixed = {name: size for name, size in sizes.items() if isinstance(size, int)}
    places: dict[str, tuple[int, int]] = {}
    top = _pack(fixed, alive, places)
    blocks: list[Size] = [top]
    ends: list[list[tuple[int, int]]] = [[]]
    for name in sorted(sizes.keys() - fixed.keys(), key=lambda n: (-representative(sizes[n]), n)):
        free = [
            i
            for i in range(1, len(blocks))
            if not any(_overlap(alive[name], other) for other in ends[i])
        ]
        if not free:
            blocks.append(0)
            ends.append([])
            free = [len(blocks) - 1]
        at = min(
            free, key=lambda i: (abs(representative(blocks[i]) - representative(sizes[name])), i)
        )
        blocks[at] = maximum(blocks[at], sizes[name])
        ends[at].append(alive[name])
        places[name] = (at, 0)
    return Memory(tuple(blocks), places)


def _pack(
    sizes: Mapping[str, int],
    alive: Mapping[str, tuple[int, int]],
    places: dict[str, tuple[int, int]],
) -> int:
    """Best fit, largest first, into block 0. Returns the block's bytes."""
    top = 0
    for name in sorted(sizes, key=lambda n: (-sizes[n], alive[n], n)):
        taken = sorted(
            (offset, offset + sizes[other])
            for other, (_, offset) in places.items()
            if _overlap(alive[name], alive[other])
        )
        offset = _gap(taken, sizes[name])
        places[name] = (0, offset)
        top = max(top, offset + sizes[name])
    return top


def _gap(taken: list[tuple[int, int]], size: int) -> int:
    """The offset of the smallest gap that holds `size`, or the end of all."""
    best: tuple[int, int] | None = None
    at = 0
    for start, end in taken:
        if start - at >= size and (best is None or start - at < best[0]):
            best = (start - at, at)
        at = max(at, end)
    return at if best is None else best[1]


def _overlap(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return a[0] <= b[1] and b[0] <= a[1]
