"""The cheapest cover: which kernels, so that every output and every loaded value has a producer.

Values are decided consumers first. What is still needed at any moment is a set of values, so a
cover is a path from the set of outputs to the empty set, and the cheapest is a shortest path: A*,
exact, and 2 ms where the integer program of a transformer layer takes HiGHS seconds. What a kernel
makes beside the value it is chosen for need not be made when its turn comes.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property

from lambent.algebra.rules import bits

MAX_SETS = 5000  # sets of needed values looked at before the search goes straight on
SMALL = 0.05  # a value cheaper than this share of the costliest kernel joins no others


@dataclass(frozen=True, slots=True)
class Option:
    """A kernel that makes stored value `root`, and `more` of greater numbers, from `leaves`."""

    root: int
    leaves: tuple[int, ...]
    more: tuple[int, ...] = field(default=(), kw_only=True)

    @property
    def roots(self) -> tuple[int, ...]:
        return (self.root, *self.more)


@dataclass(frozen=True, slots=True)
class Cover:
    """Kernel numbers, producers first. `bound`: no cover costs less; −inf where unknown."""

    kernels: tuple[int, ...]
    cost: float
    bound: float


@dataclass(frozen=True)
class Problem:
    """The kernels and the values to be made. A leaf has a greater number than what it is for."""

    options: tuple[Option, ...]
    outputs: tuple[int, ...]

    @cached_property
    def makers(self) -> list[list[tuple[int, int, int]]]:
        """For each value the kernels that are chosen for it; their leaves and `more` as bits."""
        last = max((v for o in self.options for v in (*o.roots, *o.leaves)), default=-1)
        found: list[list[tuple[int, int, int]]] = [[] for _ in range(last + 1)]
        for k, o in enumerate(self.options):
            leaves, more = (sum(1 << v for v in set(values)) for values in (o.leaves, o.more))
            found[o.root].append((k, leaves, more))
        return found


Maker = tuple[float, int, int, int]  # cost, kernel, leaves, more
Makers = list[list[Maker]]  # for each value


def solve(problem: Problem, costs: Sequence[float]) -> Cover:
    """The cheapest cover at these costs, and a proved lower bound.

    Raises:
        ValueError: no cover exists.
    """
    makers = [_undominated(m, costs) for m in problem.makers]
    start = sum(1 << out for out in set(problem.outputs))
    bound, path = _shortest(makers, start)
    cost = sum(costs[k] for k in path)
    if bound < cost:  # it went straight on
        alone = [[m for m in place if not m[3]] for place in makers]
        with suppress(ValueError):
            path = min(path, _shortest(alone, start)[1], key=lambda p: sum(costs[k] for k in p))
            cost = sum(costs[k] for k in path)
    ordered = sorted(path, key=lambda k: -max(problem.options[k].roots))  # all leaves are greater
    return Cover(tuple(ordered), cost, min(bound, cost))


def diverse(problem: Problem, costs: Sequence[float], fresh: Iterable[int], number: int,
            *, penalty: float = 1.3) -> list[Cover]:  # fmt: skip
    """The cheapest cover first, then others: kernels of `fresh` cost more once they were chosen."""
    found: dict[tuple[int, ...], Cover] = {}
    priced, new = list(costs), set(fresh)
    for _ in range(number):
        cover = solve(problem, priced)
        bound = cover.bound if not found else -math.inf
        cost = sum(costs[k] for k in cover.kernels)
        found.setdefault(cover.kernels, Cover(cover.kernels, cost, bound))
        raised = [k for k in cover.kernels if k in new]
        if not raised:
            break
        for k in raised:
            priced[k] *= penalty
    return list(found.values())


def _undominated(makers: Iterable[tuple[int, int, int]], costs: Sequence[float]) -> list[Maker]:
    """Kernels of one value that no other beats in both leaves and cost (first of equals)."""
    kept: list[Maker] = []
    able = [m for m in makers if costs[m[0]] < math.inf]
    for k, leaves, more in sorted(able, key=lambda m: (costs[m[0]], m[1].bit_count(), m)):
        if all(less & ~leaves or other != more for *_, less, other in kept):
            kept.append((costs[k], k, leaves, more))
    return kept


class _Least:
    """What a set of values costs at least: those that no kernel can serve in common add up.

    Of a kernel that makes several values each pays a share. What a value may need is its closure.
    Values with disjoint closures share nothing; small ones belong to no closure, lest one row of
    statistics joins everything: they count for themselves.
    """

    def __init__(self, makers: Makers) -> None:
        ways: list[list[tuple[float, int]]] = [[] for _ in makers]
        self.beside = [0.0] * len(makers)  # the most that is paid for a value that was made beside
        alone = [min((c for c, *_, more in m if not more), default=math.inf) for m in makers]
        for i, place in enumerate(makers):
            for cost, _, leaves, more in place:
                roots = [i, *bits(more)]
                total = sum(alone[r] for r in roots)
                fair = more and 0 < total < math.inf
                for r in roots:
                    share = cost * (alone[r] / total if fair else 1 / len(roots))
                    ways[r].append((share, leaves))
                    self.beside[r] = max(self.beside[r], share if r != i else 0.0)
        self.own = [min(w, default=(math.inf,))[0] for w in ways]
        small = SMALL * max((own for own in self.own if own < math.inf), default=0.0)
        self.least, self.closure = [0.0] * len(makers), [0] * len(makers)
        self.large, self.known = 0, dict[int, float]()
        for i in reversed(range(len(makers))):
            least = min((c + self.shared(leaves) for c, leaves in ways[i]), default=math.inf)
            if least > small:
                self.least[i], self.closure[i] = least, 1 << i
                self.large |= 1 << i
                for _, leaves in ways[i]:
                    for x in bits(leaves & self.large):
                        self.closure[i] |= self.closure[x]

    def __call__(self, needed: int, made: int = 0) -> float:
        """What is left to pay where `made` is paid already, with what that needs in `needed`."""
        small = needed & ~self.large
        paid = sum([self.beside[i] for i in bits(made)])
        return max(0.0, self.shared(needed) + sum([self.own[i] for i in bits(small)]) - paid)

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

    A place on it: what is needed, and above that what was made beside and has its turn yet. Where
    the places are too many, the path goes straight on from the most promising one, and the bound is
    what was proved by then.

    Raises:
        ValueError: no cover exists.
    """
    least, count = _Least(makers), len(makers)
    if least(start) == math.inf:
        raise ValueError("no choice of kernels makes every output")
    best, back, proved = {start: 0.0}, {start: (0, -1)}, math.inf
    queue, others = [(least(start), 0.0, start)], list[tuple[float, float, int]]()
    for looked in itertools.count():
        if not queue:  # two kernels that make one value do not go together
            if not others:
                raise ValueError("no choice of kernels makes every output")
            queue, others = sorted(others), []
        expected, spent, place = heapq.heappop(queue)
        needed, made = place & ((1 << count) - 1), place >> count
        if needed == 0:
            break
        if looked >= MAX_SETS:
            others, queue = [*queue, *others], []
            best, proved = {place: spent}, min(proved, expected)
        if spent > best[place]:
            continue
        low = needed & -needed
        for cost, k, leaves, more in makers[low.bit_length() - 1]:
            if more & made:
                continue
            rest, total = (needed ^ low | leaves) & ~(made | more), spent + cost
            turn = (made | more) & -2 * low  # what has its turn yet
            there = rest | turn << count
            if total < best.get(there, math.inf):
                best[there], back[there] = total, (place, k)
                heapq.heappush(queue, (total + least(rest, turn), total, there))
    chosen: list[int] = []
    while back[place][1] >= 0:
        place, k = back[place]
        chosen.append(k)
    return min(proved, expected), chosen
