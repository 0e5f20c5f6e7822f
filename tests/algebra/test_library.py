"""The composed ops as terms: translated right, and every gather is found as an indexed load."""

import graph_values
import named_values
import numpy as np
import pytest

import lambent as lt
from lambent.algebra.egraph import saturate
from lambent.algebra.translate import translate
from lambent.graph.dim import evaluate, values_in
from lambent.graph.node import topo

N = 7  # of the symbolic size


def x(name="x", *shape):
    return lt.input(name, shape or (2, 6, 7))


def ids(name, *shape):
    return lt.input(name, shape, "int64")


def symbolic():
    return lt.input("y", (2, lt.Dim("library_n", 1, 9)))


OPS = {
    "conv": lambda: lt.conv1d(x(), x("w", 4, 3, 3), stride=2, padding=1, groups=2),
    "conv2d": lambda: lt.conv2d(x("x", 1, 2, 4, 4), x("w", 3, 2, 2, 3), padding="same"),
    "transposed": lambda: lt.conv_transpose1d(
        x(), x("w", 6, 2, 3), stride=2, padding=1, output_padding=1, groups=2
    ),
    "max_pool": lambda: lt.max_pool1d(x(), 3, 2, 1),
    "max_pool_symbolic": lambda: lt.max_pool1d(symbolic(), 3, 2, 1, ceil_mode=True),
    "avg_pool": lambda: lt.avg_pool1d(x(), 3, 2, 1, ceil_mode=True, count_include_pad=False),
    "adaptive": lambda: lt.adaptive_max_pool1d(x(), 3),
    "group_norm": lambda: lt.group_norm(x(), 2, x("w", 6), x("b", 6)),
    "batch_norm_train": lambda: lt.batch_norm_train(x()),
    "scatter": lambda: lt.scatter(x(), 2, ids("i", 2, 6, 3), x("s", 2, 6, 3)),
    "scatter_add": lambda: lt.scatter_add(x(), 2, ids("i", 2, 6, 3), x("s", 2, 6, 3)),
    "sort": lambda: lt.sort(x("x", 2, 5), 1),
    "topk": lambda: lt.topk(x("x", 2, 5), 2),
    "reflect": lambda: lt.pad(x(), ((0, 0), (1, 0), (2, 2)), "reflect"),
    "circular": lambda: lt.pad(x(), ((0, 0), (1, 0), (2, 2)), "circular"),
}
GATHERS = {
    "take": lambda: lt.take(x(), ids("i", 3), 1),
    "take_symbolic": lambda: lt.take(symbolic(), ids("i", 3), 1),
    "embedding": lambda: lt.embedding(ids("i", 3, 2), x("x", 11, 4)),
    "along": lambda: lt.take_along_axis(x(), ids("i", 2, 6, 3), 2),
    "getitem": lambda: x("x", 4, 5, 3)[ids("i", 3), :, ids("j", 3)],
}


def nodes_of(out):
    return [a.node for a in (out if isinstance(out, tuple) else (out,))]


def random_inputs(outputs):
    rng = np.random.default_rng(0)
    out = {}
    for n in topo(outputs):
        if n.op == "input":
            shape = tuple(evaluate(d, {"library_n": N}) for d in n.shape)
            integer = n.dtype.is_integer
            out[n.attr] = rng.integers(-3, 6, shape) if integer else rng.standard_normal(shape)
    return out


@pytest.mark.parametrize("name", [*OPS, *GATHERS])
def test_translation_is_right(name):
    outputs = nodes_of({**OPS, **GATHERS}[name]())
    symbols = {"library_n": N}
    values = graph_values.values_of(outputs, random_inputs(outputs), symbols)
    given = {n.attr: values[n] for n in topo(outputs) if n.op == "input"}
    assert not named_values.check_translation(translate(outputs), given, values, symbols)


@pytest.mark.parametrize("name", GATHERS)
def test_a_gather_is_an_indexed_load(name):
    """Beside the one-hot sum, the class of the result holds a masked load at a computed index."""
    saturated = saturate(nodes_of(GATHERS[name]()))
    assert saturated.stats.saturated
    (root,) = (r for r in saturated.roots if r.output)

    def gathers(cls):
        node_kids = [(n, n.kids) for n in saturated.classes[cls].nodes if n.op in ("mask", "in")]
        return any(
            any(values_in(e) for e in n.args[1]) if n.op == "in" else gathers(kids[1])
            for n, kids in node_kids
        )

    assert gathers(root.cls)
