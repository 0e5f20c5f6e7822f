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
from dataclasses import dataclass
from functools import partial
from typing import Any

from lambent.algebra.egraph import Saturated
from lambent.backends.base import Calibration
from lambent.kernel.rewrite import merged
from lambent.kernel.tile import TileProgram
from lambent.search.bound import LAUNCH, Bounder, prices
from lambent.search.canonical import Canonical, canonical
from lambent.search.cover import Cover, Problem, diverse, solve
from lambent.search.database import Database, digest
from lambent.search.enumerate import enumerate_kernels
from lambent.search.loops import changes, loops
from lambent.search.tuning import LAST, Bench, Clock, Tuned

STOP_GAP = 0.05
KEEP = 24  # ways to compute a value that enumeration keeps
FIRST = 2  # schedules of a kernel measured for the first time
FUSED = 4  # the same with several reductions inside: they need other tiles than each alone
KERNELS = 6  # new kernels a step
TUNE = 6  # schedules a step for the slowest kernels of the best cover
HOPE = 0.6  # tuning is hoped to bring a kernel to this share of its time
USUAL = 0.1  # the share of kernels whose modelled time is fewer times their bound than hoped for
PRICING = 0.5  # the share of the budget before which the model may price kernels of first covers
HOPELESS = 10  # times the likely cover's time: a kernel that the model says takes longer is left
PATIENCE = 3  # rounds of tuning a kernel without a gain, after which it is left alone


@dataclass(frozen=True, slots=True)
class Work:
    """A segment to search, how many times the program runs it, and seconds that a byte costs that
    is stored inside of it."""

    saturated: Saturated
    count: int = 1
    rent: float = 0.0


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
    """A kernel of a cover, under a schedule. `rivals`: others that make the same value."""

    program: TileProgram
    entry: Entry
    rivals: tuple[Entry, ...]
    schedule: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Choice:
    """A cover with its schedules; `seconds` is the sum of isolated times."""

    kernels: tuple[Chosen, ...]

    @property
    def seconds(self) -> float:
        return sum(k.seconds for k in self.kernels)


@dataclass(frozen=True, slots=True)
class Found:
    """`regions`: for each work its choices, best first. `gap` is None where no bound is proved.

    before: for each work what an earlier search chose, where it is known and not the best again.
    told: what else is said of the search, by name.
    """

    regions: tuple[tuple[Choice, ...], ...]
    before: tuple[Choice, ...]
    gap: float | None
    void: bool
    interrupted: bool
    told: dict[str, Any]


@dataclass(slots=True)
class Entry:
    """A candidate at its place, and what is known of it: times in seconds, infinite if unknown.

    `form.buffers` are those of its place in the segment, outputs then inputs.
    """

    form: Canonical
    roots: tuple[int, ...]  # the stored values that it makes
    reductions: int
    basic: bool
    bound: float
    tuned: Tuned
    rent: float  # what storing its result costs beside

    @property
    def name(self) -> str:
        """A hash of the kernel's canonical text and its buffers."""
        return digest("\n".join([self.form.text, *(b.name for b in self.form.buffers)]))

    @property
    def open(self) -> bool:
        """Not measured, and not given up."""
        return self.tuned.best() is None and not self.tuned.failed

    @property
    def time(self) -> float:
        best = self.tuned.best()
        return math.inf if best is None else best[0]

    @property
    def cost(self) -> float:
        return self.time + self.rent

    @property
    def least(self) -> float:
        """What it may cost at least."""
        return self.bound + self.rent if self.open else self.cost

    def estimate(self, scale: float, usual: float, late: bool = False) -> float:
        """By the model, or as measured; with hope until tuning fails, for what the model says too:
        one disturbed measurement is no verdict.

        usual: times its bound is what the model was not asked for; late: that is no choice any
        more, unless it is basic.
        """
        if self.open and self.tuned.likely is None:
            return self.bound * usual * (1e3 if late and not self.basic else 1.0)
        if self.open:
            return max((self.tuned.likely or 0.0) * scale, self.bound)
        if self.tuned.failed or self.tuned.stale:
            return self.time
        hoped = min(HOPE * self.time, (self.tuned.likely or math.inf) * scale)
        return min(self.time, max(hoped, self.bound))


@dataclass(slots=True)
class Region:
    """The state of one segment. `lower`: no cover costs less."""

    work: Work
    entries: list[Entry]
    problem: Problem
    capped: tuple[str, ...]
    lower: float = 0.0
    best: Cover | None = None
    stepped: bool = False  # it had a step of this search
    whole: bool = False  # a cover is measured, with what this search pays for storing in mind
    done: bool = False

    @property
    def cost(self) -> float:
        return math.inf if self.best is None else self.best.cost

    def estimates(self, late: bool = False) -> list[float]:
        """What kernels are likely to take: the model, times how far it was off by the median.

        late: what the model was not asked for comes last, but for basic kernels.
        Kernels of several results come in once there is a cover without: it is quicker measured.
        """
        known = [(e.time, e.tuned.likely) for e in self.entries if e.time < math.inf]
        ratios = [t / likely for t, likely in known if t and likely]
        scale = min(max(statistics.median(ratios), 1.0), 8.0) if ratios else 1.0
        priced = [e.tuned.likely / e.bound for e in self.entries if e.bound and e.tuned.likely]
        usual = sorted([1.0, *priced])[int(USUAL * len(priced))]
        return [
            e.estimate(scale, usual, late) + e.rent + LAST * (not self.best and len(e.roots) > 1)
            for e in self.entries
        ]

    def settle(self) -> None:
        """The best cover of what is measured."""
        try:
            self.best = solve(self.problem, [e.cost for e in self.entries])
        except ValueError:  # some value has no measured producer yet
            self.best = None
        self.whole = self.best is not None and (self.stepped or not self.work.rent)


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
    settled: bool = False,
) -> Found:
    """The best covers of all segments that the budget (seconds) lets us find.

    The first complete cover is measured even if that takes longer than the budget; all else is
    over when the budget is.

    Args:
        known: what `remembered` made of an earlier choice.
        settled: that is taken as it is, and nothing is measured.

    Raises:
        RuntimeError: kernels that the outputs need all failed; the message says why.
        KeyboardInterrupt: interrupted before there is anything to return.
    """
    rates = backend.calibrate()
    model = partial(backend.likely, rates=rates)
    read = sum(w.count * sum(b.bytes for b in w.saturated.buffers.values()) for w in works)
    cold = " cold" * any(size < read for size, _ in rates.levels[-2:-1])  # than all caches hold
    bench = Bench(backend, db, symbols or {}, clock or Clock(), seed, model, cold)
    driver = _Driver(bench, rates, [_region(w, rates, bench) for w in works])
    before = driver.recall(known) if known else []
    if settled and before:
        return driver.found([[choice] for choice in before])
    driver.run(budget, stop_gap, progress or (lambda state: None))
    bench.learn()
    with bench.clock.phase("cover"):
        best = list(map(driver.choices, driver.regions))
    return driver.found(best, before if remembered([b for b, *_ in best]) != known else [])


def remembered(choices: Sequence[Choice]) -> str:
    """Choices as text, for the database: of each kernel its name and schedule."""
    return json.dumps([[[k.entry.name, k.schedule] for k in c.kernels] for c in choices])


def _region(work: Work, rates: Calibration, bench: Bench) -> Region:
    """Enumerate a segment and bound its candidates, those of several results last."""
    with bench.clock.phase("enumerate"):
        s = work.saturated
        arrays = [*s.buffers.values(), *(r.buffer for r in s.roots)]
        found = enumerate_kernels(s, prices(rates, sum(b.bytes for b in arrays), work.rent), KEEP)
        outputs = tuple(i for i, stored in enumerate(found.stored) if stored.output)
        bounder, entries = Bounder(rates, s.extents), list[Entry]()
        candidates = (*found.candidates, *loops(found.candidates, bounder))
        changed = {c.root for c in found.candidates if changes(c.kernel)}
        for c in candidates:
            form, made = canonical(merged(c.kernel)), [found.stored[root] for root in c.roots]
            rent = work.rent * sum(m.buffer.bytes for m in made if not m.output)
            if changed.intersection(c.roots) and not changes(c.kernel):  # it may have to be copied
                rent += 2 * sum(m.buffer.bytes for m in made) / rates.levels[-1][1]
            bound, known = bounder.bound(c.kernel), bench.known(form)
            entries.append(Entry(form, c.roots, c.reductions, c.basic, bound, known, rent))
        return Region(work, entries, Problem(candidates, outputs), found.capped)


@dataclass(slots=True)
class _Driver:
    bench: Bench
    rates: Calibration
    regions: list[Region]
    void: bool = False
    interrupted: bool = False

    def recall(self, known: str) -> list[Choice]:
        """The remembered choice of each region; none if they are not all there."""
        choices: list[Choice] = []
        for r, kernels in zip(self.regions, json.loads(known), strict=True):
            named = {e.name: e for e in r.entries}
            if any(n not in named or not named[n].tuned.works(s) for n, s in kernels):
                return []
            choices.append(Choice(tuple(self.chosen(r, named[n], s) for n, s in kernels)))
            r.lower = solve(r.problem, [e.least for e in r.entries]).bound
            r.settle()
        return choices

    def run(self, budget: float, stop_gap: float, tell: Callable[[Progress], None]) -> None:
        try:
            while todo := [r for r in self.regions if not r.done]:
                missing = [r for r in todo if not r.whole]
                if not missing and self.bench.clock.elapsed() >= budget - self.rest():
                    break
                # where better kernels may still win the most seconds of a run
                most = max(todo, key=lambda r: r.work.count * (r.cost - r.lower))
                self.step(most, budget, stop_gap)
                tell(self.progress())
        except KeyboardInterrupt:
            if any(r.best is None for r in self.regions):
                raise
            self.interrupted = True

    def rest(self) -> float:
        """Seconds that compiling the best covers will take, alone and not beside others; and those
        in which another measurement would not be nearer to an end than to its beginning."""
        best = {r.entries[k].form.text for r in self.regions if r.best for k in r.best.kernels}
        each = self.bench.clock.spent["compile"] / max(1, self.bench.tried)
        return len(best) * 4 / self.bench.backend.lanes * each + self.bench.pace / 2

    def step(self, r: Region, budget: float, stop_gap: float) -> None:
        """Solve, measure what is new in the covers, tune what the best one is slow in."""
        with self.bench.clock.phase("cover"):
            try:
                optimistic = solve(r.problem, [e.least for e in r.entries])
            except ValueError:
                why = "; ".join(f"{k}: {m[-1]}" for k, m in sorted(self.bench.rejected.items()))
                raise RuntimeError(f"no choice of kernels works on this device: {why}") from None
            r.lower = optimistic.bound
            likely = self.likely(r, PRICING * budget)
            r.settle()
        covers = [*likely, optimistic] if r.best else likely
        new = {} if r.cost * (1 - stop_gap) <= r.lower else self.new_kernels(r, covers)
        slow = self.slow_kernels(r, likely)
        if not new and not slow:
            r.done = True
            return
        times = [t.best() for t in slow]
        estimates = r.estimates()
        limit = max(2.0, *(20 * estimates[k] for c in covers for k in c.kernels))
        deadline = budget - self.rest() if r.whole else math.inf
        tune = max(TUNE, self.bench.backend.lanes)
        self.bench.measure([*new.values(), *((t, tune) for t in slow)], limit, deadline)
        for t, before in zip(slow, times, strict=True):
            now = t.best()
            gain = before and now and now[0] < 0.98 * before[0]
            t.stale = 0 if gain else t.stale + 1
        self.check_bounds()
        r.stepped = True
        with self.bench.clock.phase("cover"):
            r.settle()

    def likely(self, r: Region, deadline: float) -> list[Cover]:
        """Covers that are cheap by the model, which prices a kernel once a cover asks for it.

        A segment without a cover may use its share of the time to the deadline, or of 2 seconds.
        """
        new = [k for k, e in enumerate(r.entries) if e.open]
        now, missing = self.bench.clock.elapsed(), sum(o.best is None for o in self.regions)
        until = now + max(2.0, deadline - now) / missing if r.best is None else math.inf
        while True:
            late = self.bench.clock.elapsed() >= until
            covers = diverse(r.problem, r.estimates(late), new, 2)
            asked = [r.entries[k] for c in covers for k in c.kernels]
            fresh = [e for e in asked if e.open and e.tuned.likely is None]
            if late or not fresh:
                return covers
            for e in fresh:
                if self.bench.clock.elapsed() < until:
                    self.bench.likely(e.tuned)

    def new_kernels(self, r: Region, covers: list[Cover]) -> dict[str, tuple[Tuned, int]]:
        """Unmeasured kernels, costliest first.

        While no cover is whole the first cover comes whole, with the schedules that the backend
        compiles in the time of one: the budget may be over before that is measured.
        """
        wanted: dict[str, tuple[Tuned, int]] = {}
        estimates = r.estimates()
        most = HOPELESS * sum(estimates[k] for k in covers[0].kernels)
        for cover in covers:
            if sum(r.entries[k].least for k in cover.kernels) >= r.cost:
                continue  # no measurement can make it the best
            for k in sorted(cover.kernels, key=lambda k: (-estimates[k], k)):
                e = r.entries[k]
                if not e.open or self.bench.likely(e.tuned) > most:
                    continue
                if len(wanted) < KERNELS or (cover is covers[0] and not r.whole):
                    first = r.best is None or e.tuned.form.given.weights_only
                    each = -(-self.bench.backend.lanes // len(cover.kernels))
                    count = each if first else FUSED if e.reductions > 1 else FIRST
                    wanted.setdefault(e.form.text, (e.tuned, count))
        return wanted

    def slow_kernels(self, r: Region, likely: list[Cover]) -> list[Tuned]:
        """Kernels to tune: of the best cover, and of covers that would be better if tuned."""
        if r.best is None:
            return []
        slack: dict[str, tuple[float, int]] = {}
        for k, e in ((k, r.entries[k]) for c in (r.best, *likely) for k in c.kernels):
            if e.bound > 0 and e.tuned.stale < PATIENCE and not e.open:
                slack[e.form.text] = (e.bound - e.time, k)
        worst = sorted(slack.values())[:2]
        return [r.entries[k].tuned for s, k in worst if -s > 0.01 * r.best.cost]

    def check_bounds(self) -> None:
        """A measurement below its bound: looser ones for all of its kind, and no certificate.

        The kinds are kernels that do little but start, and all others.
        """
        every = [e for r in self.regions for e in r.entries if e.bound > 0]
        little = 2 * LAUNCH * self.rates.launch
        for kind in (True, False):
            alike = [e for e in every if (e.bound < little) == kind]
            over = max((e.bound / e.time for e in alike), default=0.0)
            if over > 1.0:
                self.void = self.void or over > 1.02
                for e in alike:
                    e.bound /= over * 1.01
                for r in self.regions:
                    r.lower = 0.0

    # ---- results ----

    def total(self, what: Callable[[Region], float]) -> float:
        """Seconds of the whole program."""
        return sum(what(r) * r.work.count for r in self.regions)

    def progress(self) -> Progress:
        best = self.total(lambda r: r.cost)
        return Progress(
            sum(r.work.count for r in self.regions), sum(len(r.entries) for r in self.regions),
            sum(t.fresh > 0 for t in self.bench.tuned.values()), best if best < math.inf else None,
            self.total(lambda r: r.lower), self.bench.clock.elapsed(),
        )  # fmt: skip

    def found(self, choices: list[list[Choice]], before: Sequence[Choice] = ()) -> Found:
        cost, lower = self.total(lambda r: r.cost), self.total(lambda r: r.lower)
        tuned, rejected = self.bench.tuned.values(), sorted(self.bench.rejected.items())
        told = {
            "candidates": sum(len(r.entries) for r in self.regions),
            "measured": sum(t.best() is not None for t in tuned),
            "schedules": sum(len(t.outcomes) for t in tuned),
            "noise": statistics.median(self.bench.noise or [0.0]),
            "capped": tuple(name for r in self.regions for name in r.capped),
            "rejected": {why: len(messages) for why, messages in rejected},
            "rejected_because": {why: messages[-1] for why, messages in rejected},
            "seconds": self.bench.clock.seconds(),
        }
        gap = None if self.void or cost <= 0 else max(0.0, 1 - lower / cost)
        regions = tuple(map(tuple, choices))
        return Found(regions, tuple(before), gap, self.void, self.interrupted, told)

    def choices(self, r: Region) -> list[Choice]:
        """The best covers, best first."""
        costs = [e.cost for e in r.entries]
        covers = diverse(r.problem, costs, range(len(costs)), 3, penalty=1.1)
        return [Choice(tuple(self.chosen(r, r.entries[k]) for k in c.kernels)) for c in covers]

    def chosen(self, r: Region, e: Entry, schedule: str = "") -> Chosen:
        """The kernel with its best schedule, or the one given."""
        schedule = schedule or (e.tuned.best() or (0.0, ""))[1]
        program = self.bench.program(e.tuned, schedule)
        rivals = tuple(x for x in r.entries if {*x.roots} & {*e.roots} and x is not e)
        return Chosen(program, e, rivals, schedule, e.tuned.outcomes[schedule].seconds or 0.0)
