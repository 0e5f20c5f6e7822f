"""Exponentials, trigonometry and activations against PyTorch in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from compare import SPECIAL, check, few, run, seeds, shapes, values
from hypothesis import given
from torch.nn import functional as F

import lambent as lt

Row = tuple[Callable[..., Any], Callable[..., Any], float, float]
"""Ours, PyTorch's, and the relative and absolute error allowed in float32."""

ROWS: dict[str, Row] = {
    "exp2": (lt.exp2, torch.exp2, 1e-6, 0),
    "exp": (lt.exp, torch.exp, 6e-6, 0),
    "expm1": (lt.expm1, torch.expm1, 6e-6, 0),
    "log2": (lt.log2, torch.log2, 1e-6, 1e-7),
    "log": (lt.log, torch.log, 1e-6, 1e-7),
    "log10": (lt.log10, torch.log10, 1e-6, 1e-7),
    "log1p": (lt.log1p, torch.log1p, 1e-6, 0),
    "sin": (lt.sin, torch.sin, 1e-6, 1e-7),
    "cos": (lt.cos, torch.cos, 1e-6, 3e-7),
    "tan": (lt.tan, torch.tan, 1e-5, 1e-6),
    "tanh": (lt.tanh, torch.tanh, 1e-6, 0),
    "acos": (lt.acos, torch.acos, 2e-6, 0),
    "acosh": (lt.acosh, torch.acosh, 2e-6, 0),
    "asin": (lt.asin, torch.asin, 2e-6, 0),
    "asinh": (lt.asinh, torch.asinh, 2e-6, 0),
    "atan": (lt.atan, torch.atan, 2e-6, 0),
    "atanh": (lt.atanh, torch.atanh, 2e-6, 0),
    "cosh": (lt.cosh, torch.cosh, 2e-6, 0),
    "sinh": (lt.sinh, torch.sinh, 2e-6, 0),
    "erf": (lt.erf, torch.erf, 1e-6, 0),
    "sigmoid": (lt.sigmoid, torch.sigmoid, 6e-6, 0),
    "relu": (lt.relu, F.relu, 0, 0),
    "leaky_relu": (lt.leaky_relu, F.leaky_relu, 1e-6, 0),
    "elu": (lt.elu, F.elu, 2e-6, 0),
    "gelu": (lt.gelu, F.gelu, 1e-6, 1e-6),
    "gelu_tanh": (
        lambda x: lt.gelu(x, "tanh"), lambda x: F.gelu(x, approximate="tanh"), 1e-5, 1e-6
    ),
    "silu": (lt.silu, F.silu, 6e-6, 1e-37),
    "softplus": (lt.softplus, F.softplus, 3e-6, 3e-9),
    "mish": (lt.mish, F.mish, 6e-6, 3e-8),
    "hardswish": (lt.hardswish, F.hardswish, 1e-6, 1e-6),
    "hardsigmoid": (lt.hardsigmoid, F.hardsigmoid, 1e-6, 1e-6),
}  # fmt: skip
WIDE = np.concatenate([
    np.linspace(-12, 12, 241), np.linspace(-1.3, 1.3, 131), SPECIAL, [88.0, -88.0, 500.0, -500.0],
    [1e-3, -1e-3, 1e-6, -1e-6, 1e-20, -1e-20, 1e4, -90.0, 0.59999, 0.60001, -0.99999],
]).astype(np.float32)  # fmt: skip


def points(name: str, x: np.ndarray) -> np.ndarray:
    if name == "tan":  # far from the poles
        return x[np.abs(np.cos(np.where(np.isfinite(x), x, 0).astype(np.float64))) > 0.1]
    return (
        x[np.abs(x) != np.inf] if name in ("silu", "mish", "hardswish", "gelu_tanh", "gelu") else x
    )


@pytest.mark.parametrize("name", ROWS)
def test_float32_against_float64(name: str) -> None:
    f, expected, rtol, atol = ROWS[name]
    x = points(name, WIDE)
    want = expected(torch.tensor(x, dtype=torch.float64)).numpy()
    with np.errstate(over="ignore"):
        want = want.astype(np.float32)
    found = run(f, x)
    assert found.dtype == np.float32
    tiny = np.finfo(np.float32).tiny  # below it float32 has fewer digits
    np.testing.assert_allclose(found, want, rtol=rtol, atol=max(atol, tiny))


@pytest.mark.parametrize("name", sorted(set(ROWS) - {"erf", "gelu"}))
def test_float64(name: str) -> None:
    f, expected, _, _ = ROWS[name]
    x = points(name, WIDE).astype(np.float64)
    want = expected(torch.tensor(x)).numpy()
    if name == "softplus":  # theirs is the identity above 20
        want = np.where(x > 20, x + np.log1p(np.exp(-np.abs(x))), want)
    np.testing.assert_allclose(run(f, x), want, rtol=2e-13, atol=1e-15 if name != "tan" else 1e-13)


@pytest.mark.parametrize("name", ["exp", "gelu", "tanh", "relu", "sigmoid", "log1p"])
@few
@given(shapes, seeds)
def test_shapes_and_integers(name: str, shape: tuple[int, ...], seed: int) -> None:
    f, expected, _, atol = ROWS[name]
    for dtype in "float32", "int32":
        x = np.abs(values(shape, dtype, seed))
        want = expected(torch.tensor(np.asarray(x, np.float32))).numpy()
        check(
            f, lambda x, want=want: want, x, rtol=5e-6, atol=max(atol, 1e-6), dtype=name != "relu"
        )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["exp", "gelu", "tanh", "silu", "erf"])
def test_narrow_floats(name: str, dtype: str) -> None:
    f, expected, _, _ = ROWS[name]
    x = np.linspace(-4, 4, 65).astype(lt.bfloat16.numpy if dtype == "bfloat16" else dtype)
    want = expected(torch.tensor(x.astype(np.float64))).numpy()
    found = run(f, x)
    assert found.dtype == x.dtype
    eps = 2.0**-7 if dtype == "bfloat16" else 2.0**-10
    np.testing.assert_allclose(found.astype(np.float64), want, rtol=8 * eps, atol=4 * eps)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_tanh_of_narrow_floats_is_one_of_the_two_nearest(dtype: str) -> None:
    kind, most = (lt.bfloat16.numpy, 0x7F80) if dtype == "bfloat16" else (np.float16, 0x7C00)
    half = np.arange(most + 1, dtype=np.uint16)  # to infinity
    x = np.concatenate([half, half | 0x8000]).view(kind)
    exact = np.tanh(x.astype(np.float64))
    found = run(lt.tanh, x).astype(np.float64)
    near = exact.astype(x.dtype)
    below, above = (np.nextafter(near, np.asarray(side, x.dtype)) for side in (-2, 2))
    ok = (found >= below.astype(np.float64)) & (found <= above.astype(np.float64))
    assert ok.all(), (x[~ok], found[~ok])


def test_far_tails_do_not_grow() -> None:
    x = np.array([-1e3, -1e6, -30.0, 1e6], np.float32)
    np.testing.assert_allclose(run(lt.gelu, x), [0, 0, 0, 1e6], atol=1e-30)
    assert np.abs(run(lt.erf, np.linspace(-6, 6, 4001).astype("f"))).max() <= 1 + 3e-7
