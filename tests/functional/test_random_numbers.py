"""The counter-based generator against its definition in 64-bit words, and its statistics."""

from __future__ import annotations

import numpy as np
import pytest

import lambent as lt
from lambent import random

MASK = (1 << 64) - 1


def squares(counter: int, key: int) -> int:
    """Widynski's `squares32`, word for word, in Python integers."""
    x = y = counter * key & MASK
    z = y + key & MASK
    for added in (y, z, y):
        x = x * x + added & MASK
        x = (x >> 32) | (x << 32) & MASK
    return ((x * x + z) & MASK) >> 32


def values(x: lt.Tensor, **inputs: object) -> np.ndarray:
    return lt.evaluate([x], inputs)[0]


@pytest.mark.parametrize("seed", [0, 1, 12345, -7, 2**63 + 5])
def test_bits_are_those_of_squares(seed: int) -> None:
    key = random.split(seed, 0) | 1
    found = values(random.bits(3, 50, seed=seed, step=5))
    want = [squares((5 << 32) + i, key) for i in range(150)]
    np.testing.assert_array_equal(found.ravel(), want)


def test_a_step_gives_other_numbers_and_the_same_again() -> None:
    step = lt.input("step", (), "int64")
    x = random.uniform(64, seed=3, step=step)
    first, second, again = (values(x, step=np.int64(s)) for s in (0, 1, 0))
    np.testing.assert_array_equal(first, again)
    assert not np.intersect1d(first, second).size
    np.testing.assert_array_equal(first, values(random.uniform(64, seed=3)))
    assert not np.intersect1d(first, values(random.uniform(64, seed=4))).size


def test_uniform_is_uniform() -> None:
    x = values(random.uniform(200, 500, seed=1)).ravel().astype(np.float64)
    assert 0.0 <= x.min() < 1e-4
    assert 1 - 1e-4 < x.max() < 1.0
    counts = np.histogram(x, 100, (0, 1))[0]
    chi = ((counts - 1000.0) ** 2 / 1000).sum()
    assert 55 < chi < 150  # 99 degrees of freedom
    for lag in (1, 2, 500):
        assert abs(np.corrcoef(x[:-lag], x[lag:])[0, 1]) < 0.013  # 4 / √n
    bits = values(random.bits(100_000, seed=9))
    ones = [float((bits >> b & 1).mean()) for b in range(32)]
    np.testing.assert_allclose(ones, 0.5, atol=0.008)


def test_normal_is_normal() -> None:
    x = values(random.normal(100_000, seed=2, mean=1.0, std=2.0)).astype(np.float64)
    z = (x - 1) / 2
    assert abs(z.mean()) < 0.013
    assert abs(z.var() - 1) < 0.02
    assert abs((z**3).mean()) < 0.035
    assert abs((z**4).mean() - 3) < 0.1
    assert abs((z < 1.0).mean() - 0.8413) < 0.005
    assert np.isfinite(x).all()


def test_dropout_keeps_the_mean_and_its_gradient_is_the_mask() -> None:
    x = lt.input("x", (400, 250))
    y = random.dropout(x, 0.3, seed=4)
    out, slope = lt.evaluate([y, lt.grad(y.sum(), x)], {"x": np.ones((400, 250), np.float32)})
    np.testing.assert_array_equal(out, slope)
    assert abs((out == 0).mean() - 0.3) < 0.006
    np.testing.assert_allclose(out[out != 0], 1 / 0.7, rtol=1e-6)
    assert random.dropout(x, 0.0, seed=4) is x


def test_initial_weights() -> None:
    shape = (40, 30, 3)
    found = {
        "xavier_uniform": np.sqrt(2 / 210), "xavier_normal": np.sqrt(2 / 210),
        "kaiming_uniform": np.sqrt(2 / 90), "kaiming_normal": np.sqrt(2 / 90),
    }  # fmt: skip
    for name, std in found.items():
        x = values(getattr(random, name)(*shape, seed=1))
        assert x.shape == shape
        np.testing.assert_allclose(x.std(), std, rtol=0.05)


def test_errors() -> None:
    with pytest.raises(TypeError, match="needs an int seed and an integer step"):
        random.uniform(3, seed=0.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"p = 1\.0 is not in 0 … 1"):
        random.dropout(lt.input("x", (3,)), 1.0, seed=0)
    with pytest.raises(ValueError, match="needs 2 dims or more"):
        random.xavier_normal(3, seed=0)


def test_a_compiled_program_draws_the_same_bits() -> None:
    step = lt.input("step", (), "int64")
    x, kept = random.bits(8, 100, seed=1, step=step), random.normal(50, seed=2, step=step)
    program = lt.compile([x, kept], budget=2, progress=False)
    for s in (0, 7):
        want = lt.evaluate([x, kept], {"step": np.int64(s)})
        found = program(step=np.int64(s))
        np.testing.assert_array_equal(found[0], want[0])
        np.testing.assert_allclose(found[1], want[1], atol=1e-5)
