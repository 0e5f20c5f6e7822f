"""Measuring kernels: schedules of several kernels share one compilation, are verified, then timed.

Every result goes to the database at once. The first guesses are tried first, then samples of the
kernel's moves; later rounds try the neighbours of the best. Of the schedules that verify, those far
slower than the best at a first look are not timed again (successive halving on measured time).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from lambent.backends.base import Outcome
from lambent.kernel.check import check
from lambent.kernel.lower import lower
from lambent.kernel.schedule import Moves, neighbours, sample
from lambent.kernel.tile import Schedule, TileProgram
from lambent.search.canonical import Canonical
from lambent.search.database import Database, sizes_text

BATCH = 12  # schedules compiled together
POOL = 3  # proposals that the model sees for each that is measured
REPEATS = 5  # timed runs of a schedule that may be the best
GIVE_UP = 6  # failed schedules after which a kernel is not tried again
LIBRARY = ("library", 1)  # the option of a schedule that calls one
FAR = 1.3  # a schedule this much slower than the best of its kernel is not timed again
PHASES = ("saturate", "enumerate", "cover", "lower", "compile", "verify", "measure", "rest")


@dataclass(slots=True)
class Clock:
    """Seconds by phase; `rest` is what no phase accounts for."""

    start: float = field(default_factory=time.monotonic)
    spent: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        begin = time.monotonic()
        try:
            yield
        finally:
            self.spent[name] += time.monotonic() - begin

    def elapsed(self) -> float:
        return time.monotonic() - self.start

    def seconds(self) -> dict[str, float]:
        known = sum(v for k, v in self.spent.items() if k != "rest")
        return {**self.spent, "rest": max(0.0, self.elapsed() - known)}


@dataclass(slots=True)
class Tuned:
    """What is known of one canonical kernel: its schedules and what became of them."""

    form: Canonical
    number: int
    backend: Any
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    programs: dict[str, TileProgram] = field(default_factory=dict)
    fresh: int = 0  # schedules measured in this run
    spent: bool = False  # every schedule that the moves can make was tried
    table: Moves | None = None
    random: Random = field(default_factory=Random)

    def best(self, without: str = "-") -> tuple[str, float] | None:
        """The fastest schedule and its seconds; ties by text. At load any verified one will do.

        Args:
            without: leave out schedules with this option.
        """
        once = self.form.kernel.weights_only
        good = [
            (o.seconds or 0.0, s)
            for s, o in self.outcomes.items()
            if o.status == "ok" and (o.seconds or once) and f'"{without}"' not in s
        ]
        return (min(good)[1], min(good)[0]) if good else None

    @property
    def failed(self) -> bool:
        """No schedule works, of as many as are tried."""
        return (self.spent or len(self.outcomes) >= GIVE_UP) and self.best() is None

    def guesses(self) -> list[Schedule]:
        """What is tried first: the default, and a library's routine where there is one."""
        kernel = self.form.kernel
        first = self.backend.default_schedule(kernel)
        return (
            [first, replace(first, options=(LIBRARY,))]
            if self.backend.has_routine(kernel)
            else [first]
        )

    def proposals(self, count: int) -> list[Schedule]:
        """Untried schedules: the first guesses, then neighbours of the best, then samples."""
        kernel = self.form.kernel
        if self.table is None:
            self.table = self.backend.moves(kernel)
        guesses = self.guesses()
        best = self.best(LIBRARY[0])
        base = guesses[0] if best is None else read_schedule(best[0])
        found = {text(s): s for s in guesses}
        if best is not None:
            near = [n for n in neighbours(base, self.table) if text(n) not in self.outcomes]
            self.random.shuffle(near)
            found.update((text(n), n) for n in near[: (count + 1) // 2])
        for _ in range(4 * count):
            if len(found) >= count + len(self.outcomes):
                break
            s = sample(base, self.table, self.random)
            found.setdefault(text(s), s)
        fresh = [s for t, s in found.items() if t not in self.outcomes]
        self.spent = not fresh
        return fresh[:count]


def text(schedule: Schedule) -> str:
    """The schedule as text, from which `read_schedule` makes it again."""
    s = schedule
    return json.dumps([s.tiles, s.order, s.grid, s.block, s.options], separators=(",", ":"))


def read_schedule(given: str) -> Schedule:
    tiles, order, grid, block, options = json.loads(given)
    pairs = tuple((int(a), int(t)) for a, t in tiles)
    named = tuple((str(k), int(v)) for k, v in options)
    return Schedule(pairs, tuple(order), grid, (block[0], block[1]), named)


@dataclass(slots=True)
class Bench:
    """Where kernels are measured. `backend` is a `base.Backend`.

    rejected: how many schedules were not used, by reason; the last message of each.
    """

    backend: Any
    db: Database
    symbols: Mapping[str, int]
    clock: Clock
    seed: int = 0
    cold: bool = False
    likely: Callable[[TileProgram], float] | None = None  # orders what is tried
    limit: float = 10.0
    tuned: dict[str, Tuned] = field(default_factory=dict)
    rejected: dict[str, int] = field(default_factory=dict)
    messages: dict[str, str] = field(default_factory=dict)
    noise: list[float] = field(default_factory=list)

    @property
    def state(self) -> str:
        """Sizes and cache state: what a measurement depends on beside kernel and schedule."""
        return sizes_text(self.symbols) + (" cold" if self.cold else "")

    def known(self, form: Canonical) -> Tuned:
        """The record of a kernel, with what the database has of it."""
        found = self.tuned.get(form.text)
        if found is None:
            outcomes = self.db.get(form.text, self.state)
            number = len(self.tuned)
            found = Tuned(form, number, self.backend, outcomes, random=Random(self.seed))
            self.tuned[form.text] = found
        return found

    def program(self, tuned: Tuned, schedule: str) -> TileProgram:
        if schedule not in tuned.programs:
            with self.clock.phase("lower"):
                program = lower(tuned.form.kernel, read_schedule(schedule))
                check(program)
                tuned.programs[schedule] = program
        return tuned.programs[schedule]

    def measure(
        self,
        wanted: Sequence[tuple[Tuned, int]],
        *,
        limit: float = 10.0,
        deadline: float | None = None,
    ) -> None:
        """Try so many new schedules of each kernel, until the clock shows the deadline.

        Args:
            limit: seconds that a timed request may take before the kernel is given up.
        """
        self.limit = limit
        jobs: list[tuple[Tuned, str]] = []
        for tuned, count in wanted:
            jobs += [(tuned, name) for name in self._promising(tuned, count)]
        size = min(BATCH, max(1, -(-len(jobs) // 2)))
        batches = [jobs[i : i + size] for i in range(0, len(jobs), size)]
        for pair in (batches[i : i + 2] for i in range(0, len(batches), 2)):
            if deadline is not None and self.clock.elapsed() >= deadline:
                break
            self._run(pair)

    def _promising(self, tuned: Tuned, count: int) -> list[str]:
        """Of several times as many proposals the likeliest; first guesses come first."""
        more = count if self.likely is None else POOL * count
        guesses = tuned.guesses()
        times: dict[str, float] = {}
        for schedule in tuned.proposals(more):
            name = text(schedule)
            try:
                program = self.program(tuned, name)
            except (ValueError, NotImplementedError) as error:
                self._record(tuned, {name: Outcome("render", message=str(error))})
                continue
            model = None if schedule in guesses else self.likely
            times[name] = model(program) if model else 0.0
        return sorted(times, key=lambda name: (times[name], name))[:count]

    def _run(self, batches: list[list[tuple[Tuned, str]]]) -> None:
        """Compile side by side, then measure with nothing else running."""
        programs = [[self.program(t, s) for t, s in batch] for batch in batches]
        with self.clock.phase("compile"), ThreadPoolExecutor(2) as pool:
            built = list(pool.map(self.backend.compile, programs))
        for batch, library in zip(batches, built, strict=True):
            try:
                self._time(batch, library)
            finally:
                library.close()

    def _time(self, batch: list[tuple[Tuned, str]], library: Any) -> None:
        """Verify all; time once; time those near the best of their kernel again, in turn."""
        with self.clock.phase("verify"):
            outcomes = self._ask(library, 0, None, 10.0)
        good = [
            i for i, (t, _) in enumerate(batch)
            if outcomes[i].status == "ok" and not t.form.kernel.weights_only
        ]  # fmt: skip
        for rung in (1, REPEATS) if good else ():
            with self.clock.phase("measure"):
                timed = self._ask(library, rung, good, self.limit)
            for i in good:
                outcomes[i] = timed[i]
            good = self._near(batch, outcomes, good)
        for (tuned, schedule), outcome in zip(batch, outcomes, strict=True):
            self._record(tuned, {schedule: outcome})

    def _ask(
        self, library: Any, repeats: int, only: list[int] | None, limit: float
    ) -> list[Outcome]:
        found: list[Outcome] = self.backend.measure(
            library, self.symbols, repeats=repeats, cold=self.cold, limit=limit, only=only
        )
        return found

    @staticmethod
    def _near(
        batch: list[tuple[Tuned, str]], outcomes: Sequence[Outcome], good: list[int]
    ) -> list[int]:
        least: dict[int, float] = {}
        for i in good:
            n, t = batch[i][0].number, outcomes[i].seconds or math.inf
            least[n] = min(least.get(n, math.inf), t)
        return [
            i for i in good if (outcomes[i].seconds or math.inf) <= FAR * least[batch[i][0].number]
        ]

    def _record(self, tuned: Tuned, outcomes: dict[str, Outcome]) -> None:
        for name, o in outcomes.items():
            tuned.outcomes[name] = o
            tuned.fresh += 1
            if o.status != "ok":
                self.rejected[o.status] = self.rejected.get(o.status, 0) + 1
                self.messages[o.status] = o.message
            elif o.spread:
                self.noise.append(o.spread)
        self.db.put(tuned.form.text, self.state, outcomes)
