"""Which token comes next: greedy, or drawn after temperature, top-k, top-p and min-p."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Sampler", "Sampling"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Sampling:
    """
    temperature: scores are divided by it; 0 takes the best token.
    top_k:    only so many best; 0: all. top_p: only the best that hold so much probability
              together. min_p: only those with at least this share of the best one's probability.
    penalty:  scores of tokens that were there are divided by it where positive, else multiplied
              (CTRL, arXiv 1909.05858); 1: none. `last`: among so many tokens at the end.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    penalty: float = 1.0
    last: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        checks = {
            "temperature": 0 <= self.temperature < float("inf"),
            "top-k": self.top_k >= 0,
            "top-p": 0 < self.top_p <= 1,
            "min-p": 0 <= self.min_p <= 1,
            "repetition penalty": 0 < self.penalty < float("inf"),
            "last": self.last >= 0,
            "seed": self.seed >= 0,
        }
        if wrong := [name for name, right in checks.items() if not right]:
            raise ValueError(f"sampling: {', '.join(wrong)} out of range in {self}")


class Sampler:
    """Draws tokens; equal seeds and scores give equal tokens."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        self._random = np.random.default_rng(sampling.seed)

    def next(self, scores: Array, before: Sequence[int]) -> int:
        """A token by its scores [vocabulary], after the tokens `before`.

        Raises:
            ValueError: no score is a number.
        """
        s = self.sampling
        scores = np.asarray(scores, np.float64)
        if s.penalty != 1.0 and s.last and before:
            scores = scores.copy()
            seen = np.unique(np.asarray(before[-s.last :]))
            picked = scores[seen]
            scores[seen] = np.where(picked > 0, picked / s.penalty, picked * s.penalty)
        best = int(np.argmax(np.nan_to_num(scores, nan=-np.inf)))
        if not np.isfinite(scores[best]):
            raise ValueError("sampling: the model's scores are no finite numbers")
        if s.temperature == 0:
            return best
        order = np.argsort(-scores, kind="stable")
        order = order[: s.top_k] if s.top_k else order
        chances = np.exp((scores[order] - scores[best]) / s.temperature)
        chances = np.nan_to_num(chances / np.nansum(chances))
        before_it = np.cumsum(chances) - chances
        kept = (before_it < s.top_p) & (chances >= s.min_p * chances[0])
        chances = np.where(kept, chances, 0.0)
        return int(self._random.choice(order, p=chances / chances.sum()))
