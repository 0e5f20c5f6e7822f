"""Candidates that are right, wrong, hang or crash, and what measuring makes of them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import handmade as h
from lambent.algebra.term import Term
from lambent.backends.cpu.backend import CpuBackend
from lambent.backends.measuring import verify
from lambent.backends.measuring.operands import (
    PERIOD,
    Spec,
    draw,
    drawn,
    index_limits,
    input_specs,
)
from lambent.backends.measuring.process import Lost, Refused, WorkerProcess
from lambent.graph.dim import Dim, axis, value
from lambent.graph.dtypes import bfloat16, bool_, float32, float64, int32, int64
from lambent.graph.prove import assume
from lambent.kernel.kernel import Buffer, Kernel, Output


@pytest.fixture(scope="module")
def backend() -> Iterator[CpuBackend]:
    made = h.backend()
    yield made
    made.close()


def test_each_fault_is_reported_and_the_rest_is_measured(backend: CpuBackend) -> None:
    variants = [h.HANG, h.RIGHT, h.CRASH, h.WRONG, h.NO_C, h.OVERRUN, h.SILENT, h.SPOILS, h.RIGHT]
    batch = backend.compile([h.scale(64, 100, v) for v in variants])
    start = time.monotonic()
    outcomes = backend.measure(batch, {}, repeats=3, limit=1.0)
    assert time.monotonic() - start < 20
    found = [o.status for o in outcomes]
    assert found == [
        "timeout", "ok", "crash", "wrong", "compile", "wrong", "wrong", "wrong", "ok",
    ]  # fmt: skip
    assert "SIGSEGV" in outcomes[2].message
    assert "relative error" in outcomes[3].message
    assert "this is no C" in outcomes[4].message
    assert "outside" in outcomes[5].message
    assert "writes to an input" in outcomes[7].message
    for outcome in outcomes:
        assert (outcome.seconds is not None) == (outcome.status == "ok")
    assert 0 < outcomes[1].seconds < 1e-3
    assert 0 < outcomes[1].best <= outcomes[1].seconds
    batch.close()


def test_verdicts_are_remembered_and_a_choice_is_timed(backend: CpuBackend) -> None:
    batch = backend.compile([h.scale(64, 100, v) for v in (h.WRONG, h.RIGHT, h.RIGHT)])
    first = backend.measure(batch, {}, repeats=0)
    assert [o.status for o in first] == ["wrong", "ok", "ok"]
    assert [o.seconds for o in first] == [None] * 3
    second = backend.measure(batch, {}, repeats=2, only=[2], cold=True)
    assert [o.seconds is None for o in second] == [True, True, False]


def test_one_compilation_serves_all_sizes(backend: CpuBackend) -> None:
    n, m = Dim("worker_n", 0, 4096), Dim("worker_m", 8, 800, multiple=8)
    batch = backend.compile([h.scale(n, m), h.scale(n, m, h.WRONG)])
    for a, b in ((1, 8), (300, 160), (2000, 800)):
        found = backend.measure(batch, {"worker_n": a, "worker_m": b}, repeats=1)
        assert [o.status for o in found] == ["ok", "wrong"]
    empty = backend.measure(batch, {"worker_n": 0, "worker_m": 8}, repeats=1)
    assert empty[0].status == "ok"


def test_a_symbolic_kernel_must_be_right_at_sizes_that_are_not_tuned_for(
    backend: CpuBackend,
) -> None:
    m = Dim("worker_odd", 1, 800)
    batch = backend.compile([h.scale(16, m, h.EVEN), h.scale(16, m)])
    found = backend.measure(batch, {"worker_odd": 64}, repeats=1)
    assert [o.status for o in found] == ["wrong", "ok"]
    assert "at {'worker_odd': 129}" in found[0].message
    p, q = Dim("worker_p", 1, 50), Dim("worker_q", 8, 80, multiple=8)
    sizes = verify.sizes_to_verify(h.scale(p, q).kernel, {"worker_p": 40, "worker_q": 40})
    assert sizes == [
        {"worker_p": 40, "worker_q/8": 5},
        {"worker_p": 27, "worker_q/8": 3},
        {"worker_p": 1, "worker_q/8": 1},
    ]
    assume(p - q)
    sizes = verify.sizes_to_verify(h.scale(p, q).kernel, {"worker_p": 40, "worker_q": 40})
    assert len(sizes) == 2  # 1 and 8 break the fact


def test_float64_is_held_to_its_own_precision(backend: CpuBackend) -> None:
    kernel = h.scale(4, 4, dtype=float64).kernel
    assert verify.tolerance(kernel, "float64") < 1e-12
    batch = backend.compile([h.scale(64, 100, dtype=float64)])
    assert backend.measure(batch, {}, repeats=1)[0].status == "ok"


def test_too_much_memory_is_refused_not_a_crash(backend: CpuBackend) -> None:
    n = Dim("worker_huge", 1, 1 << 44)
    batch = backend.compile([h.scale(n, 1 << 10)])
    process = WorkerProcess("lambent.backends.cpu.worker")
    job = backend._measurer._job(batch, 0, {"worker_huge": 4})
    huge = (Spec("float32", (1 << 44, 1 << 10)),)
    with pytest.raises(Refused, match="Memory"):
        arguments = (str(batch.path), replace(job, outputs=huge), [np.arange(3)])
        process.request("check", *arguments, limit=20)
    process.close()


def test_the_worker_has_its_own_process_group_and_outlives_no_parent() -> None:
    script = """
import os, sys
from lambent.backends.measuring.process import WorkerProcess
w = WorkerProcess("lambent.backends.cpu.worker")
w.request("close", "x", limit=60)
assert os.getpgid(w._process.pid) != os.getpgid(0)
print(w._process.pid, flush=True)
os._exit(0)
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True,
        env=environment,
    )  # fmt: skip
    pid = int(done.stdout)
    for _ in range(200):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        if Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z":
            return
        time.sleep(0.05)
    raise AssertionError("the worker lives on without its parent")


def test_an_interrupt_does_not_garble_the_next_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    process = WorkerProcess("lambent.backends.cpu.worker")
    process.request("close", "x", limit=60)
    read = WorkerProcess._read

    def interrupted(*arguments: Any) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(WorkerProcess, "_read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        process.request("close", "x", limit=60)
    monkeypatch.setattr(WorkerProcess, "_read", read)
    assert process.request("close", "x", limit=60) is None
    process.close()


def test_a_request_beyond_its_limit_is_killed(backend: CpuBackend) -> None:
    batch = backend.compile([h.scale(4, 4, h.HANG)])
    process = WorkerProcess("lambent.backends.cpu.worker")
    process.request("close", "x", limit=60)
    job = backend._measurer._job(batch, 0, {})
    start = time.monotonic()
    with pytest.raises(Lost, match=r"did not finish within 0.3 s"):
        process.request("check", str(batch.path), job, [np.arange(3)], limit=0.3)
    assert time.monotonic() - start < 5
    process.close()


# ---- operands and verdicts -------------------------------------------------------------------


def elementwise(term: Term, *inputs: Buffer, dtype: Any = float32) -> Kernel:
    return Kernel((Output(Buffer("y", dtype, (50,)), (axis(0),), term),), inputs, {0: 50})


def load(name: str, dtype: Any = float32) -> Term:
    return h.terms.load(name, (axis(0),), dtype)


def test_operands_are_valid_and_equal_everywhere() -> None:
    for name in ("float32", "bfloat16", "float16", "float64"):
        values = draw(Spec(name, (40, 50)), 3).astype(np.float64)
        assert (np.abs(values) >= 0.49).all() and (np.abs(values) <= 1.51).all()
        assert (values < 0).any() and (values > 0).any()
    integers = draw(Spec("int32", (1000,)), 1)
    assert integers.min() >= 1 and len(set(integers.tolist())) > 3  # divisors are not 0
    assert set(draw(Spec("bool", (99,)), 1).tolist()) == {True, False}
    assert (draw(Spec("float32", (9, 9)), 5) == draw(Spec("float32", (9, 9)), 5)).all()
    assert (draw(Spec("float32", (9, 9)), 5) != draw(Spec("float32", (9, 9)), 6)).any()
    assert draw(Spec("float32", (0, 5)), 0).shape == (0, 5)
    assert (draw(Spec("float32", (99,)), 0, "positive") > 0).all()


def test_an_operand_is_read_as_if_it_were_all_there() -> None:
    one = Spec("bfloat16", (3, 2 * PERIOD, 5))
    places = np.array([0, 2]), np.array([PERIOD + 7, 2 * PERIOD - 1]), np.array([4, 0])
    found = drawn(one, 2)
    assert found.shape == one.shape and found.values.size == PERIOD
    flat = (places[0] * one.shape[1] + places[1]) * 5 + places[2]
    np.testing.assert_array_equal(found[places], found.values[flat % PERIOD])
    small = Spec("float32", (4, 6))
    assert (drawn(small, 1)[tuple(np.indices((4, 6)))] == draw(small, 1)).all()


def test_quotients_by_sums_are_verified_where_no_sum_is_nearly_nothing() -> None:
    """Else one row is so large that an error in any other is none."""
    x = h.terms.load("x", (axis(0), axis(1)), bfloat16)
    share = h.terms.apply("recip", h.terms.reduce("sum", {1}, x))
    y = Output(Buffer("y", bfloat16, (300,)), (axis(0),), share)
    kernel = Kernel((y,), (Buffer("x", bfloat16, (300, 64)),), {0: 300, 1: 64})
    assert verify.expect(kernel, {}).mode == "positive"


@pytest.mark.parametrize("op", ["log2", "sqrt"])
def test_functions_of_positive_numbers_are_verified_on_numbers(op: str) -> None:
    kernel = elementwise(h.terms.apply(op, load("x")), Buffer("x", float32, (50,)))
    expected = verify.expect(kernel, {})
    assert expected.mode == "positive" and np.isfinite(expected.values[0]).all()


def test_large_exponents_are_verified_on_finite_numbers() -> None:
    big = h.terms.apply("mul", h.terms.const(1000, float32), load("x"))
    kernel = elementwise(h.terms.apply("exp2", big), Buffer("x", float32, (50,)))
    assert verify.expect(kernel, {}).mode == "small"


def test_integer_kernels_are_compared_exactly() -> None:
    x, y = (Buffer(n, int32, (50,)) for n in "xy")
    term = h.terms.apply("mod", load("x", int32), load("y", int32))
    kernel = elementwise(term, x, y, dtype=int32)
    expected = verify.expect(kernel, {})
    values = expected.values[0]
    assert verify.judge(kernel, [values.astype(np.int32)], expected).status == "ok"
    off = values.astype(np.int32)
    off[3] += 1
    assert verify.judge(kernel, [off], expected).status == "wrong"


def test_buffers_that_index_others_stay_in_their_range() -> None:
    ids = h.terms.load("ids", (axis(0),), int64)
    term = h.terms.load("table", (value(ids), axis(1)), float32)
    table, index = Buffer("table", float32, (5, 3)), Buffer("ids", int64, (50,))
    kernel = Kernel(
        (Output(Buffer("y", float32, (50, 3)), (axis(0), axis(1)), term),),
        (table, index),
        {0: 50, 1: 3},
    )
    assert index_limits(kernel, {}) == {"ids": 5}
    drawn = draw(input_specs(kernel, {})[1], 1)
    assert drawn.min() == 0 and drawn.max() == 4
    x = draw(input_specs(kernel, {})[0], 0)
    np.testing.assert_array_equal(
        verify.expect(kernel, {}).values[0], x[drawn].astype(np.float64).reshape(-1)
    )


def test_verdicts_on_special_values() -> None:
    kernel = elementwise(load("x"), Buffer("x", float32, (50,)))

    def verdict(got: list[float], want: list[float]) -> str:
        expected = verify.Expected("signed", (), (np.asarray(want, np.float64),))
        return verify.judge(kernel, [np.asarray(got, np.float32)], expected).status

    inf, nan = np.inf, np.nan
    assert verdict([1, inf, -inf, nan], [1, inf, -inf, nan]) == "ok"
    for got in ([1, inf], [1, nan], [nan, 1], [1, -1]):
        assert verdict(got, [1, 1]) == "wrong"
    assert verdict([1, inf], [1, -inf]) == "wrong"
    assert verdict([1, 5], [1, nan]) == "wrong"
    assert verdict([1.00001, 2], [1, 2]) == "ok"
    assert verdict([1.001, 2], [1, 2]) == "wrong"
    assert verdict([0, 0], [0, 0]) == "ok"
    assert verdict([0, 1e-3], [0, 0]) == "wrong"


def test_tolerance_follows_storage_and_reduction_length() -> None:
    wide = elementwise(load("x"), Buffer("x", float32, (50,)))
    narrow = elementwise(h.terms.cast(load("x"), bfloat16), Buffer("x", float32, (50,)))
    assert verify.tolerance(wide, "float32") < 3e-5
    assert 4e-3 < verify.tolerance(narrow, "bfloat16") < 2e-2
    flags = elementwise(h.terms.apply("less", load("x"), load("x")), Buffer("x", float32, (50,)))
    expected = verify.Expected("signed", (), (np.zeros(5),))
    assert verify.judge(flags, [np.zeros(5, bool)], expected).status == "ok"
    assert verify.judge(flags, [np.ones(5, bool)], expected).status == "wrong"


def test_where_large_values_cancel_the_tolerance_follows() -> None:
    x = load("x")
    kernel = elementwise(x, Buffer("x", float32, (50,)))
    assert verify.expect(kernel, {}).slack[0] < 1e-5
    big = h.terms.const(1 << 20, float32)
    minus = h.terms.apply("mul", h.terms.const(-1, float32), x)
    scaled = h.terms.apply("add", h.terms.apply("mul", big, x), h.terms.apply("mul", big, minus))
    near = h.terms.apply("add", scaled, h.terms.apply("sin", h.terms.apply("mul", big, x)))
    assert verify.expect(elementwise(near, Buffer("x", float32, (50,))), {}).slack[0] > 1e-3

    assert bool_.kind == "b"


def test_a_process_that_ends_takes_its_worker_along_in_silence() -> None:
    script = """
from lambent.backends.measuring.process import WorkerProcess
w = WorkerProcess("lambent.backends.cpu.worker")
w.request("close", "x", limit=60)
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=60,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0 and done.stderr == ""
