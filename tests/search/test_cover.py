"""The chosen cover is the cheapest: against brute force, by each of the ways that find it."""

from __future__ import annotations

import itertools
import math
import random
from graphlib import CycleError
from typing import Any

import pytest

from lambent.search import cover
from lambent.search.cover import Option, Problem, diverse, ordered, solve


def brute(problem: Problem, costs: list[float]) -> float:
    """The least cost over every choice of one kernel a value that is acyclic and complete."""
    roots = sorted({o.root for o in problem.options})
    makers = [[k for k, o in enumerate(problem.options) if o.root == r] for r in roots]
    best = math.inf
    for chosen in itertools.product(*makers):
        try:
            best = min(best, sum(costs[k] for k in ordered(problem, chosen)))
        except (KeyError, CycleError):
            continue
    return best


def instance(seed: int, cyclic: bool, most: int = 6) -> tuple[Problem, list[float]]:
    """Values 0 … n−1, each made from nothing, or from others at a lower price."""
    r = random.Random(seed)
    n = r.randint(2, most)
    options, costs = [], []
    for root in range(n):
        options.append(Option(root, ()))
        costs.append(r.uniform(3, 12))
        for _ in range(r.randint(0, 3)):
            others = [x for x in range(n) if x != root and (cyclic or x < root)]
            if others:
                leaves = r.sample(others, r.randint(1, min(3, len(others))))
                options.append(Option(root, tuple(leaves)))
                costs.append(r.uniform(0.1, 6))
    outputs = tuple(sorted(r.sample(range(n), r.randint(1, min(2, n)))))
    return Problem(tuple(options), outputs), costs


def valid(problem: Problem, kernels: tuple[int, ...]) -> None:
    """Every leaf is made before it is read, and every output is made."""
    made: set[int] = set()
    for k in kernels:
        o = problem.options[k]
        assert set(o.leaves) <= made and o.root not in made
        made.add(o.root)
    assert set(problem.outputs) <= made


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("cyclic", [False, True])
def test_cheapest_of_all(seed: int, cyclic: bool) -> None:
    problem, costs = instance(seed, cyclic)
    found = solve(problem, costs)
    valid(problem, found.kernels)
    assert found.cost == pytest.approx(brute(problem, costs), rel=1e-6)
    assert found.bound <= found.cost * (1 + 1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_the_integer_program_agrees(seed: int, monkeypatch: Any) -> None:
    """Without the shortest path: users at most producers, cycles cut."""
    problem, costs = instance(seed, cyclic=True)
    monkeypatch.setattr(cover, "MAX_SETS", 0)
    found = solve(problem, costs)
    valid(problem, found.kernels)
    assert found.cost == pytest.approx(brute(problem, costs), rel=1e-6)
    assert found.bound <= found.cost * (1 + 1e-3)


@pytest.mark.parametrize("seed", range(20))
def test_both_ways_agree_on_more_values(seed: int, monkeypatch: Any) -> None:
    """Many cheap values beside costly ones: what the shortest path counts once is paid once."""
    problem, costs = instance(seed, cyclic=False, most=24)
    costs = [c if k % 3 else c / 100 for k, c in enumerate(costs)]
    path = solve(problem, costs)
    monkeypatch.setattr(cover, "MAX_SETS", 0)
    assert path.cost == pytest.approx(solve(problem, costs).cost, rel=1e-3)
    assert path.cost <= solve(problem, costs).cost * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(10))
def test_trees_give_a_cover_where_time_is_short(seed: int, monkeypatch: Any) -> None:
    problem, costs = instance(seed, cyclic=True)
    monkeypatch.setattr(cover, "MAX_SETS", 0)
    monkeypatch.setattr(cover, "MAX_CUTS", 0)
    found = solve(problem, costs)
    valid(problem, found.kernels)
    assert found.bound == -math.inf and found.cost >= brute(problem, costs) - 1e-9


def test_a_value_used_twice_is_made_once() -> None:
    options = (Option(0, (1, 2)), Option(1, (3,)), Option(2, (3,)), Option(3, ()), Option(1, ()),
               Option(2, ()))  # fmt: skip
    problem = Problem(options, (0,))
    assert solve(problem, [1, 1, 1, 5, 4, 4]).kernels == (3, 1, 2, 0)
    assert solve(problem, [1, 1, 1, 7, 4, 4]).kernels == (4, 5, 0)


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
