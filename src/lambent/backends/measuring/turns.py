"""Times of several ways to do one thing, in alternation: a busy machine hurts all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

LONG = 0.5
"""Seconds of a run that no other run's caches and threads disturb."""


def alternate(
    runs: Mapping[str, Callable[[], Any]], seconds: float, rounds: tuple[int, int] = (5, 60)
) -> dict[str, float]:
    """The median time of each, in seconds.

    A turn is one run that is not timed (it takes the blow of the neighbour's caches and of its
    threads, which spin for a while after its last run), then runs for 20 ms, at least one; or one
    run that takes longer than such things do.
    The order rotates. Rounds end after `seconds`, but there are at least `rounds[0]`.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    order = list(runs)
    end = time.perf_counter() + seconds
    done = 0
    while done < rounds[1] and (done < rounds[0] or time.perf_counter() < end):
        for name in order:
            times[name].append(_turn(runs[name]))
        order = order[1:] + order[:1]
        done += 1
    return {name: statistics.median(found) for name, found in times.items()}


def _turn(call: Callable[[], Any]) -> float:
    first, found = _seconds(call), list[float]()
    if first > LONG:
        return first
    while not found or (sum(found) < 0.02 and len(found) < 200):
        found.append(_seconds(call))
    return statistics.median(found)


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
