"""Gradients of primitives and views against finite differences, and what `grad` refuses."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lambent as lt
from lambent.graph.autograd import GRADIENTS
from lambent.graph.ops import PRIMITIVES, VIEWS
from lambent.graph.tensor import elementwise, view

Arrays = dict[str, np.ndarray]
few = settings(max_examples=25, deadline=None, derandomize=True)


def by_differences(loss: lt.Tensor, at: Arrays, name: str, step: float = 1e-6) -> np.ndarray:
    """The gradient by an input from central differences, in float64."""

    def value(k: int, by: float) -> float:
        moved = at[name].copy()
        moved.flat[k] += by
        return float(lt.evaluate([loss], at | {name: moved}, float64=True)[0])

    slopes = [(value(k, step) - value(k, -step)) / (2 * step) for k in range(at[name].size)]
    return np.reshape(slopes, at[name].shape)


def check(f: Callable[..., lt.Tensor], *arrays: np.ndarray, second: bool = True) -> None:
    """Gradients of Σ r · f, and of a sum of weighted gradients, against finite differences."""
    rng = np.random.default_rng(7)
    at = {f"x{i}": a for i, a in enumerate(arrays)}
    xs = {n: lt.input(n, a.shape, "float64") for n, a in at.items()}
    out = f(*xs.values())

    def weighted(x: lt.Tensor) -> lt.Tensor:
        return (x * lt.tensor(rng.normal(size=x.shape))).sum()

    loss = weighted(out)
    for _ in range(1 + second):
        found = lt.grad(loss, xs)
        values = lt.evaluate(list(found.values()), at, float64=True)
        for name, got in zip(xs, values, strict=True):
            np.testing.assert_allclose(got, by_differences(loss, at, name), rtol=2e-5, atol=2e-6)
        loss = sum((weighted(g) for g in found.values()), weighted(out * out))


def test_every_primitive_and_view_has_a_row() -> None:
    """All but the comparison, whose result is a bool."""
    assert set(GRADIENTS) == (set(PRIMITIVES) | set(VIEWS)) - {"less_than"}


# ---- primitives ------------------------------------------------------------------------------

UNARY = {"log2": 0.5, "exp2": -1.0, "sin": -2.0, "sqrt": 0.5, "recip": 0.5}
"""The op, and from where its operand is drawn: a range of 1.5."""


@few
@given(st.sampled_from(sorted(UNARY)), st.integers(0, 99))
def test_unary(op: str, seed: int) -> None:
    x = np.random.default_rng(seed).random((2, 3)) * 1.5 + UNARY[op]
    check(lambda x: elementwise(op, x), x)


@few
@given(st.sampled_from(["add", "mul", "mod"]), st.integers(0, 99))
def test_binary(op: str, seed: int) -> None:
    x, y = np.random.default_rng(seed).random((2, 2, 3)) * 2 + 0.3
    if op == "mod":  # away from its jumps
        x = np.floor(x / y) * y + y * (0.1 + 0.8 * np.random.default_rng(seed + 1).random(x.shape))
    check(lambda x, y: elementwise(op, x, y), x, -y)
    check(lambda x: elementwise(op, x, x * x + 1.0), x)  # both operands lead to one input


@few
@given(st.sampled_from(["sum_reduce", "max_reduce"]), st.integers(0, 2), st.integers(0, 99))
def test_reductions(op: str, axis: int, seed: int) -> None:
    x = np.random.default_rng(seed).permutation(24).reshape(2, 3, 4) / 5.0
    check(lambda x: (lt.max if op == "max_reduce" else lt.sum)(x, axis), x, second=seed < 50)


def test_ties_of_a_maximum_share_also_over_several_axes() -> None:
    x = lt.input("x", (2, 3), "float64")
    g = lt.grad(x.max() * 6, x)
    (found,) = lt.evaluate([g], {"x": np.array([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])})
    np.testing.assert_allclose(found, [[2, 2, 0], [2, 0, 0]])


def test_masks_casts_and_comparisons() -> None:
    x = lt.input("x", (4,), "float64")
    at = {"x": np.array([-1.0, 2.0, np.inf, 3.0])}
    masked = lt.grad(((x < 2.5) * x * x).sum(), x)  # inf is masked before it is multiplied …
    np.testing.assert_allclose(lt.evaluate([masked], at)[0][[0, 1, 3]], [-2, 4, 0])
    narrow = lt.grad((x.astype("float32") * 3).sum(), x)
    assert narrow.dtype == lt.float64
    np.testing.assert_allclose(lt.evaluate([narrow], at)[0], 3.0)
    whole = lt.grad((x * 2 + x.astype("int64").astype("float64")).sum(), x)
    np.testing.assert_allclose(lt.evaluate([whole], at)[0], 2.0)


# ---- views -----------------------------------------------------------------------------------


@st.composite
def views(draw: st.DrawFn) -> tuple[tuple[int, ...], str, object]:
    """A shape, a view of it, and the view's attribute."""
    shape = draw(st.lists(st.sampled_from([1, 2, 3, 5]), min_size=1, max_size=3).map(tuple))
    op = draw(st.sampled_from(VIEWS))
    if op == "permute":
        return shape, op, tuple(draw(st.permutations(range(len(shape)))))
    if op == "expand":
        return shape, op, tuple(draw(st.integers(0, 3)) if n == 1 else n for n in shape)
    if op == "reshape":
        n = int(np.prod(shape))
        first = draw(st.sampled_from([d for d in range(1, n + 1) if n % d == 0]))
        return shape, op, (first, n // first)
    if op == "pad":
        return shape, op, tuple((draw(st.integers(0, 2)), draw(st.integers(0, 2))) for _ in shape)
    if op == "slice":
        parts = []
        for n in shape:
            step = draw(st.sampled_from([1, 2, 3, -1, -2]))
            start = draw(st.integers(0, n - 1))
            room = (n - 1 - start) // step if step > 0 else start // -step
            parts.append((start, step, draw(st.integers(0, room + 1))))
        return shape, op, tuple(parts)
    dim = draw(st.integers(0, len(shape) - 1))
    size = draw(st.integers(1, shape[dim]))
    most = (shape[dim] - 1) // (size - 1) if size > 1 else 3
    return shape, op, (dim, size, draw(st.integers(1, 3)), draw(st.integers(1, max(1, most))))


@settings(max_examples=120, deadline=None, derandomize=True)
@given(views())
def test_views_are_transposed(case: tuple[tuple[int, ...], str, object]) -> None:
    """⟨r, V x⟩ = ⟨Vᵀ r, x⟩ for random r and x: a view is linear."""
    shape, op, attr = case
    rng = np.random.default_rng(3)
    x = lt.input("x", shape, "float64")
    out = view(op, x, attr)
    r = lt.input("r", out.shape, "float64")
    back = lt.grad((out * r).sum() + x.sum() * 0.0, x)
    at = {"x": rng.normal(size=shape), "r": rng.normal(size=out.shape)}
    forward, transposed = lt.evaluate([out, back], at)
    assert transposed.shape == shape
    np.testing.assert_allclose((forward * at["r"]).sum(), (transposed * at["x"]).sum(), atol=1e-12)


def test_symbolic_sizes() -> None:
    s = lt.Dim("autograd_s", 1, 64)
    x, w = lt.input("x", (s, 4), "float64"), lt.input("w", (4, 3), "float64")
    y = lt.softmax(x @ w, 0)
    loss = (y * y)[::2].sum() + y.mean() + x.pad([(1, 1), (0, 0)]).window(0, 3).max(-1).sum()
    at = {"x": np.random.default_rng(0).normal(size=(5, 4)), "w": np.eye(4)[:, :3]}
    gx, gw = lt.grad(loss, [x, w])
    assert gx.shape == (s, 4)
    for name, g in (("x", gx), ("w", gw)):
        (found,) = lt.evaluate([g], at)
        np.testing.assert_allclose(found, by_differences(loss, at, name), rtol=1e-6, atol=1e-8)


# ---- the function ----------------------------------------------------------------------------


def test_params_in_any_form_and_values_in_between() -> None:
    x = lt.input("x", (3,))
    y = lt.stop_gradient(x) * x
    z = y * y
    one = lt.grad(z.sum(), y)
    by_name = lt.grad(z.sum(), {"y": y, "x": x})
    assert lt.grad(z.sum(), [y])[0].node is one.node is by_name["y"].node
    a = np.array([1.0, 2.0, 3.0], np.float32)
    found = lt.evaluate([one, by_name["x"]], {"x": a})
    np.testing.assert_allclose(found, [2 * a**2, 2 * a**3])
    assert lt.grad(lt.checkpoint(x).sum(), x).shape == (3,)


def test_stop_gradient_and_checkpoint_vanish_in_the_compiler() -> None:
    from lambent.algebra.egraph import saturate

    x = lt.input("x", (8, 8))
    plain, marked = x.exp2().sum(-1), lt.checkpoint(lt.stop_gradient(x).exp2()).sum(-1)
    sizes = [saturate([y.node]).stats.e_nodes for y in (plain, marked)]
    assert sizes[0] == sizes[1]


def test_errors() -> None:
    x, i = lt.input("x", (3,)), lt.input("i", (3,), "int64")
    with pytest.raises(ValueError, match=r"grad: the loss is float32\[3\], no floating scalar"):
        lt.grad(x, x)
    with pytest.raises(TypeError, match=r"grad: the loss is int64\[\], no floating scalar"):
        lt.grad(i.sum(), x)
    with pytest.raises(TypeError, match=r"grad: 'i' is int64\[3\]: not floating"):
        lt.grad((x * i).sum(), [x, i])
    with pytest.raises(ValueError, match=r"does not depend on 'w', float32\[2\]"):
        lt.grad(x.sum(), {"x": x, "w": lt.input("w", (2,))})
    with pytest.raises(ValueError, match="does not depend on 'x'"):
        lt.grad((lt.stop_gradient(x) + (x < 1)).sum(), x)
