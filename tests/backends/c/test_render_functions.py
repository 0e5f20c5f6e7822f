"""The float32 vector functions of the prelude: errors over all binades, and special values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from programs import Library, elementwise, load, op

from lambent.backends.c.target import Target
from lambent.backends.cpu.features import detect
from lambent.graph.dim import Dim, axis

Array = np.ndarray[Any, Any]
n = Dim("functions_n", 1, 1 << 20)
REFERENCE: dict[str, Callable[[Array], Array]] = {
    "exp2": np.exp2, "log2": np.log2, "sin": np.sin, "sqrt": np.sqrt, "recip": np.reciprocal,
}  # fmt: skip
WIDTHS = sorted({16, Target(detect().vector_bytes).vector_bytes})


@pytest.fixture(scope="module", params=WIDTHS)
def run(request: pytest.FixtureRequest) -> Library:
    x = load("X", axis(0))
    return Library({f: elementwise(op(f, x), n) for f in REFERENCE}, Target(request.param))


def call(run: Library, name: str, x: Any) -> tuple[Array, Array]:
    """What the kernel gives, and the float64 function of the same float32 numbers."""
    x = np.asarray(x, np.float32)
    (y,) = run(name, [x], [x.shape], {"functions_n": x.size})
    with np.errstate(all="ignore"):
        return y, REFERENCE[name](x.astype(np.float64))


def ulps(y: Array, want: Array) -> Array:
    unit = np.spacing(np.abs(want).astype(np.float32)).astype(np.float64)
    return np.asarray(np.abs(y.astype(np.float64) - want) / unit)


def uniform(low: float, high: float, seed: int = 0) -> Array:
    return np.random.default_rng(seed).uniform(low, high, 1 << 18).astype(np.float32)


def positive() -> Array:
    """Every binade, subnormals too."""
    bits = np.random.default_rng(1).integers(1, 0x7F800000, 1 << 18)
    return bits.astype(np.uint32).view(np.float32)


def near(center: float) -> Array:
    return (center + np.random.default_rng(2).standard_normal(1 << 16) * 1e-3).astype(np.float32)


@pytest.mark.parametrize(
    ("name", "x", "most"),
    [
        ("exp2", uniform(-125.5, 127.99), 1.0),
        ("exp2", uniform(-1, 1), 1.0),
        ("exp2", near(0), 1.0),
        ("log2", positive(), 2.0),
        ("log2", uniform(0.5, 2), 2.0),
        ("log2", near(1), 2.0),
        ("sqrt", positive(), 0.51),
        ("recip", uniform(1e-20, 1e20), 0.51),
        ("recip", -near(1), 0.51),
    ],
)
def test_error(run: Library, name: str, x: Array, most: float) -> None:
    y, want = call(run, name, x)
    assert ulps(y, want).max() <= most


@pytest.mark.parametrize("limit", [4.0, 1e4, 1e6])
def test_error_of_sin(run: Library, limit: float) -> None:
    y, want = call(run, "sin", uniform(-limit, limit))
    big = np.abs(want) > 1e-3
    assert ulps(y, want)[big].max() <= 2.0
    assert np.abs(y - want)[~big].max(initial=0) <= 1e-10
    y, want = call(run, "sin", uniform(-1e-3, 1e-3))
    assert ulps(y, want).max() <= 1.0


ODD = [-np.inf, np.inf, np.nan, 0.0, -0.0, 1.0, -1.0, 1e-40, -1e-40, 128.0, -200.0, 3e38, -3e38]


@pytest.mark.parametrize("name", [f for f in REFERENCE if f != "sin"])
def test_special_values(run: Library, name: str) -> None:
    y, want = call(run, name, ODD)
    with np.errstate(over="ignore"):
        expected = want.astype(np.float32)
    np.testing.assert_allclose(y, expected, rtol=3e-7)
    assert np.array_equal(np.signbit(y), np.signbit(expected)) or np.isnan(y).any()


def test_special_values_of_sin(run: Library) -> None:
    y, want = call(run, "sin", [*ODD[:9], 1e5])
    np.testing.assert_allclose(y, want.astype(np.float32), rtol=3e-7)


def test_exp2_below_the_normal_numbers_is_zero(run: Library) -> None:
    y, _ = call(run, "exp2", [-125.6, -126.0, -127.0, -149.0, -1e30])
    assert (y == 0).all()
    y, _ = call(run, "exp2", [127.5, 127.9999, 128.0, 1e30])
    assert np.isfinite(y[:2]).all() and np.isinf(y[2:]).all()
