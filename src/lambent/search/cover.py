"""The cheapest cover: which kernels, so that every output and every loaded value has a producer.

Values are decided consumers first. What is still needed at any moment is a set of values, so a
cover is a path from the set of outputs to the empty set, and the cheapest is a shortest path (A*,
exact: 12 ms where the integer program of a transformer layer took HiGHS 8 s). Where values can need
each other, or the sets are too many, the integer program decides: users of a leaf at most its
producers, per root and leaf, cycles cut when they appear. In time for neither: single exchanges.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

MAX_CUTS = 200
MAX_SETS = 100_000  # sets of needed values looked at before the integer program is asked


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


@dataclass(frozen=True, slots=True)
class Problem:
    options: tuple[Option, ...]
    outputs: tuple[int, ...]


Row = dict[int, float]


def solve(problem: Problem, costs: Sequence[float], *, seconds: float = 10.0) -> Cover:
    """The cheapest cover at these costs, and a proved lower bound.

    Raises:
        ValueError: no cover exists.
    """
    used = undominated(problem, costs)
    path = shortest(problem, costs, used)
    if path is not None:
        cost = sum(costs[k] for k in path)
        return Cover(path, cost, cost)
    rows = _rows(problem, used)
    cuts: list[Row] = []
    for _ in range(MAX_CUTS):
        chosen, bound = _milp(used, rows, cuts, costs, seconds)
        if chosen is None:
            break
        cycle = _cycle(problem, chosen)
        if cycle is None:
            order = ordered(problem, chosen)
            return Cover(order, sum(costs[k] for k in order), bound)
        cuts.append(_cut(problem, used, cycle))
    greedy = exchange(problem, costs, used)
    return Cover(greedy, sum(costs[k] for k in greedy), -math.inf)


def diverse(problem: Problem, costs: Sequence[float], fresh: Iterable[int], number: int,
            *, penalty: float = 1.3, seconds: float = 10.0) -> list[Cover]:  # fmt: skip
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


def shortest(
    problem: Problem, costs: Sequence[float], used: Sequence[int]
) -> tuple[int, ...] | None:
    """The cheapest cover as a shortest path over sets of needed values; None if undecided.

    Raises:
        ValueError: no cover exists.
    """
    order = _consumers_first(problem, used)
    place = {root: i for i, root in enumerate(order)}
    makers: list[list[tuple[float, int, int]]] = [[] for _ in order]
    for k in used:
        o = problem.options[k]
        if o.root in place:  # a leaf that comes before its user may be in a cycle: not asked for
            later = sum(1 << place[x] for x in set(o.leaves) if place[x] > place[o.root])
            makers[place[o.root]].append((costs[k], later, k))
    least = [0.0] * len(order)  # of making one value, by its costliest chain
    for i in reversed(range(len(order))):
        chains = (c + _most(least, later) for c, later, _ in makers[i])
        least[i] = min(chains, default=math.inf)
    start = sum(1 << place[out] for out in dict.fromkeys(problem.outputs))
    if _most(least, start) == math.inf:
        raise ValueError("no choice of kernels makes every output")
    best, back = {start: 0.0}, {start: (0, -1)}
    queue, done = [(_most(least, start), start)], set[int]()
    while queue and len(done) < MAX_SETS:
        _, needed = heapq.heappop(queue)
        if needed == 0:
            return _path(problem, back)
        if needed in done:
            continue
        done.add(needed)
        low = needed & -needed
        for cost, later, k in makers[low.bit_length() - 1]:
            rest, total = needed ^ low | later, best[needed] + cost
            if total < best.get(rest, math.inf):
                best[rest], back[rest] = total, (needed, k)
                heapq.heappush(queue, (total + _most(least, rest), rest))
    return None


def _most(least: list[float], needed: int) -> float:
    most = 0.0
    while needed:
        low = needed & -needed
        most = max(most, least[low.bit_length() - 1])
        needed ^= low
    return most


def _path(problem: Problem, back: dict[int, tuple[int, int]]) -> tuple[int, ...] | None:
    """The kernels of the path; None if a leaf that was not asked for is missing, or in a cycle."""
    chosen, at = [], 0
    while back[at][1] >= 0:
        at, k = back[at]
        chosen.append(k)
    made = {problem.options[k].root for k in chosen}
    if any(x not in made for k in chosen for x in problem.options[k].leaves):
        return None
    return None if _cycle(problem, chosen) is not None else ordered(problem, chosen)


def _consumers_first(problem: Problem, used: Sequence[int]) -> list[int]:
    """The values that outputs may need; each before its leaves, wherever there is no cycle."""
    leaves: dict[int, dict[int, None]] = {}
    for k in used:
        o = problem.options[k]
        leaves.setdefault(o.root, {}).update(dict.fromkeys(o.leaves))
    order: list[int] = []
    seen: set[int] = set()
    for out in problem.outputs:
        stack = [(out, iter(leaves.get(out, ())))] if out not in seen else []
        seen.add(out)
        while stack:
            root, rest = stack[-1]
            leaf = next((x for x in rest if x not in seen), None)
            if leaf is None:
                order.append(root)
                stack.pop()
            else:
                seen.add(leaf)
                stack.append((leaf, iter(leaves.get(leaf, ()))))
    return order[::-1]


def undominated(problem: Problem, costs: Sequence[float]) -> list[int]:
    """Kernels that no other of the same root beats in both leaves and cost (first of equals)."""
    by_root: dict[int, list[int]] = {}
    for k, o in enumerate(problem.options):
        if costs[k] < math.inf:
            by_root.setdefault(o.root, []).append(k)
    kept: list[int] = []
    for ks in by_root.values():
        best: list[tuple[int, frozenset[int]]] = []
        for k in sorted(ks, key=lambda k: (costs[k], len(problem.options[k].leaves), k)):
            leaves = frozenset(problem.options[k].leaves)
            if not any(b <= leaves for _, b in best):
                best.append((k, leaves))
        kept += [k for k, _ in best]
    return sorted(kept)


def _rows(problem: Problem, used: list[int]) -> list[tuple[Row, float, float]]:
    makers: dict[int, list[int]] = {}
    users: dict[tuple[int, int], list[int]] = {}
    for k in used:
        o = problem.options[k]
        makers.setdefault(o.root, []).append(k)
        for leaf in o.leaves:
            users.setdefault((o.root, leaf), []).append(k)
    rows: list[tuple[Row, float, float]] = []
    for out in problem.outputs:
        rows.append((dict.fromkeys(makers.get(out, ()), 1.0), 1.0, 1.0))
    for root, ks in makers.items():
        if root not in problem.outputs and len(ks) > 1:
            rows.append((dict.fromkeys(ks, 1.0), 0.0, 1.0))
    for (_, leaf), ks in users.items():
        row = dict.fromkeys(ks, -1.0)
        for k in makers.get(leaf, ()):
            row[k] = row.get(k, 0.0) + 1.0
        rows.append((row, 0.0, math.inf))
    return rows


def _milp(
    used: list[int],
    rows: list[tuple[Row, float, float]],
    cuts: list[Row],
    costs: Sequence[float],
    seconds: float,
) -> tuple[list[int] | None, float]:
    """The chosen kernels and the dual bound; None if HiGHS found none in time."""
    number = {k: i for i, k in enumerate(used)}
    lines = [*rows, *((cut, -math.inf, cut[-1]) for cut in cuts)]
    data: list[float] = []
    at: tuple[list[int], list[int]] = ([], [])
    for r, (row, _, _) in enumerate(lines):
        for k, v in row.items():
            if k >= 0:
                data.append(v)
                at[0].append(r)
                at[1].append(number[k])
    if any(low > 0 and not row for row, low, _ in rows):
        raise ValueError("an output has no kernel that makes it")
    matrix = csr_array((data, at), shape=(len(lines), len(used)))
    scale = 1 / max(max((costs[k] for k in used), default=1.0), 1e-30)
    # ties go to the kernel that comes first
    price = np.array([costs[k] * scale + 1e-9 * (i + 1) / len(used) for i, k in enumerate(used)])
    result = milp(
        price,
        constraints=LinearConstraint(
            matrix, [low for _, low, _ in lines], [up for *_, up in lines]
        ),
        integrality=np.ones(len(used)),
        bounds=Bounds(0, 1),
        options={"time_limit": seconds, "mip_rel_gap": 1e-4},
    )
    if result.status == 2:
        raise ValueError("no choice of kernels makes every output")
    if result.x is None:
        return None, -math.inf
    bound = (result.mip_dual_bound if result.mip_dual_bound is not None else result.fun) / scale
    return [k for k, x in zip(used, result.x, strict=True) if x > 0.5], float(bound)


# ---- cycles and order ------------------------------------------------------------------------


def ordered(problem: Problem, chosen: Sequence[int]) -> tuple[int, ...]:
    """The kernels that the outputs need, producers first.

    Raises:
        KeyError: a value has no producer.
    """
    maker = {problem.options[k].root: k for k in chosen}
    order: dict[int, None] = {}

    def visit(root: int) -> None:
        k = maker[root]
        if k not in order:
            for leaf in problem.options[k].leaves:
                visit(leaf)
            order[k] = None

    for out in problem.outputs:
        visit(out)
    return tuple(order)


def _cycle(problem: Problem, chosen: Sequence[int]) -> list[int] | None:
    """Stored values that need each other, or None."""
    maker = {problem.options[k].root: k for k in chosen}
    state: dict[int, int] = {}
    path: list[int] = []

    def visit(root: int) -> list[int] | None:
        if state.get(root) == 2 or root not in maker:
            return None
        if state.get(root) == 1:
            return path[path.index(root) :]
        state[root] = 1
        path.append(root)
        for leaf in problem.options[maker[root]].leaves:
            found = visit(leaf)
            if found is not None:
                return found
        path.pop()
        state[root] = 2
        return None

    for root in problem.outputs:
        found = visit(root)
        if found is not None:
            return found
    return None


def _cut(problem: Problem, used: list[int], cycle: list[int]) -> Row:
    """Not all arcs of the cycle at once, by whatever kernels; key −1 holds the right-hand side."""
    row: Row = {}
    for i, root in enumerate(cycle):
        leaf = cycle[(i + 1) % len(cycle)]
        for k in used:
            o = problem.options[k]
            if o.root == root and leaf in o.leaves:
                row[k] = 1.0
    row[-1] = len(cycle) - 1.0
    return row


# ---- without a solver ------------------------------------------------------------------------


def exchange(problem: Problem, costs: Sequence[float], used: Iterable[int]) -> tuple[int, ...]:
    """A cover by single exchanges: the first producer of every value, then any better one.

    Raises:
        ValueError: no cover without a cycle is found.
    """
    by_root: dict[int, list[int]] = {}
    for k in used:
        by_root.setdefault(problem.options[k].root, []).append(k)
    maker = _acyclic_start(problem, by_root, costs)
    best = _cost(problem, maker, costs)
    improved = True
    while improved:
        improved = False
        for root in sorted(by_root):
            for k in by_root[root]:
                if maker.get(root) == k:
                    continue
                trial = {**maker, root: k}
                cost = _cost(problem, trial, costs)
                if cost < best * (1 - 1e-12):
                    maker, best, improved = trial, cost, True
    return ordered(problem, list(maker.values()))


def _acyclic_start(
    problem: Problem, by_root: dict[int, list[int]], costs: Sequence[float]
) -> dict[int, int]:
    """Every value from values made before: cheapest tree first (Knuth's generalised Dijkstra)."""
    total: dict[int, float] = {}
    maker: dict[int, int] = {}
    changed = True
    while changed:
        changed = False
        for root in sorted(by_root):
            for k in by_root[root]:
                leaves = problem.options[k].leaves
                if all(x in total for x in leaves):
                    cost = costs[k] + 1e-12 + sum(total[x] for x in leaves)
                    if cost < total.get(root, math.inf) * (1 - 1e-12):
                        total[root], maker[root], changed = cost, k, True
    if any(out not in maker for out in problem.outputs):
        raise ValueError("no choice of kernels makes every output")
    return maker


def _cost(problem: Problem, maker: dict[int, int], costs: Sequence[float]) -> float:
    chosen = list(maker.values())
    if _cycle(problem, chosen) is not None:
        return math.inf
    try:
        return sum(costs[k] for k in ordered(problem, chosen))
    except KeyError:
        return math.inf
