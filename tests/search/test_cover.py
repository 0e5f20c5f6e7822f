"""The chosen cover is the cheapest: against brute force, and against an integer program."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp

from lambent.search import cover
from lambent.search.cover import Option, Problem, diverse, solve


def brute(problem: Problem, costs: list[float]) -> float:
    """The least cost over every choice of one kernel a value; of none where it is made beside."""
    roots = sorted({v for o in problem.options for v in o.roots})
    makers = [[k for k, o in enumerate(problem.options) if o.root == r] for r in roots]

    def cost(chosen: tuple[int, ...]) -> float:
        needed, made, total = set(problem.outputs), set[int](), 0.0
        for k in chosen:  # users first
            o = problem.options[k]
            if o.root in needed - made:
                if not made.isdisjoint(o.roots):
                    return math.inf
                made.update(o.roots)
                needed.update(o.leaves)
                total += costs[k]
        return total

    return min(map(cost, itertools.product(*makers)))


def programmed(problem: Problem, costs: list[float]) -> float:
    """The least cost as an integer program: for each root and leaf users at most producers."""
    options = problem.options
    roots = {o.root for o in options}
    makes = {v: np.array([float(v in o.roots) for o in options]) for v in roots}
    rows = [(row, float(v in problem.outputs), 1.0) for v, row in makes.items()]
    for root, leaf in sorted({(o.root, leaf) for o in options for leaf in o.leaves}):
        users = np.array([float(o.root == root and leaf in o.leaves) for o in options])
        rows.append((makes[leaf] - users, 0.0, math.inf))
    matrix, low, high = (np.array(column) for column in zip(*rows, strict=True))
    found = milp(
        costs, constraints=LinearConstraint(matrix, low, high), bounds=Bounds(0, 1),
        integrality=np.ones(len(costs)), options={"mip_rel_gap": 0},
    )  # fmt: skip
    return float(found.fun)


def instance(
    seed: int, most: int = 6, joint: bool = False, cheap: float = 1
) -> tuple[Problem, list[float]]:
    """Values 0 … n−1, each made from nothing, or from later ones at a lower price.

    joint: some may be made at once. cheap: a third of the kernels costs less by that factor.
    """
    r = random.Random(seed)
    n = r.randint(2, most)
    options, costs = [], []
    for root in range(n):
        options.append(Option(root, ()))
        costs.append(r.uniform(3, 12))
        for _ in range(r.randint(0, 3)):
            others = range(root + 1, n)
            if others:
                leaves = r.sample(others, r.randint(1, min(3, len(others))))
                options.append(Option(root, tuple(leaves)))
                costs.append(r.uniform(0.1, 6))
    outputs = tuple(sorted(r.sample(range(n), r.randint(1, min(2, n)))))
    costs = [c if k % 3 else c / cheap for k, c in enumerate(costs)]
    for a, b in itertools.combinations(range(len(options)), 2) if joint else ():
        one, two = options[a], options[b]
        leaves = tuple({*one.leaves, *two.leaves})
        if one.root < two.root < min(leaves, default=n) and r.random() < 2 / n:
            options.append(Option(one.root, leaves, more=(two.root,)))
            both = r.uniform(0.6, 1.0) * (costs[a] + costs[b])
            costs.append(max(both, 1.01 * costs[a], 1.01 * costs[b]))
    return Problem(tuple(options), outputs), costs


def valid(problem: Problem, kernels: tuple[int, ...]) -> None:
    """Every leaf is made before it is read, and every output is made."""
    made: set[int] = set()
    for k in kernels:
        o = problem.options[k]
        assert set(o.leaves) <= made and made.isdisjoint(o.roots)
        made.update(o.roots)
    assert set(problem.outputs) <= made


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("seed", range(80))
def test_cheapest_of_all(seed: int, joint: bool) -> None:
    problem, costs = instance(seed, 5 if joint else 6, joint)
    found = solve(problem, costs)
    valid(problem, found.kernels)
    assert found.cost == pytest.approx(brute(problem, costs), rel=1e-6)
    assert found.bound == pytest.approx(found.cost)


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_the_integer_program_agrees_on_more_values(seed: int, joint: bool) -> None:
    """Many cheap values beside costly ones: what the shortest path counts once is paid once."""
    problem, costs = instance(seed, 24, joint, cheap=100)
    found = solve(problem, costs)
    valid(problem, found.kernels)
    assert found.cost == pytest.approx(programmed(problem, costs), rel=1e-6)


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_a_cover_and_a_true_bound_where_sets_are_too_many(
    seed: int, joint: bool, monkeypatch: Any
) -> None:
    problem, costs = instance(seed, 24, joint)
    best = solve(problem, costs)
    monkeypatch.setattr(cover, "MAX_SETS", 24)
    found = solve(problem, costs)
    valid(problem, found.kernels)
    assert found.bound <= best.cost * (1 + 1e-9) and best.cost <= found.cost * (1 + 1e-9)
    assert found.cost <= 1.5 * best.cost


def test_outputs_that_share_nothing_cost_no_more_sets() -> None:
    options, costs = [], []
    for n in range(30):
        parts, prices = instance(n)
        options += [
            Option(o.root + 6 * n, tuple(x + 6 * n for x in o.leaves)) for o in parts.options
        ]
        costs += prices
    found = solve(Problem(tuple(options), tuple(range(0, 180, 6))), costs)
    alone = [solve(Problem(instance(n)[0].options, (0,)), instance(n)[1]).cost for n in range(30)]
    assert found.bound == pytest.approx(found.cost) and found.cost == pytest.approx(sum(alone))


def test_a_value_used_twice_is_made_once() -> None:
    options = (Option(0, (1, 2)), Option(1, (3,)), Option(2, (3,)), Option(3, ()), Option(1, ()),
               Option(2, ()))  # fmt: skip
    problem = Problem(options, (0,))
    assert solve(problem, [1, 1, 1, 5, 4, 4]).kernels == (3, 2, 1, 0)
    assert solve(problem, [1, 1, 1, 7, 4, 4]).kernels == (5, 4, 0)


def test_failed_kernels_are_not_used() -> None:
    problem = Problem((Option(0, ()), Option(0, (1,)), Option(1, ())), (0,))
    assert solve(problem, [math.inf, 1.0, 1.0]).kernels == (2, 1)
    with pytest.raises(ValueError, match="no choice"):
        solve(problem, [math.inf, 1.0, math.inf])


def test_diverse_covers_differ_and_the_best_comes_first() -> None:
    problem = Problem(tuple(Option(0, ()) for _ in range(4)), (0,))
    covers = diverse(problem, [1.0, 1.1, 1.2, 9.0], range(4), 3)
    assert [c.kernels for c in covers] == [(0,), (1,), (2,)]
    assert covers[0].bound == 1.0 and covers[1].bound == -math.inf


def test_ties_go_to_the_first() -> None:
    problem = Problem(tuple(Option(0, ()) for _ in range(4)), (0,))
    assert solve(problem, [1.0] * 4).kernels == (0,)
