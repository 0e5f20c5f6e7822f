"""A reduction of symbolic length with few results in parts: one query against a long cache."""

from __future__ import annotations

import pytest
from test_enumerate import PRICES

import lambent as lt
from lambent.algebra.egraph import saturate
from lambent.algebra.term import walk
from lambent.backends.base import Calibration, get
from lambent.backends.measuring.model import likely
from lambent.graph.dim import axes_in
from lambent.kernel.kernel import Kernel
from lambent.kernel.lower import lower
from lambent.search.enumerate import enumerate_kernels

HEADS, WIDTH = 3, 16


@pytest.fixture(scope="module")
def plan() -> dict[str, Kernel]:
    """The kernels that share the work among parts of the cache, and the one that combines them."""
    s = lt.Dim("split_s", 1, 4096, hint=4096)
    q, k, v = (lt.input(n, (HEADS, m, WIDTH)) for n, m in (("q", 1), ("k", s), ("v", s)))
    out = lt.softmax(q @ k.mT * WIDTH**-0.5, axis=-1) @ v
    saturated = saturate([out.node])
    assert {"fold_split", "max_split"} <= saturated.stats.rules.keys()
    found = enumerate_kernels(saturated, PRICES, keep=64)
    made = {c.kernel.outputs[0].buffer.name: c.kernel for c in found.candidates if c.basic}
    parts = {n for n, k in made.items() if k.outputs[0].term.op in ("part", "max")}
    combining = [
        c.kernel
        for c in found.candidates
        if c.kernel.outputs[0].buffer.name == "out0"
        and len(c.kernel.inputs) == 3
        and {b.name for b in c.kernel.inputs} <= parts
    ]
    return {b.name: made[b.name] for b in combining[0].inputs} | {"out0": combining[0]}


def test_parts_are_free_axes_of_what_the_combining_kernel_reads(plan: dict[str, Kernel]) -> None:
    *parts, last = plan.values()
    assert sorted(k.outputs[0].term.op for k in parts) == ["max", "part", "part"]
    for kernel in parts:
        (output,) = kernel.outputs
        (part,) = (a for a in axes_in(output.index[1]))
        assert str(kernel.extents[part]) == "(split_s+255)//256"
    assert sum(t.op == "fold" for t in walk(last.outputs[0].term)) == 2


def test_parts_are_right_at_ragged_lengths(plan: dict[str, Kernel]) -> None:
    backend = get("cpu")
    batch = backend.compile([lower(k, backend.default_schedule(k)) for k in plan.values()])
    try:
        for s in (1, 255, 256, 257, 1000, 4096):
            outcomes = backend.measure(batch, {"split_s": s}, repeats=0)
            assert [o.status for o in outcomes] == ["ok"] * 4, (s, outcomes)
    finally:
        batch.close()


def test_processors_without_a_task_move_no_bytes() -> None:
    (kernel,) = (
        c.kernel
        for c in enumerate_kernels(
            saturate([lt.input("x", (4, 1 << 20)).sum(1).node], part=0), PRICES
        ).candidates
    )
    program = lower(kernel, get("cpu").default_schedule(kernel))
    rates = {"float32": 1e18}
    times = [
        likely(program, Calibration("d", 128, rates, ((1 << 60, 1e12),), 0.0, rates | more))
        for more in ({"read": 1e12 / 128}, {})
    ]
    moved = 4 * (1 << 22) / 1e12
    assert times[0] - times[1] == pytest.approx(moved * (128 / 4 - 1), rel=0.01)
