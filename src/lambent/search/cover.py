"""The cheapest cover: which kernels, so that every output and every loaded value has a producer.

An integer program over kernels, solved by HiGHS. A stored value has at most one producer, so per
(root, leaf) the users are at most the producers; a kernel that reads no more and costs no more than
another of the same root leaves that one out; cycles are cut when they appear. Without HiGHS in
time, the best cover that single exchanges find.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

MAX_CUTS = 200


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
