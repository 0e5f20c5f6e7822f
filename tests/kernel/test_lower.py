"""Lowering: the interpreted tile program equals the meaning of the kernel's terms."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import CASES, SYMBOLIC, Build, data, masked_twice
from legal import check

from lambent.backends.reference.kernel import evaluate
from lambent.backends.reference.tile import interpret
from lambent.graph.dim import axis
from lambent.graph.prove import bounds
from lambent.kernel.kernel import Kernel
from lambent.kernel.lower import lower
from lambent.kernel.ranges import least, needed, zero
from lambent.kernel.rewrite import free_axes, split
from lambent.kernel.tile import Dot, Schedule, operands, statements, values

MORE = {f"{name}": f for name, f in {**CASES, **SYMBOLIC}.items()}


def test_a_sum_of_products_is_products_of_matrices() -> None:
    program = lower(CASES["products"](), Schedule())
    inside = [v for s in statements(program.body) for top in operands(s) for v in values(top)]
    assert sum(isinstance(v, Dot) for v in inside) == 2


def random_schedule(kernel: Kernel, draw: Any) -> Schedule:
    """Any tile for any axis, any order, any grid."""
    parts = split(kernel).kernel
    free = sorted({i for o in parts.outputs for i in free_axes(o)})
    tiles = []
    for i, extent in sorted(parts.extents.items()):
        most = bounds(extent)[1]
        if draw(st.booleans()):
            tiles.append(
                (i, draw(st.sampled_from((1 if most < 20 else 24, 8, 12, 16, 32, max(most, 1)))))
            )
    order = draw(st.permutations(free))[: draw(st.integers(0, len(free)))]
    return Schedule(tuple(tiles), tuple(order), draw(st.integers(0, len(order))))


def tolerance(kernel: Kernel) -> float:
    narrow = {b.dtype.itemsize for b in kernel.inputs if b.dtype.is_float}
    narrow |= {o.buffer.dtype.itemsize for o in kernel.outputs if o.buffer.dtype.is_float}
    return {2: 1.2e-2, 4: 3e-5}.get(min(narrow, default=8), 1e-9)


def compare(kernel: Kernel, got: Mapping[str, Any], want: list[Any]) -> None:
    rtol = tolerance(kernel)
    for o, w in zip(kernel.outputs, want, strict=True):
        g = np.asarray(got[o.buffer.name])
        assert g.shape == w.shape
        if o.buffer.dtype.is_float:
            g = g.astype(np.float64)
            scale = np.abs(np.where(np.isfinite(w), w, 0)).max(initial=1.0)
            np.testing.assert_allclose(g, w, rtol=rtol, atol=rtol * scale)
        else:
            np.testing.assert_array_equal(g, w)


def run(kernel: Kernel, schedule: Schedule, symbols: Mapping[str, int], seed: int = 0) -> None:
    program = lower(kernel, schedule)
    check(program)
    inputs = data(kernel, seed, symbols)
    compare(kernel, interpret(program, inputs, symbols), evaluate(kernel, inputs, symbols))


@pytest.mark.parametrize("name", sorted(MORE))
@settings(max_examples=4, deadline=None, derandomize=True)
@given(st.data())
def test_lowered_kernel_means_what_its_terms_mean(name: str, data: Any) -> None:
    kernel = MORE[name]()
    symbols = {}
    if name in SYMBOLIC:
        symbols = {
            "kernels_s": data.draw(st.integers(1, 96)),
            "kernels_z": data.draw(st.integers(1, 40)),
        }
    run(kernel, random_schedule(kernel, data.draw), symbols)


def test_a_loop_skips_only_what_is_exactly_nothing() -> None:
    b = Build()
    i, k = b.axes(8, 8)
    x, y, c = b.load("X", k), b.load("Y", i, k), b.less(axis(k), axis(i))
    masked, kept = b.t.apply("mask", c, x), b.t.apply("mask", b.t.apply("not", c), b.ninf())
    literal, absent = frozenset({(c, True)}), frozenset[Any]()
    assert needed(b.t, b.mul(b.c(3), masked), zero) == literal
    assert needed(b.t, b.mul(masked, y), zero) == absent  # 0 · inf is NaN
    for name, known in (("X", absent), ("Y", literal)):
        assert needed(b.t, b.mul(masked, y), partial(zero, known=frozenset([name]))) == known
    some = b.t.apply("recip", y)
    assert needed(b.t, b.mul(masked, some), partial(zero, known=frozenset("Y"))) == absent
    assert needed(b.t, b.add(masked, y), zero) == absent
    for exact, found in ((False, literal), (True, absent)):  # inf − inf is NaN
        assert needed(b.t, b.add(y, kept), partial(least, exact=exact)) == found
    assert needed(b.t, b.add(masked, kept), partial(least, exact=True)) == literal


@pytest.mark.parametrize("kind", ["product", "beside", "exponent"])
def test_a_mask_known_in_a_loop_is_not_known_in_a_reduction_inside(kind: str) -> None:
    run(masked_twice(kind), Schedule(((0, 8), (1, 8)), (0,), 1), {})
