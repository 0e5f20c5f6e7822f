"""Saturated e-graphs: every member of every class is equal, and the forms we want are found."""

import os
import subprocess
import sys
import time
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from example_graphs import (
    EXAMPLES,
    SPELLINGS,
    attention,
    causal_mask,
    embed,
    layer_norm,
    logsumexp,
    weight,
)
from graph_values import bind, random_inputs, values_of
from named_values import ClassValues, buffers_of
from random_graphs import OPTIONS, matmul, random_graph, softmax, swapped, total

from lambent.algebra import egraph
from lambent.algebra.egraph import ClassRef, saturate
from lambent.algebra.saturate import Session
from lambent.algebra.translate import translate
from lambent.explain.report import count_programs
from lambent.functional import arithmetic as m
from lambent.functional import indexing, operands
from lambent.functional import shaping as s
from lambent.graph import tensor as t
from lambent.graph.dim import Dim, values_in
from lambent.graph.node import topo


def faults(saturated, outputs, seed=0, symbols=None):
    """Members that differ, at random inputs. The buffers are those of a second translation."""
    inputs = random_inputs(outputs, seed, symbols)
    values = values_of(outputs, inputs, symbols)
    buffers = buffers_of(translate(outputs), inputs, values)
    return ClassValues(saturated, buffers, symbols).faults()


def one_pass(saturated):
    """The attention form: recip(fold(k; a, 1)) · fold(k; a, v), its class numbers."""
    folds, ones, found = {}, set(), []
    for c, eclass in saturated.classes.items():
        for n in eclass.nodes:
            if n.op == "fold":
                folds.setdefault(c, set()).add((n.axes, *n.kids))
            if n.op == "const" and n.args == (Fraction(1), 0):
                ones.add(c)
    for c, eclass in saturated.classes.items():
        for x, y in (
            pair for n in eclass.nodes if n.op == "mul" for pair in (n.kids, n.kids[::-1])
        ):
            for inverse in saturated.classes[x].nodes:
                below = folds.get(inverse.kids[0], ()) if inverse.op == "recip" else ()
                found += [
                    c
                    for axes, a, v in below
                    if v in ones and any(f[:2] == (axes, a) for f in folds.get(y, ()))
                ]
    return found


# ---- members are equal -----------------------------------------------------------------------


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_member_of_an_example_is_equal(name):
    outputs = [EXAMPLES[name]().node]
    saturated = saturate(outputs)
    assert saturated.stats.saturated
    assert faults(saturated, outputs) == []


@pytest.mark.parametrize("name", [n for n in EXAMPLES if n != "layer"])
def test_weights_only_values_do_not_change_with_the_inputs(name):
    outputs = [EXAMPLES[name]().node]
    saturated = saturate(outputs)
    seen = []
    for seed in (1, 2):
        inputs = random_inputs(outputs, seed)
        values = values_of(outputs, inputs)
        check = ClassValues(saturated, buffers_of(translate(outputs), inputs, values))
        assert check.faults() == []
        seen.append(check.values)
    fixed = {c for c, e in saturated.classes.items() if e.weights_only}
    assert fixed
    for c in fixed:
        np.testing.assert_array_equal(seen[0][c][1], seen[1][c][1])


@pytest.mark.parametrize("first", range(0, 24, 12))
def test_every_member_of_random_graphs(first):
    for seed in range(first, first + 12):
        outputs = random_graph(seed, steps=18)
        tr = translate(outputs, **OPTIONS[seed % len(OPTIONS)])
        session = Session(tr)
        session.saturate(1500, 5, rounds=7)
        inputs = random_inputs(outputs, seed)
        values = values_of(outputs, inputs)
        read = egraph.read(session)
        assert ClassValues(read, buffers_of(tr, inputs, values)).faults() == [], seed


def test_what_depends_on_a_size_is_not_known_when_the_weights_are():
    for n, known in ((4, True), (Dim("fixed_n", 1, 9), False)):
        repeated = operands.broadcast_to(s.reshape(weight("w", 3), 1, 3), (n, 3))
        saturated = saturate([total("sum", repeated, 0).node, t.iota(n).node])
        assert [saturated.classes[root.cls].weights_only for root in saturated.roots] == [known] * 2
        loads = [e for e in saturated.classes.values() for m in e.nodes if m.op == "in"]
        assert loads and all(e.weights_only for e in loads)


SYMBOLS = ({"eb": 1, "en": 1}, {"eb": 2, "en": 3}, {"eb": 1, "en": 5})


def test_every_member_with_symbolic_sizes():
    b, n = Dim("eb", 1, 64), Dim("en", 1, 4096)
    outputs = [attention(t.input("x", (b, n, 3)), "", b, n, 3, 2, 2, 2).node]
    saturated = saturate(outputs)
    assert saturated.stats.saturated and one_pass(saturated)
    for symbols in SYMBOLS:
        assert faults(saturated, outputs, 0, symbols) == []


def test_every_member_of_random_symbolic_graphs():
    for seed in range(10):
        outputs = random_graph(seed, symbolic=True, steps=14)
        tr = translate(outputs)
        session = Session(tr, (0, 2, 5)[seed % 3], 10**9)
        session.saturate(1000, 5, rounds=6)
        read = egraph.read(session)
        for symbols in ({"rs": 1, "rt": 1, "rn": 3}, {"rs": 3, "rt": 2, "rn": 4}):
            if sum(int(np.prod(bind(n.shape, symbols))) for n in topo(outputs)) > 10_000:
                continue
            inputs = random_inputs(outputs, seed, symbols)
            values = values_of(outputs, inputs, symbols)
            found = ClassValues(read, buffers_of(tr, inputs, values), symbols).faults()
            assert found == [], (seed, symbols)


def test_every_member_with_integers_and_casts():
    a, b = t.input("a", (3, 4), "int8"), t.input("b", (3, 4), "bool")
    x, h = t.input("x", (3, 4)), t.input("h", (3, 4), "float16")
    wrapped = total("max", a * 100 + s.reshape(t.iota(3), 3, 1).astype("int8"), 1)
    gated = total("sum", operands.cast(b, "float32") * x, 1) * 3.0
    mixed = total("sum", operands.cast(h, "float32") * x, 0)
    counts = total("sum", operands.broadcast_to(operands.cast(b[0], "int64"), (3, 4)), 0)
    outputs = [y.node for y in (wrapped, gated, mixed, counts)]
    saturated = saturate(outputs)
    assert faults(saturated, outputs) == []
    for eclass in saturated.classes.values():
        if not eclass.dtype.is_float:
            assert all(n.op not in ("scale", "fold") for n in eclass.nodes)


def test_a_maximum_of_wrapping_integers_keeps_its_factor():
    a = t.input("a", (3, 4), "int8")
    saturated = saturate([total("max", a * 100, 1).node])
    (root,) = saturated.roots
    assert [n.op for n in saturated.classes[root.cls].nodes] == ["max"]


# ---- forms that must be found ----------------------------------------------------------------

NO_ONE_PASS = {"sink", "linear"}  # an extra logit along k; no softmax at all


@pytest.mark.parametrize("name", [n for n in SPELLINGS if n not in NO_ONE_PASS])
def test_spelling_reaches_the_one_pass_form(name):
    outputs = [SPELLINGS[name]().node]
    saturated = saturate(outputs)
    assert saturated.stats.saturated
    assert one_pass(saturated)
    assert {"online", "online_one"} <= set(saturated.stats.rules)


@pytest.mark.parametrize("name", ["softcap", "pad_causal", "sink", "cache", "packed", "chunks"])
def test_every_member_of_a_spelling_is_equal(name):
    outputs = [SPELLINGS[name]().node]
    assert faults(saturate(outputs), outputs) == []


@pytest.mark.parametrize("causal", [False, True])
def test_naive_attention_saturates_fast(causal):
    q, k, v = (t.input(name, (8, 1024, 64)) for name in "qkv")
    scores = matmul(q, swapped(k, -2)) * 0.125
    if causal:
        scores = m.where(causal_mask(1024), scores, -np.inf)
    saturate([q.node])  # egglog is loaded
    start = time.process_time()
    saturated = saturate([matmul(softmax(scores), v).node])
    assert time.process_time() - start < 1
    assert saturated.stats.saturated
    assert one_pass(saturated) == [saturated.roots[0].cls]


def test_logsumexp_is_one_fold():
    saturated = saturate([logsumexp(t.input("x", (4, 4096))).node])
    folds = [n for e in saturated.classes.values() for n in e.nodes if n.op == "fold"]
    assert folds
    logs = {
        k for e in saturated.classes.values() for n in e.nodes if n.op == "log2" for k in n.kids
    }
    assert any(n.op == "fold" for c in logs for n in saturated.classes[c].nodes)


def test_a_norm_moves_behind_a_product():
    x = t.input("x", (4, 6))
    y = matmul(layer_norm(x, weight("g", 6), weight("b", 6)), weight("w", 6, 5))
    saturated = saturate([y.node])
    (root,) = saturated.roots
    # the sum of normalised values, and: something without the channel times a sum, plus a constant
    heads = {n.op for n in saturated.classes[root.cls].nodes}
    assert {"sum", "add"} <= heads
    packed = [e for e in saturated.classes.values() if e.weights_only and len(e.free) == 2]
    assert any(n.op == "mul" for e in packed for n in e.nodes)  # g·w, folded at load


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
@pytest.mark.parametrize("lookup", [embed, indexing.embedding])
def test_a_one_hot_product_becomes_a_gather(dtype, lookup):
    ids, table = t.input("ids", (4,), dtype), weight("e", 6, 3)
    outputs = [lookup(ids, table).node]
    saturated = saturate(outputs)
    assert faults(saturated, outputs) == []
    loads = [n for e in saturated.classes.values() for n in e.nodes if n.op == "in"]
    gathers = [n for n in loads if any(values_in(e) for e in n.args[1])]
    assert gathers
    for n in gathers:
        assert all(isinstance(r, ClassRef) and r.id in saturated.classes for r in n.below and [
            r for e in n.args[1] for r in values_in(e)])  # fmt: skip


def test_take_along_axis_becomes_a_gather():
    x, i = t.input("x", (5, 7)), t.input("i", (5, 3), "int64")
    outputs = [indexing.take_along_axis(x, i, 1).node]
    saturated = saturate(outputs)
    assert faults(saturated, outputs) == []
    loads = [n for e in saturated.classes.values() for n in e.nodes if n.op == "in"]
    assert any(values_in(e) for n in loads for e in n.args[1])


def test_long_reductions_are_offered_in_parts():
    x = t.input("x", (3, 24))
    whole = saturate([logsumexp(x).node])
    split = saturate([logsumexp(x).node], part=3)
    assert sorted(split.extents.values()) == [3, 3, 8, 24]
    assert "fold_split" not in whole.stats.rules
    assert "part" in {n.op for e in split.classes.values() for n in e.nodes}


def test_every_member_of_a_long_cache_in_parts():
    n = Dim("parts_n", 1, 4096)
    q, k, v = (t.input(name, (2, m, 3)) for name, m in (("q", 1), ("k", n), ("v", n)))
    outputs = [matmul(softmax(matmul(q, swapped(k, -2))), v).node]
    saturated = saturate(outputs, part=4)
    assert {"sum_split", "max_split", "fold_split"} <= saturated.stats.rules.keys()
    for size in (1, 3, 4, 9, 21):
        assert faults(saturated, outputs, 0, {"parts_n": size}) == []


# ---- the read-out ----------------------------------------------------------------------------


def test_operands_of_the_first_node_are_smaller_and_pairs_are_ordered():
    saturated = saturate([EXAMPLES["attention"]().node])
    for c, eclass in saturated.classes.items():
        assert all(k < c for k in eclass.nodes[0].below)
        assert len(set(eclass.nodes)) == len(eclass.nodes)
        for n in eclass.nodes:
            assert n.op not in ("add", "mul", "eq") or n.kids == tuple(sorted(n.kids))
            assert all(k in saturated.classes for k in n.below)


def test_statistics():
    saturated = saturate([EXAMPLES["attention"]().node])
    stats = saturated.stats
    assert stats.e_classes == len(saturated.classes)
    assert stats.e_nodes == sum(len(e.nodes) for e in saturated.classes.values())
    assert stats.rounds > 1 and stats.seconds > 0 and all(stats.rules.values())


def test_rules_are_counted_by_the_equalities_that_were_not_known():
    x, y = t.input("x", (3,)), t.input("y", (3,))
    assert saturate([(x + y).node]).stats.rules == {"add_swap": 1}  # and y + x is swapped back
    assert saturate([operands.unary("sin", x).node]).stats.rules == {}
    twice = m.logical_not(m.logical_not(t.input("b", (3,), "bool")))
    assert saturate([twice.node]).stats.rules == {"not_not": 1}


def test_count_of_programs():
    a, b, c = (t.input(name, (3,)) for name in "abc")
    assert count_programs(saturate([(a + b).node])) == 1
    assert count_programs(saturate([(a * b * c).node])) == 3
    assert count_programs(saturate([EXAMPLES["attention"]().node])) > 1000


def test_stored_values_are_roots_with_buffers():
    saturated = saturate([EXAMPLES["conv"]().node])
    outputs = [root for root in saturated.roots if root.output]
    stored = [root for root in saturated.roots if not root.output]
    assert [root.buffer.name for root in outputs] == ["out0"]
    assert stored and all(root.buffer.name in saturated.buffers for root in stored)
    assert {"x", "w1", "w2"} <= set(saturated.buffers)
    assert saturated.buffers["w1"].weight and not saturated.buffers["x"].weight


def test_a_limit_ends_saturation_early_with_what_was_found():
    outputs = [EXAMPLES["layer"]().node]
    saturated = saturate(outputs, limit=600)
    assert not saturated.stats.saturated
    assert faults(saturated, outputs) == []


def test_too_many_axes_are_refused():
    outputs = [
        operands.reduce("sum_reduce", t.input(f"i{n}", (n, n + 1)), 0).node for n in range(2, 70, 2)
    ]
    with pytest.raises(ValueError, match="axes"):
        saturate(outputs)


def test_a_conflict_of_dtypes_stops():
    x = t.input("x", (3,))
    tr = translate([operands.unary("sin", x).node, m.less(x, 1.0).node])
    wrong = replace(tr, alternatives=((tr.roots[0].term, tr.roots[1].term),))
    with pytest.raises(Exception, match="merge"):
        Session(wrong).saturate(100, 1)


def test_infinite_weights_are_not_taken_for_finite():
    for value, finite in ((1.0, True), (np.inf, False), (np.nan, False)):
        assert t.weight("w", np.full(3, value, np.float32)).node.attr.finite == finite


def test_the_order_does_not_depend_on_the_process():
    program = (
        "from example_graphs import EXAMPLES\n"
        "from lambent.algebra.egraph import saturate\n"
        "from dataclasses import replace\n"
        "for f in (EXAMPLES['attention'], EXAMPLES['cross_entropy']):\n"
        "    s = saturate([f().node])\n"
        "    print(s.classes, s.roots, s.extents, replace(s.stats, seconds=0))\n"
    )
    texts = set()
    for seed in ("1", "2"):
        env = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
        )
        texts.add(done.stdout)
    # frozensets print in any order: compare what they hold
    assert len({"".join(sorted(text)) for text in texts}) == 1


def test_equal_graphs_built_again_give_equal_e_graphs():
    first, second = (saturate([EXAMPLES["attention"]().node]) for _ in range(2))
    assert (first.classes, first.roots) == (second.classes, second.roots)


def test_names_may_hold_anything():
    n = Dim("odd_name", 1, 8)
    x = t.input('a "b" \\c)', (n, 3))
    saturated = saturate([total("sum", x * 2.0, 0).node])
    assert list(saturated.buffers) == ['a "b" \\c)']
    assert saturated.buffers['a "b" \\c)'].shape == (n, 3)


def test_finiteness_of_narrow_and_wide_weights():
    for dtype, value in (("bfloat16", 1e30), ("float16", 6e4), ("float64", 1e300)):
        assert t.weight("w", np.full(3, value), dtype).node.attr.finite


def test_a_polynomial_of_a_sum_stays_small():
    h = matmul(t.input("x", (4, 8)), weight("w", 8, 3))
    y = h
    for c in (0.1, 0.2, 0.3, 0.4):
        y = y * h + c
    saturated = saturate([(y * h * y).node])
    assert saturated.stats.saturated and saturated.stats.e_nodes < 300


def test_products_of_products_may_be_taken_in_another_order():
    q, k, v = (t.input(name, (8, 4)) for name in "qkv")
    y = matmul(matmul(q, swapped(k, -2)), v)
    saturated = saturate([y.node])
    (root,) = saturated.roots
    shared = [n for n in saturated.classes[root.cls].nodes if n.op == "sum"]
    assert {len(n.axes) for n in shared} == {1, 2}  # (q·k)·v, q·(k·v), and both sums at once
    assert len(shared) >= 3
