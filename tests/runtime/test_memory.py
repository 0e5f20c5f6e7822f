"""The memory plan: values alive at one time never overlap, and dead ones are reused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import Build
from plans import chain

import handmade as h
from lambent.algebra.term import Term
from lambent.backends.cpu.backend import CpuBackend
from lambent.backends.cpu.schedule import default_schedule
from lambent.graph.dim import Dim, Size, evaluate
from lambent.graph.dtypes import float32
from lambent.kernel.kernel import Buffer
from lambent.kernel.lower import lower
from lambent.runtime.build import build
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
        and not written_over(plan, a, b)
        and not written_over(plan, b, a)
    ]


def written_over(plan: Plan, new: str, old: str) -> bool:
    """`new` is made of `old`, element by element, in the step that reads `old` last."""
    step = next(s for s in plan.steps if s.writes == (new,))
    last = [s for s in plan.steps if old in s.reads][-1:]
    return last == [step] and step.reads[0] == old != step.reads[1]


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


def test_a_chain_needs_one_buffer() -> None:
    assert sum(plan_memory(chain(64, 100, 9)).blocks) == 64 * 100 * 4
    s = Dim("memory_s", 1, 300)
    assert evaluate(sum(plan_memory(chain(s, 100, 9)).blocks), {"memory_s": 64}) == 64 * 100 * 4


def test_what_is_read_later_or_elsewhere_is_not_written_over() -> None:
    good = chain(64, 100, 3)
    first, second, third = good.steps
    again = Step(third.program, ("t3", "t2", "t1"))  # t1 lives on
    buffers = good.buffers | {"t1": Buffer("t1", float32, (100,))}
    for plan in (
        Plan((first, second, again), (), good.buffers, good.inputs, ("t3",), {}),
        Plan((first, Step(second.program, ("t2", "x", "t1")), third), (), buffers,
             good.inputs, ("t3",), {}),  # not element by element
    ):  # fmt: skip
        places = plan_memory(plan).places
        assert places["t1"] != places["t2"]


def made(number: int, b: Build, old: Term, i: int, j: int, p: int) -> Term:
    """exp2(old), or old + Σ a · b, or 2 · old."""
    if number == 0:
        return b.un("exp2", old)
    if number == 1:
        return b.add(old, b.sum(p, b.mul(b.load("a", i, p), b.load("b", p, j))))
    return b.mul(b.c(2), old)


def test_a_residual_is_added_in_place() -> None:
    n = 70
    steps = []
    for number in range(3):
        b = Build()
        i, j, p = b.axes(n, n, n)
        b.out(f"t{number + 1}", made(number, b, b.load(f"t{number}", i, j), i, j, p), i, j)
        kernel = b.kernel()
        program = lower(kernel, default_schedule(kernel))
        steps.append(Step(program, (f"t{number + 1}", *(x.name for x in kernel.inputs))))
    names = ("t0", "t1", "t2", "t3", "a", "b")
    buffers = {name: Buffer(name, float32, (n, n)) for name in names}
    plan = Plan(tuple(steps), (), buffers, ("t0", "a", "b"), ("t3",), {})
    assert sum(plan_memory(plan).blocks) == n * n * 4 // 64 * 64 + 64
    backend = CpuBackend()
    x, left, right = (np.random.default_rng(s).random((n, n), np.float32) for s in range(3))
    found = build(plan, backend)(t0=x, a=left, b=right)
    backend.close()
    np.testing.assert_allclose(found, 2 * (np.exp2(x) + left @ right), rtol=1e-5)


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
        ({"buffers": ("t1", "x")}, "reads 1 buffers, its kernel 2"),
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
