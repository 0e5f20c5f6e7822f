"""What might stand in a chosen kernel's place, and why it does not: told, never used."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lambent.backends.base import Outcome
from lambent.search.driver import Chosen, Entry

MOST = 10  # kernels, and schedules, kept of each chosen kernel
LONG = 200  # characters of a message


@dataclass(frozen=True, slots=True)
class Rejected:
    """Another kernel that makes the same value, or another schedule of the chosen one.

    what:   "kernel" or "schedule".
    status: as of an `Outcome`; "open" for a kernel that was never measured.
    ms:     milliseconds, and the least they could be; None where that is not known.
    """

    what: str
    name: str
    status: str
    ms: float | None
    bound_ms: float | None
    message: str = ""


def rejected(chosen: Chosen) -> tuple[Rejected, ...]:
    """The best kernels of the same value, then the best other schedules; failures stand behind."""
    rivals = map(_kernel, chosen.rivals)
    tried = chosen.entry.tuned.outcomes.items()
    others = [_outcome("schedule", s, o, None) for s, o in tried if s != chosen.schedule]
    return (*sorted(rivals, key=_rank)[:MOST], *sorted(others, key=_rank)[:MOST])


def _kernel(e: Entry) -> Rejected:
    """Named by what it makes from what, and how much it has inside."""
    outputs = len(e.form.given.outputs)
    names = [b.name for b in e.form.buffers]
    name = f"{', '.join(names[:outputs])} from {', '.join(names[outputs:]) or 'nothing'}"
    name += f" ({e.reductions} reduction{'s' * (e.reductions != 1)} inside)"
    best, tried = e.tuned.best(), e.tuned.outcomes
    if best is not None:
        return _outcome("kernel", name, tried[best[1]], e.bound)
    return _outcome("kernel", name, next(iter(tried.values()), Outcome("open")), e.bound)


def _outcome(what: str, name: str, o: Outcome, bound: float | None) -> Rejected:
    ms, least = (None if t is None else t * 1e3 for t in (o.seconds, bound))
    return Rejected(what, name, o.status, ms, least, o.message[:LONG])


def _rank(r: Rejected) -> tuple[float, bool, float, str]:
    """Measured before verified, before open, before failed; ties by name."""
    time = math.inf if r.ms is None else r.ms
    return time, r.status not in ("ok", "open"), r.bound_ms or 0.0, r.name
