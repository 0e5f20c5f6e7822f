"""Weights in panels: which dim is cut, what the kernel then reads, and what fills it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from kernels import Build, batched, data, layernorm, matmul

from lambent.backends.cpu.backend import CpuBackend
from lambent.backends.cpu.schedule import default_schedule, moves
from lambent.backends.reference.kernel import evaluate
from lambent.backends.roles import within
from lambent.graph.dim import axis
from lambent.kernel.kernel import Kernel
from lambent.kernel.lower import lower
from lambent.kernel.panels import dims, packing, panelled
from lambent.kernel.tile import Schedule


def on_weights(kernel: Kernel, *names: str) -> Kernel:
    inputs = tuple(replace(b, weight=b.name in names) for b in kernel.inputs)
    return replace(kernel, inputs=inputs)


def square(turned: bool = False) -> Kernel:
    """Both dims of the weight are of one extent: only one of them is cut."""
    return on_weights(matmul(tb=turned, m=20, n=32, k=32), "B")


def vector() -> Kernel:
    b = Build()
    n, p = b.axes(64, 20)
    b.out("C", b.sum(p, b.mul(b.load("x", p), b.load("B", p, n))), n)
    return on_weights(b.kernel(), "B")


def twice() -> Kernel:
    """A weight read at two places is left as it is."""
    b = Build()
    i, j, p = b.axes(8, 16, 16)
    w = b.load("B", p, j)
    b.out("C", b.sum(p, b.mul(b.load("A", i, p), w, b.at("B", axis(j), axis(p)))), i, j)
    return on_weights(b.kernel(), "B")


def chain() -> Kernel:
    """Two products in one kernel: the first weight keeps an axis that the second product sums."""
    b = Build()
    i, h, n, p = b.axes(10, 64, 16, 32)
    first = b.un("exp2", b.sum(p, b.mul(b.load("x", i, p), b.load("A", p, h))))
    b.out("C", b.sum(h, b.mul(first, b.load("B", h, n))), i, n)
    return on_weights(b.kernel(), "A", "B")


CUT: dict[str, tuple[Callable[[], Kernel], dict[str, int]]] = {
    "[k, n]": (square, {"B": 1}),
    "[n, k]": (lambda: square(True), {"B": 0}),
    "a": (lambda: on_weights(matmul(m=48, n=20, k=32), "A"), {"A": 0}),
    "vector": (vector, {"B": 1}),
    "no weight": (lambda: matmul(m=16, n=32), {}),
    "no multiple": (lambda: on_weights(matmul(n=50), "B"), {}),
    "all weights": (lambda: on_weights(matmul(m=16, n=32), "A", "B"), {}),
    "chain": (chain, {"A": 1, "B": 1}),
    "twice": (twice, {}),
    "not summed": (lambda: on_weights(layernorm(), "G", "B"), {}),
    "batched": (lambda: on_weights(batched(), "B"), {}),
}


def in_panels(array: Any, dim: int, width: int) -> Any:
    split = array.shape[dim] // width
    cut = array.reshape(*array.shape[:dim], split, width, *array.shape[dim + 1 :])
    return np.moveaxis(np.moveaxis(cut, dim + 1, -1), dim, 0)


@pytest.mark.parametrize("name", CUT)
def test_which_dim_is_cut(name: str) -> None:
    make, expected = CUT[name]
    kernel = make()
    assert dims(kernel, 16) == expected
    assert (("options", "panel") in moves(kernel)) == bool(expected)


@pytest.mark.parametrize("name", [n for n, (_, cut) in CUT.items() if cut])
def test_the_kernel_means_the_same_on_panels(name: str) -> None:
    make, at = CUT[name]
    kernel = make()
    given = data(kernel)
    [want] = evaluate(kernel, given)
    packed = dict(given)
    for b in kernel.inputs:
        if b.name in at:
            copy = packing(b, at[b.name], 16)
            [packed[b.name]] = evaluate(copy, {b.name: given[b.name]})
            np.testing.assert_array_equal(
                packed[b.name], in_panels(given[b.name], at[b.name], 16).astype(np.float64)
            )
            assert copy.outputs[0].buffer.shape == packed[b.name].shape
    [found] = evaluate(panelled(kernel, at, 16), packed)
    np.testing.assert_allclose(found, want, rtol=1e-12)


def test_c_reads_panels_with_any_tile() -> None:
    backend = CpuBackend()
    programs = []
    for make, cut in CUT.values():
        for tile in (0, 8, 10, 16, 24) if cut else ():
            kernel = make()
            first = default_schedule(kernel)
            tiles = tuple((i, tile if tile else t) for i, t in first.tiles)
            programs.append(lower(kernel, replace(first, tiles=tiles, options=(("panel", 16),))))
            assert programs[-1].panels == cut
    found = backend.measure(batch := backend.compile(programs), {}, repeats=0)
    batch.close()
    backend.close()
    assert [o.status for o in found] == ["ok"] * len(programs)


def test_a_vector_lies_within_a_panel() -> None:
    n = axis(3)
    assert within(n // 16 * 320 + n % 16, 3, 8) == n
    assert within(n // 16, 3, 32) == n // 16  # more indices than a panel has
    assert within(n // 16, 2, 8) == n // 16


def test_a_schedule_without_the_option_changes_nothing() -> None:
    kernel = square()
    program = lower(kernel, Schedule(((0, 6),), (0,), 1))
    assert program.kernel is kernel and not program.panels
