"""However attention is written, its scores are never stored: the cheapest cover says so."""

from __future__ import annotations

import math

import example_graphs
import pytest
from example_graphs import SPELLINGS
from test_enumerate import PRICES, problem

from lambent.algebra.egraph import saturate
from lambent.backends.base import Calibration
from lambent.graph.dim import representative
from lambent.search.bound import Bounder
from lambent.search.cover import solve
from lambent.search.enumerate import enumerate_kernels

SIZES = {"B": 1, "N": 2048, "C": 64, "H": 4, "D": 16}
CALIBRATION = Calibration(
    "test", 2, {"float32": 2e11}, ((1 << 15, 4e11), (1 << 19, 2e11), (1 << 62, 2e10)), 1e-6
)
MISSED = ("sink", "linear")  # a logit concatenated along the axis; no softmax at all


@pytest.mark.parametrize("name", [n for n in SPELLINGS if n not in MISSED])
def test_scores_are_not_stored(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for size, value in SIZES.items():
        monkeypatch.setattr(example_graphs, size, value)
    saturated = saturate([SPELLINGS[name]().node])
    found = enumerate_kernels(saturated, PRICES, 24)
    bounder = Bounder(CALIBRATION, saturated.extents)
    costs = [bounder.bound(c.kernel) for c in found.candidates]
    cover = solve(problem(found), costs)
    n = SIZES["N"]
    for k in cover.kernels:
        buffer = found.stored[found.candidates[k].root].buffer
        assert buffer.weight or math.prod(map(representative, buffer.shape)) < n * n, buffer
