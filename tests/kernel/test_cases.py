"""Sums over short axes are written out: the same numbers, and no condition is left."""

from __future__ import annotations

import numpy as np
import pytest
from kernels import Build, data

from lambent.algebra.term import walk
from lambent.backends.reference.kernel import evaluate
from lambent.graph.dim import axis
from lambent.graph.dtypes import float32, int64, uint8
from lambent.kernel.cases import cases


@pytest.mark.parametrize("scaled", [False, True])
def test_the_cases_of_a_short_sum_are_known(scaled: bool) -> None:
    """Fields of packed bytes."""
    b = Build()
    i, f, k = b.axes(9, 2, 16)
    x, q = b.load("X", f, k), b.load("Q", i, k, dtype=uint8)
    low = b.t.apply("mod", q, b.c(16, dtype=uint8))
    fields = (b.t.cast(low, float32), b.t.cast(b.t.apply("sub", q, low), float32))
    number = [b.t.apply("eq", b.t.val(axis(f)), b.c(n, dtype=int64)) for n in range(2)]
    both = (b.t.apply("mask", c, y) for c, y in zip(number, fields, strict=True))
    norm = b.sum((f, k), b.mul(x, x)) if scaled else b.c(1.0)  # of axes of the same names
    b.out("Y", b.sum((f, k), b.mul(norm, x, b.add(*both))), i)
    kernel, inputs = b.kernel(), data(b.kernel(), 0, {})
    new = cases(kernel)
    (want,), (got,) = (evaluate(one, inputs, {}) for one in (kernel, new))
    np.testing.assert_allclose(got, want, rtol=1e-5)
    assert any(t.op == "eq" for t in walk(kernel.outputs[0].term))
    assert not any(t.op == "eq" for t in walk(new.outputs[0].term))
