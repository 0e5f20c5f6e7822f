"""Cutting: segments together mean the graph, and equal layers are one segment."""

import numpy as np
import pytest
from example_graphs import attention, embed, layer, layer_norm, recip, swiglu, weight
from graph_values import random_inputs, values_of
from random_graphs import matmul, random_graph, total

from lambent.algebra.segments import cut
from lambent.functional import arithmetic as m
from lambent.functional import operands
from lambent.functional import shaping as s
from lambent.functional.gradient import grad
from lambent.graph import tensor as t
from lambent.graph.node import Node, topo


def run(instances, segments, inputs, outputs):
    """Compute a graph segment by segment."""
    by_key = {segment.key: segment for segment in segments}
    known = {n: inputs[n.attr] for n in topo(outputs) if n.op == "input"}
    for instance in instances:
        segment = by_key[instance.key]
        given = {f"x{i}": known[n] for i, n in enumerate(instance.inputs)}
        own = {n.attr.name: n for n in topo(segment.outputs) if n.op == "weight"}
        given |= {own[f"w{i}"].attr: n.attr.array for i, n in enumerate(instance.weights)}
        values = values_of(segment.outputs, given)
        for mine, theirs in zip(segment.outputs, instance.outputs, strict=True):
            known[theirs] = values[mine]
    return [known[n] for n in outputs]


def check(outputs, limit=16, again=False):
    nodes = [x if isinstance(x, Node) else x.node for x in outputs]
    instances, segments = cut(nodes, limit, again)
    inputs = random_inputs(nodes)
    want = values_of(nodes, inputs)
    for got, n in zip(run(instances, segments, inputs, nodes), nodes, strict=True):
        np.testing.assert_allclose(got, want[n], rtol=1e-12, atol=1e-12)
    return instances, segments


def encoder(layers):
    ids = t.input("ids", (2, 4), "int64")
    x = layer_norm(embed(ids, weight("e", 6, 3)), weight("g", 3), weight("b", 3))
    for i in range(layers):
        y = attention(x, f"{i}", 2, 4, 3, 2, 2, 2, causal=False)
        x = layer_norm(x + y, weight(f"{i}g", 3), weight(f"{i}b", 3))
        x = layer_norm(x + swiglu(x, f"{i}", 3, 4), weight(f"{i}h", 3), weight(f"{i}c", 3))
    keep = s.reshape(operands.cast(t.input("mask", (2, 4)) * 0.0 + 1.0, t.float32), 2, 4, 1)
    return total("sum", x * keep, 1) * recip(total("sum", keep, 1))


def test_six_equal_layers_are_one_segment():
    instances, segments = check([encoder(6)])
    assert len(segments) == 3  # embedding, layer, pooling
    assert [i.key for i in instances[1:-1]] == [segments[1].key] * 6
    assert all(len(i.outputs) == 1 for i in instances)


def test_layers_that_normalise_first_repeat_too():
    x = t.input("x", (2, 4, 3))
    for i in range(6):
        x = layer(x, str(i))
    instances, segments = check([x])
    assert len(segments) == 3
    assert len({i.key for i in instances[1:-1]}) == 1


def test_a_piece_that_is_too_large_is_cut_where_least_crosses():
    a, b = (matmul(t.input(n, (4, 3)), weight(f"w{n}", 3, 3)) for n in "ab")
    x = total("sum", a * b, 1)  # one value of 4 numbers; before it two cross
    y = recip(operands.unary("sin", x) + 3.0)
    for i in range(3):
        y = y * total("sum", t.input(f"c{i}", (4, 3)) * s.reshape(y, 4, 1), 1)
    instances, _ = check([y], limit=4)
    assert max(len(i.outputs) for i in instances) == 1


def test_half_a_layer_behind_layers_that_are_cut_is_one_of_their_pieces():
    x = matmul(t.input("x", (4, 3)), weight("w", 3, 3))
    for i in range(7):
        y = matmul(x, weight(f"{i}a", 3, 3))
        y = operands.unary("sin", y) if i % 2 else recip(y * y + 1.0)
        x = x + matmul(y, weight(f"{i}b", 3, 3))
    end = recip(total("sum", x * x, 1) + 1.0)
    assert len(check([end], limit=3)[1]) == 4  # what is before, two halves, what is behind


def test_a_small_graph_is_one_segment():
    instances, segments = check([layer(t.input("x", (2, 4, 3)))])
    assert len(instances) == len(segments) == 1


def test_values_that_every_layer_reads_cross_every_cut():
    memory = matmul(t.input("m", (4, 3)), weight("wm", 3, 3))
    x = matmul(t.input("x", (4, 3)), weight("wx", 3, 3))
    for i in range(6):
        x = x + matmul(
            operands.unary("sin", matmul(x, weight(f"{i}a", 3, 3)) + memory), weight(f"{i}b", 3, 3)
        )
    instances, segments = check([x], limit=4)
    assert len(instances) > 3 and len(segments) < len(instances)


def test_outputs_inside_and_outputs_that_need_nothing():
    x = t.input("x", (4, 4))
    y = matmul(x, weight("a", 4, 4))
    z = matmul(operands.unary("sin", y), weight("b", 4, 4))
    check([z, y, x, operands.unary("sin", x), operands.constant(2.0), weight("a", 4, 4)], limit=1)


@pytest.mark.parametrize("limit", [1, 3])
def test_random_graphs(limit):
    for seed in range(40):
        check(random_graph(seed, steps=22), limit)


def test_keys_tell_apart_what_differs():
    def key(dtype="float32", shape=(4, 3), scale=2.0, value=1.0, other="x"):
        x = t.input(other, shape, dtype)
        w = t.weight("w", np.full(shape, value, x.dtype.numpy))
        (instance,), _ = cut([(x * scale * w).node])
        return instance.key

    assert key() == key(other="y") == key(value=3.0)
    changes = ({"dtype": "float64"}, {"shape": (3, 4)}, {"scale": 3.0}, {"value": np.inf})
    assert len({key(), *(key(**change) for change in changes)}) == 5


def test_one_leaf_used_twice_is_not_two_leaves():
    x, y = t.input("x", (3,)), t.input("y", (3,))
    keys = {cut([(a * b).node])[0][0].key for a, b in ((x, x), (x, y))}
    assert len(keys) == 2
    assert m.less(x, y) is not None


def training(layers):
    """Loss, gradients and a step."""
    names = [f"{i}{name}" for i in range(layers) for name in "ab"]
    params = [t.input(name, (3, 3), "float64") for name in names]
    y, rate = t.input("x", (4, 3), "float64"), t.input("rate", (), "float64")
    for a, b in zip(params[::2], params[1::2], strict=True):
        y = y + matmul(operands.unary("sin", matmul(y, a)), b)
    loss = total("sum", total("sum", y * y, 1), 0)
    moved = [p - g * rate for p, g in zip(params, grad(loss, params), strict=True)]
    others = [g * g for g in grad(loss, params)]
    return [t.iota(3), loss, *moved, *others]


def test_a_backward_pass_repeats_as_its_forward_pass_does():
    """The layers of both passes, and what moves equal parameters."""
    instances, segments = check(training(6), limit=8)
    assert len(instances) > 20
    assert len(segments) < 10
    assert max(len(i.outputs) for i in instances) < 13


def test_a_backward_pass_may_compute_the_forward_pass_again():
    """Then less crosses from one segment to another, and all else is as it was."""
    outputs = training(3)
    crossing = []
    for again in (False, True):
        instances, _ = check(outputs, 8, again)
        crossing.append({n for i in instances for n in i.outputs} - {x.node for x in outputs})
    assert crossing[1] < crossing[0]
    assert all(n.op != "sum_reduce" for n in crossing[1] if n.shape == (4, 3))
