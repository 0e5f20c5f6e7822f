"""The meaning itself: the reference evaluator and the interpreter against NumPy written out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernels import (
    CASES,
    Build,
    batched,
    casts,
    conv,
    data,
    embedding,
    fold,
    gelu_chain,
    integers,
    layernorm,
    matmul,
    maxima,
    split_fold,
)

from lambent.backends.cpu.schedule import default_schedule
from lambent.backends.reference.kernel import evaluate, picked, sample_axes
from lambent.backends.reference.tile import interpret
from lambent.graph.dtypes import bool_, float32, int8, int32
from lambent.kernel.lower import lower
from lambent.kernel.tile import Schedule


def both(kernel: Any, inputs: dict[str, Any], tiles: Schedule | None = None) -> list[list[Any]]:
    """The outputs by the evaluator, and by the interpreted first guess."""
    program = lower(kernel, tiles or default_schedule(kernel))
    got = interpret(program, inputs)
    return [evaluate(kernel, inputs), [got[o.buffer.name] for o in kernel.outputs]]


def random(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("ta", [False, True])
@pytest.mark.parametrize("tb", [False, True])
def test_products(ta: bool, tb: bool) -> None:
    a, b = random(37, 45), random(45, 50, seed=1)
    inputs = {"A": a.T.copy() if ta else a, "B": b.T.copy() if tb else b}
    for (got,) in both(matmul(ta, tb), inputs):
        np.testing.assert_allclose(got, a @ b, rtol=1e-4, atol=1e-4)


def masked_softmax(a: Any, keep: Any, v: Any) -> Any:
    a = np.where(keep, a.astype(np.float64), -np.inf)
    with np.errstate(invalid="ignore"):
        e = np.exp(a - a.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True) @ v


@pytest.mark.parametrize("mask", ["", "causal", "window", "apart", "strict", "added"])
def test_one_pass_folds(mask: str) -> None:
    q, k, v = random(2, 70, 24), random(2, 70, 24, seed=1), random(2, 70, 16, seed=2)
    i, j = np.arange(70)[:, None], np.arange(70)[None]
    near = (j <= i) & (i < j + 9)
    keep = {"": i < 999, "window": near, "apart": near, "strict": j < i}.get(mask, j <= i)
    want = masked_softmax(q @ k.transpose(0, 2, 1) / 5, keep, v)
    for tile in (8, 16, 70):
        schedule = Schedule(((1, 16), (2, tile)), (0, 1), 2)
        for (got,) in both(fold(mask), {"Q": q, "K": k, "V": v}, schedule):
            np.testing.assert_allclose(got, want, rtol=2e-4, atol=1e-5)
    assert np.isnan(want[:, 0]).all() == (mask == "strict")


def test_a_tile_masked_everywhere_poisons_nothing() -> None:
    keep = np.zeros((70, 70), bool)
    keep[:, 40:] = True
    keep[3] = False
    inputs = {"Q": random(2, 70, 24), "K": random(2, 70, 24), "V": random(2, 70, 16), "keep": keep}
    want = masked_softmax(inputs["Q"] @ inputs["K"].transpose(0, 2, 1) / 5, keep, inputs["V"])
    for (got,) in both(fold("buffer"), inputs, Schedule(((1, 8), (2, 8)), (0, 1), 2)):
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=1e-5)
        assert np.isnan(got[:, 3]).all() and not np.isnan(got[:, :3]).any()


def test_nan_and_inf_reach_the_result_of_a_fold() -> None:
    for bad in (np.nan, np.inf):
        q = random(2, 70, 24)
        q[0, 5, 0] = bad
        inputs = {"Q": q, "K": random(2, 70, 24), "V": random(2, 70, 16)}
        for (got,) in both(fold(), inputs, Schedule(((1, 8), (2, 8)), (0, 1), 2)):
            assert np.isnan(got[0, 5]).all()
            assert np.isfinite(got[1]).all() and np.isfinite(got[0, :5]).all()


def test_parts_of_an_axis() -> None:
    s, v = random(12, 37), random(37, seed=1)
    e = np.exp2(s - s.max(1, keepdims=True))
    for (got,) in both(split_fold(), {"S": s, "V": v}, Schedule(((1, 2), (2, 4)), (), 0)):
        np.testing.assert_allclose(got, e @ v, rtol=1e-4, atol=1e-5)


def test_a_part_tells_nan_from_nothing() -> None:
    b = Build()
    r, k = b.axes(3, 8)
    x = b.load("X", r, k)
    b.out("Y", b.t.reduce("part", (k,), x, b.load("V", k)), r)
    x0 = np.full((3, 8), -np.inf, np.float32)
    x0[1], x0[2, 2] = np.nan, 1.0
    v = np.where(np.arange(8) == 5, np.inf, 1.0).astype(np.float32)
    for tile in (2, 8):
        for (got,) in both(b.kernel(), {"X": x0, "V": v}, Schedule(((k, tile),))):
            assert got[0] == 0 and np.isnan(got[1]) and np.isnan(got[2])  # 0 · inf


def test_norms_maxima_and_chains() -> None:
    x, g, c = random(11, 60), random(60, seed=1), random(60, seed=2)
    want = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * g + c
    for y, m in both(layernorm(), {"X": x, "G": g, "B": c}):
        np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(m, x.mean(1), rtol=1e-4, atol=1e-5)
    a, w, bias = random(23, 19), random(19, 40, seed=1), random(40, seed=2)
    t = (a @ w + bias).astype(np.float64)
    with np.errstate(over="ignore"):
        want = t / (1 + np.exp(-1.6 * (t + 0.044715 * t**3)))
    for (got,) in both(gelu_chain(), {"A": a, "W": w, "bias": bias}):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_nan_wins_a_maximum() -> None:
    x = random(9, 50)
    x[2, 17], x[3, 4], x[4] = np.nan, np.inf, -np.inf
    for most, equal in both(maxima(float32), {"X": x}, Schedule(((1, 8), (2, 8)), (1,), 0)):
        np.testing.assert_array_equal(most, x.max(1))
        np.testing.assert_array_equal(equal, x == x.max(1, keepdims=True))
    flags = x > 1.8
    for most, _ in both(maxima(bool_), {"X": flags}):
        np.testing.assert_array_equal(most, flags.any(1))


def test_convolution_pads_with_zeros() -> None:
    x, w = random(2, 3, 9, 11), random(8, 3, 3, 3, seed=1)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    want = np.zeros((2, 8, 5, 6))
    for i in range(3):
        for j in range(3):
            window = padded[:, :, i : i + 9 : 2, j : j + 11 : 2]
            want += np.einsum("ncyx,oc->noyx", window, w[:, :, i, j])
    for (got,) in both(conv(), {"X": x, "W": w}):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_gathers_clamp() -> None:
    ids, e = np.asarray([0, 11, 5, -3, 40] * 3, np.int32), random(12, 20)
    want = e[np.clip(ids, 0, 11)]
    want = want - want.mean(1, keepdims=True)
    for (got,) in both(embedding(), {"ids": ids, "E": e}):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_integers_wrap_and_casts_round() -> None:
    r = np.random.default_rng(0)
    a, b = r.integers(-128, 128, (12, 40), np.int8), r.integers(-128, 128, (40, 10), np.int8)
    exact = a.astype(np.int64) @ b.astype(np.int64)
    for c, s in both(integers(int8), {"A": a, "B": b}, Schedule(((0, 4), (2, 8)), (0,), 1)):
        np.testing.assert_array_equal(c, exact.astype(np.int8))
        wrapped = a.astype(np.int64).sum(1).astype(np.int8)
        np.testing.assert_array_equal(s, wrapped % np.int8(7))
    x = random(14, 30).astype(CASES["casts"]().inputs[0].dtype.numpy)
    rows = 3 * np.arange(14)[:, None] + np.arange(30)
    y = x.astype(np.float32) + (rows / 64).astype(np.float32)
    for got, whole, total in both(casts(), {"X": x}):
        np.testing.assert_array_equal(got.astype(np.float32), y.astype(x.dtype).astype(np.float32))
        np.testing.assert_array_equal(whole, np.trunc(y * 100).astype(np.int64).astype(np.int8))
        np.testing.assert_allclose(total, x.astype(np.float64).sum(1))


def test_float64_and_int32_keep_their_width() -> None:
    kernel = batched(CASES["batched_f64"]().inputs[0].dtype)
    a, b = random(3, 17, 33).astype(np.float64), random(3, 33, 20).astype(np.float64)
    for (got,) in both(kernel, {"A": a, "B": b}):
        np.testing.assert_allclose(got, a @ b / 3, rtol=1e-12)
    big = np.full((9, 50), 2**31 - 1, np.int32)
    for most, _ in both(maxima(int32), {"X": big}):
        assert (most == 2**31 - 1).all()


def test_sampled_points_are_those_of_the_whole() -> None:
    for name in ("fold_causal", "merged_heads", "layernorm", "conv", "embedding", "rms_linear"):
        kernel = CASES[name]()
        inputs = data(kernel)
        sample = sample_axes(kernel, seed=1, budget=3000)
        assert all(i[0] == 0 for i in sample.values())
        whole = evaluate(kernel, inputs)
        at = evaluate(kernel, inputs, sample=sample)
        for a, w in zip(at, picked(kernel, whole, sample), strict=True):
            assert a.shape == w.shape
            np.testing.assert_allclose(a, w, rtol=1e-12)


def test_samples_fit_their_budget() -> None:
    kernel = matmul(m=4096, n=4096, k=4096)
    sample = sample_axes(kernel, seed=3, budget=1e7)
    assert np.prod([len(i) for i in sample.values()]) * 4096 < 4e7
    assert all({0, 4095} <= set(i.tolist()) for i in sample.values())
    again = sample_axes(kernel, seed=3, budget=1e7)
    assert all((sample[i] == again[i]).all() for i in sample)


def test_wrong_inputs_are_named() -> None:
    with pytest.raises(ValueError, match="A: shape"):
        interpret(lower(matmul(), Schedule()), {"A": random(2, 2), "B": random(45, 50)})
    with pytest.raises(ValueError, match="at least 1"):
        lower(matmul(), Schedule(((2, 0),)))
