"""A schedule that is right wherever the reference looks, and wrong elsewhere, is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernels import Build, matmul

from lambent.backends.cuda.schedule import default_schedule, guesses
from lambent.backends.measuring import witness
from lambent.backends.measuring.measurer import Batch, Job, Measurer
from lambent.backends.measuring.operands import draw, spec
from lambent.backends.measuring.verify import expect
from lambent.graph.dtypes import bfloat16
from lambent.kernel.kernel import Kernel
from lambent.kernel.lower import lower

Array = np.ndarray[Any, Any]
ROWS = 256


def product() -> Kernel:
    return matmul(m=ROWS, n=64, k=32)


class Device:
    """Stands in for the worker: what each program of a library gives, as a function of numbers."""

    def __init__(self, given: Sequence[Any]) -> None:
        self.given, self.runs = given, list[int]()

    def request(self, name: str, path: str, *given: Any, limit: float) -> Any:
        if name != "check":
            return 1
        job: Job = given[0]
        places: Sequence[Array] = given[1]
        a, b = (draw(s, i, job.mode) for i, s in enumerate(job.inputs))
        out = self.given[job.number](a @ b, len(self.runs)).reshape(-1)
        self.runs.append(job.number)
        return [out[places[0]]], "", 1000

    def close(self) -> None:
        pass


def right(values: Array, run: int) -> Array:
    return values


def shifted(values: Array, run: int) -> Array:
    """Wrong in rows that the reference did not sample."""
    kept = expect(product(), {}, 2e3).samples[0] // 64
    found = np.roll(values, 1, axis=0)
    found[kept] = values[kept]
    return found


def racing(values: Array, run: int) -> Array:
    return values if run < 2 else shifted(values, run)


@pytest.mark.parametrize(
    ("candidate", "status"), [(right, "ok"), (shifted, "wrong"), (racing, "wrong")]
)
def test_a_schedule_gives_what_a_plain_one_gives(candidate: Any, status: str) -> None:
    kernel = product()
    one = default_schedule(kernel)
    other = replace(one, options=(*one.options, ("descriptors", 1)))
    measurer = Measurer("", lambda: 1, 0, budget=2e3, guesses=lambda k: guesses(k, 90))
    device = measurer._worker = Device([candidate, right])  # type: ignore[assignment]
    programs = [lower(kernel, other)]
    more, plain = measurer.witnesses(programs)
    assert [dict(p.schedule.options).keys() & {"descriptors"} for p in more] == [set()]
    batch = Batch(tuple(programs), Path("none"), {0: 0, 1: 1}, plain=plain)
    (found,) = measurer.measure(batch, {}, repeats=0)
    assert found.status == status, found
    assert ("witness" in found.message) == (status == "wrong")
    assert device.runs[:2] == [1, 0]  # the witness first
    assert measurer.witnesses(programs) == ([], {})  # which is asked once


def test_a_candidate_may_be_the_witness() -> None:
    kernel = matmul()
    program = lower(kernel, witness.plain(guesses(kernel, 90)[0]))
    measurer = Measurer("", lambda: 1, 0, guesses=lambda k: guesses(k, 90))
    assert measurer.witnesses([program]) == ([], {witness.key(kernel): 0})
    assert Measurer("", lambda: 1, 0).witnesses([program]) == ([], {})


def test_where_floats_are_compared_a_few_values_may_differ() -> None:
    def kernel(steps: bool) -> Kernel:
        b = Build()
        (i,) = b.axes(4096)
        x = b.load("X", i, dtype=bfloat16)
        b.out(
            "Y",
            b.t.apply("mask", b.t.apply("less", x, b.c(1, dtype=bfloat16)), x) if steps else x,
            i,
        )
        return b.kernel()

    for steps in (False, True):
        k = kernel(steps)
        want = np.ones(4096, np.float32).astype(k.outputs[0].buffer.dtype.numpy)
        known = witness.places(k, [spec(k.outputs[0].buffer, {})], expect(k, {}), True)
        known = replace(known, values=(want,), slack=(0.01,))
        few, many = want.copy(), want.copy()
        few[:10], many[:200] = 0, np.nan
        assert witness.unlike(k, [want], known) == ""
        assert bool(witness.unlike(k, [few], known)) != steps
        assert "200 of 4096" in witness.unlike(k, [many], known)
