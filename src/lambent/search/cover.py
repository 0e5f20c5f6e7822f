"""The cheapest cover: which kernels, so that every output and every loaded value has a producer.

Values are decided consumers first. What is still needed at any moment is a set of values, so a
cover is a path from the set of outputs to the empty set, and the cheapest is a shortest path: A*,
exact, and 1 ms where the integer program of a transformer layer takes HiGHS 300. Where values can
need each other, or the sets are too many, the integer program decides: users of a leaf at most its
producers, per root and leaf, cycles cut when they appear.
"""

from __future__ import annotations

import functools
import heapq
import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

MAX_CUTS = 200
MAX_SETS = 20_000  # sets of needed values looked at before the integer program is asked
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
    """The kernels and the values to be made. What no cost changes is worked out once."""

    options: tuple[Option, ...]
    outputs: tuple[int, ...]

    @cached_property
    def place(self) -> dict[int, int]:
        """The values that outputs may need; each before its leaves, wherever there is no cycle."""
        leaves: dict[int, dict[int, None]] = {}
        for o in self.options:
            leaves.setdefault(o.root, {}).update(dict.fromkeys(o.leaves))
        done: dict[int, None] = {}
        seen: set[int] = set()
        stack = [(out, False) for out in reversed(self.outputs)]
        while stack:
            value, left = stack.pop()
            if left:
                done[value] = None
            elif value not in seen:
                seen.add(value)
                stack.append((value, True))
                stack += [(x, False) for x in reversed(leaves.get(value, {})) if x not in seen]
        return {value: i for i, value in enumerate(reversed(done))}

    @cached_property
    def makers(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """For each place the kernels that make its value; the places of their leaves as bits."""
        found: list[list[tuple[int, int]]] = [[] for _ in self.place]
        for k, o in enumerate(self.options):
            if o.root in self.place:
                found[self.place[o.root]].append((k, self.bits(o.leaves)))
        return tuple(map(tuple, found))

    def bits(self, values: Iterable[int]) -> int:
        return sum(1 << self.place[v] for v in set(values))


Makers = list[list[tuple[float, int, int]]]  # at each place: cost, kernel, leaves


def solve(problem: Problem, costs: Sequence[float], *, seconds: float = 2.0) -> Cover:
    """The cheapest cover at these costs, and a proved lower bound.

    Raises:
        ValueError: no cover exists.
    """
    makers = [_undominated(m, costs) for m in problem.makers]
    parts = [_shortest(makers, part) for part in _apart(makers, problem.bits(problem.outputs))]
    try:
        if None not in parts:
            chosen = [k for part in parts for k in part or ()]
            order = ordered(problem, chosen)
            cost = sum(costs[k] for k in order)
            return Cover(order, cost, cost)
    except (KeyError, CycleError):  # a leaf that comes before its user was not asked for
        pass
    order, bound = _programmed(problem, [m for place in makers for m in place], seconds)
    return Cover(order, sum(costs[k] for k in order), bound)


def diverse(problem: Problem, costs: Sequence[float], fresh: Iterable[int], number: int,
            *, penalty: float = 1.3, seconds: float = 2.0) -> list[Cover]:  # fmt: skip
    """The cheapest cover first, then others: kernels of `fresh` cost more once they were chosen."""
    found: dict[tuple[int, ...], Cover] = {}
    priced, new = list(costs), set(fresh)
    for _ in range(number):
        cover = solve(problem, priced, seconds=seconds)
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


def ordered(problem: Problem, chosen: Iterable[int]) -> tuple[int, ...]:
    """The kernels that the outputs need, producers first.

    Raises:
        KeyError: a value has no producer.
        CycleError: values need each other; the second argument lists them.
    """
    maker = {problem.options[k].root: k for k in chosen}
    order: dict[int, None] = {}
    path: list[int] = []

    def visit(root: int) -> None:
        if root in path:
            raise CycleError("values need each other", path[path.index(root) :])
        if maker[root] not in order:
            path.append(root)
            for leaf in problem.options[maker[root]].leaves:
                visit(leaf)
            path.pop()
            order[maker[root]] = None

    for out in problem.outputs:
        visit(out)
    return tuple(order)


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


# ---- the shortest path -----------------------------------------------------------------------


class _Least:
    """What a set of values costs at least: those that no kernel can serve in common add up.

    What a value may need is its closure. Values with disjoint closures share nothing; small ones
    belong to no closure, lest one row of statistics joins everything: they count for themselves.
    """

    def __init__(self, makers: Makers, small: float) -> None:
        self.least, self.closure = [0.0] * len(makers), [0] * len(makers)
        self.own = [min(m, default=(math.inf,))[0] for m in makers]
        self.large, self.known = 0, dict[int, float]()
        for i in reversed(range(len(makers))):
            later = -2 << i
            least = min(
                (c + self.shared(leaves & later) for c, _, leaves in makers[i]), default=math.inf
            )
            if least > small:
                self.least[i], self.closure[i] = least, 1 << i
                self.large |= 1 << i
                for _, _, leaves in makers[i]:
                    for x in _places(leaves & later & self.large):
                        self.closure[i] |= self.closure[x]

    def __call__(self, needed: int) -> float:
        small = needed & ~self.large
        return self.shared(needed) + sum([self.own[i] for i in _places(small)])

    def shared(self, needed: int) -> float:
        """Without what the small ones cost, which large ones may need as well."""
        needed &= self.large
        if needed not in self.known:
            total = most = 0.0
            served = 0
            for i in _places(needed):
                most = max(most, self.least[i])
                if not self.closure[i] & served:
                    served |= self.closure[i]
                    total += self.least[i]
            self.known[needed] = max(total, most)
        return self.known[needed]


def _places(bits: int) -> Iterable[int]:
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


def _apart(makers: Makers, start: int) -> list[int]:
    """The values of `start` in groups that can have nothing in common: a path for each will do."""
    reach = [0] * len(makers)
    for i in reversed(range(len(makers))):
        reach[i] = 1 << i
        for leaves in {leaves & (-2 << i) for _, _, leaves in makers[i]}:
            for x in _places(leaves & ~reach[i]):
                reach[i] |= reach[x]
    groups: list[tuple[int, int]] = []
    for i in _places(start):
        near = [g for g in groups if g[1] & reach[i]]
        groups = [g for g in groups if not g[1] & reach[i]]
        values, needs = zip((1 << i, reach[i]), *near, strict=True)
        groups.append((sum(values), functools.reduce(operator.or_, needs)))
    return [values for values, _ in groups]


def _shortest(makers: Makers, start: int) -> list[int] | None:
    """The kernels of the shortest path from the needed values `start` to none; None: too many sets.

    A leaf that comes before its user may be in a cycle with it, and is not asked for.

    Raises:
        ValueError: no cover exists.
    """
    cheapest = (min(place)[0] for place in makers if place)
    least = _Least(makers, SMALL * max(cheapest, default=0.0))
    if least(start) == math.inf:
        raise ValueError("no choice of kernels makes every output")
    best, back = {start: 0.0}, {start: (0, -1)}
    queue = [(least(start), 0.0, start)]
    for _ in range(MAX_SETS):
        _, spent, needed = heapq.heappop(queue)
        if needed == 0:
            break
        if spent > best[needed]:
            continue
        low = needed & -needed
        for cost, k, leaves in makers[low.bit_length() - 1]:
            rest, total = needed ^ low | leaves & -2 * low, spent + cost
            if total < best.get(rest, math.inf):
                best[rest], back[rest] = total, (needed, k)
                heapq.heappush(queue, (total + least(rest), total, rest))
    else:
        return None
    chosen: list[int] = []
    while back[needed][1] >= 0:
        needed, k = back[needed]
        chosen.append(k)
    return chosen


# ---- the integer program ---------------------------------------------------------------------


def _programmed(
    problem: Problem, used: Sequence[tuple[float, int, int]], seconds: float
) -> tuple[tuple[int, ...], float]:
    """The best cover found in time, and the dual bound; the cheapest trees where none is found.

    Raises:
        ValueError: no cover exists.
    """
    options = [problem.options[k] for _, k, _ in used]
    root = np.array([o.root for o in options])
    makes: dict[int, Any] = {v: (root == v) * 1.0 for v in problem.place}
    reads: dict[tuple[int, int], Any] = {}  # root and leaf → kernels
    for i, o in enumerate(options):
        for leaf in o.leaves:
            reads.setdefault((o.root, leaf), np.zeros(len(options)))[i] = 1.0
    rows = [(row, float(v in problem.outputs), 1.0) for v, row in makes.items()]
    rows += [(makes[leaf] - users, 0.0, math.inf) for (_, leaf), users in reads.items()]
    scale = max([cost for cost, _, _ in used], default=1.0) or 1.0
    # ties go to the kernel that comes first
    price = [cost / scale + 1e-9 * (i + 1) / len(used) for i, (cost, _, _) in enumerate(used)]
    for _ in range(MAX_CUTS):
        matrix, low, high = (np.array(column) for column in zip(*rows, strict=True))
        result = milp(
            price, constraints=LinearConstraint(matrix, low, high), integrality=np.ones(len(used)),
            bounds=Bounds(0, 1), options={"time_limit": seconds, "mip_rel_gap": 1e-4},
        )  # fmt: skip
        if result.status == 2:
            raise ValueError("no choice of kernels makes every output")
        if result.x is None:
            break
        try:
            chosen = [k for (_, k, _), x in zip(used, result.x, strict=True) if x > 0.5]
            return ordered(problem, chosen), float(result.mip_dual_bound) * scale
        except CycleError as error:  # not all its arcs at once, by whatever kernels
            cycle = error.args[1]
            arcs = zip(cycle, [*cycle[1:], cycle[0]], strict=True)
            rows.append((sum(reads[arc] for arc in arcs), 0.0, len(cycle) - 1.0))
    return ordered(problem, _trees(problem, used)), -math.inf


def _trees(problem: Problem, used: Sequence[tuple[float, int, int]]) -> list[int]:
    """For each value the kernel of its cheapest tree: there are no cycles (Knuth's Dijkstra)."""
    total: dict[int, float] = {}
    maker: dict[int, int] = {}
    changed = True
    while changed:
        changed = False
        for cost, k, _ in used:
            o = problem.options[k]
            tree = cost + 1e-12 + sum(total.get(x, math.inf) for x in o.leaves)
            if tree < total.get(o.root, math.inf) * (1 - 1e-12):
                total[o.root], maker[o.root], changed = tree, k, True
    if any(out not in maker for out in problem.outputs):
        raise ValueError("no choice of kernels makes every output")
    return list(maker.values())
