"""Evaluate an op of ours on arrays and compare with what PyTorch gives for the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import lambent.graph  # noqa: F401  # gives Tensor its methods
from lambent.backends.reference.graph import evaluate
from lambent.graph.tensor import Tensor, input

Array = np.ndarray[Any, Any]
DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool")


def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: str = "float64") -> torch.Tensor:
    """Random values of any dtype; narrow integers stay small, so that sums do not wrap."""
    if dtype == "bool":
        return torch.from_numpy(rng.random(shape) < 0.5)
    kind = getattr(torch, dtype)
    if kind.is_floating_point:
        return torch.from_numpy(rng.standard_normal(shape)).to(kind)
    return torch.from_numpy(rng.integers(0 if dtype == "uint8" else -3, 4, shape)).to(kind)


def ours(op: Callable[..., Any], *operands: torch.Tensor, float64: bool = False) -> list[Array]:
    """The results of op on inputs that hold these operands."""
    tensors = [
        input(f"x{i}", tuple(x.shape), str(x.dtype).removeprefix("torch."))
        for i, x in enumerate(operands)
    ]
    out = op(*tensors)
    outs = [out] if isinstance(out, Tensor) else list(out)
    values = [x.double().numpy() if x.dtype == torch.bfloat16 else x.numpy() for x in operands]
    given = {
        f"x{i}": v.astype(t.dtype.numpy)
        for i, (v, t) in enumerate(zip(values, tensors, strict=True))
    }
    return evaluate(outs, given, float64=float64)


def same(
    op: Callable[..., Any],
    theirs: Callable[..., Any],
    *operands: torch.Tensor,
    rtol: float = 1e-10,
) -> None:
    """Assert equal shapes, dtypes and values (floats within rtol of the largest value)."""
    got = ours(op, *operands)
    want = theirs(*operands)
    wanted = [want] if isinstance(want, torch.Tensor) else list(want)
    assert len(got) == len(wanted)
    for a, b in zip(got, wanted, strict=True):
        assert a.dtype.name == str(b.dtype).removeprefix("torch.")
        assert a.shape == tuple(b.shape)
        if not b.dtype.is_floating_point:
            np.testing.assert_array_equal(a, b.numpy())
            continue
        exact = b.double().numpy()
        finite = exact[np.isfinite(exact)]
        atol = rtol * float(np.abs(finite).max()) if finite.size else 0.0
        np.testing.assert_allclose(a.astype(np.float64), exact, rtol=rtol, atol=atol)
