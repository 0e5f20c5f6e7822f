"""Measuring kernels: schedules of several kernels share one compilation, are verified, then timed.

Every result goes to the database at once. The first guesses are tried first, then samples of the
kernel's moves; later rounds try the neighbours of the best. Of the schedules that verify, those far
slower than the best at a first look are not timed again (successive halving on measured time).
"""

from __future__ import annotations

import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass, field
from functools import cached_property, partial
from random import Random
from typing import Any

from lambent.backends.base import Backend, Batch, Outcome
from lambent.kernel.cases import cases
from lambent.kernel.kernel import Kernel
from lambent.kernel.lower import lower
from lambent.kernel.schedule import neighbours, sample, sized, unsized
from lambent.kernel.tile import Schedule, TileProgram
from lambent.search.canonical import Canonical
from lambent.search.database import Database, Like, sizes_text

BATCH = 12  # schedules compiled together
POOL = 3  # proposals that the model sees for each that is measured
REPEATS = 5  # timed runs of a schedule that may be the best
GIVE_UP = 6  # failed schedules after which a kernel is not tried again
LIBRARY = "library"  # the option of a schedule that calls one
FAR = 1.3  # a schedule this much slower than the best of its kernel is not timed again
LAST = 1e3  # seconds: what else there is comes first
PACE = 0.2  # seconds to compile and measure a schedule, before any was
TRYING = ("compile", "verify", "measure")
PHASES = ("saturate", "enumerate", "cover", "lower", *TRYING, "rest")


@dataclass(slots=True)
class Clock:
    """Seconds by phase; `rest` is what no phase accounts for."""

    start: float = field(default_factory=time.monotonic)
    spent: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        begin = self.elapsed()
        try:
            yield
        finally:
            self.spent[name] += self.elapsed() - begin

    def elapsed(self) -> float:
        return time.monotonic() - self.start

    def seconds(self) -> dict[str, float]:
        return {**self.spent, "rest": max(0.0, self.elapsed() - sum(self.spent.values()))}


@dataclass
class Tuned:
    """What is known of one canonical kernel: its schedules, by text, and what became of them."""

    form: Canonical
    outcomes: dict[str, Outcome]
    random: Random
    backend: Backend
    like: Like
    programs: dict[str, TileProgram] = field(default_factory=dict)
    fresh: int = 0  # schedules measured in this run
    stale: int = 0  # rounds of tuning without a gain
    spent: bool = False  # every schedule that the moves can make was tried
    likely: float | None = None  # modelled seconds

    @cached_property
    def guesses(self) -> list[Schedule]:
        """What is tried first, in this order: what served its kind comes second."""
        found: list[Schedule] = self.backend.guesses(self.form.kernel)
        if self.like.schedule:
            found.insert(1, sized(read_schedule(self.like.schedule), self.form.kernel))
        return list({text(s): s for s in found}.values())

    @cached_property
    def written_out(self) -> Kernel:
        """The kernel as it is lowered, under every schedule."""
        return cases(self.form.kernel)

    def best(self, library: bool = True) -> tuple[float, str] | None:
        """The least seconds and their schedule; ties by text. At load any verified one will do.

        Args:
            library: schedules that call a library count too.
        """
        once = self.form.given.weights_only
        tried = [(o.seconds or 0.0, s) for s, o in self.outcomes.items() if o.status == "ok"]
        able = [(t, s) for t, s in tried if library or LIBRARY not in s]
        return min((found for found in able if found[0] or once), default=None)

    def works(self, schedule: str) -> bool:
        """It was verified."""
        return schedule in self.outcomes and self.outcomes[schedule].status == "ok"

    @property
    def failed(self) -> bool:
        """No schedule works, of as many as are tried."""
        return (self.spent or len(self.outcomes) >= GIVE_UP) and self.best() is None

    def proposals(self, count: int) -> list[Schedule]:
        """Untried schedules: the first guesses, then neighbours of the best, then samples."""
        best = self.best(library=False)
        base = self.guesses[0] if best is None else read_schedule(best[1])
        table = self.backend.moves(self.form.kernel)
        near = [n for n in neighbours(base, table) if text(n) not in self.outcomes] if best else []
        self.random.shuffle(near)
        samples = [sample(base, table, self.random) for _ in range(4 * count)]
        listed = {text(s): s for s in (*self.guesses, *near[: (count + 1) // 2], *samples)}
        found = [s for name, s in listed.items() if name not in self.outcomes]
        self.spent = not found
        return found[:count]


def text(schedule: Schedule) -> str:
    """The schedule as text, from which `read_schedule` makes it again."""
    return json.dumps(astuple(schedule), separators=(",", ":"))


def read_schedule(given: str) -> Schedule:
    def frozen(x: Any) -> Any:
        return tuple(map(frozen, x)) if isinstance(x, list) else x

    return Schedule(*frozen(json.loads(given)))


Job = tuple[Tuned, str]  # a kernel, and a schedule to try
Begun = tuple[list[Job], "Future[Batch]"]  # jobs that are being compiled together


@dataclass(slots=True)
class Bench:
    """Where kernels are measured. `backend` is a `base.Backend`; `model` orders what is tried.

    cold: " cold" where what kernels read is in no cache when they start, beside the sizes.
    rejected: messages of the schedules that were not used, by reason.
    """

    backend: Backend
    db: Database
    symbols: Mapping[str, int]
    clock: Clock
    seed: int
    model: Callable[[TileProgram], float]
    cold: str = ""
    tuned: dict[str, Tuned] = field(default_factory=dict)
    rejected: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    noise: list[float] = field(default_factory=list)
    tried: int = 0

    @property
    def pace(self) -> float:
        """Seconds to compile and measure a schedule."""
        return sum(self.clock.spent[p] for p in TRYING) / self.tried if self.tried else PACE

    def known(self, form: Canonical) -> Tuned:
        """The record of a kernel, with what the database has of it."""
        if form.text not in self.tuned:
            outcomes = self.db.get(form.text, sizes_text(self.symbols) + self.cold)
            served, random = self.db.like(form.kind), Random(self.seed)
            self.tuned[form.text] = Tuned(form, outcomes, random, self.backend, served)
        return self.tuned[form.text]

    def learn(self) -> None:
        """Tell the database what the kernels of this run say of others of their kinds."""
        for tuned in self.tuned.values():
            best = tuned.best(library=False)
            if tuned.fresh and best and tuned.likely:
                served = text(unsized(read_schedule(best[1]), tuned.form.kernel))
                like = Like(served, tuned.like.ratio * best[0] / tuned.likely)
                self.db.put_like(tuned.form.kind, like)

    def program(self, tuned: Tuned, schedule: str) -> TileProgram:
        """The kernel under a schedule.

        Raises:
            ValueError, NotImplementedError: it cannot be lowered so.
        """
        if schedule not in tuned.programs:
            with self.clock.phase("lower"):
                tuned.programs[schedule] = lower(tuned.written_out, read_schedule(schedule))
        return tuned.programs[schedule]

    def likely(self, tuned: Tuned) -> float:
        """Modelled seconds of the first guess, times how far the model was off for its kind.

        Very many where it makes no legal program.
        """
        if tuned.likely is None:
            try:
                first = self.program(tuned, text(tuned.guesses[0]))
                tuned.likely = self.model(first) * tuned.like.ratio
            except (ValueError, NotImplementedError):
                tuned.likely = LAST
        return tuned.likely

    def measure(
        self, wanted: Sequence[tuple[Tuned, int]], limit: float, deadline: float = math.inf
    ) -> None:
        """Try so many new schedules of each kernel, until the clock shows the deadline.

        While some are measured nothing else runs, but for a compiler where that is no disturbance.

        Args:
            limit: seconds that a timed request may take before the kernel is given up.
        """
        jobs = [(tuned, name) for tuned, n in wanted for name in self._promising(tuned, n)]
        with ThreadPoolExecutor(2) as pool:
            begun = self._begin(pool, jobs, deadline)
            while begun:
                with self.clock.phase("compile"):
                    built = [(batch, library.result()) for batch, library in begun]
                begun = self._begin(pool, jobs, deadline) if self.backend.apart else []
                for batch, library in built:
                    with closing(library):
                        self._time(batch, library, limit)
                begun = begun or self._begin(pool, jobs, deadline)

    def _begin(self, pool: Executor, jobs: list[Job], deadline: float) -> list[Begun]:
        """Take from the jobs those that there is time for, and compile them in two batches."""
        left = deadline - self.clock.elapsed()
        number = int(min(2 * BATCH, len(jobs), max(1, left / self.pace))) if left > 0 else 0
        self.tried += number
        batches = jobs[: -(-number // 2)], jobs[-(-number // 2) : number]
        del jobs[:number]
        programs = [(b, [self.program(t, s) for t, s in b]) for b in batches if b]
        return [(b, pool.submit(self.backend.compile, some)) for b, some in programs]

    def _promising(self, tuned: Tuned, count: int) -> list[str]:
        """Of several times as many proposals the likeliest; first guesses come first, in order."""
        times: dict[str, float] = {}
        first = {text(s): n for n, s in enumerate(tuned.guesses, -len(tuned.guesses))}
        for name in map(text, tuned.proposals(POOL * count)):
            if name not in first and len(times.keys() & first) >= count:
                break
            try:
                program = self.program(tuned, name)
                times[name] = first.get(name) or self.model(program)
            except (ValueError, NotImplementedError) as error:
                self._record(tuned, name, Outcome("render", message=str(error)))
        return sorted(times, key=lambda name: (times[name], name))[:count]

    def _time(self, batch: list[Job], library: Batch, limit: float) -> None:
        """Verify all; time once; time those near the best of their kernel again, in turn."""
        measure = partial(self.backend.measure, library, self.symbols, cold=bool(self.cold))
        with self.clock.phase("verify"):
            outcomes = measure(repeats=0, limit=10.0)
        for repeats in (1, REPEATS):
            near = _near(batch, outcomes)
            with self.clock.phase("measure"):
                timed = measure(repeats=repeats, limit=limit, only=near)
            outcomes = [timed[i] if i in near else o for i, o in enumerate(outcomes)]
        for (tuned, schedule), outcome in zip(batch, outcomes, strict=True):
            self._record(tuned, schedule, outcome)

    def _record(self, tuned: Tuned, schedule: str, outcome: Outcome) -> None:
        tuned.outcomes[schedule] = outcome
        tuned.fresh += 1
        if outcome.status != "ok":
            self.rejected[outcome.status].append(outcome.message)
        elif outcome.spread:
            self.noise.append(outcome.spread)
        self.db.put(tuned.form.text, sizes_text(self.symbols) + self.cold, {schedule: outcome})


def _near(batch: Sequence[Job], outcomes: Sequence[Outcome]) -> list[int]:
    """What works, runs more than once, and is not far slower than the best of its kernel."""
    names, good, least = [t.form.text for t, _ in batch], dict[int, float](), dict[str, float]()
    for i, ((tuned, _), o) in enumerate(zip(batch, outcomes, strict=True)):
        if o.status == "ok" and not tuned.form.given.weights_only:
            good[i] = o.seconds or 0.0
            least[names[i]] = min(least.get(names[i], math.inf), good[i])
    return [i for i, seconds in good.items() if seconds <= FAR * least[names[i]]]
