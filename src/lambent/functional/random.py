"""Random numbers from a counter: a value is a function of (seed, step, position), nothing is kept.

The generator is Squares (Widynski, arXiv 2004.06278): four rounds of squaring and of swapping
the halves of a 64-bit word, in wrapping int64 arithmetic: the primitives `mul`, `add` and `mod`,
with exact products by 2⁻³² in float64 for shifts. The same numbers come out on every device.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lambent.functional.arithmetic import sqrt
from lambent.functional.mathematics import cos, log2
from lambent.functional.operands import as_tensor, cast
from lambent.graph.dtypes import float32, float64, int64
from lambent.graph.tensor import DTypeLike, Tensor, as_shape, describe, iota

_MASK = (1 << 64) - 1
_HALF = 1 << 32


def split(seed: int, number: int) -> int:
    """Another seed for each number: for the layers of a model, or the parts of a formula."""
    x = (seed + (number + 1) * 0x9E3779B97F4A7C15) & _MASK  # SplitMix64 (Steele et al., 2014)
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _MASK
    return x ^ (x >> 31)


def bits(*shape: Any, seed: int, step: Tensor | int = 0) -> Tensor:
    """Random integers in 0 … 2³² − 1 as int64.

    Args:
        seed: known when the graph is built.
        step: int or int64 of shape (), 0 … 2³¹ − 1: a graph that runs often gives new numbers for
            each. One step has up to 2³² numbers a seed.

    Raises:
        TypeError: a seed or step that is no integer.
    """
    sizes = as_shape("bits", *shape)
    step = as_tensor(step)
    if not isinstance(seed, int) or step.shape != () or not step.dtype.is_integer:
        raise TypeError(f"random: needs an int seed and an integer step, got {seed!r} and "
                        f"{describe(step)}")  # fmt: skip
    # The key is an array, not a constant: kernels are the same for all seeds.
    key = as_tensor(np.array([split(seed, 0) | 1], np.uint64).astype(np.int64)).reshape(())
    size = math.prod(sizes)
    counter = iota(size).reshape(sizes) + cast(step, int64) * _HALF
    x = y = counter * key
    z = y + key
    for added in (y, z, y):
        x = x * x + added
        x = _high(x) + x * _HALF
    return _high(x * x + z)


def _high(x: Tensor) -> Tensor:
    """The upper half of a 64-bit word, as if it had no sign."""
    upper = cast(cast(x - x % _HALF, float64) * (1 / _HALF), int64)
    return upper % _HALF


def uniform(
    *shape: Any,
    seed: int,
    step: Tensor | int = 0,
    low: float = 0.0,
    high: float = 1.0,
    dtype: DTypeLike = float32,
) -> Tensor:
    """Uniform in low … high (high excluded but for rounding), from 24 bits. Arguments: `bits`."""
    word = bits(*shape, seed=seed, step=step)
    unit = cast(word - word % 256, float32) * (1 / _HALF)
    return cast(unit * (high - low) + low if (low, high) != (0.0, 1.0) else unit, dtype)


def normal(
    *shape: Any,
    seed: int,
    step: Tensor | int = 0,
    mean: float = 0.0,
    std: float = 1.0,
    dtype: DTypeLike = float32,
) -> Tensor:
    """Normal numbers, |x − mean| below 5.8 std (Box and Muller, 1958). Arguments: `bits`."""
    away = 1.0 - uniform(*shape, seed=split(seed, 1), step=step)
    turn = uniform(*shape, seed=split(seed, 2), step=step)
    size = sqrt(log2(away) * (-2 * math.log(2)))
    return cast(size * cos(turn * (2 * math.pi)) * std + mean, dtype)


def dropout(x: Tensor, p: float = 0.5, *, seed: int, step: Tensor | int = 0) -> Tensor:
    """x with each element 0 with probability p, else divided by 1 − p. Arguments: `bits`.

    Raises:
        ValueError: p is not in 0 … 1, 1 excluded.
    """
    if not 0.0 <= p < 1.0:
        raise ValueError(f"dropout: p = {p} is not in 0 … 1 (excluded)")
    if p == 0.0:
        return x
    return (bits(x.shape, seed=seed, step=step) >= round(p * _HALF)) * (x * (1 / (1 - p)))


# ---- initial weights -------------------------------------------------------------------------


def xavier_uniform(*shape: Any, seed: int, gain: float = 1.0, dtype: DTypeLike = float32) -> Tensor:
    """Uniform in ± gain · √(6 / (inputs + outputs)) for a weight [outputs, inputs, *kernel]."""
    inputs, outputs = _fans(shape)
    bound = gain * math.sqrt(6 / (inputs + outputs))
    return uniform(*shape, seed=seed, low=-bound, high=bound, dtype=dtype)


def xavier_normal(*shape: Any, seed: int, gain: float = 1.0, dtype: DTypeLike = float32) -> Tensor:
    """Normal with std gain · √(2 / (inputs + outputs)) for a weight [outputs, inputs, *kernel]."""
    inputs, outputs = _fans(shape)
    return normal(*shape, seed=seed, std=gain * math.sqrt(2 / (inputs + outputs)), dtype=dtype)


def kaiming_uniform(*shape: Any, seed: int, dtype: DTypeLike = float32) -> Tensor:
    """Uniform in ± √(6 / inputs), for a weight [outputs, inputs, *kernel] in front of a ReLU."""
    bound = math.sqrt(6 / _fans(shape)[0])
    return uniform(*shape, seed=seed, low=-bound, high=bound, dtype=dtype)


def kaiming_normal(*shape: Any, seed: int, dtype: DTypeLike = float32) -> Tensor:
    """Normal with std √(2 / inputs), for a weight [outputs, inputs, *kernel] in front of a ReLU."""
    return normal(*shape, seed=seed, std=math.sqrt(2 / _fans(shape)[0]), dtype=dtype)


def _fans(shape: tuple[Any, ...]) -> tuple[int, int]:
    sizes = as_shape("weight", *shape)
    if len(sizes) < 2 or not all(isinstance(n, int) and n > 0 for n in sizes):
        raise ValueError(f"initial weight of shape {list(sizes)}: needs 2 dims or more of fixed "
                         "positive sizes, [outputs, inputs, *kernel]")  # fmt: skip
    window = math.prod(int(n) for n in sizes[2:])
    return int(sizes[1]) * window, int(sizes[0]) * window
