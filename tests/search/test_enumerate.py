"""Every candidate kernel computes what it says; the best ones are among them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from graphs import GRAPHS, attention, matmul, mlp, residuals, softmax, weight

import lambent as lt
from lambent.algebra.egraph import ClassRef, EClass, ENode, Saturated, Stats, Stored, saturate
from lambent.algebra.term import Buffer, walk
from lambent.backends.reference.kernel import evaluate
from lambent.graph.dim import axis
from lambent.graph.dtypes import float32
from lambent.graph.node import topo
from lambent.search.canonical import canonical
from lambent.search.cover import Option, Problem, solve
from lambent.search.enumerate import Candidate, Candidates, enumerate_kernels
from lambent.search.space import Prices

PRICES = Prices(op=1e-11, byte=2e-11, launch=1e-6)


def found(graph: Any, keep: int = 24) -> Candidates:
    return enumerate_kernels(saturate([graph.node]), PRICES, keep)


def problem(c: Candidates) -> Problem:
    outputs = tuple(i for i, s in enumerate(c.stored) if s.output)
    return Problem(tuple(Option(k.root, k.leaves) for k in c.candidates), outputs)


def given(graph: Any) -> dict[str, np.ndarray]:
    """Values of inputs and weights by name."""
    random = np.random.default_rng(0)
    values = {}
    for n in topo([graph.node]):
        if n.op == "input":
            x = (
                random.integers(0, 6, n.shape)
                if n.dtype.is_integer
                else random.normal(0, 1, n.shape)
            )
            values[n.attr] = x.astype(n.dtype.numpy)
        elif n.op == "weight":
            values[n.attr.name] = n.attr.array
    return values


def run(k: Candidate, values: dict[str, np.ndarray]) -> np.ndarray:
    return evaluate(k.kernel, {b.name: values[b.name] for b in k.kernel.inputs})[0]


@pytest.mark.parametrize("name", GRAPHS)
def test_every_candidate_is_right(name: str) -> None:
    """Stored values come from the cover that always exists; every other candidate agrees."""
    graph = GRAPHS[name]()
    c = found(graph)
    values = given(graph)
    todo = [k for k in c.candidates if k.basic or k.kernel.weights_only]
    while todo:
        ready = [k for k in todo if all(b.name in values for b in k.kernel.inputs)]
        assert ready, "the basic kernels do not make every stored value"
        for k in ready:
            values.setdefault(c.stored[k.root].buffer.name, run(k, values))
        todo = [k for k in todo if k not in ready]
    for k in c.candidates:
        stored = c.stored[k.root].buffer
        if all(b.name in values for b in k.kernel.inputs):
            np.testing.assert_allclose(run(k, values), values[stored.name], rtol=1e-6, atol=1e-9)
        else:
            pytest.fail(f"{stored.name}: no basic kernel makes one of {k.leaves}")


@pytest.mark.parametrize("name", GRAPHS)
def test_a_cover_exists_whatever_is_dropped(name: str) -> None:
    c = found(GRAPHS[name](), keep=1)
    assert solve(problem(c), [1.0] * len(c.candidates)).kernels


def test_equal_runs_give_equal_candidates() -> None:
    a, b = (found(GRAPHS["layer"]()) for _ in range(2))
    assert [canonical(k.kernel).text for k in a.candidates] == [
        canonical(k.kernel).text for k in b.candidates
    ]


def test_what_windows_pass_over_is_stored_once() -> None:
    """Padded, and not once for each offset of the window; the same with a symbolic size."""
    shapes = {s.buffer.shape for s in found(GRAPHS["conv"]()).stored}
    assert (3, 9, 8) in shapes
    assert 3 * 7 * 6 * 9 not in map(math.prod, shapes)
    n = lt.Dim("windows_n", 1, 64, hint=16)
    assert (2, 3, n + 2) in {s.buffer.shape for s in found(GRAPHS["conv1d"](n)).stored}


def test_matmul_is_one_kernel() -> None:
    (k,) = found(matmul()).candidates
    assert [t.op for t in walk(k.kernel.outputs[0].term)] == ["in", "in", "mul", "sum"]


def test_softmax_in_one_pass_over_the_statistics() -> None:
    c = found(softmax())
    alone = [k for k in c.candidates if c.stored[k.root].output and not k.leaves]
    assert any(t.op == "fold" for k in alone for t in walk(k.kernel.outputs[0].term))


def test_a_value_that_two_operands_need_is_made_once() -> None:
    """Beside the one-pass form: the exponentials that are summed are also those that are scaled."""
    c = found(lt.softmax(lt.input("x", (4096, 1024)), -1))
    made = [k.kernel.outputs[0].term for k in c.candidates if c.stored[k.root].output]
    ops = [[t.op for t in walk(term)] for term in made]
    assert any(o.count("exp2") == 1 and o.count("max") == 1 and "fold" not in o for o in ops)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_as_one_kernel(causal: bool) -> None:
    """Two folds and one product of queries and keys; nothing of their size is stored."""
    c = found(attention(causal=causal))
    fused = [k for k in c.candidates if c.stored[k.root].output and not k.leaves]
    ops = [sorted(t.op for t in walk(k.kernel.outputs[0].term) if t.axes) for k in fused]
    assert ["fold", "fold", "sum"] in ops


def test_a_truth_value_inside_a_chain_is_not_stored() -> None:
    """Truth values that the next step uses up are smaller than what comes after, but no end."""
    h = lt.input("x", (64, 48)) @ weight("w", 48, 96)
    dtypes = {s.buffer.dtype.name for s in found(lt.gelu(h) @ weight("v", 96, 8)).stored}
    assert dtypes == {"float32"}


def test_the_backward_pass_need_not_store_a_score() -> None:
    """Of gradients by queries, keys and values: what is stored has at most a row's size."""
    n, d = 64, 8
    q, k, v, g = (lt.input(name, (2, n, d)) for name in "qkvg")
    out = lt.softmax(q @ k.mT, axis=-1) @ v
    outputs = [out, *lt.grad((out * g).sum(), [q, k, v])]
    c = enumerate_kernels(saturate([t.node for t in outputs]), PRICES, 24)
    large = [c.stored[x.root].buffer.bytes > 2 * n * d * 4 for x in c.candidates]
    products = [
        sum(t.op in ("sum", "fold") and bool(t.free - {0}) for t in walk(x.kernel.outputs[0].term))
        for x in c.candidates
    ]
    costs = [1e9 * big + p + 0.1 for big, p in zip(large, products, strict=True)]
    cover = solve(problem(c), costs)
    assert cover.cost < 1e9
    made = {c.stored[c.candidates[x].root].buffer.name for x in cover.kernels}
    assert {"out0", "out1", "out2", "out3"} < made
    rows = [c.candidates[x] for x in cover.kernels if not c.stored[c.candidates[x].root].output]
    assert any(len(x.kernel.outputs[0].buffer.shape) == 2 for x in rows)  # a number for each row


def test_a_shared_product_runs_once() -> None:
    """h · sigmoid(h) with h = x @ w: one product in the kernel that makes it from x and w."""
    c = found(mlp(64))
    made = [
        k
        for k in c.candidates
        if not c.stored[k.root].output and {b.name for b in k.kernel.inputs} == {"x", "w1"}
    ]
    sums = [sum(t.op == "sum" for t in walk(k.kernel.outputs[0].term)) for k in made]
    assert sums and min(sums) == max(sums) == 1


def test_constants_of_weights_are_folded_at_load() -> None:
    c = found(GRAPHS["norm"]())
    loads = [k for k in c.candidates if k.kernel.weights_only]
    assert any({b.name for b in k.kernel.inputs} == {"ng", "w"} for k in loads)


def hand(classes: dict[int, list[ENode]], extents: dict[int, int], root: int) -> Saturated:
    """An e-graph of float32 classes over x[a0, a1] and the axes given by their loads."""
    free: dict[int, frozenset[int]] = {}

    def axes(c: int) -> frozenset[int]:
        if c not in free:
            free[c] = frozenset()
            n = classes[c][0]
            below = frozenset().union(*(axes(k) for k in n.below)) - n.axes
            free[c] = below | (frozenset(extents) if n.op == "in" and not n.kids else frozenset())
        return free[c]

    made = {c: EClass(tuple(ns), axes(c), float32, False) for c, ns in classes.items()}
    order = sorted(axes(root))
    index, shape = tuple(axis(a) for a in order), tuple(extents[a] for a in order)
    out = Stored(root, Buffer("out0", float32, shape), index, True)
    x = Buffer("x", float32, tuple(extents.values()))
    stats = Stats(0, len(made), 1, True, 0.0, {})
    return Saturated(made, dict(extents), (out,), {"x": x}, stats)


X = ENode("in", ("x", (axis(0), axis(1))), ())


def test_a_cycle_is_not_followed() -> None:
    """c1 = exp2(x) = c2 · 1/c2·… : a body never passes through its own class."""
    s = hand(
        {
            0: [X],
            1: [ENode("exp2", (), (0,)), ENode("mul", (), (2, 3))],
            2: [ENode("mul", (), (1, 1)), ENode("recip", (), (3,))],
            3: [ENode("recip", (), (1,)), ENode("mul", (), (1, 2))],
        },
        {0: 4, 1: 4},
        1,
    )
    c = enumerate_kernels(s, PRICES)
    (k,) = c.candidates
    assert [t.op for t in walk(k.kernel.outputs[0].term)] == ["in", "exp2"]


def test_a_hit_cap_is_reported() -> None:
    assert found(GRAPHS["layer"](), keep=1).capped
    assert not found(matmul(), keep=24).capped


def test_work_counts_shared_terms_once() -> None:
    """sum(x) + sum(x)² needs one pass over x."""
    s = hand(
        {
            0: [X],
            1: [ENode("sum", (frozenset((1,)),), (0,))],
            2: [ENode("mul", (), (1, 1))],
            3: [ENode("add", (), (1, 2))],
        },
        {0: 8, 1: 1000},
        3,
    )
    whole = [k for k in enumerate_kernels(s, PRICES).candidates if not k.leaves]
    assert min(k.work for k in whole) < 1.1 * 8000 * PRICES.op


def test_gathered_indices_are_part_of_a_body() -> None:
    c = found(GRAPHS["embedding"]())
    term = c.candidates[0].kernel.outputs[0].term
    assert {b.name for b in c.candidates[0].kernel.inputs} == {"table", "ids"}
    assert not any(isinstance(t, ClassRef) for t in walk(term))


@pytest.mark.parametrize("n", [1, 64])
def test_a_sum_is_read_where_a_longer_one_goes_on(n: int) -> None:
    """x + f(x) is stored and read by (x + f(x)) + g: sums are flat, so x + f + g must know it."""
    c = found(residuals(n, 256))
    out = next(i for i, s in enumerate(c.stored) if s.output)
    assert any(k.root == out and k.reductions == 1 for k in c.candidates)


def test_a_gathered_index_that_is_a_number_again() -> None:
    """Positions read at gathered indices: the number of an index that is a value itself."""
    ids = lt.input("ids", (6,), "int64")
    out = lt.take(lt.iota(10) * 3 + 1, ids, axis=0)
    program = lt.compile({"y": out, "z": out > 7}, budget=0.1, progress=False)
    given = np.array([0, 3, 9, 2, 5, 5])
    np.testing.assert_array_equal(program(ids=given)["y"], given * 3 + 1)


def test_random_bits_do_not_multiply() -> None:
    """Powers of a counter, as dropout makes them, take few classes and kernels."""
    x, w = lt.input("x", (16, 32)), lt.input("w", (32, 8))
    y = lt.random.dropout(x, 0.1, seed=3, step=lt.input("step", (), "int64"))
    graph = saturate([lt.grad((y @ w).sum(), {"w": w})["w"].node])
    assert graph.stats.saturated and len(graph.classes) < 200
    assert len(enumerate_kernels(graph, PRICES, 24).candidates) < 60
