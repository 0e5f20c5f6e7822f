"""A limit of memory: what is tried, what is refused, and a layer that trains within half."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import lambent as lt
from lambent import thrift
from lambent.thrift import Thrift, within


def made(sizes: dict[Thrift, int]) -> tuple[list[float], Any]:
    """A stand-in for the search: programs of these sizes."""
    budgets: list[float] = []

    def make(given: Thrift, budget: float) -> SimpleNamespace:
        budgets.append(budget)
        return SimpleNamespace(narrower=(), arena_bytes=lambda: sizes[given], thrift=given)

    return budgets, make


def test_the_least_thrift_that_suffices() -> None:
    first, second, third = thrift.THRIFTS
    budgets, make = made({first: 100, second: 60, third: 30})
    assert within(None, 6.0, make).thrift == first
    assert within(60, 6.0, make).thrift == second
    assert budgets == [6.0, 2.0, 2.0]
    with pytest.raises(ValueError, match=r"memory_limit=29 bytes; the least takes 30"):
        within(29, 6.0, make)


def test_a_layer_trains_within_half_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w1, w2 = (lt.input(n, s) for n, s in (("x", (300, 4)), ("u", (4, 70)), ("w", (70, 4))))
    y = x @ w1 @ w2
    outputs = lt.grad((y * y).sum(), {"u": w1, "w": w2})
    monkeypatch.setattr(thrift, "THRIFTS", (Thrift(), Thrift(1e-6, again=True)))
    whole = lt.compile(outputs, budget=0.1, progress=False)
    half = whole.arena_bytes() // 2
    small = lt.compile(outputs, budget=0.1, progress=False, memory_limit=half)
    assert small.arena_bytes() <= half
    rng = np.random.default_rng(0)
    arrays = {s.name: rng.normal(size=s.shape).astype("f") for s in whole.manifest.inputs}
    found, wanted = small(**arrays), whole(**arrays)
    for name in outputs:
        size = abs(wanted[name]).max()
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-5, atol=1e-5 * size)


def test_cross_entropy_stores_neither_logits_nor_probabilities(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where it need not: a limit that no array of a row for each target keeps is kept."""
    n, d, classes = 48, 12, 600
    x, w = lt.input("x", (n, d)), lt.input("w", (d, classes))
    loss = lt.cross_entropy(x @ w, lt.input("y", (n,), "int64"), label_smoothing=0.1)
    outputs = {"loss": loss} | lt.grad(loss, {"x": x, "w": w})
    monkeypatch.setattr(thrift, "THRIFTS", (Thrift(1e-6, again=True),))
    program = lt.compile(outputs, budget=0.1, progress=False, memory_limit=4 * n * classes // 8)
    rng = np.random.default_rng(0)
    arrays = {"x": rng.normal(size=(n, d)).astype("f"), "w": rng.normal(size=(d, classes))}
    arrays |= {"w": arrays["w"].astype("f"), "y": rng.integers(0, classes, n)}
    want = lt.evaluate(list(outputs.values()), arrays, float64=True)
    for name, array in zip(outputs, want, strict=True):
        np.testing.assert_allclose(program(**arrays)[name], array, rtol=1e-4, atol=1e-6)
