"""Measuring candidates: compiled together, verified against float64, then timed in turn."""

from __future__ import annotations

import importlib
import math
import statistics
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from lambent.algebra.term import walk
from lambent.backends.base import Outcome, kernel_symbols
from lambent.backends.cpu import features
from lambent.backends.cpu.operands import MODES, Spec, draw, input_specs, spec
from lambent.backends.cpu.process import Lost, Refused, WorkerProcess
from lambent.backends.cpu.worker import Job
from lambent.graph.dim import bounds
from lambent.graph.dtypes import DTYPES, float32
from lambent.kernel.kernel import Kernel
from lambent.kernel.tile import TileProgram

Array = np.ndarray[Any, Any]
# (kernel, inputs by name, symbols, flat indices by output) → the outputs there, in float64
Reference = Callable[[Kernel, Mapping[str, Array], Mapping[str, int], Sequence[Array]], list[Array]]
_SAMPLES = 192
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


@dataclass(frozen=True, slots=True)
class Expected:
    """What a kernel must give: the way to draw operands, and float64 values at flat indices."""

    mode: str
    samples: tuple[Array, ...]
    values: tuple[Array, ...]


class Measurer:
    """Owns the worker. One measurement runs at a time; other threads wait for it."""

    def __init__(self, reference: Reference) -> None:
        self._reference = reference
        self._worker = WorkerProcess()
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
            self._expected[key] = expect(kernel, symbols, self._reference)
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
                    batch.checked[i, key] = self._check(batch, i, jobs[i], symbols, limit, verify)
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
            tuple(int(evaluate_symbol(s, symbols)) for s in kernel_symbols(kernel)),
            self.expected(kernel, symbols).mode,
            features.threads(),
        )

    def _check(
        self, batch: Batch, i: int, job: Job, symbols: Mapping[str, int], limit: float, verify: bool
    ) -> Outcome:
        kernel = batch.programs[i].kernel
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
            return Outcome("wrong", message=complaint)
        return replace(judge(kernel, found, expected.values, verify), seconds=ns / 1e9)

    def _time(
        self, batch: Batch, jobs: dict[int, Job], first: Mapping[int, Outcome], repeats: int,
        cold: bool, limit: float,
    ) -> dict[int, Outcome]:  # fmt: skip
        times: dict[int, list[float]] = {i: [] for i in jobs}
        guess = {i: first[i].seconds or 0.0 for i in jobs}
        lost: dict[int, Outcome] = {}
        for turn in range(repeats + 1 if repeats else 0):  # the first turn warms up, and sets counts
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
    return replace(outcome, seconds=median, spread=float(high - low) / 2 / median)


def _copies(job: Job) -> int:
    """Copies of the operands that no cache holds, as far as memory allows."""
    wanted = 2 * features.detect().caches[2] // max(1, job.nbytes) + 2
    return int(max(1, min(wanted, 256, _MEMORY // max(1, job.nbytes))))


def reference(
    kernel: Kernel,
    buffers: Mapping[str, Array],
    symbols: Mapping[str, int],
    samples: Sequence[Array],
) -> list[Array]:
    """The kernel's meaning in float64 at flat indices of each output."""
    module = importlib.import_module("lambent.backends.reference.kernel")
    return list(module.evaluate(kernel, buffers, symbols, samples))


def evaluate_symbol(name: str, symbols: Mapping[str, int]) -> int:
    """The value of a symbol's atom; `s/8` is an eighth of s."""
    if name in symbols:
        return symbols[name]
    declared, _, multiple = name.rpartition("/")
    return symbols[declared] // int(multiple)


def sample(shape: tuple[int, ...], number: int) -> Array:
    """Flat indices at which an output is verified: both ends, and a reproducible random choice."""
    count = math.prod(shape)
    if count <= _SAMPLES:
        return np.arange(count)
    random = np.random.default_rng(7 + number)
    picks = random.integers(0, count, _SAMPLES)
    return np.unique(np.concatenate([[0, 1, count - 2, count - 1], picks]))


def expect(kernel: Kernel, symbols: Mapping[str, int], reference: Reference) -> Expected:
    """Values to verify with, under the first way of drawing operands that keeps them finite."""
    specs = input_specs(kernel, symbols)
    shapes = [spec(o.buffer, symbols).shape for o in kernel.outputs]
    samples = tuple(sample(shape, i) for i, shape in enumerate(shapes))
    best: Expected | None = None
    fewest = math.inf
    for mode in MODES:
        buffers = {b.name: draw(s, i, mode) for i, (b, s) in enumerate(_named(kernel, specs))}
        with np.errstate(all="ignore"):
            values = tuple(reference(kernel, buffers, symbols, samples))
        bad = sum(int(_unusable(v, o.buffer.dtype.name)) for v, o in zip(values, kernel.outputs, strict=True))
        if bad < fewest:
            best, fewest = Expected(mode, samples, values), bad
        if not bad:
            break
    assert best is not None
    return best


def _named(kernel: Kernel, specs: Sequence[Spec]) -> list[tuple[Any, Spec]]:
    return list(zip(kernel.inputs, specs, strict=True))


def _unusable(values: Array, dtype: str) -> int:
    """How many values cannot tell right from wrong: not finite, or beyond the dtype's range."""
    wide = np.asarray(values, np.float64)
    if not DTYPES[dtype].is_float:
        return 0
    most = {"float16": 6e4}.get(dtype, 1e300 if dtype == "float64" else 1e37)
    return int(np.count_nonzero(~(np.abs(wide) < most)))


def tolerance(kernel: Kernel, dtype: str) -> float:
    """Allowed error, relative to the output's scale: by storage, casts and reduction lengths."""
    eps = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
    widest, terms = eps[dtype], list(walk(*(o.term for o in kernel.outputs)))
    for term in terms:
        if term.op == "cast" and term.dtype.is_float:
            widest = max(widest, eps[term.dtype.name])
    exact = all(t.dtype.name == "float64" or not t.dtype.is_float for t in terms)
    compute = eps["float64" if exact and dtype == "float64" else float32.name]
    longest = max([1, *(_length(kernel, t.axes) for t in terms)])
    return 2 * widest + compute * (256 + 8 * math.sqrt(longest))


def _length(kernel: Kernel, axes: frozenset[int]) -> int:
    return math.prod(min(bounds(kernel.extents[a])[1], 1 << 20) for a in sorted(axes))


def judge(
    kernel: Kernel, found: Sequence[Array], values: Sequence[Array], verify: bool = True
) -> Outcome:
    """Compare a candidate's values with the reference's."""
    worst = 0.0
    for output, got, want in zip(kernel.outputs, found, values, strict=True):
        name, dtype = output.buffer.name, output.buffer.dtype
        if not verify or not len(got):
            continue
        if not dtype.is_float:
            wrong = np.count_nonzero(got != np.asarray(want).astype(dtype.numpy))
            if wrong > len(got) // 200:
                return Outcome("wrong", message=f"output {name!r}: {wrong} of {len(got)} values")
            continue
        a, b = np.asarray(got, np.float64), np.asarray(want, np.float64)
        worst = max(worst, _error(a, b))
        allowed = tolerance(kernel, dtype.name)
        if not worst <= allowed:
            message = f"output {name!r}: relative error {worst:.3g}, allowed {allowed:.3g}"
            return Outcome("wrong", error=worst, message=message)
    return Outcome("ok", error=worst)


def _error(a: Array, b: Array) -> float:
    """The largest difference, relative to |b| plus the mean magnitude; inf where kinds differ."""
    finite = np.isfinite(b)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if not np.all(same[~finite]):
        return math.inf
    if not finite.any():
        return 0.0
    if not np.all(np.isfinite(a[finite])):
        return math.inf
    scale = float(np.mean(np.abs(b[finite]))) or 1.0
    return float(np.max(np.abs(a - b)[finite] / (np.abs(b[finite]) + scale)))
