"""What is listed for a GPU, without one: kernels that a task of few values at hand needs."""

from __future__ import annotations

import pytest
from pretended import Pretended

import lambent as lt
from lambent.algebra.egraph import saturate
from lambent.backends.base import Calibration
from lambent.backends.cuda import calibrate, driver, schedule
from lambent.backends.triton.render import render
from lambent.cli.cuda_works import attention_backward
from lambent.kernel import tile as ir
from lambent.kernel.kernel import Kernel
from lambent.kernel.lower import lower
from lambent.kernel.rewrite import merged
from lambent.request import outputs_of
from lambent.search.bound import Bounder, prices
from lambent.search.enumerate import enumerate_kernels
from lambent.search.loops import loops

N, D = 2048, 128


@pytest.fixture(scope="module")
def rates() -> Calibration:
    """Of an H200."""
    with pytest.MonkeyPatch.context() as patch:
        fake = Pretended()
        patch.setattr(driver, "api", lambda: fake)
        driver.device.cache_clear()
        found = calibrate.figures(driver.device(), "pretended", 2e-6)
        driver.device.cache_clear()
        return found


@pytest.fixture(scope="module")
def kernels(rates: Calibration) -> list[Kernel]:
    """Of attention and its gradients, as they would be listed."""
    outputs, _ = outputs_of(attention_backward(16, D, N).graph())
    source = saturate([t.node for t in outputs])
    found = enumerate_kernels(source, prices(rates, 1e9), 24).candidates
    return [c.kernel for c in (*found, *loops(found, Bounder(rates, source.extents)))]


def of_rows(kernels: list[Kernel], results: int) -> list[Kernel]:
    """Those that read the arrays of the caller and rows of three statistics."""
    whole, row = (4, 16, N, D), (4, 16, N)
    return [
        k
        for k in kernels
        if sorted(len(b.shape) for b in k.inputs) == [3, 3, 3, 4, 4, 4, 4]
        and {b.shape for b in k.inputs} == {whole, row}
        and len(k.outputs) == results
    ]


def test_statistics_of_rows_are_read_and_not_made_again(kernels: list[Kernel]) -> None:
    assert len(of_rows(kernels, 1)) >= 2  # the gradients by queries, and by keys


def test_what_a_mask_voids_is_left_out_of_gradients_too(kernels: list[Kernel]) -> None:
    for kernel in of_rows(kernels, 1):
        program = lower(kernel, schedule.guesses(kernel, 90, 132)[0])
        every = [s for s in ir.statements(program.body) if isinstance(s, ir.For)]
        inner = [s for s in every if not s.parallel]
        assert inner and all(s.start != 0 or s.stop != N for s in inner), program


def test_no_result_is_whole_beside_another(kernels: list[Kernel]) -> None:
    """Results of several axes would have to be summed up in memory."""
    for kernel in kernels:
        shapes = {o.buffer.shape for o in kernel.outputs}
        assert len(shapes) <= 2 and all(
            o.index[:3] == kernel.outputs[0].index[:3] for o in kernel.outputs
        )


def test_each_product_has_a_depth_of_its_own(kernels: list[Kernel]) -> None:
    for kernel in of_rows(kernels, 1):
        first = schedule.guesses(kernel, 90, 132)[0]
        assert all(t >= 16 for i, t in first.tiles if i > 1)


@pytest.mark.parametrize("axes", [(0, 1), (1,), 0])
def test_columns_are_summed_in_tiles_that_fit(
    axes: int | tuple[int, ...], rates: Calibration
) -> None:
    """As the gradient of a bias is: results lie as memory does, and many places are summed."""
    x = lt.input("x", (8, 512, 2048), "bfloat16")
    source = saturate([lt.sum(x * x, axes).node])
    kernel = merged(enumerate_kernels(source, prices(rates, 1e9), 4).candidates[0].kernel)
    for one in schedule.guesses(kernel, 90, 132):
        assert render(lower(kernel, one)).largest <= 1 << 16
