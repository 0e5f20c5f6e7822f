"""Bounds: exact on small examples, optimistic in what they leave out."""

from __future__ import annotations

import pytest
from graphs import attention, matmul, softmax

import lambent as lt
from lambent.algebra.egraph import saturate
from lambent.algebra.term import walk
from lambent.backends.base import Calibration
from lambent.graph.tensor import Tensor
from lambent.kernel.kernel import Kernel
from lambent.search.bound import Bounder, prices
from lambent.search.enumerate import enumerate_kernels

CAL = Calibration(
    "d", 1, {"float32": 1e9, "float64": 5e8}, ((1000, 4e9), (10000, 2e9), (1 << 60, 1e9)), 1e-6
)


def bound(k: Kernel, calibration: Calibration) -> float:
    return Bounder(calibration, k.extents).bound(k)


def kernels(graph: Tensor) -> list[Kernel]:
    found = enumerate_kernels(saturate([graph.node]), prices(CAL, 1e4)).candidates
    return [c.kernel for c in found if c.root == 0]


def test_a_product_counts_fmas_and_bytes_once() -> None:
    (k,) = kernels(matmul(6))
    work = 2 * 6 * 5 * 7 / 1e9
    size = 4 * (6 * 5 + 5 * 7 + 6 * 7)
    assert bound(k, CAL) == pytest.approx(max(work, size / 4e9) + 0.5e-6)


def test_bytes_come_from_the_nearest_levels_that_hold_them() -> None:
    assert CAL.byte_time(1000) == pytest.approx(1000 / 4e9)
    assert CAL.byte_time(5000) == pytest.approx(1000 / 4e9 + 4000 / 2e9)
    assert CAL.byte_time(50000) == pytest.approx(1000 / 4e9 + 10000 / 2e9 + 39000 / 1e9)


def test_a_mask_over_indices_takes_its_void_part_off() -> None:
    plain, masked = (
        min(bound(k, CAL) for k in kernels(attention(64, causal=c)) if len(k.inputs) == 3
            and all(b.name[0] == "x" or b.name in "qkv" for b in k.inputs))
        for c in (False, True)
    )  # fmt: skip
    assert 0.4 < masked / plain < 0.6


def test_kernels_of_weights_cost_nothing_at_run_time() -> None:
    (k,) = kernels(matmul(6))
    at_load = Kernel(k.outputs, (), k.extents)
    assert at_load.weights_only and bound(at_load, CAL) == 0


def test_shared_terms_are_priced_once() -> None:
    for k in kernels(softmax(6)):
        together = Bounder(CAL, k.extents)
        assert together.bound(k) == together.bound(k) == bound(k, CAL)


def test_what_an_index_chooses_counts_once_whatever_it_chooses_from() -> None:
    """The gradient of an embedding: as much work for many rows as for few."""

    def work(rows: int) -> float:
        ids, x = lt.input("ids", (7,), "int64"), lt.input("x", (7, 3))
        table = lt.input("w", (rows, 3))
        found = kernels(lt.grad((lt.embedding(ids, table) * x).sum(), table))
        terms = [[*walk(k.outputs[0].term)] for k in found]
        return min(
            sum(s for _, s in Bounder(CAL, k.extents).work(t))
            for k, t in zip(found, terms, strict=True)
            if len(k.inputs) == 2
        )

    assert work(1000) == pytest.approx(work(10))
    assert work(10) <= 2 * 7 * 3 / 1e9
