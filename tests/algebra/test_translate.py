"""Terms against the graph's own meaning: random graphs, symbolic sizes, dtypes, exact constants."""

import math
import os
import random
from fractions import Fraction

import numpy as np
import pytest
from example_graphs import LOG2E, matmul, weight
from graph_values import bind, random_inputs, values_of
from named_values import check_translation
from random_graphs import OPTIONS, random_graph

from lambent.algebra.term import walk
from lambent.algebra.translate import exact_constant, translate
from lambent.functional import arithmetic as m
from lambent.functional import operands
from lambent.functional import shaping as s
from lambent.graph import tensor as t
from lambent.graph.dim import Dim
from lambent.graph.node import topo

EQUAL = [{"rs": n, "rt": n, "rn": max(n, 3)} for n in (1, 2, 3, 4, 5)]  # ones among them
PRIMES = [
    {"rs": a, "rt": b, "rn": c}
    for a in (1, 2, 3, 5, 7) for b in (1, 2, 3, 5, 7) for c in (3, 5, 7, 11) if a != b
]  # fmt: skip


@pytest.mark.parametrize("first", range(0, 2000, 200))
def test_random_graphs(first):
    for seed in range(first, first + 200):
        outputs = random_graph(seed, steps=24)
        inputs = random_inputs(outputs, seed)
        values = values_of(outputs, inputs)
        tr = translate(outputs, **OPTIONS[seed % len(OPTIONS)])
        assert check_translation(tr, inputs, values) == [], seed


GRAPHS = int(os.environ.get("LAMBENT_GRAPHS", 120))
"""Random symbolic graphs: LAMBENT_GRAPHS=2000 takes some minutes, and every graph at all sizes."""


@pytest.mark.parametrize("first", range(0, GRAPHS, 40))
def test_random_symbolic_graphs(first):
    for seed in range(first, first + 40):
        outputs = random_graph(seed, symbolic=True, steps=14)
        tr = translate(outputs, **OPTIONS[seed % len(OPTIONS)])
        checked = 0
        for symbols in EQUAL + random.Random(seed).sample(PRIMES, 15):
            sizes = [int(np.prod(bind(n.shape, symbols))) for n in topo(outputs)]
            if GRAPHS > 120 or sum(sizes) <= 40_000:
                inputs = random_inputs(outputs, seed, symbols)
                values = values_of(outputs, inputs, symbols)
                assert check_translation(tr, inputs, values, symbols) == [], (seed, symbols)
                checked += 1
        assert checked >= 5


def agree(*outputs):
    """Translate under all options, check, and return the first translation."""
    nodes = [x.node for x in outputs]
    inputs = random_inputs(nodes)
    values = values_of(nodes, inputs)
    for options in OPTIONS:
        assert check_translation(translate(nodes, **options), inputs, values) == []
    return translate(nodes)


def test_outputs_that_are_inputs_weights_views_and_constants():
    x, w = t.input("x", (2, 3)), weight("w", 3)
    agree(x, w, s.permute(x, 1, 0), operands.constant(2.5), s.reshape(t.iota(6), 2, 3))


def test_output_buffers_never_have_the_name_of_an_input():
    tr = agree(t.input("out0", (2,)) + t.input("out0_", (2,)))
    assert [root.buffer.name for root in tr.roots] == ["out0__"]


def test_two_weights_of_one_name_stay_two():
    a, b = (t.weight("w", np.full(2, v, np.float32)) for v in (1, 2))
    tr = agree(a * 3.0 + b)
    assert sorted(tr.buffers) == ["w", "w_"]


def test_self_product_renames_one_side():
    x = t.input("x", (4, 3))
    tr = agree(matmul(x, s.permute(x, 1, 0)))
    (root,) = tr.roots
    loads = {term.args for term in walk(root.term) if term.op == "in"}
    assert len(loads) == 2


def test_integers_wrap_and_bools_are_masks():
    a, b = t.input("a", (3, 4), "int8"), t.input("b", (3, 4), "bool")
    x = t.input("x", (3, 4))
    wide = operands.reduce("sum_reduce", a * 100, 1)
    agree(
        wide, b * a, b * x, m.logical_not(b) * b, m.less(b, b * b), operands.cast(a, "float32") * x
    )
    agree(
        operands.reduce("max_reduce", b, 0),
        s.pad(b, [(1, 1), (0, 0)], True),
        s.pad(a, [(0, 1), (2, 0)], 3),
    )


def test_bool_not_is_one_operation():
    tr = agree(m.logical_not(t.input("b", (3,), "bool")))
    assert [term.op for term in walk(tr.roots[0].term)] == ["in", "not"]


def test_contiguous_is_the_operand_or_a_cast():
    x = t.input("x", (3,), "float16")
    assert agree(t.contiguous(x)).roots[0].term.op == "in"
    term = agree(t.contiguous(x, "float32")).roots[0].term
    assert (term.op, term.dtype.name, term.kids[0].dtype.name) == ("cast", "float32", "float16")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (LOG2E, (Fraction(1), 1)),
        (-2 * LOG2E, (Fraction(-2), 1)),
        (math.log(2), (Fraction(1), -1)),
        (math.log(2) / 4, (Fraction(1, 4), -1)),
        (0.1, (Fraction(0.1), 0)),
        (0.0, (Fraction(0), 0)),
    ],
)
def test_exact_constants(value, expected):
    assert exact_constant(value) == expected


def test_constants_out_of_range_are_infinite():
    terms = [
        translate([operands.constant(v, "float16").node]).roots[0].term
        for v in (1e6, -1e6, math.nan)
    ]
    assert [(x.op, *x.args) for x in terms] == [("inf", 1), ("inf", -1), ("nan",)]


def test_a_long_chain_needs_no_deep_recursion():
    x = t.input("x", (3,))
    for _ in range(3000):
        x = operands.unary("sin", x)
    assert translate([x.node]).roots[0].term.op == "sin"


def test_a_symbolic_size_as_a_number():
    n = Dim("tr_n", 1, 64)
    mean = operands.reduce("sum_reduce", t.input("x", (n, 2)), 0) / operands.constant(n, "float32")
    tr = translate([mean.node])
    for size in (1, 5):
        inputs = random_inputs([mean.node], 0, {"tr_n": size})
        values = values_of([mean.node], inputs, {"tr_n": size})
        assert check_translation(tr, inputs, values, {"tr_n": size}) == []
