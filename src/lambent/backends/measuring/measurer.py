"""Measuring candidates: compiled together, verified against float64, then timed in turn.

What a backend gives is a worker module (see `process`) that answers `check`, `time` and `close`.
"""

from __future__ import annotations

import math
import statistics
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from lambent.backends.base import Outcome, kernel_symbols
from lambent.backends.measuring import witness
from lambent.backends.measuring.operands import Spec, input_specs, spec, symbol_value
from lambent.backends.measuring.process import Failed, WorkerProcess
from lambent.backends.measuring.verify import BUDGET, Expected, expect, judge, sizes_to_verify
from lambent.kernel.kernel import Kernel
from lambent.kernel.lower import lower
from lambent.kernel.tile import Schedule, TileProgram

Array = np.ndarray[Any, Any]
_MEMORY = 1 << 30  # bytes of operand copies for timing with cold caches
_LONG = 0.01  # seconds of a turn that needs none before it, and few beside it
_QUICK = 1e9  # bytes a second that a kernel moves at least for whose time caches matter


@dataclass(frozen=True, slots=True)
class Job:
    """One candidate: number in its library, arrays, values of its symbols, way to draw floats."""

    number: int
    outputs: tuple[Spec, ...]
    inputs: tuple[Spec, ...]
    sizes: tuple[int, ...]
    mode: str
    threads: int

    @property
    def nbytes(self) -> int:
        return sum(s.nbytes for s in (*self.outputs, *self.inputs))


@dataclass(slots=True)
class Batch:
    """Candidates of one library. `failed` holds those that never came so far, by number.

    `at` is the candidate's number in the library; `checked` remembers verifications by symbols;
    `plain`: of kernels, the number of a program that is their witness (see `witness`).
    """

    programs: tuple[TileProgram, ...]
    path: Path | None
    at: dict[int, int]
    failed: dict[int, Outcome] = field(default_factory=dict)
    checked: dict[Any, Outcome] = field(default_factory=dict)
    plain: dict[Any, int] = field(default_factory=dict)

    def close(self) -> None:
        if self.path is not None:
            self.path.unlink(missing_ok=True)


class Measurer:
    """Owns the worker. One measurement runs at a time; other threads wait for it.

    Args:
        worker: the module that runs candidates, and arguments of its own.
        threads: how many a candidate may use.
        cache: bytes of the device's caches, for timing operands that are in none.
        budget: scalar operations of the reference that a kernel is verified with.
        exact: float32 operands of products may not be rounded.
        guesses: schedules of a kernel, where it has a witness: the first one, made plain.
    """

    def __init__(
        self, worker: str, threads: Callable[[], int], cache: int, budget: float = BUDGET,
        exact: bool = True, guesses: Callable[[Kernel], Sequence[Schedule]] | None = None,
    ) -> None:  # fmt: skip
        self._worker = WorkerProcess(worker)
        self._threads, self._cache, self._budget, self._exact = threads, cache, budget, exact
        self._lock = threading.Lock()
        self._expected: dict[Any, Expected] = {}
        self._guesses, self._known = guesses, dict[Any, Expected | None]()  # by kernel and sizes

    def close(self) -> None:
        with self._lock:
            self._worker.close()

    def ask(self, name: str, limit: float = 60.0) -> Any:
        """What the worker says of its device; see `process` for what is raised."""
        with self._lock:
            return self._worker.request(name, limit=limit)

    def expected(self, kernel: Kernel, symbols: Mapping[str, int]) -> Expected:
        """The reference's values, computed once for all schedules of a kernel."""
        key = (kernel.outputs, kernel.inputs, tuple(sorted(symbols.items())))
        if key not in self._expected:
            if len(self._expected) > 4096:
                self._expected.clear()
            self._expected[key] = expect(kernel, symbols, self._budget, self._exact)
        return self._expected[key]

    def witnesses(
        self, programs: Sequence[TileProgram]
    ) -> tuple[list[TileProgram], dict[Any, int]]:
        """Programs to compile beside these, and the number of each kernel's witness among all."""
        more, found = list[TileProgram](), dict[Any, int]()
        numbers = {(witness.key(p.kernel), p.schedule): i for i, p in enumerate(programs)}
        for kernel in (p.kernel for p in programs):
            key = witness.key(kernel)
            if self._guesses is not None and key not in found and key not in self._known:
                plain = witness.plain(self._guesses(kernel)[0])
                found[key] = numbers.get((key, plain), len(programs) + len(more))
                more += [lower(kernel, plain)] if found[key] >= len(programs) else []
        return more, found

    def measure(
        self, batch: Batch, symbols: Mapping[str, int], *, repeats: int = 5, cold: bool = False,
        limit: float = 10.0, verify: bool = True, only: Sequence[int] | None = None,
    ) -> list[Outcome]:  # fmt: skip
        """See `base.Backend.measure`."""
        chosen = range(len(batch.programs)) if only is None else only
        outcomes = dict(batch.failed)
        key = tuple(sorted(symbols.items()))
        with self._lock:
            jobs = {i: self._job(batch, i, symbols) for i in chosen if i not in batch.failed}
            for i in jobs:
                if (i, key) not in batch.checked or not verify:
                    batch.checked[i, key] = self._check_all(batch, i, symbols, limit, verify)
                outcomes[i] = batch.checked[i, key]
            good = {i: job for i, job in jobs.items() if outcomes[i].status == "ok"}
            outcomes |= self._time(batch, good, outcomes, repeats, cold, limit)
            if jobs:
                self._release(batch)
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
            self._threads(),
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
        """Right are the reference's values, and a witness's, in each of two runs."""
        kernel, job = batch.programs[i].kernel, self._job(batch, i, symbols)
        other = self._witness(batch, i, symbols, limit) if verify else None
        outcome = self._run(batch, kernel, job, symbols, limit, verify, other)[0]
        if outcome.status == "ok" and other is not None:
            again = self._run(batch, kernel, job, symbols, limit, verify, other)[0]
            return again if again.status != "ok" else outcome
        return outcome

    def _run(
        self, batch: Batch, kernel: Kernel, job: Job, symbols: Mapping[str, int], limit: float,
        verify: bool, other: Expected | None,
    ) -> tuple[Outcome, list[Array]]:  # fmt: skip
        """A run's outcome, and its values where the witness has its own."""
        expected = self.expected(kernel, symbols)
        samples = witness.joined(expected, other)
        try:
            found, complaint, ns = self._worker.request(
                "check", str(batch.path), job, samples, limit=limit
            )
        except Failed as error:
            return Outcome(error.status, message=str(error)), []
        if complaint:
            self._worker.close()  # it may have spoiled more than we see
            return Outcome("wrong", message=complaint), []
        pairs = list(zip(found, map(len, expected.samples), strict=True))
        outcome = judge(kernel, [f[:n] for f, n in pairs], expected, verify, self._exact)
        rest = [f[n:] for f, n in pairs]
        if outcome.status == "ok" and other is not None:
            complaint = witness.unlike(kernel, rest, other)
            outcome = Outcome("wrong", message=complaint) if complaint else outcome
        return (replace(outcome, seconds=ns / 1e9) if outcome.status == "ok" else outcome), rest

    def _witness(
        self, batch: Batch, i: int, symbols: Mapping[str, int], limit: float
    ) -> Expected | None:
        """What the kernel's witness gives at these sizes; None where there is none."""
        kernel = batch.programs[i].kernel
        key = witness.key(kernel)
        number = batch.at.get(batch.plain.get(key, -1))
        if number is not None and key not in self._known:
            self._known[key] = None  # sought
            for sizes in sizes_to_verify(kernel, symbols):
                job = replace(self._job(batch, i, sizes), number=number)
                wanted = witness.places(
                    kernel, job.outputs, self.expected(kernel, sizes), self._exact
                )
                outcome, values = self._run(batch, kernel, job, sizes, limit, True, wanted)
                if outcome.status == "ok":
                    at = key, tuple(sorted(sizes.items()))
                    self._known[at] = replace(wanted, values=tuple(values))
        return self._known.get((key, tuple(sorted(symbols.items()))))

    def _time(
        self, batch: Batch, jobs: dict[int, Job], first: Mapping[int, Outcome], repeats: int,
        cold: bool, limit: float,
    ) -> dict[int, Outcome]:  # fmt: skip
        times: dict[int, list[float]] = {i: [] for i in jobs}
        guess = {i: max(first[i].seconds or 0.0, 1e-7) for i in jobs}
        lost: dict[int, Outcome] = {}
        long: set[int] = set()
        for turn in range(repeats + 1 if repeats else 0):  # the first warms up, and sets counts
            for i in [i for i in jobs if i not in lost and (i not in long or 2 * turn <= repeats)]:
                near = not cold or jobs[i].nbytes < _QUICK * guess[i]
                copies = 1 if near else self._copies(jobs[i])
                inner = max(copies, math.ceil(2e-3 / guess[i]))
                inner = min(inner, 1 + int(limit / 4 / guess[i]))
                try:
                    ns = self._worker.request(
                        "time", str(batch.path), jobs[i], inner, copies, turn, limit=limit
                    )
                except Failed as error:
                    lost[i] = Outcome(error.status, message=str(error))
                    continue
                times[i].append(ns / inner / 1e9)
                long |= {i} if ns / 1e9 > _LONG else set()
                guess[i] = max(times[i][-1], 1e-7)
        return {i: lost.get(i) or _timed(first[i], times[i][i not in long :]) for i in jobs}

    def _copies(self, job: Job) -> int:
        """Copies of the operands that no cache holds, as far as memory allows."""
        nbytes = max(1, job.nbytes)
        return max(1, min(self._cache * 5 // 4 // nbytes + 2, 1024, _MEMORY // nbytes))

    def _release(self, batch: Batch) -> None:
        try:
            self._worker.request("close", str(batch.path), limit=10.0)
        except Failed:
            self._worker.close()


def _timed(outcome: Outcome, times: Sequence[float]) -> Outcome:
    if not times:
        return replace(outcome, seconds=None)
    median = statistics.median(times)
    low, high = np.quantile(times, [0.25, 0.75])
    spread = float(high - low) / 2 / median
    return replace(outcome, seconds=median, best=min(times), spread=spread)
