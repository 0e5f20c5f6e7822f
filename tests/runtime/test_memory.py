"""The memory plan: values alive at one time never overlap, and dead ones are reused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import chain

import handmade as h
from lambent.graph.dim import Dim, Size, evaluate
from lambent.graph.dtypes import float32
from lambent.kernel.kernel import Buffer
from lambent.runtime.memory import lifetimes, plan_memory
from lambent.runtime.plan import Plan, Step, check

S, T = Dim("memory_s", 1, 300), Dim("memory_t", 0, 64)
SIZES: list[Size] = [0, 1, 7, 16, 100, S, 3 * S + 1, T, S * T, 64 * T]


def overlaps(plan: Plan, symbols: dict[str, int]) -> list[tuple[str, str]]:
    memory, alive = plan_memory(plan), lifetimes(plan)
    starts = [0]
    for block in memory.blocks:
        starts.append(starts[-1] + evaluate(block, symbols))
    assert starts[-1] == evaluate(sum(memory.blocks), symbols)
    spans = {}
    for name, (block, offset) in memory.places.items():
        count = int(np.prod([evaluate(d, symbols) for d in plan.buffers[name].shape]))
        begin = starts[block] + offset
        assert begin % 64 == 0 and begin + 4 * count <= starts[block + 1]
        spans[name] = (begin, begin + 4 * count)
    return [
        (a, b)
        for a in spans
        for b in spans
        if a < b
        and alive[a][0] <= alive[b][1]
        and alive[b][0] <= alive[a][1]
        and max(spans[a][0], spans[b][0]) < min(spans[a][1], spans[b][1])
    ]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_values_alive_together_never_overlap(data: st.DataObject) -> None:
    kernel = h.scale(1, 1)
    buffers = {"x": Buffer("x", float32, (1,))}
    steps = []
    for i in range(data.draw(st.integers(1, 12))):
        known = st.sampled_from(sorted(buffers))
        reads = data.draw(known), data.draw(known)
        buffers[f"b{i}"] = Buffer(f"b{i}", float32, (data.draw(st.sampled_from(SIZES)),))
        steps.append(Step(kernel, (f"b{i}", *reads)))
    outputs = tuple(sorted(data.draw(st.sets(st.sampled_from(sorted(buffers)), min_size=1))))
    plan = Plan(tuple(steps), (), buffers, ("x",), outputs, {})
    check(plan)
    for symbols in ({"memory_s": 1, "memory_t": 0}, {"memory_s": 300, "memory_t": 64}):
        assert not overlaps(plan, symbols)
    assert plan_memory(plan) == plan_memory(plan)
    assert set(plan_memory(plan).places) == set(buffers) - {"x", *outputs}


def test_a_chain_needs_two_buffers() -> None:
    assert sum(plan_memory(chain(64, 100, 9)).blocks) == 2 * 64 * 100 * 4
    s = Dim("memory_s", 1, 300)
    assert evaluate(sum(plan_memory(chain(s, 100, 9)).blocks), {"memory_s": 64}) == 2 * 64 * 100 * 4


def test_outputs_and_inputs_take_no_arena() -> None:
    assert sum(plan_memory(chain(64, 100, 1)).blocks) == 0
    assert sum(plan_memory(chain(64, 100, 3, ("t1", "t2", "t3"))).blocks) == 0


def test_a_small_value_fills_the_smallest_gap() -> None:
    kernel = h.scale(1, 1)
    sizes = {"a": 1024, "b": 256, "c": 512, "d": 256, "e": 16}
    buffers = {n: Buffer(n, float32, (k,)) for n, k in sizes.items()} | {
        "x": Buffer("x", float32, (1,))
    }
    steps = (
        Step(kernel, ("a", "x", "x")), Step(kernel, ("b", "a", "x")), Step(kernel, ("c", "b", "x")),
        Step(kernel, ("d", "b", "c")), Step(kernel, ("e", "d", "c")),
    )  # fmt: skip
    plan = Plan(steps, (), buffers, ("x",), ("e",), {})
    assert sum(plan_memory(plan).blocks) == 4 * (1024 + 256)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"buffers": ("t1", "late", "w")}, "reads 'late' before it is written"),
        ({"buffers": ("x", "x", "w")}, "writes 'x', which has a value already"),
        ({"buffers": ("t1", "x")}, "2 buffers, its kernel has 3"),
    ],
)
def test_a_broken_plan_is_refused(change: dict[str, tuple[str, ...]], message: str) -> None:
    good = chain(4, 4, 1)
    bad = Plan((Step(good.steps[0].program, **change),), (), good.buffers, ("x", "w"), ("t1",), {})
    with pytest.raises(ValueError, match=message):
        check(bad)


def test_an_output_that_nothing_writes_is_refused() -> None:
    good = chain(4, 4, 1)
    with pytest.raises(ValueError, match="'t9'"):
        check(Plan(good.steps, (), good.buffers, ("x", "w"), ("t9",), {}))
