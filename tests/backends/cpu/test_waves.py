"""Steps that share no memory but to read are launched together, and no others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from kernels import moments

import handmade as h
from lambent.backends.base import Assembly, Place, Step, get
from lambent.backends.cpu.assemble import waves
from lambent.backends.cpu.schedule import default_schedule
from lambent.graph.dim import Dim
from lambent.graph.dtypes import float32
from lambent.kernel.kernel import Buffer
from lambent.kernel.lower import lower
from lambent.runtime.build import build
from lambent.runtime.plan import Plan

KERNEL = h.scale(4, 8)  # y = 2·x·w: 128 bytes, of x and w


def sizes(*steps: tuple[str, str], **places: Place) -> list[int]:
    """How many steps (output, input) each launch has."""
    places = {"w": Place("weight", 0), **places}
    run = tuple(Step(KERNEL, (out, x, "w")) for out, x in steps)
    return [len(wave) for wave in waves(Assembly(run, places, (1024,), ()))]


def arena(offset: int, block: int = 0) -> Place:
    return Place("arena", block, offset)


def test_what_reads_the_same_runs_together() -> None:
    x, y = Place("input", 0), Place("output", 0)
    assert sizes(("a", "x"), ("b", "x"), ("y", "x"), x=x, y=y, a=arena(0), b=arena(128)) == [3]


@pytest.mark.parametrize(
    ("steps", "places"),
    [
        ([("a", "x"), ("b", "a")], {"a": arena(0), "b": arena(128)}),  # reads what is written
        ([("a", "x"), ("b", "x")], {"a": arena(0), "b": arena(64)}),  # both write there
        ([("a", "b"), ("c", "x")], {"a": arena(0), "b": arena(128), "c": arena(192)}),
        ([("a", "x"), ("x2", "a2")], {"a": arena(0), "a2": arena(256), "x2": Place("input", 0)}),
        ([("x2", "a"), ("b", "x")], {"a": arena(0), "b": arena(256), "x2": Place("input", 0)}),
    ],
)
def test_what_shares_memory_runs_in_order(
    steps: list[tuple[str, str]], places: dict[str, Place]
) -> None:
    assert sizes(*steps, x=Place("input", 0), **places) == [1, 1]


def test_symbolic_sizes_take_all_of_their_block() -> None:
    kernel = h.scale(Dim("waves_n", 1, 64), 8)
    for other, expected in ((arena(4096), [1, 1]), (arena(0, 1), [2])):
        places = {"x": Place("input", 0), "w": Place("weight", 0), "a": arena(0), "b": other}
        steps = tuple(Step(kernel, (out, "x", "w")) for out in "ab")
        found = waves(Assembly(steps, places, (1024,), ("waves_n",)))
        assert [len(wave) for wave in found] == expected


def test_a_library_runs_alone() -> None:
    own = replace(KERNEL, schedule=replace(KERNEL.schedule, options=(("library", 1),)))
    places = {"x": Place("input", 0), "w": Place("weight", 0), "a": arena(0), "b": arena(128)}
    steps = (Step(own, ("a", "x", "w")), Step(KERNEL, ("b", "x", "w")))
    assert [len(wave) for wave in waves(Assembly(steps, places, (1024,), ()))] == [1, 1]


def test_an_optimiser_over_fifty_tensors_is_one_launch() -> None:
    """Each written in place; sizes differ, so that tasks of several kernels are taken in turn."""
    steps, buffers, donate, inputs = [], dict[str, Buffer](), [], []
    rows = [64 + 9 * (i % 4) for i in range(50)]
    for i in range(50):
        kernel = moments(rows[i], 48)
        names = [f"{b}{i}" for b in ("P", "M", "V", *(b.name for b in kernel.inputs))]
        steps.append(Step(lower(kernel, default_schedule(kernel)), tuple(names)))
        buffers |= {n: Buffer(n, float32, (rows[i], 48)) for n in names}
        donate += [(f"{a}{i}", 3 * i + n) for n, a in enumerate("pmv")]
        inputs += [f"{a}{i}" for a in "mvpg"]
    outputs = tuple(f"{o}{i}" for i in range(50) for o in "PMV")
    plan = Plan(tuple(steps), (), buffers, tuple(inputs), outputs, {}, tuple(donate))
    program = build(plan, get("cpu"))
    r = np.random.default_rng(0)
    arrays = {n: r.random((rows[int(n[1:])], 48), np.float32) for n in inputs}
    old = {n: a.copy() for n, a in arrays.items()}
    found = dict(zip(outputs, program(**arrays), strict=True))
    for i in range(50):
        m, v, p, g = (old[f"{n}{i}"] for n in "mvpg")
        want = {"M": m + g, "V": v + g * g, "P": p + (m + g) * (v + g * g)}
        for name, value in want.items():
            np.testing.assert_allclose(found[f"{name}{i}"], value, rtol=1e-6)
    places = {n: Place("input", inputs.index(n)) for n in inputs}
    places |= {o: places[o.lower()] for o in outputs}
    assert [len(wave) for wave in waves(Assembly(tuple(steps), places, (), ()))] == [50]
