"""Kernels of several results make what their parts make, and are chosen where that pays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graphs import attention, norm
from test_driver import CAL

import lambent as lt
from lambent.algebra.egraph import Saturated, saturate
from lambent.algebra.term import walk
from lambent.backends.reference.kernel import evaluate
from lambent.search.bound import Bounder, prices
from lambent.search.cover import Problem, solve
from lambent.search.enumerate import Candidate, enumerate_kernels
from lambent.several.siblings import siblings


def backward(n: int = 6, d: int = 4) -> list[Any]:
    """Gradients of attention, of which those by k and v range over other axes of one length."""
    q, k, v = (lt.input(name, (2, n, d)) for name in "qkv")
    out = lt.softmax(q @ k.mT, axis=-1) @ v
    return [t.node for t in lt.grad((out * lt.input("g", (2, n, d))).sum(), [q, k, v])]


def averages(n: int = 8) -> list[Any]:
    """The running averages of an optimizer: all of them read the gradient."""
    m, v, g, w = (lt.input(name, (n, n)) for name in "mvgw")
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    return [t.node for t in (m, v, w - 0.1 * m * lt.rsqrt(v + 1e-6))]


GRAPHS = {
    "backward": backward,
    "averages": averages,
    "norm": lambda: [norm().node],
    "causal": lambda: [attention(causal=True).node],
}


def joint(source: Saturated) -> list[Candidate]:
    return siblings(enumerate_kernels(source, prices(CAL, 1e4), 24), CAL, source.extents)


@pytest.mark.parametrize("name", GRAPHS)
def test_each_result_is_that_of_a_kernel_of_its_own(name: str) -> None:
    source = saturate(GRAPHS[name]())
    random, every = np.random.default_rng(0), joint(source)
    alone = {c.root: c for c in every if c.basic}
    values: dict[str, np.ndarray[Any, Any]] = {
        b.name: random.normal(0, 1, b.shape).astype(b.dtype.numpy) for b in source.buffers.values()
    }
    for root in sorted(alone, reverse=True):  # each after what it reads
        kernel = alone[root].kernel
        (values[kernel.outputs[0].buffer.name],) = evaluate(kernel, values)
    several = [c for c in every if c.more]
    for c in several:
        made = [o.buffer.name for o in c.kernel.outputs]
        assert len(made) == len({*made}) == len(c.roots)
        assert c.more[-1] < min(c.leaves, default=99)
        for what, found in zip(made, evaluate(c.kernel, values), strict=True):
            np.testing.assert_allclose(found, values[what], rtol=1e-5, atol=1e-6)
    assert several


def test_a_step_of_an_optimizer_is_one_kernel() -> None:
    source = saturate(averages(64))
    every, bounder = joint(source), Bounder(CAL, source.extents)
    cover = solve(Problem(tuple(every), (0, 1, 2)), [bounder.bound(c.kernel) for c in every])
    [kernel] = [every[k].kernel for k in cover.kernels]
    assert len(kernel.outputs) == 3 and len(kernel.inputs) == 4


def test_gradients_by_keys_and_values_share_the_weights_although_their_axes_differ() -> None:
    kernels = [c.kernel for c in joint(saturate(backward(64))) if c.more]
    both = [k for k in kernels if [o.buffer.name for o in k.outputs] == ["out1", "out2"]]
    terms = [walk(*(o.term for o in k.outputs)) for k in both]
    assert min(sum(t.op == "exp2" for t in some) for some in terms) == 1
