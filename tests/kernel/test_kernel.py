"""Which inputs a kernel's outputs may be written over."""

from __future__ import annotations

from collections.abc import Callable

import kernels as k
import pytest
from kernels import Build

from lambent.backends.cpu.schedule import default_schedule
from lambent.graph.dim import axis
from lambent.graph.dtypes import bfloat16
from lambent.kernel.inplace import overwritable
from lambent.kernel.kernel import Kernel
from lambent.kernel.lower import lower


def residual() -> Kernel:
    b = Build()
    i, j, p = b.axes(8, 8, 8)
    product = b.sum(p, b.mul(b.load("A", i, p), b.load("B", p, j)))
    b.out("C", b.add(product, b.load("x", i, j)), i, j)
    return b.kernel()


def rebound() -> Kernel:
    """x[i, j] + Σ_j x[i, j]: the same index, but j is another in the sum."""
    b = Build()
    i, j = b.axes(8, 8)
    x = b.load("x", i, j)
    b.out("C", b.add(x, b.sum(j, x)), i, j)
    return b.kernel()


def turned() -> Kernel:
    b = Build()
    i, j = b.axes(8, 8)
    b.out("C", b.add(b.load("x", j, i), b.load("y", i, j)), i, j)
    return b.kernel()


def narrowed() -> Kernel:
    b = Build()
    i, j = b.axes(8, 8)
    b.out("C", b.load("x", i, j), i, j, dtype=bfloat16)
    return b.kernel()


def both() -> Kernel:
    """x[i, j] and its neighbour."""
    b = Build()
    i, j = b.axes(8, 8)
    x = b.load("x", i, j)
    b.out("C", b.add(x, b.at("x", axis(i), axis(j) + 1)), i, j)
    return b.kernel()


CASES: dict[str, tuple[Callable[[], Kernel], set[str]]] = {
    "residual": (residual, {"x"}),
    "rebound": (rebound, set()),
    "turned": (turned, {"y"}),
    "narrowed": (narrowed, set()),
    "a neighbour, too": (both, set()),
    "a square product": (lambda: k.matmul(m=8, n=8, k=8), set()),
    "a norm": (k.layernorm, set()),
}


@pytest.mark.parametrize("name", CASES)
def test_what_may_be_overwritten(name: str) -> None:
    make, expected = CASES[name]
    kernel = make()
    assert kernel.overwritable == {(kernel.outputs[0].buffer.name, name) for name in expected}


def sum_and_difference() -> Kernel:
    b = Build()
    i, j = b.axes(8, 16)
    x, y = b.load("x", i, j), b.load("y", i, j)
    b.out("S", b.add(x, y), i, j)
    b.out("D", b.add(x, b.mul(b.c(-1), y)), i, j)
    return b.kernel()


def test_what_is_read_after_a_store_is_not_in_its_place() -> None:
    kernel = sum_and_difference()
    assert kernel.overwritable == {(o, i) for o in "SD" for i in "xy"}
    assert overwritable(lower(kernel, default_schedule(kernel))) == {("D", "x"), ("D", "y")}


def test_a_step_of_moments_is_written_over_the_last() -> None:
    kernel = k.moments()
    able = overwritable(lower(kernel, default_schedule(kernel)))
    assert {("P", "p"), ("M", "m"), ("V", "v")} <= able <= kernel.overwritable
