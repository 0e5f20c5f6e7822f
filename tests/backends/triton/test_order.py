"""The order of what a step does."""

from __future__ import annotations

from kernels import CASES

from lambent.backends.cuda.schedule import default_schedule
from lambent.backends.triton.grid import products_first
from lambent.graph.dtypes import float32
from lambent.kernel.lower import lower
from lambent.kernel.tile import Accumulate, Dot, For, Lit, Ref, statements

ONE = Lit(1.0, float32)


def test_sums_of_products_come_first() -> None:
    kernel = CASES["fold"]()
    loops = list(statements(lower(kernel, default_schedule(kernel)).body))
    (body,) = [s.body for s in loops if isinstance(s, For) and not s.parallel]
    sums = [s for s in body if isinstance(s, Accumulate)]
    ordered = [s for s in products_first(body[::-1]) if isinstance(s, Accumulate)]
    assert len(sums) == 3 and {s.name for s in sums} == {s.name for s in ordered}
    assert [isinstance(s.value, Dot) for s in ordered] == [True, False, False]


def test_what_is_read_meanwhile_keeps_its_place() -> None:
    first = Accumulate("a", "sum", ONE, None)
    last = Accumulate("b", "sum", Dot(frozenset(), Ref("a", frozenset(), float32), ONE), None)
    assert products_first([first, last]) == [first, last]
