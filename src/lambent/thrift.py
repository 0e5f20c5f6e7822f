"""A limit of memory: the search is asked again with a higher price of storing, until it fits.

A byte that is stored costs a rent, in seconds, beside the time of the kernel that stores it, so
that covers that compute a value again compete with those that keep it; and a backward pass may
compute again what it needs of the forward pass, from the values between layers alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar


@dataclass(frozen=True, slots=True)
class Thrift:
    """rent: seconds for each byte that is stored. again: sums of the forward pass, which a backward
    pass needs, are computed again there."""

    rent: float = 0.0
    again: bool = False


THRIFTS = (Thrift(), Thrift(1e-9), Thrift(1e-6, True))
"""What is tried, most wasteful first."""
SAME = 1.03  # programs whose costs differ by less are told apart by the memory they take


def cheapest(times: Sequence[float], arenas: Sequence[int], thrift: Thrift) -> int:
    """The number of the program that costs least, given seconds and bytes of each."""
    costs = [t + thrift.rent * a for t, a in zip(times, arenas, strict=True)]
    alike = [i for i, cost in enumerate(costs) if cost <= SAME * min(costs)]
    return min(alike, key=lambda i: (arenas[i], times[i]))


class Sized(Protocol):
    narrower: Sequence[Any]

    def arena_bytes(self) -> int: ...


P = TypeVar("P", bound=Sized)


def within(limit: int | None, budget: float, make: Callable[..., P]) -> P:
    """The program of the least thrift whose intermediates take at most `limit` bytes.

    Args:
        make: from a thrift and the seconds that its search may take.

    Raises:
        ValueError: none does; says the least that was found.
    """
    found: list[int] = []
    for thrift in THRIFTS if limit is not None else THRIFTS[:1]:
        program = make(thrift, budget=budget / (1 if limit is None else len(THRIFTS)))
        found.append(max(p.arena_bytes() for p in (program, *program.narrower)))
        if limit is None or found[-1] <= limit:
            return program
    raise ValueError(
        f"compile: no program was found whose intermediates fit in memory_limit={limit} bytes; the "
        f"least takes {min(found)}. Give that, or a smaller batch"
    )
