"""Evaluate a composed op on the reference and compare it with NumPy's or PyTorch's answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

import lambent as lt

few = settings(max_examples=6, deadline=None, derandomize=True)
SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -3.0, np.inf, -np.inf, np.nan)


def values(shape: Sequence[int], dtype: str, seed: int, special: bool = False) -> np.ndarray:
    """Random values of a dtype, of mixed magnitudes; with infinities, NaN and zeros on request."""
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype).kind
    if kind == "b":
        return rng.random(shape) < 0.5
    if kind in "iu":
        return rng.integers(0 if kind == "u" else -9, 10, shape).astype(dtype)
    x = rng.normal(size=shape) * rng.choice([0.1, 1.0, 4.0], size=shape)
    if special:
        x = np.where(rng.random(shape) < 0.3, rng.choice(SPECIAL, size=shape), x)
    return np.asarray(x, dtype)


def run(f: Callable[..., Any], *arrays: np.ndarray, float64: bool = False) -> Any:
    """f of inputs that hold the arrays; a list of results if f gives several."""
    inputs = {f"x{i}": a for i, a in enumerate(arrays)}
    out = f(*(lt.input(name, a.shape, a.dtype) for name, a in inputs.items()))
    several = isinstance(out, (list, tuple))
    found = lt.evaluate(out if several else [out], inputs, float64=float64)
    return found if several else found[0]


def check(
    f: Callable[..., Any],
    expected: Callable[..., Any],
    *arrays: np.ndarray,
    rtol: float = 2e-6,
    atol: float = 2e-6,
    dtype: bool = True,
) -> None:
    """f gives what `expected` gives for the arrays: shapes, values, and the dtype."""
    with np.errstate(all="ignore"):
        want = expected(*arrays)
    found = run(f, *arrays)
    pairs = zip(found, want, strict=True) if isinstance(found, list) else [(found, want)]
    for a, b in pairs:
        b = np.asarray(b)
        assert a.shape == b.shape, (a.shape, b.shape)
        if dtype:
            assert a.dtype == b.dtype, (a.dtype, b.dtype)
        if a.dtype.kind in "biu" and b.dtype.kind in "biu":
            np.testing.assert_array_equal(a, b)
        else:
            np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


shapes = st.lists(st.sampled_from([0, 1, 2, 3, 5]), min_size=0, max_size=3).map(tuple)
full_shapes = st.lists(st.sampled_from([1, 2, 3, 5]), min_size=1, max_size=3).map(tuple)
seeds = st.integers(0, 1000)


@st.composite
def broadcastable(draw: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two shapes that broadcast: dims of one are dropped or set to 1."""
    shape = draw(shapes)
    one = tuple(1 if draw(st.booleans()) and draw(st.booleans()) else s for s in shape)
    two = tuple(1 if draw(st.booleans()) and draw(st.booleans()) else s for s in shape)
    return one[draw(st.integers(0, len(one))) :] if draw(st.booleans()) else one, two
