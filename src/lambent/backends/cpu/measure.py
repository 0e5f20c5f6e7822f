"""Measuring candidates: compiled together, verified against float64, then timed in turn."""

from __future__ import annotations

import math
import statistics
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from lambent.backends.base import Outcome, kernel_symbols
from lambent.backends.cpu import features
from lambent.backends.cpu.worker import Job
from lambent.backends.measuring.operands import input_specs, spec, symbol_value
from lambent.backends.measuring.process import Lost, Refused, WorkerProcess
from lambent.backends.measuring.verify import Expected, expect, judge, sizes_to_verify
from lambent.kernel.kernel import Kernel
from lambent.kernel.tile import TileProgram

_MEMORY = 1 << 30  # bytes of operand copies for timing with cold caches


@dataclass(slots=True)
class Batch:
    """Candidates of one library. `failed` holds those that never came so far, by number.

    `at` is the candidate's number in the library; `checked` remembers verifications by symbols.
    """

    programs: tuple[TileProgram, ...]
    path: Path | None
    at: dict[int, int]
    failed: dict[int, Outcome] = field(default_factory=dict)
    checked: dict[Any, Outcome] = field(default_factory=dict)

    def close(self) -> None:
        if self.path is not None:
            self.path.unlink(missing_ok=True)


class Measurer:
    """Owns the worker. One measurement runs at a time; other threads wait for it."""

    def __init__(self) -> None:
        self._worker = WorkerProcess("lambent.backends.cpu.worker")
        self._lock = threading.Lock()
        self._expected: dict[Any, Expected] = {}

    def close(self) -> None:
        with self._lock:
            self._worker.close()

    def expected(self, kernel: Kernel, symbols: Mapping[str, int]) -> Expected:
        """The reference's values, computed once for all schedules of a kernel."""
        key = (kernel.outputs, kernel.inputs, tuple(sorted(symbols.items())))
        if key not in self._expected:
            if len(self._expected) > 4096:
                self._expected.clear()
            self._expected[key] = expect(kernel, symbols)
        return self._expected[key]

    def measure(
        self, batch: Batch, symbols: Mapping[str, int], *, repeats: int, cold: bool, limit: float,
        verify: bool, only: Sequence[int] | None = None,
    ) -> list[Outcome]:  # fmt: skip
        """Outcomes in the order of the programs; those not in `only` are as verified before."""
        chosen = range(len(batch.programs)) if only is None else only
        outcomes = dict(batch.failed)
        key = tuple(sorted(symbols.items()))
        with self._lock:
            jobs = {}
            for i in chosen:
                if i in batch.failed:
                    continue
                jobs[i] = self._job(batch, i, symbols)
                if (i, key) not in batch.checked or not verify:
                    batch.checked[i, key] = self._check_all(batch, i, symbols, limit, verify)
                outcomes[i] = batch.checked[i, key]
            good = {i: job for i, job in jobs.items() if outcomes[i].status == "ok"}
            outcomes |= self._time(batch, good, outcomes, repeats, cold, limit)
            if batch.path is not None and jobs:
                self._release(batch.path)
        missing = Outcome("unmeasured")
        return [outcomes.get(i, missing) for i in range(len(batch.programs))]

    def _job(self, batch: Batch, i: int, symbols: Mapping[str, int]) -> Job:
        kernel = batch.programs[i].kernel
        return Job(
            batch.at[i],
            tuple(spec(o.buffer, symbols) for o in kernel.outputs),
            input_specs(kernel, symbols),
            tuple(symbol_value(s, symbols) for s in kernel_symbols(kernel)),
            self.expected(kernel, symbols).mode,
            features.threads(),
        )

    def _check_all(
        self, batch: Batch, i: int, symbols: Mapping[str, int], limit: float, verify: bool
    ) -> Outcome:
        """The outcome at the given sizes, if the candidate is right at the others, too."""
        given, *others = sizes_to_verify(batch.programs[i].kernel, symbols)
        outcome = self._check(batch, i, given, limit, verify)
        for sizes in others if verify and outcome.status == "ok" else ():
            other = self._check(batch, i, sizes, limit, verify)
            if other.status != "ok":
                return replace(other, seconds=None, message=f"at {sizes}: {other.message}")
        return outcome

    def _check(
        self, batch: Batch, i: int, symbols: Mapping[str, int], limit: float, verify: bool
    ) -> Outcome:
        kernel, job = batch.programs[i].kernel, self._job(batch, i, symbols)
        expected = self.expected(kernel, symbols)
        try:
            found, complaint, ns = self._worker.request(
                "check", str(batch.path), job, expected.samples, limit=limit
            )
        except Lost as error:
            return Outcome(error.status, message=str(error))
        except Refused as error:
            return Outcome("resources", message=str(error))
        if complaint:
            self._worker.close()  # it may have spoiled more than we see
            return Outcome("wrong", message=complaint)
        outcome = judge(kernel, found, expected.values, verify)
        return replace(outcome, seconds=ns / 1e9) if outcome.status == "ok" else outcome

    def _time(
        self, batch: Batch, jobs: dict[int, Job], first: Mapping[int, Outcome], repeats: int,
        cold: bool, limit: float,
    ) -> dict[int, Outcome]:  # fmt: skip
        times: dict[int, list[float]] = {i: [] for i in jobs}
        guess = {i: first[i].seconds or 0.0 for i in jobs}
        lost: dict[int, Outcome] = {}
        turns = repeats + 1 if repeats else 0
        for turn in range(turns):  # the first warms up, and sets counts
            for i, job in jobs.items():
                if i in lost:
                    continue
                copies = _copies(job) if cold else 1
                inner = max(copies, 1, math.ceil(2e-3 / max(guess[i], 1e-7)))
                inner = min(inner, 1 + int(limit / 4 / max(guess[i], 1e-7)))
                try:
                    ns = self._worker.request(
                        "time", str(batch.path), job, inner, copies, turn, limit=limit
                    )
                except Lost as error:
                    lost[i] = Outcome(error.status, message=str(error))
                    continue
                except Refused as error:
                    lost[i] = Outcome("resources", message=str(error))
                    continue
                guess[i] = ns / inner / 1e9
                if turn:
                    times[i].append(guess[i])
        done = {i: _timed(first[i], t) for i, t in times.items() if i not in lost}
        return done | lost

    def _release(self, path: Path) -> None:
        try:
            self._worker.request("close", str(path), limit=10.0)
        except (Lost, Refused):
            self._worker.close()


def _timed(outcome: Outcome, times: Sequence[float]) -> Outcome:
    if not times:
        return replace(outcome, seconds=None)
    median = statistics.median(times)
    low, high = np.quantile(times, [0.25, 0.75])
    spread = float(high - low) / 2 / median
    return replace(outcome, seconds=median, best=min(times), spread=spread)


def _copies(job: Job) -> int:
    """Copies of the operands that no cache holds, as far as memory allows."""
    wanted = 2 * features.detect().caches[2] // max(1, job.nbytes) + 2
    return int(max(1, min(wanted, 256, _MEMORY // max(1, job.nbytes))))
