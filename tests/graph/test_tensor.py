"""Tensor itself: hash-consed nodes, sources, and that the tables are complete."""

from __future__ import annotations

import gc
import subprocess
import sys

import numpy as np
import pytest

import lambent as lt
from lambent.backends.reference.graph import MEANING
from lambent.graph.node import topo
from lambent.graph.ops import PRIMITIVES, SOURCES, VIEWS
from lambent.graph.tensor import elementwise


def test_equal_nodes_are_one() -> None:
    x, y = lt.input("x", (2, 3)), lt.input("x", (2, 3))
    assert x.node is y.node
    assert ((x + 1) * 2).node is ((y + 1) * 2).node
    assert (x + 1).node is not (x + 2).node
    assert lt.constant(0.0).node is not lt.constant(-0.0).node
    assert lt.constant(True).node is not lt.constant(1).node
    assert lt.constant(float("nan")).node is lt.constant(float("nan")).node
    assert lt.softmax(x).node is lt.softmax(y).node
    assert lt.tensor([[1, 2]]).node is lt.tensor(np.array([[1, 2]])).node
    assert lt.tensor([1.0]).node is not lt.tensor([1]).node
    array = np.zeros(3, np.float32)
    assert lt.weight("w", array).node is not lt.weight("w", array).node  # two objects, not merged
    assert x.reshape(2, 3).node is x.expand(2, 3).node is x.permute(0, 1).node is x.node


def test_nodes_are_forgotten() -> None:
    before = len(gc.get_objects())
    for i in range(200):
        lt.softmax(lt.input("x", (2, 3)) + i + 0.25)
    gc.collect()
    assert len(gc.get_objects()) < before + 2000


def test_a_tensor_describes_itself() -> None:
    x = lt.input("x", (2, lt.Dim("tensor_seq", 1, 8)), lt.float16)
    assert repr(x) == "Tensor(float16[2, tensor_seq], input)"
    assert (x.ndim, x.shape[0], x.dtype, x.size) == (2, 2, lt.float16, x.shape[1] * 2)
    assert len({x, x, lt.input("y", (1,))}) == 2
    assert [t.shape for t in lt.zeros(3, 2)] == [(2,)] * 3


def test_sources() -> None:
    array = np.arange(6.0).reshape(2, 3)
    assert lt.weight("w", array).dtype == lt.float64
    assert lt.weight("w", array, lt.float32).dtype == lt.float32
    assert lt.tensor([1.5, 2]).dtype == lt.float32
    assert lt.tensor([True]).dtype == lt.bool_
    assert lt.tensor(np.int16(3)).dtype == lt.int16
    assert lt.tensor(7, lt.uint8).dtype == lt.uint8
    np.testing.assert_array_equal(lt.evaluate([lt.tensor(array) * 2], {})[0], array * 2)
    changed = array.copy()
    kept = lt.tensor(changed)
    changed[:] = 0
    np.testing.assert_array_equal(lt.evaluate([kept], {})[0], array)
    big = lt.tensor(array.astype(">f4"))
    assert big.dtype == lt.float32
    np.testing.assert_array_equal(lt.evaluate([big], {})[0], array)


@pytest.mark.parametrize("bad", [None, "text", 1j, [1, "a"], object(), np.zeros(2, "c8")])
def test_what_is_no_tensor(bad: object) -> None:
    with pytest.raises(TypeError, match="dtype"):
        lt.tensor(bad)


def test_tables_are_complete() -> None:
    assert set(MEANING) == set(PRIMITIVES) | set(VIEWS) | set(SOURCES)
    used = {n.op for n in topo([lt.attention(*(lt.input(n, (2, 4, 4)) for n in "qkv")).node])}
    assert used <= set(MEANING)


def test_graph_building_imports_nothing_heavy() -> None:
    code = (
        "import lambent, sys; print(*(m for m in ('scipy', 'egglog', 'torch') if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
    with pytest.raises(AttributeError, match="no_such_name"):
        lt.no_such_name  # noqa: B018


def test_zero_sized_dims() -> None:
    x, empty = lt.input("x", (0, 3)), {"x": np.zeros((0, 3))}
    padded = x.pad([(1, 1), (0, 0)], value=2.0)
    for out in x.sum(0), padded, x @ lt.zeros(3, 2), x.mT @ lt.ones(0, 2):
        assert lt.evaluate([out], empty)[0].shape == out.shape
    np.testing.assert_array_equal(lt.evaluate([padded], empty)[0], np.full((2, 3), 2.0))


def test_builders_take_operands_that_go_together() -> None:
    x, y, i = lt.input("x", (2, 3)), lt.input("y", (3,)), lt.input("i", (2, 3), "int32")
    with pytest.raises(ValueError, match=r"add: the shapes of .* differ"):
        elementwise("add", x, y)
    with pytest.raises(TypeError, match="add: needs two operands of one dtype"):
        elementwise("add", x, i)
    assert elementwise("add", x, x).node is (x + x).node
