"""Contractions, creation and joining against NumPy and PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from compare import check, few, full_shapes, run, seeds, shapes, values
from hypothesis import given
from hypothesis import strategies as st

import lambent as lt


@st.composite
def matrices(draw: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes that matmul takes: 1-D operands, broadcast leading dims, empty sizes."""
    n, k, m = (draw(st.sampled_from([0, 1, 2, 4])) for _ in range(3))
    lead = draw(st.lists(st.sampled_from([1, 2, 3]), max_size=2))
    a = [1 if draw(st.booleans()) else s for s in lead][draw(st.integers(0, len(lead))) :]
    left = (k,) if draw(st.integers(0, 4)) == 0 else (*a, n, k)
    right = (k,) if draw(st.integers(0, 4)) == 0 else (*lead, k, m)
    return left, right


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
@few
@given(matrices(), seeds)
def test_matmul(dtype: str, pair: Any, seed: int) -> None:
    x, y = values(pair[0], dtype, seed), values(pair[1], dtype, seed + 1)
    check(lambda x, y: x @ y, np.matmul, x, y, atol=1e-5)


def test_case_2_batched_product() -> None:
    x, y = values((2, 3, 4), "float32", 0), values((2, 4, 5), "float32", 1)
    assert run(lambda x, y: x @ y, x, y).shape == (2, 3, 5)
    check(lambda x, y: x @ y, np.matmul, x, y, atol=1e-5)


def test_case_4_low_precision_products_do_not_drift() -> None:
    for k in 64, 8192:
        x, y = (values(s, "float32", 0).astype(lt.bfloat16.numpy) for s in ((4, k), (k, 4)))
        want = x.astype(np.float64) @ y.astype(np.float64)
        found = run(lambda x, y: x @ y, x, y)
        assert found.dtype == x.dtype
        error = np.linalg.norm(found.astype(np.float64) - want) / np.linalg.norm(want)
        assert error < 1e-2


EINSUMS = [
    ("ij,jk->ik", [(2, 3), (3, 4)]),
    ("ij,jk", [(2, 3), (3, 4)]),
    ("ba,ab", [(2, 3), (3, 2)]),
    ("ii->i", [(3, 3)]),
    ("ii", [(3, 3)]),
    ("iji->j", [(2, 3, 2)]),
    ("iii->i", [(2, 2, 2)]),
    ("ij->ji", [(2, 3)]),
    ("b", [(3,)]),
    ("ij->", [(2, 3)]),
    ("...ij,...jk->...ik", [(2, 1, 2, 3), (5, 3, 4)]),
    ("i...,i...->...", [(3, 2), (3, 2)]),
    ("...i,j->...ji", [(2, 3), (4,)]),
    ("bhqd,bhkd->bhqk", [(2, 2, 3, 4), (2, 2, 5, 4)]),
    ("ij,kj,lk->il", [(2, 3), (4, 3), (2, 4)]),
    ("i,j,k->kij", [(2,), (3,), (4,)]),
    ("ij,ij->ij", [(2, 0), (2, 0)]),
    ("ij,jk->ik", [(2, 0), (0, 3)]),
    ("a,b->", [(2,), (3,)]),
    ("...,...->...", [(2, 3), (3,)]),
    (" i j , j -> i ", [(2, 3), (3,)]),
    ("iij,jk->ik", [(2, 2, 3), (3, 4)]),
]


@pytest.mark.parametrize("case", EINSUMS, ids=[c[0] for c in EINSUMS])
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_einsum(case: Any, dtype: str) -> None:
    spec, sizes = case
    xs = [values(s, dtype, i) for i, s in enumerate(sizes)]
    check(lambda *xs: lt.einsum(spec, *xs), lambda *xs: np.einsum(spec, *xs), *xs, atol=1e-5)


@pytest.mark.parametrize("spec", ["ij,jk->iz", "ij,jk->ii", "ij->i,j", "ijk,jk", "i1,j->ij", "ij"])
def test_malformed_einsums(spec: str) -> None:
    with pytest.raises(ValueError, match="einsum"):
        lt.einsum(spec, lt.zeros(2, 3), lt.zeros(3, 4))


def test_products_of_vectors() -> None:
    v, w, m = (values(s, "float32", i) for i, s in enumerate([(3,), (3,), (4, 3)]))
    b = values((2, 3, 4), "float32", 5)
    check(lambda v, w, m, b: [lt.dot(v, w), lt.dot(m, v), lt.outer(v, w), lt.dot(v, 2.0),
                              lt.dot(m, b), lt.linear(m, b[:, :, 0], v[:2])],
          lambda v, w, m, b: [np.dot(v, w), np.dot(m, v), np.outer(v, w), v * np.float32(2),
                              np.dot(m, b), m @ b[:, :, 0].T + v[:2]],
          v, w, m, b, atol=1e-5)  # fmt: skip


def test_diagonals_keep_infinities_apart() -> None:
    x = np.array([[1, np.inf], [np.nan, 2]], np.float32)
    check(lambda x: lt.diagonal(x), np.diagonal, x)
    check(
        lambda x: lt.diagonal(x, 2, 0), lambda x: np.diagonal(x, 0, 2, 0), values((3, 2, 3), "f", 0)
    )


@few
@given(st.booleans(), st.sampled_from(["none", "bool", "float"]), seeds)
def test_attention(causal: bool, kind: str, seed: int) -> None:
    q, k, v = (values((2, 3, n, 4), "float32", seed + i) for i, n in enumerate((5, 7, 7)))
    t = [torch.tensor(x) for x in (q, k, v)]
    mask = None
    if kind == "bool":
        mask = values((5, 7), "bool", seed)
        mask[:, 0] = True
    if kind == "float":
        mask = values((2, 1, 5, 7), "float32", seed)
    tm = None if mask is None else torch.tensor(mask)
    if causal:
        seen = torch.ones(5, 7, dtype=torch.bool).tril()
        bias = torch.zeros(5, 7).masked_fill(~seen, -torch.inf)
        if tm is not None:
            bias = bias + (torch.zeros(5, 7).masked_fill(~tm, -torch.inf) if kind == "bool" else tm)
        tm = bias
    want = torch.nn.functional.scaled_dot_product_attention(*t, attn_mask=tm, scale=0.3)
    xs = [q, k, v] + ([] if mask is None else [mask])
    check(lambda *xs: lt.attention(*xs, causal=causal, scale=0.3), lambda *xs: want.numpy(), *xs,
          rtol=1e-5, atol=1e-5)  # fmt: skip


def test_attention_over_symbolic_sizes() -> None:
    s, d = lt.Dim("la_keys", 1, 64), lt.Dim("la_depth", 1, 64)
    q, k, v = lt.input("q", (2, 3, d)), lt.input("k", (2, s, d)), lt.input("v", (2, s, d))
    a = {n: values((2, 3 if n == "q" else 9, 4), "float32", i) for i, n in enumerate("qkv")}
    (found,) = lt.evaluate([lt.attention(q, k, v)], a)
    want = torch.nn.functional.scaled_dot_product_attention(*(torch.tensor(a[n]) for n in "qkv"))
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)


def test_case_1_layer_norm_from_sums_of_squares() -> None:
    x = values((1, 4, 64), "float32", 0)

    def norm(x: Any) -> Any:
        centre = x - x.mean(-1, keepdims=True)
        return centre * lt.rsqrt((centre * centre).sum(-1, True) / 64 + 1e-5)

    want = torch.nn.functional.layer_norm(torch.tensor(x, dtype=torch.float64), (64,)).numpy()
    np.testing.assert_allclose(run(norm, x), want, rtol=1e-4, atol=1e-6)


# ---- creation --------------------------------------------------------------------------------


def constant(tensor: lt.Tensor) -> np.ndarray:
    return lt.evaluate([tensor], {})[0]


@pytest.mark.parametrize("args", [(5,), (0,), (-3,), (2, 7), (7, 2), (2, 9, 3), (2, 10, 3),
                                  (9, 2, -3), (10, 2, -2), (0.5,), (0.0, 1.0, 0.25), (1, 0, -0.3),
                                  (2.0, 1.0)])  # fmt: skip
def test_arange(args: Any) -> None:
    found = constant(lt.arange(*args))
    want = np.arange(*args)
    assert found.dtype == (np.int64 if want.dtype.kind == "i" else np.float32)
    np.testing.assert_allclose(found, want, rtol=1e-6, atol=1e-7)


def test_creation() -> None:
    for n in 0, 1, 2, 7, 100:
        np.testing.assert_allclose(constant(lt.linspace(-1.1, 3.3, n)),
                                   np.linspace(-1.1, 3.3, n), rtol=1e-6, atol=3e-7)  # fmt: skip
    found = constant(lt.linspace(0.1, 0.7, 50))
    assert found[0] == np.float32(0.1)
    assert found[-1] == np.float32(0.7)
    np.testing.assert_array_equal(constant(lt.eye(3, 5)), np.eye(3, 5))
    np.testing.assert_array_equal(constant(lt.full((2, 0), 3)), np.full((2, 0), 3))
    np.testing.assert_array_equal(constant(lt.ones(2, 3, dtype="int8")), np.ones((2, 3), np.int8))
    assert lt.zeros_like(lt.input("x", (3,), "int16")).dtype == lt.int16
    assert lt.full((2,), 1).dtype == lt.int64
    x = values((2, 4, 3), "float32", 0)
    x[0, 0, 2] = np.inf
    for d in range(-4, 4):
        check(lambda x, d=d: [lt.tril(x, d), lt.triu(x, d)],
              lambda x, d=d: [np.tril(x, d), np.triu(x, d)], x)  # fmt: skip


def test_symbolic_arange() -> None:
    s = lt.Dim("la_length", 0, 20)
    x = lt.input("x", (s,))
    parts = [lt.arange(s), lt.arange(2, s + 2), lt.arange(1, s * 3, 3), lt.arange(s, 0, -1)]
    found = lt.evaluate(parts, {"x": np.zeros(7)}, symbols={"la_length": 7})
    want = [np.arange(7), np.arange(2, 9), np.arange(1, 21, 3), np.arange(7, 0, -1)]
    for a, b in zip(found, want, strict=True):
        np.testing.assert_array_equal(a, b)
    assert x.shape == (s,)


# ---- joining ---------------------------------------------------------------------------------


@few
@given(full_shapes, st.lists(st.sampled_from([0, 1, 2, 3]), min_size=1, max_size=3), seeds)
def test_concat_and_stack(shape: tuple[int, ...], sizes: list[int], seed: int) -> None:
    for axis in range(len(shape)):
        for dtype in "float32", "bool", "int32":
            xs = [values((*shape[:axis], n, *shape[axis + 1 :]), dtype, seed + i, True)
                  for i, n in enumerate(sizes)]  # fmt: skip
            check(
                lambda *xs, a=axis: lt.concat(xs, a), lambda *xs, a=axis: np.concatenate(xs, a), *xs
            )
    xs = [values(shape, "float32", seed + i) for i in range(len(sizes))]
    for axis in range(-1, len(shape)):
        check(lambda *xs, a=axis: lt.stack(xs, a), lambda *xs, a=axis: np.stack(xs, a), *xs)


@few
@given(full_shapes, seeds, st.integers(1, 4), st.integers(-6, 6))
def test_taking_apart_and_repeating(shape: tuple[int, ...], seed: int, n: int, shift: int) -> None:
    x = values(shape, "float32", seed)
    t = torch.tensor(x)
    for a in range(len(shape)):
        check(lambda x, a=a: lt.split(x, n, a), lambda x, a=a: t.split(n, a), x)
        check(lambda x, a=a: lt.chunk(x, n, a), lambda x, a=a: t.chunk(n, a), x)
        check(lambda x, a=a: [lt.repeat(x, n, a), lt.roll(x, shift, a)],
              lambda x, a=a: [np.repeat(x, n, a), np.roll(x, shift, a)], x)  # fmt: skip
    check(lambda x: [lt.tile(x, (n, 2)), lt.tile(x, 0), lt.repeat(x, n), lt.roll(x, shift)],
          lambda x: [np.tile(x, (n, 2)), np.tile(x, 0), np.repeat(x, n), np.roll(x, shift)],
          x)  # fmt: skip


def test_sizes_that_do_not_add_up() -> None:
    x, s = lt.input("x", (6, 2)), lt.Dim("split_rows", 1, 9, multiple=3)
    with pytest.raises(ValueError, match=r"split: \[2, 3\] do not add up to 6"):
        lt.split(x, [2, 3])
    with pytest.raises(ValueError, match="list the sizes"):
        lt.split(lt.input("y", (s,)), 2)
    assert [p.shape for p in lt.chunk(lt.input("y", (s,)), 3)] == [(s // 3,)] * 3
    with pytest.raises(ValueError, match="does not divide"):
        lt.chunk(lt.input("y", (s,)), 2)


@few
@given(shapes, seeds)
def test_views(shape: tuple[int, ...], seed: int) -> None:
    x = values(shape, "float32", seed)
    n = len(shape)
    order = np.random.default_rng(seed).permutation(n).tolist()
    check(lambda x: [x.permute(order), x.T, x.flatten(), x.squeeze(), x.unsqueeze(-1), x.flip(),
                     x.reshape(-1) if x.size else x, x.expand(2, *[-1] * n), x[None, ..., None]],
          lambda x: [x.transpose(order), x.T, x.reshape(-1), x.squeeze(), x[..., None], np.flip(x),
                     x.reshape(-1) if x.size else x, np.broadcast_to(x, (2, *shape)),
                     x[None, ..., None]], x)  # fmt: skip
    for value in 0.0, -np.inf, np.nan, 2.5:
        pads = [(seed % 3, (seed + i) % 2) for i in range(n)]
        if n:
            check(lambda x, v=value, p=pads: x.pad(p, value=v),
                  lambda x, v=value, p=pads: np.pad(x, p, constant_values=v), x)  # fmt: skip
    for value in False, True:
        if n:
            check(lambda x, v=value: (x < 0).pad([(1, 2)] * n, value=v),
                  lambda x, v=value: np.pad(x < 0, [(1, 2)] * n, constant_values=v), x)  # fmt: skip


bound = st.none() | st.integers(-7, 7)


@st.composite
def keys(draw: Any) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    """A shape and a basic index of it."""
    shape, key = draw(full_shapes), []
    for size in shape[: draw(st.integers(0, len(shape)))]:
        if draw(st.booleans()):
            key.append(draw(st.integers(-size, size - 1)))
        else:
            step = draw(st.sampled_from([None, 1, 2, -1, -2, 3]))
            key.append(slice(draw(bound), draw(bound), step))
    if draw(st.booleans()):
        key.insert(draw(st.integers(0, len(key))), None)
    if draw(st.booleans()):
        key.append(...)
    return shape, tuple(key)


@given(keys(), seeds)
def test_basic_indexing(case: Any, seed: int) -> None:
    shape, key = case
    check(lambda x: x[key], lambda x: x[key], values(shape, "float32", seed))


def test_slices_of_symbolic_dims_clamp() -> None:
    s = lt.Dim("la_tokens", 0, 50)
    x = lt.input("x", (s, 2))
    slices = [slice(None, 5), slice(-3, None), slice(4, 1, -1), slice(None, None, -2),
              slice(None, None, 7), slice(-4, -1)]  # fmt: skip
    for n in 0, 1, 3, 5, 12, 50:
        a = values((n, 2), "float32", n)
        found = lt.evaluate([x[key] for key in slices], {"x": a})
        for key, got in zip(slices, found, strict=True):
            np.testing.assert_array_equal(got, a[key])
    with pytest.raises(IndexError, match="la_tokens"):
        x[0]
    with pytest.raises(lt.Refused, match="not proved"):
        x[30:]
    y = lt.input("y", (lt.Dim("la_more", 4, 50), 2))
    a = values((9, 2), "float32", 0)
    np.testing.assert_array_equal(lt.evaluate([y[2:-2]], {"y": a})[0], a[2:-2])
