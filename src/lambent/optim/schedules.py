"""Learning rates as graph: functions of the number of updates made (int64, shape ())."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

from lambent.functional.arithmetic import floor_divide, minimum, where
from lambent.functional.mathematics import cos, exp2
from lambent.functional.operands import cast
from lambent.functional.operands import constant as number
from lambent.graph.dtypes import float32
from lambent.graph.tensor import Tensor

Schedule: TypeAlias = Callable[[Tensor], Tensor]


def constant(rate: float) -> Schedule:
    """Always the same."""
    return lambda t: number(float(rate), float32)


def linear(rate: float, steps: int, end: float = 0.0) -> Schedule:
    """From rate to end in so many steps, then end."""
    return lambda t: _part(t, steps) * (end - rate) + rate


def cosine(rate: float, steps: int, end: float = 0.0) -> Schedule:
    """From rate to end along half a cosine in so many steps, then end (arXiv 1608.03983)."""
    return lambda t: (cos(_part(t, steps) * math.pi) + 1.0) * ((rate - end) / 2) + end


def exponential(rate: float, gamma: float) -> Schedule:
    """rate · gamma^t."""
    return lambda t: exp2(cast(t, float32) * math.log2(gamma)) * rate


def stairs(rate: float, size: int, gamma: float = 0.1) -> Schedule:
    """rate · gamma^(t // size)."""
    return lambda t: exponential(rate, gamma)(floor_divide(t, size))


def warmup(then: Schedule, steps: int) -> Schedule:
    """In so many steps evenly up to what `then` starts with, which it then goes on with."""

    def rate(t: Tensor) -> Tensor:
        rising = then(number(0)) * (cast(t + 1, float32) / float(steps))
        return where(t < steps, rising, then(t - steps))

    return rate


def _part(t: Tensor, steps: int) -> Tensor:
    """t / steps, at most 1."""
    if steps < 1:
        raise ValueError(f"schedule: {steps} steps; needs at least 1")
    return minimum(cast(t, float32) / float(steps), 1.0)
