"""Every kind of tile program, run by Triton's interpreter, means what its terms mean."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from interpreted import Run, interpret, needs_triton
from kernels import CASES, SYMBOLIC, Build, data
from legal import check
from random_kernels import random_kernel
from test_lower import compare
from test_random import any_schedule

from lambent.backends.cuda.schedule import default_schedule, moves
from lambent.backends.reference.kernel import evaluate
from lambent.backends.triton.render import render
from lambent.graph.dtypes import DTYPES, float32
from lambent.kernel.kernel import Kernel
from lambent.kernel.lower import lower
from lambent.kernel.schedule import sample
from lambent.kernel.tile import Schedule

pytestmark = needs_triton
SEEDS = range(24)
WAYS = ("backwards", "single", "turned")
SIZES = {"kernels_s": (1, 37, 64), "kernels_z": (1, 19, 40)}


def run(kernel: Kernel, schedule: Schedule, seed: int, symbols: dict[str, int]) -> Run:
    program = lower(kernel, schedule)
    check(program)
    return program, data(kernel, seed, symbols), symbols


def compared(named: Iterable[tuple[str, Run]]) -> None:
    """Run all in one process; every wrong one is told."""
    names, runs = zip(*named, strict=True)
    wrong = []
    for name, one, found in zip(names, runs, interpret(runs), strict=True):
        program, inputs, symbols = one
        try:
            assert not isinstance(found, str), found
            compare(program.kernel, found, evaluate(program.kernel, inputs, symbols))
        except AssertionError as error:
            wrong.append(f"{name}: {error}")
    assert not wrong, "\n".join(wrong)


def test_first_guesses_and_samples() -> None:
    named = []
    for name, make in CASES.items():
        kernel, random = make(), Random(name)
        first = default_schedule(kernel)
        named.append((name, run(kernel, first, 0, {})))
        other = sample(first, moves(kernel), random)
        named.append((f"{name} {other}", run(kernel, other, 1, {})))
    compared(named)


def test_tiles_that_the_copy_engine_moves() -> None:
    """Where it can move none, the text is as without it."""
    named, moved = [], 0
    for name, make in (CASES | SYMBOLIC).items():
        kernel, random = make(), Random(name)
        symbols = {s: values[1] for s, values in SIZES.items()} if name in SYMBOLIC else {}
        first = default_schedule(kernel)
        for n in range(2):
            one = sample(first, moves(kernel, 90), random) if n else first
            options = dict(one.options) | {"descriptors": 1, "persistent": 3 * n}
            options |= dict.fromkeys(WAYS, n)
            one = replace(one, options=tuple(sorted(options.items())))
            named.append((f"{name} {one}", run(kernel, one, n, symbols)))
            moved += "tensor_descriptor" in render(named[-1][1][0]).source
    assert moved > 20, f"only {moved} of {len(named)} use descriptors"
    compared(named)


def test_symbolic_sizes() -> None:
    named = []
    for name, make in SYMBOLIC.items():
        for n in range(3):
            kernel = make()
            symbols = {s: values[n] for s, values in SIZES.items()}
            first = default_schedule(kernel)
            one = sample(first, moves(kernel), Random(n)) if n else first
            named.append((f"{name} {symbols} {one}", run(kernel, one, n, symbols)))
    compared(named)


@pytest.mark.parametrize(("a", "b"), [("e4m3fn", "e5m2"), ("e5m2", "e5m2")])
def test_floats_of_eight_bits(a: str, b: str) -> None:
    """As they are given and multiplied; what is rounded to them the interpreter does not carry."""
    made = Build()
    i, j, k = made.axes(37, 20, 33)
    x = made.load("A", i, k, dtype=DTYPES[f"float8_{a}"])
    y = made.load("B", j, k, dtype=DTYPES[f"float8_{b}"])
    made.out("C", made.sum(k, made.mul(*(made.t.cast(t, float32) for t in (x, y)))), i, j)
    one = run(made.kernel(), Schedule(((0, 16), (1, 16), (2, 16)), (0, 1), 2), 0, {})
    assert "max_num_imprecise_acc" in render(one[0]).source
    compared([(f"{a} {b}", one)])


def test_random_kernels() -> None:
    named: list[tuple[str, Any]] = []
    for seed in SEEDS:
        kernel, random = random_kernel(seed), Random(seed)
        symbols = {"ragged": random.randint(1, 13)}
        one = run(kernel, any_schedule(kernel, random), seed, symbols)
        want = evaluate(kernel, one[1], symbols)
        if all(np.abs(w[np.isfinite(w)]).max(initial=0) < 1e5 for w in want):
            named.append((f"{seed}", one))
    compared(named)
