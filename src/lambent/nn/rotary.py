"""Rotary positions (RoFormer, arXiv 2104.09864)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from lambent.functional.mathematics import cos, sin
from lambent.functional.operands import tensor
from lambent.graph.dtypes import float32
from lambent.graph.tensor import Tensor, iota

__all__ = ["Rotary", "rotate"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Rotary:
    """Angles position · base^(−2i / d) of the pairs (i, i + d / 2), and how they are stretched.

    Rows of q and k that a file has pair by pair are put in this order when it is read.

    scaling: "linear": positions divided by `factor`. "llama3": frequencies below
        original / low_freq turns of the original context divided by `factor`, those above
        original / high_freq kept, between them both mixed. "yarn" (arXiv 2309.00071): the same by
        pairs, between the dims that turn beta_fast and beta_slow times, and values times `gain`.
    factors: what divides the frequency of each pair, where a file lists them.
    """

    base: float = 10000.0
    scaling: str = "none"
    factor: float = 1.0
    original: int = 0
    low: float = 1.0
    high: float = 4.0
    gain: float = 1.0
    factors: tuple[float, ...] = ()

    def frequencies(self, d: int) -> Array:
        """Radians a position of each pair, float32 [d / 2]."""
        plain = self.base ** (-np.arange(0, d, 2, dtype=np.float64) / d)
        plain = plain / np.array(self.factors) if self.factors else plain
        if self.scaling == "none":
            return plain.astype(np.float32)
        turns = self.original * plain / (2 * math.pi)
        if self.scaling == "linear":
            kept = np.zeros_like(plain)
        elif self.scaling == "llama3":
            kept = np.clip((turns - self.low) / (self.high - self.low), 0, 1)
        else:
            first, last = (self._pair(d, turns) for turns in (self.high, self.low))
            first, last = max(math.floor(first), 0), min(math.ceil(last), d - 1)
            steps = (np.arange(d // 2) - first) / max(last - first, 1e-3)
            kept = 1 - np.clip(steps, 0, 1)
        return (plain * (kept + (1 - kept) / self.factor)).astype(np.float32)

    def _pair(self, d: int, turns: float) -> float:
        """The pair that turns so many times over the original context."""
        return d * math.log(self.original / (turns * 2 * math.pi)) / (2 * math.log(self.base))


def rotate(x: Tensor, positions: Tensor, how: Rotary) -> Tensor:
    """x [..., t, d] at integer positions [t]: pair (a, b) → (a cos − b sin, b cos + a sin).

    Computed in float32, and rounded once to the dtype of x.
    """
    d = x.shape[-1]
    assert isinstance(d, int)
    angle = (positions.astype(float32).unsqueeze(-1) * tensor(how.frequencies(d))).unsqueeze(-2)
    sign = (iota(2) * 2 - 1).astype(float32).unsqueeze(-1)
    halves = x.unflatten(-1, (2, d // 2))
    turned = halves * (cos(angle) * how.gain) + halves.flip(-2) * (sin(angle) * how.gain * sign)
    return turned.flatten(-2).astype(x.dtype)
