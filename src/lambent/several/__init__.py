"""Kernels of several results, made of those of one that the search has enumerated."""

from __future__ import annotations

from collections.abc import Mapping

from lambent.backends.base import Calibration
from lambent.graph.dim import Size
from lambent.search.bound import Bounder
from lambent.search.enumerate import Candidate, Candidates
from lambent.several.loops import loops
from lambent.several.siblings import siblings


def several(found: Candidates, rates: Calibration, extents: Mapping[int, Size]) -> list[Candidate]:
    """All candidates, those of several results last."""
    return [*siblings(found, rates, extents), *loops(found.candidates, Bounder(rates, extents))]
