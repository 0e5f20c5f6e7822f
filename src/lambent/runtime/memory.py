"""The memory plan: one arena for all values between the first kernel and the last.

Buffers of fixed size are packed into the first block, best fit among the gaps that those alive at
the same time leave. Buffers with symbolic sizes share blocks of their own, one at a time; offsets
of blocks are sums of their sizes, computed in each run: a small run takes a small arena.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate

from lambent.graph.dim import Size, representative
from lambent.graph.prove import UNBOUNDED, maximum
from lambent.kernel.inplace import overwritable
from lambent.runtime.plan import Plan

ALIGN = 64


@dataclass(frozen=True, slots=True)
class Memory:
    """`blocks`: bytes of each block, multiples of 64. `places`: (block, offset) by buffer name."""

    blocks: tuple[Size, ...]
    places: dict[str, tuple[int, int]]


def nbytes(plan: Plan, name: str) -> Size:
    """Bytes of a buffer, rounded up to the alignment."""
    buffer = plan.buffers[name]
    size: Size = math.prod(buffer.shape, start=buffer.dtype.itemsize)
    return (size + ALIGN - 1) // ALIGN * ALIGN


def lifetimes(plan: Plan) -> dict[str, tuple[int, int]]:
    """(step that writes it, last step that reads it) of each buffer that lives in the arena."""
    found: dict[str, tuple[int, int]] = {}
    for number, step in enumerate(plan.steps):
        found |= {name: (number, number) for name in step.writes if name not in plan.outputs}
        found |= {name: (found[name][0], number) for name in step.reads if name in found}
    return found


def in_place(plan: Plan, alive: dict[str, tuple[int, int]]) -> dict[str, str]:
    """Buffers whose step may write them over an input that it is the last to read → that input."""
    found: dict[str, str] = {}
    for number, step in enumerate(plan.steps):
        for made, read in sorted(overwritable(step.program)):
            over, name = step.names[made], step.names[read]
            dies = name in alive and alive[name][1] == number and step.reads.count(name) == 1
            fits = over in alive and nbytes(plan, over) == nbytes(plan, name)
            if dies and fits and name not in found.values():
                found.setdefault(over, name)
    return found


def plan_memory(plan: Plan) -> Memory:
    """Place every intermediate. Deterministic; two buffers alive at one step overlap only where
    one is written over the other."""
    alive = lifetimes(plan)
    first: dict[str, str] = {}  # of the buffers that are written over each other
    for name, over in in_place(plan, alive).items():
        first[name] = first.get(over, over)
        alive[first[name]] = alive[first[name]][0], alive.pop(name)[1]
    sizes = {name: nbytes(plan, name) for name in alive}
    hints = {name: representative(size) for name, size in sizes.items()}
    blocks: dict[int, Size] = {0: 0}
    places: dict[str, tuple[int, int]] = {}
    for name in sorted(sizes, key=lambda n: (-hints[n], alive[n], n)):
        size, (begin, end) = sizes[name], alive[name]
        beside = {n: places[n] for n in places if alive[n][0] <= end and begin <= alive[n][1]}
        if isinstance(size, int):
            spans = ((at, at + hints[n]) for n, (block, at) in beside.items() if block == 0)
            place = 0, _best_fit(size, sorted(spans))
        else:
            free = blocks.keys() - {0, *(block for block, _ in beside.values())}
            wrong = {i: abs(representative(blocks[i]) - hints[name]) for i in sorted(free)}
            place = min(wrong, key=lambda i: wrong[i], default=len(blocks)), 0
        places[name] = place
        blocks[place[0]] = maximum(blocks.get(place[0], 0), place[1] + size)
    places |= {name: places[other] for name, other in first.items()}
    return Memory(tuple(blocks.values()), places)


def _best_fit(size: int, taken: list[tuple[int, int]]) -> int:
    """The start of the smallest gap between the taken spans that holds `size`, or their end."""
    starts = accumulate((end for _, end in taken), max, initial=0)
    ends = [*(begin for begin, _ in taken), UNBOUNDED]
    gaps = [(b - a, a) for a, b in zip(starts, ends, strict=True) if b - a >= size]
    return min(gaps)[1]
