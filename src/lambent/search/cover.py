"""The cheapest cover: which kernels, so that every output and every loaded value has a producer.

Values are decided consumers first. What is still needed at any moment is a set of values, so a
cover is a path from the set of outputs to the empty set, and the cheapest is a shortest path: A*,
exact, and 2 ms where the integer program of a transformer layer takes HiGHS seconds.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from lambent.algebra.rules import bits

MAX_SETS = 500  # sets of needed values looked at before the search goes straight on
SMALL = 0.05  # a value cheaper than this share of the costliest kernel joins no others


@dataclass(frozen=True, slots=True)
class Option:
    """A kernel that makes stored value `root` from stored values `leaves`."""

    root: int
    leaves: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cover:
    """Kernel numbers, producers first. `bound`: no cover costs less; −inf where unknown."""

    kernels: tuple[int, ...]
    cost: float
    bound: float


@dataclass(frozen=True)
class Problem:
    """The kernels and the values to be made. A leaf has a greater number than its user."""

    options: tuple[Option, ...]
    outputs: tuple[int, ...]

    @cached_property
    def makers(self) -> list[list[tuple[int, int]]]:
        """For each value the kernels that make it; their leaves as bits."""
        last = max((v for o in self.options for v in (o.root, *o.leaves)), default=-1)
        found: list[list[tuple[int, int]]] = [[] for _ in range(last + 1)]
        for k, o in enumerate(self.options):
            found[o.root].append((k, sum(1 << leaf for leaf in set(o.leaves))))
        return found


Makers = list[list[tuple[float, int, int]]]  # for each value: cost, kernel, leaves


def solve(problem: Problem, costs: Sequence[float]) -> Cover:
    """The cheapest cover at these costs, and a proved lower bound.

    Raises:
        ValueError: no cover exists.
    """
    makers = [_undominated(m, costs) for m in problem.makers]
    bound, path = _shortest(makers, sum(1 << out for out in set(problem.outputs)))
    cost = sum(costs[k] for k in path)
    return Cover(tuple(path), cost, min(bound, cost))


def diverse(problem: Problem, costs: Sequence[float], fresh: Iterable[int], number: int,
            *, penalty: float = 1.3) -> list[Cover]:  # fmt: skip
    """The cheapest cover first, then others: kernels of `fresh` cost more once they were chosen."""
    found: dict[tuple[int, ...], Cover] = {}
    priced, new = list(costs), set(fresh)
    for _ in range(number):
        cover = solve(problem, priced)
        bound = cover.bound if not found else -math.inf
        found.setdefault(
            cover.kernels, Cover(cover.kernels, sum(costs[k] for k in cover.kernels), bound)
        )
        raised = [k for k in cover.kernels if k in new]
        if not raised:
            break
        for k in raised:
            priced[k] *= penalty
    return list(found.values())


def _undominated(
    makers: Iterable[tuple[int, int]], costs: Sequence[float]
) -> list[tuple[float, int, int]]:
    """Kernels of one value that no other beats in both leaves and cost (first of equals)."""
    kept: list[tuple[float, int, int]] = []
    able = [
        (costs[k], leaves.bit_count(), k, leaves) for k, leaves in makers if costs[k] < math.inf
    ]
    for cost, _, k, leaves in sorted(able):
        if all(other & ~leaves for *_, other in kept):
            kept.append((cost, k, leaves))
    return kept


class _Least:
    """What a set of values costs at least: those that no kernel can serve in common add up.

    What a value may need is its closure. Values with disjoint closures share nothing; small ones
    belong to no closure, lest one row of statistics joins everything: they count for themselves.
    """

    def __init__(self, makers: Makers) -> None:
        cheapest = (min(place)[0] for place in makers if place)
        small = SMALL * max(cheapest, default=0.0)
        self.least, self.closure = [0.0] * len(makers), [0] * len(makers)
        self.own = [min(m, default=(math.inf,))[0] for m in makers]
        self.large, self.known = 0, dict[int, float]()
        for i in reversed(range(len(makers))):
            least = min((c + self.shared(leaves) for c, _, leaves in makers[i]), default=math.inf)
            if least > small:
                self.least[i], self.closure[i] = least, 1 << i
                self.large |= 1 << i
                for _, _, leaves in makers[i]:
                    for x in bits(leaves & self.large):
                        self.closure[i] |= self.closure[x]

    def __call__(self, needed: int) -> float:
        small = needed & ~self.large
        return self.shared(needed) + sum([self.own[i] for i in bits(small)])

    def shared(self, needed: int) -> float:
        """Without what the small ones cost, which large ones may need as well."""
        needed &= self.large
        if needed not in self.known:
            total = most = 0.0
            served = 0
            for i in bits(needed):
                most = max(most, self.least[i])
                if not self.closure[i] & served:
                    served |= self.closure[i]
                    total += self.least[i]
            self.known[needed] = max(total, most)
        return self.known[needed]


def _shortest(makers: Makers, start: int) -> tuple[float, list[int]]:
    """A lower bound, and the kernels of the shortest path from the values `start` to none.

    The kernels come producers first. Where the sets are too many, the path goes straight on from
    the most promising one, and the bound is what was proved by then.

    Raises:
        ValueError: no cover exists.
    """
    least = _Least(makers)
    if least(start) == math.inf:
        raise ValueError("no choice of kernels makes every output")
    best, back, proved = {start: 0.0}, {start: (0, -1)}, math.inf
    queue = [(least(start), 0.0, start)]
    for looked in itertools.count():
        expected, spent, needed = heapq.heappop(queue)
        if needed == 0:
            break
        if looked >= MAX_SETS:
            queue, best, proved = [], {needed: spent}, min(proved, expected)
        if spent > best[needed]:
            continue
        low = needed & -needed
        for cost, k, leaves in makers[low.bit_length() - 1]:
            rest, total = needed ^ low | leaves, spent + cost
            if total < best.get(rest, math.inf):
                best[rest], back[rest] = total, (needed, k)
                heapq.heappush(queue, (total + least(rest), total, rest))
    chosen: list[int] = []
    while back[needed][1] >= 0:
        needed, k = back[needed]
        chosen.append(k)
    return min(proved, expected), chosen
