"""The search: covers are chosen, their kernels measured, the bound tightened, until they meet.

Each distinct segment is a region with its own candidates. A step takes the region where most may be
won: it solves for the cheapest cover at bounds (what remains possible) and at estimates (what is
likely), measures what those covers have unmeasured, and tunes what the best cover so far spends its
time in. It ends at the gap that was asked for, at the budget, or with Ctrl-C, with the best so far.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lambent.algebra.egraph import Saturated
from lambent.backends.base import Calibration
from lambent.graph.dim import representative
from lambent.kernel.kernel import Buffer
from lambent.kernel.tile import TileProgram
from lambent.search.bound import LAUNCH, Bounder, loosen, prices
from lambent.search.canonical import Canonical, canonical
from lambent.search.cover import Cover, Option, Problem, diverse, solve
from lambent.search.database import Database, digest
from lambent.search.enumerate import Candidates, enumerate_kernels
from lambent.search.model import likely_time
from lambent.search.tuning import Bench, Clock, Tuned, text

STOP_GAP = 0.05
FIRST = 2  # schedules of a kernel measured for the first time
FUSED = 4  # the same with several reductions inside: they need other tiles than each alone
KERNELS = 6  # new kernels a step
TUNE = 6  # schedules a step for the slowest kernels of the best cover
ENOUGH = 24  # schedules after which a kernel with several reductions is taken at its time
HOPE = 0.6  # before that, tuning is hoped to bring it to this share of its time
PATIENCE = 3  # tuning steps of a kernel without a gain, after which it is left alone


@dataclass(frozen=True, slots=True)
class Work:
    """A segment to search, and how many times the program runs it."""

    saturated: Saturated
    count: int = 1


@dataclass(frozen=True, slots=True)
class Progress:
    """What the search says of itself; times in seconds."""

    segments: int
    candidates: int
    measured: int
    best: float | None
    bound: float | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Chosen:
    """A kernel of a cover. `buffers`: outputs then inputs, at its place in the segment."""

    program: TileProgram
    buffers: tuple[Buffer, ...]
    name: str  # a hash of the kernel's canonical text and its buffers
    schedule: str
    seconds: float
    bound: float


@dataclass(frozen=True, slots=True)
class Choice:
    """A cover with its schedules; `seconds` is the sum of isolated times."""

    kernels: tuple[Chosen, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Found:
    """`regions`: for each work its choices, best first. `gap` is None where no bound is proved."""

    regions: tuple[tuple[Choice, ...], ...]
    candidates: int
    measured: int
    schedules: int
    gap: float | None
    noise: float
    void: bool
    capped: tuple[str, ...]
    rejected: dict[str, int]
    messages: dict[str, str]
    seconds: dict[str, float]


@dataclass(slots=True)
class Region:
    """The state of one segment."""

    work: Work
    found: Candidates
    problem: Problem
    forms: list[Canonical]
    bounds: list[float]
    models: dict[int, float] = field(default_factory=dict)
    scale: float = 1.0  # measured over modelled times
    lower: float = 0.0
    best: Cover | None = None
    done: bool = False
    stale: dict[str, int] = field(default_factory=dict)  # tuning steps without a gain, by text
    choices: list[Choice] = field(default_factory=list)  # the result, best first

    @property
    def gap(self) -> float:
        if self.best is None or self.best.cost <= 0:
            return math.inf if self.best is None else 0.0
        return max(0.0, 1 - self.lower / self.best.cost)  # below 0 after tuning: nothing to win


def region(work: Work, calibration: Calibration, clock: Clock, keep: int = 24) -> Region:
    """Enumerate a segment and bound its candidates."""
    with clock.phase("enumerate"):
        size = total_bytes(work.saturated)
        found = enumerate_kernels(work.saturated, prices(calibration, size), keep)
        options = tuple(Option(c.root, c.leaves) for c in found.candidates)
        outputs = tuple(i for i, s in enumerate(found.stored) if s.output)
        forms = [canonical(c.kernel) for c in found.candidates]
        bounds = _bounds(work, found, calibration)
    return Region(work, found, Problem(options, outputs), forms, bounds)


def _bounds(work: Work, found: Candidates, calibration: Calibration) -> list[float]:
    bounder = Bounder(calibration, work.saturated.extents)
    return [bounder.bound(c.kernel) for c in found.candidates]


def total_bytes(saturated: Saturated) -> float:
    """Bytes of all arrays that the segment reads or writes."""
    shapes = [(b.shape, b.dtype) for b in saturated.buffers.values()]
    shapes += [(r.shape, r.dtype) for r in saturated.roots]
    return float(sum(math.prod(map(representative, s)) * d.itemsize for s, d in shapes))


def search(
    works: Sequence[Work],
    backend: Any,
    *,
    budget: float,
    db: Database,
    seed: int = 0,
    symbols: Mapping[str, int] | None = None,
    progress: Callable[[Progress], None] | None = None,
    clock: Clock | None = None,
    stop_gap: float = STOP_GAP,
    known: str | None = None,
) -> Found:
    """The best covers of all segments that the budget (seconds) lets us find.

    The first complete cover is measured even if that takes longer than the budget. `known` is what
    `remembered` made of an earlier choice: it is taken as it is, and nothing is measured.

    Raises:
        RuntimeError: kernels that the outputs need all failed; the message says why.
        KeyboardInterrupt: interrupted before there is anything to return.
    """
    driver = _Driver(works, backend, budget, db, seed, symbols, progress, clock, stop_gap)
    return driver.run(driver.recall(known))


def remembered(choices: Sequence[Choice]) -> str:
    """Choices as text, for the database: of each kernel its name and schedule."""
    return json.dumps([[[k.name, k.schedule] for k in c.kernels] for c in choices])


class _Driver:
    def __init__(
        self,
        works: Sequence[Work],
        backend: Any,
        budget: float,
        db: Database,
        seed: int,
        symbols: Mapping[str, int] | None,
        progress: Callable[[Progress], None] | None,
        clock: Clock | None,
        stop_gap: float,
    ) -> None:
        self.clock = clock or Clock()
        self.budget, self.stop_gap, self.progress = budget, stop_gap, progress
        self.calibration: Calibration = backend.calibrate()
        self.void = False
        self.bench = Bench(backend, db, symbols or {}, self.clock, seed, likely=self._likely_time)
        self.regions = [region(w, self.calibration, self.clock) for w in works]

    def recall(self, known: str | None) -> list[list[tuple[int, str]]] | None:
        """The candidates and schedules of a remembered choice; None if they are not all there."""
        if known is None:
            return None
        found = []
        for r, kernels in zip(self.regions, json.loads(known), strict=True):
            numbers = {_name(f): k for k, f in enumerate(r.forms)}
            chosen = [(numbers.get(name, -1), str(schedule)) for name, schedule in kernels]
            if any(k < 0 or s not in self.known(r, k).outcomes for k, s in chosen):
                return None
            found.append(chosen)
        return found

    def run(self, known: list[list[tuple[int, str]]] | None) -> Found:
        if known is not None:
            for r, chosen in zip(self.regions, known, strict=True):
                r.lower = solve(r.problem, self.costs(r, self._bound)).bound
                kernels = tuple(self._chosen(r, k, s) for k, s in chosen)
                r.choices = [Choice(kernels, sum(k.seconds for k in kernels))]
            return self._found()
        try:
            while True:
                todo = [r for r in self.regions if not r.done]
                missing = [r for r in todo if r.best is None]
                if not todo or (not missing and self.clock.elapsed() >= self.budget):
                    break
                self.step(max(missing or todo, key=self._promise))
                self._tell()
        except KeyboardInterrupt:
            if any(r.best is None for r in self.regions):
                raise
        return self._found()

    def _promise(self, r: Region) -> float:
        """Seconds of a run that better kernels of this region may still win."""
        cost = r.best.cost if r.best is not None else math.inf
        return r.work.count * (cost - r.lower) if cost < math.inf else math.inf

    # ---- one step ----

    def step(self, r: Region) -> None:
        """Solve, measure what is new in the covers, tune what the best one is slow in."""
        with self.clock.phase("cover"):
            new = [k for k in range(len(r.forms)) if self._open(r, k)]
            r.scale = self._scale(r)
            try:
                optimistic = solve(r.problem, self.costs(r, self._bound))
            except ValueError:
                why = "; ".join(f"{k}: {m}" for k, m in sorted(self.bench.messages.items()))
                raise RuntimeError(f"no choice of kernels works on this device: {why}") from None
            r.lower = optimistic.bound
            likely = self._likely(r, new)
        self._settle(r)
        close = r.gap <= self.stop_gap
        wanted = [] if close else self._new_kernels(r, [*likely, optimistic], set(new))
        tuned = self._slow_kernels(r, likely)
        if not wanted and not tuned:
            r.done = True
            return
        before = {t.form.text: t.best() for t, _ in tuned}
        deadline = None if r.best is None else self.budget
        most = max(self._estimate(r, k) for c in (*likely, optimistic) for k in c.kernels)
        self.bench.measure([*wanted, *tuned], limit=max(2.0, 20 * most), deadline=deadline)
        for t, _ in tuned:
            old, now = before[t.form.text], t.best()
            gain = old is None or (now is not None and now[1] < 0.98 * old[1])
            r.stale[t.form.text] = 0 if gain else r.stale.get(t.form.text, 0) + 1
        self._check_bounds()
        self._settle(r)

    def _likely(self, r: Region, new: list[int]) -> list[Cover]:
        """Covers that are cheap by the model, which prices a kernel once a cover asks for it."""
        while True:
            covers = diverse(r.problem, self.costs(r, self._estimate), new, 2)
            fresh = {k for c in covers for k in c.kernels if k not in r.models and self._open(r, k)}
            if not fresh:
                return covers
            for k in sorted(fresh):
                r.models[k] = self._model(r, k)

    def _model(self, r: Region, k: int) -> float:
        tuned = self.known(r, k)
        name = text(tuned.guesses()[0])
        try:
            likely = self._likely_time(self.bench.program(tuned, name))
        except (ValueError, NotImplementedError):  # found again, and recorded, when it is measured
            return r.bounds[k]
        return max(likely, r.bounds[k])

    def _likely_time(self, program: TileProgram) -> float:
        return likely_time(program, self.calibration)

    def _scale(self, r: Region) -> float:
        """How much longer kernels of this segment take than the model says, by their median."""
        known = [(self._time(r, k), m) for k, m in r.models.items()]
        ratios = [t / m for t, m in known if 0 < t < math.inf and m > 0]
        return min(max(statistics.median(ratios), 1.0), 8.0) if ratios else 1.0

    def _new_kernels(
        self, r: Region, covers: list[Cover], new: set[int]
    ) -> list[tuple[Tuned, int]]:
        """Unmeasured kernels, costliest first; all of the first cover while none is whole."""
        wanted: dict[str, tuple[Tuned, int]] = {}
        for number, cover in enumerate(covers):
            for k in sorted(cover.kernels, key=lambda k: (-self._estimate(r, k), k)):
                if k in new and ((r.best is None and number == 0) or len(wanted) < KERNELS):
                    count = 1 if r.forms[k].kernel.weights_only else FIRST
                    count = FUSED if r.found.candidates[k].reductions > 1 else count
                    wanted.setdefault(r.forms[k].text, (self.known(r, k), count))
        return list(wanted.values())

    def _slow_kernels(self, r: Region, likely: list[Cover]) -> list[tuple[Tuned, int]]:
        """Kernels to tune: of the best cover, and of covers that would be better if tuned."""
        if r.best is None:
            return []
        slack: dict[str, tuple[float, int]] = {}
        for k in dict.fromkeys(k for c in (r.best, *likely) for k in c.kernels):
            stale = r.stale.get(r.forms[k].text, 0) >= PATIENCE
            if r.bounds[k] > 0 and not stale and not self._open(r, k):
                slack[r.forms[k].text] = (self._time(r, k) - r.bounds[k], k)
        order = sorted(slack.values(), key=lambda s: (-s[0], s[1]))
        return [(self.known(r, k), TUNE) for s, k in order[:2] if s > 0.01 * r.best.cost]

    def _settle(self, r: Region) -> None:
        """The best cover of what is measured."""
        with self.clock.phase("cover"):
            try:
                r.best = solve(r.problem, self.costs(r, self._time))
            except ValueError:  # some value has no measured producer yet
                r.best = None

    def _check_bounds(self) -> None:
        """A measurement below its bound: looser rates from now on, and no certificate."""
        while (factors := self._beaten()) != (1.0, 1.0):
            self.void = self.void or max(factors) > 1.02
            self.calibration = loosen(self.calibration, *(f * 1.01 for f in factors))
            for r in self.regions:
                r.bounds = _bounds(r.work, r.found, self.calibration)
                r.lower = 0.0

    def _beaten(self) -> tuple[float, float]:
        """How far bounds that are mostly work, and mostly launch, are above what was measured."""
        rates = launch = 1.0
        for r in self.regions:
            for k, b in enumerate(r.bounds):
                over = b / self._time(r, k) if b > 0 else 0.0
                if over > 1.0 and b < 2 * LAUNCH * self.calibration.launch:
                    launch = max(launch, over)
                elif over > 1.0:
                    rates = max(rates, over)
        return rates, launch

    # ---- costs of candidates ----

    def known(self, r: Region, k: int) -> Tuned:
        return self.bench.known(r.forms[k])

    def costs(self, r: Region, price: Callable[[Region, int], float]) -> list[float]:
        return [price(r, k) for k in range(len(r.forms))]

    def _time(self, r: Region, k: int) -> float:
        """Measured seconds; infinite where there are none."""
        best = self.known(r, k).best()
        return math.inf if best is None else best[1]

    def _bound(self, r: Region, k: int) -> float:
        return r.bounds[k] if self._open(r, k) else self._time(r, k)

    def _estimate(self, r: Region, k: int) -> float:
        """Likely seconds: by the model, or as measured, with hope while little is tried."""
        if self._open(r, k):
            return max(r.models.get(k, 0.0) * r.scale, r.bounds[k])
        time, tuned = self._time(r, k), self.known(r, k)
        enough = ENOUGH if r.found.candidates[k].reductions > 1 else ENOUGH // 2
        if tuned.failed or len(tuned.outcomes) >= enough or r.stale.get(r.forms[k].text, 0):
            return time
        return min(time, max(HOPE * time, r.bounds[k]))

    def _open(self, r: Region, k: int) -> bool:
        """Not measured, and not given up."""
        tuned = self.known(r, k)
        return tuned.best() is None and not tuned.failed

    # ---- results ----

    def _tell(self) -> None:
        if self.progress is None:
            return
        bests = [r.best.cost * r.work.count for r in self.regions if r.best is not None]
        whole = len(bests) == len(self.regions)
        self.progress(
            Progress(
                sum(r.work.count for r in self.regions),
                sum(len(r.forms) for r in self.regions),
                sum(t.fresh > 0 for t in self.bench.tuned.values()),
                sum(bests) if whole else None,
                sum(r.lower * r.work.count for r in self.regions),
                self.clock.elapsed(),
            )
        )

    def _found(self) -> Found:
        with self.clock.phase("cover"):
            for r in self.regions:
                r.choices = r.choices or self._choices(r)
        cost = sum(r.choices[0].seconds * r.work.count for r in self.regions)
        lower = sum(r.lower * r.work.count for r in self.regions)
        tuned = self.bench.tuned.values()
        noise = self.bench.noise
        return Found(
            tuple(tuple(r.choices) for r in self.regions),
            sum(len(r.forms) for r in self.regions),
            sum(t.best() is not None for t in tuned),
            sum(len(t.outcomes) for t in tuned),
            None if self.void or cost <= 0 else max(0.0, 1 - lower / cost),
            statistics.median(noise) if noise else 0.0,
            self.void,
            tuple(n for r in self.regions for n in r.found.capped),
            dict(sorted(self.bench.rejected.items())),
            dict(sorted(self.bench.messages.items())),
            self.clock.seconds(),
        )

    def _choices(self, r: Region) -> list[Choice]:
        costs = self.costs(r, self._time)
        covers = diverse(r.problem, costs, range(len(costs)), 3, penalty=1.1)
        return [Choice(tuple(self._chosen(r, k) for k in c.kernels), c.cost) for c in covers]

    def _chosen(self, r: Region, k: int, schedule: str | None = None) -> Chosen:
        """The kernel with its best schedule, or the one given."""
        tuned, form = self.known(r, k), r.forms[k]
        best = tuned.best()
        assert best is not None
        name, seconds = best if schedule is None else (schedule, tuned.outcomes[schedule].seconds)
        program = self.bench.program(tuned, name)
        return Chosen(program, form.buffers, _name(form), name, seconds or 0.0, r.bounds[k])


def _name(form: Canonical) -> str:
    return digest("\n".join([form.text, *(b.name for b in form.buffers)]))
