"""Results that differ in their axes share the loop in which one is stored and another summed up."""

from __future__ import annotations

from typing import Any

import numpy as np
from test_driver import CAL

import lambent as lt
from lambent.algebra.egraph import saturate
from lambent.backends.reference.kernel import evaluate
from lambent.backends.reference.tile import interpret
from lambent.backends.roles import one_whole
from lambent.kernel import tile as ir
from lambent.kernel.kernel import Kernel
from lambent.kernel.lower import lower
from lambent.search.bound import Bounder, prices
from lambent.search.canonical import canonical
from lambent.search.enumerate import Candidate, enumerate_kernels
from lambent.search.loops import loops

N, M, D = 12, 10, 4


def joint() -> list[Candidate]:
    """Weights of rows of x and y; they sum up y for each row of x, and x for each row of y."""
    x, y = lt.input("x", (2, N, D)), lt.input("y", (2, M, D))
    p = lt.exp2(x @ y.mT)
    source = saturate([(p @ y).node, (p.mT @ x).node])
    found = enumerate_kernels(source, prices(CAL, 1e4), 24)
    return list(loops(found.candidates, Bounder(CAL, source.extents)))


def statements(body: tuple[ir.Stmt, ...]) -> list[ir.Stmt]:
    return [s for b in body for s in (b, *statements(b.body if isinstance(b, ir.For) else ()))]


def whole(kernel: Kernel) -> list[ir.TileProgram]:
    order = tuple(sorted(kernel.extents))
    first = ir.Schedule(
        tuple((i, 3 if kernel.extents[i] in (N, M) else 1) for i in order), order, 1
    )
    return [lower(kernel, s) for s in one_whole(kernel, first, 3, 99)]


def test_both_results_are_made_in_one_loop() -> None:
    [both] = [c for c in joint() if c.leaves == ()]
    kernel = canonical(both.kernel).kernel
    assert [o.buffer.shape for o in kernel.outputs] == [(2, N, D), (2, M, D)]
    random = np.random.default_rng(0)
    values: dict[str, Any] = {
        b.name: random.normal(0, 1, b.shape).astype(np.float32) for b in kernel.inputs
    }
    programs = whole(kernel)
    assert len(programs) == 2
    for program in programs:
        found = interpret(program, values)
        for o, wanted in zip(kernel.outputs, evaluate(kernel, values), strict=True):
            np.testing.assert_allclose(found[o.buffer.name], wanted, rtol=1e-4, atol=1e-5)
        every = statements(program.body)
        assert sum(isinstance(s, ir.Let) and isinstance(s.value, ir.Map) for s in every) <= 2
        shared = [s for s in every if isinstance(s, ir.For) and not s.parallel]
        inside = {type(s) for loop in shared for s in loop.body}
        assert {ir.Store, ir.Accumulate} <= inside


def test_what_each_makes_alone_as_quickly_is_not_joined() -> None:
    x, y = lt.input("x", (8, 6)), lt.input("y", (8, 6))
    source = saturate([(x + y).node, (x * y).sum(0).node])
    found = enumerate_kernels(source, prices(CAL, 1e4), 24)
    assert not [c for c in loops(found.candidates, Bounder(CAL, source.extents)) if c.leaves]


def backward(n: int, d: int = 4) -> list[Any]:
    """Attention and its gradients; those by k and v range over other axes of one length."""
    q, k, v = (lt.input(name, (2, n, d)) for name in "qkv")
    out = lt.softmax(q @ k.mT, axis=-1) @ v
    grads = lt.grad((out * lt.input("g", (2, n, d))).sum(), [q, k, v])
    return [t.node for t in (out, *grads)]


def test_each_result_is_that_of_a_kernel_of_its_own() -> None:
    source = saturate(backward(64))
    found = enumerate_kernels(source, prices(CAL, 1e4), 24).candidates
    several = list(loops(found, Bounder(CAL, source.extents)))
    random, alone = np.random.default_rng(0), {c.root: c for c in found if c.basic}
    values: dict[str, Any] = {
        b.name: random.normal(0, 1, b.shape).astype(b.dtype.numpy) for b in source.buffers.values()
    }
    for root in sorted(alone, reverse=True):  # each after what it reads
        kernel = alone[root].kernel
        (values[kernel.outputs[0].buffer.name],) = evaluate(kernel, values)
    for c in several:
        assert [*c.roots] == sorted({*c.roots}) and c.more[-1] < min(c.leaves, default=99)
        names = [o.buffer.name for o in c.kernel.outputs]
        for name, made in zip(names, evaluate(c.kernel, values), strict=True):
            np.testing.assert_allclose(made, values[name], rtol=1e-3, atol=1e-4)
    assert max(len(c.roots) for c in several) == 3


def test_an_update_of_one_row_stays_alone() -> None:
    """Keys of which one is new, and a query's scores of all: the new one is written in place."""

    def makes(kept: Any) -> set[int]:
        old, new, q = (lt.input(name, (n, 64)) for name, n in (("old", 512), ("new", 1), ("q", 1)))
        keys = kept(lt.where((lt.iota(512) == 3).unsqueeze(-1), new, old), new)
        source = saturate([keys.node, (q @ keys.mT).node])
        found = enumerate_kernels(source, prices(CAL, 1e6), 24)
        return {len(c.roots) for c in loops(found.candidates, Bounder(CAL, source.extents))}

    assert makes(lambda keys, new: keys + new) == {2}
    assert makes(lambda keys, new: keys) == set()
