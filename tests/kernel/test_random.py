"""Random kernels under random schedules: interpreted programs equal the terms' meaning."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from kernels import data
from legal import check
from random_kernels import random_kernel
from test_lower import compare

from lambent.backends.cpu.schedule import default_schedule, moves
from lambent.backends.reference.kernel import evaluate
from lambent.backends.reference.tile import interpret
from lambent.graph.prove import bounds
from lambent.kernel.kernel import Kernel
from lambent.kernel.lower import lower
from lambent.kernel.rewrite import free_axes, split
from lambent.kernel.schedule import sample
from lambent.kernel.tile import Schedule

BLOCKS = [range(n, n + 20) for n in range(0, 160, 20)]


def any_schedule(kernel: Kernel, random: Random) -> Schedule:
    parts = split(kernel).kernel
    free = sorted({i for o in parts.outputs for i in free_axes(o)})
    tiles = [
        (i, random.choice((1, 2, 4, 8, max(1, bounds(n)[1]))))
        for i, n in sorted(parts.extents.items())
        if random.random() < 0.7
    ]
    random.shuffle(free)
    order = free[: random.randint(0, len(free))]
    return Schedule(tuple(tiles), tuple(order), random.randint(0, len(order)))


@pytest.mark.parametrize("seeds", BLOCKS, ids=lambda r: str(r.start))
def test_random_kernels(seeds: range) -> None:
    for seed in seeds:
        kernel, random = random_kernel(seed), Random(seed)
        symbols = {"ragged": random.randint(1, 13)}
        inputs = data(kernel, seed, symbols)
        want = evaluate(kernel, inputs, symbols)
        if any(np.abs(w[np.isfinite(w)]).max(initial=0) > 1e5 for w in want):
            continue  # exponents of such sums are all rounding
        found = moves(kernel)
        schedules = [any_schedule(kernel, random), sample(default_schedule(kernel), found, random)]
        for schedule in schedules:
            program = lower(kernel, schedule)
            check(program)
            compare(kernel, interpret(program, inputs, symbols), want)
