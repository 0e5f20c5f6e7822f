"""Verification: what a kernel must give at sampled points, and how near a candidate must come."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lambent.algebra.term import REDUCTIONS, walk
from lambent.backends.base import Outcome, kernel_symbols
from lambent.backends.measuring.operands import MODES, drawn, input_specs, shape_of, symbol_value
from lambent.backends.reference.kernel import evaluate, sample_axes
from lambent.graph.dim import axes_in, symbol_range, symbols_in
from lambent.graph.dim import evaluate as number
from lambent.graph.dtypes import DTYPES
from lambent.graph.prove import bounds, facts
from lambent.kernel.kernel import Kernel, Output

Array = np.ndarray[Any, Any]
BUDGET = 1e6  # scalar operations of the reference for a kernel
_NUDGE = 32  # errors allowed of the size that rounding the operands alone makes
SURE = 0.1  # an error that is due to the operands as they were drawn, beyond which others are
EIGHT = {"float8_e4m3fn": 2.0**-4, "float8_e5m2": 2.0**-3}
TF32 = 2.0**-11  # of float32 operands of matrix units, where they need not be exact
KEPT = 2.0**-12  # of products of floats of 8 bits: matrix units of Hopper keep no more bits
EPS = EIGHT | {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}


@dataclass(frozen=True, slots=True)
class Expected:
    """The way to draw operands, and for each output float64 values at flat indices.

    `slack`: the error that is due to the problem's condition, as where large values cancel.
    """

    mode: str
    samples: tuple[Array, ...]
    values: tuple[Array, ...]
    slack: tuple[float, ...] = ()


def expect(
    kernel: Kernel, symbols: Mapping[str, int], budget: float = BUDGET, exact: bool = True
) -> Expected:
    """Values to verify with, under the first way of drawing operands that keeps them finite and
    well conditioned: a quotient by a sum that is nearly 0 says nothing of all others.

    Args:
        budget: scalar operations that computing them may take.
        exact: as of `tolerance`.
    """
    named = list(zip(kernel.inputs, input_specs(kernel, symbols), strict=True))
    sample = sample_axes(kernel, symbols, budget=budget)
    places = tuple(_flat(o, symbols, sample) for o in kernel.outputs)
    best: Expected | None = None
    least = math.inf, math.inf
    for mode in MODES:
        buffers = {b.name: drawn(s, i, mode) for i, (b, s) in enumerate(named)}
        values = tuple(x.reshape(-1) for x in evaluate(kernel, buffers, symbols, sample))
        bad = sum(map(_unusable, kernel.outputs, values))
        if bad <= least[0]:
            nudged = {
                n: replace(x, values=_nudge(x.values, kernel, exact)) for n, x in buffers.items()
            }
            moved = evaluate(kernel, nudged, symbols, sample)
            slack = tuple(
                _error(m.reshape(-1), v) if o.buffer.dtype.is_float else 0.0
                for o, m, v in zip(kernel.outputs, moved, values, strict=True)
            )
            slack = tuple(s if math.isfinite(s) else 0.0 for s in slack)
            if (bad, max(slack, default=0.0)) < least:
                least = bad, max(slack, default=0.0)
                best = Expected(mode, places, values, slack)
        if least[0] == 0 and least[1] < SURE:
            break
    assert best is not None
    return best


def _nudge(x: Array, kernel: Kernel, exact: bool) -> Array:
    """Float operands moved by as many half roundings as are allowed for: of float32 (of a float64:
    of its own). Narrow floats are exact in that; but where such are multiplied and summed, the
    operands of matrix units are rounded to them: there by half a rounding of theirs."""
    if not DTYPES[x.dtype.name].is_float:
        return x
    sums = (t for o in kernel.outputs for t in walk(o.term) if t.op in REDUCTIONS and t.op != "max")
    summed = any(t.dtype.name == x.dtype.name for t in sums)
    narrow = x.dtype.itemsize < 4
    if narrow and not summed:
        return x
    signs = np.where(np.random.default_rng(x.size).random(x.shape) < 0.5, -1.0, 1.0)
    eps = EPS[x.dtype.name] / 2 if narrow else _NUDGE * EPS[x.dtype.name]
    eps = eps if exact or narrow or not summed else TF32 / 2
    return np.asarray(x.astype(np.float64) * (1 + eps * signs))


def sizes_to_verify(kernel: Kernel, symbols: Mapping[str, int]) -> list[dict[str, int]]:
    """Values of the kernel's symbols at which it must be right: those given come first.

    The others are what tuning sizes are not: the least, and an odd one that ends within a tile.
    """
    given = {s: symbol_value(s, symbols) for s in kernel_symbols(kernel)}
    ranges = {s: symbol_range(s) for s in given}
    odd = {s: 2 * v + 1 if 2 * v + 1 <= ranges[s][1] else 2 * v // 3 | 1 for s, v in given.items()}
    found = [given]
    for wanted in (odd, dict.fromkeys(given, 1)):
        sizes = {s: min(max(v, ranges[s][0]), ranges[s][1]) for s, v in wanted.items()}
        held = (number(f, sizes) >= 0 for f in facts() if symbols_in(f) <= sizes.keys())
        if sizes not in found and all(held):
            found.append(sizes)
    return found


def _flat(output: Output, symbols: Mapping[str, int], sample: Mapping[int, Array]) -> Array:
    """Where in the output's buffer the sampled points are, in the order of `evaluate`."""
    axes = sorted(frozenset[int]().union(*map(axes_in, output.index)))
    grid = dict(zip(axes, np.ix_(*(sample[i] for i in axes)), strict=True))
    flat: Any = np.zeros([len(sample[i]) for i in axes], np.int64)
    for size, index in zip(shape_of(output.buffer.shape, symbols), output.index, strict=True):
        flat = flat * size + number(index, symbols, grid)
    return np.asarray(flat).reshape(-1)


def _unusable(output: Output, values: Array) -> int:
    """How many values cannot tell right from wrong: not finite, or beyond the dtype's range."""
    dtype = output.buffer.dtype
    if not dtype.is_float:
        return 0
    most = {"float16": 6e4, "float64": 1e300, "float8_e4m3fn": 400.0, "float8_e5m2": 5e4}
    return int(np.count_nonzero(~(np.abs(values) < most.get(dtype.name, 1e37))))


def tolerance(kernel: Kernel, dtype: str, exact: bool = True) -> float:
    """Allowed error, relative to the output's scale: by storage, casts and reduction lengths.

    exact: float32 operands of products may not be rounded.
    """
    widest, terms = EPS[dtype], list(walk(*(o.term for o in kernel.outputs)))
    if any(t.op in REDUCTIONS and t.op != "max" for t in terms):
        eight = any(b.dtype.name in EIGHT for b in kernel.inputs)
        widest = max(widest, KEPT * eight, 0.0 if exact else TF32)
    for term in terms:
        if term.op == "cast" and term.dtype.is_float:
            widest = max(widest, EPS[term.dtype.name])
    double = all(t.dtype.name == "float64" or not t.dtype.is_float for t in terms)
    compute = EPS["float64" if double and dtype == "float64" else "float32"]
    longest = max([1, *(_length(kernel, t.axes) for t in terms)])
    return 2 * widest + compute * (256 + 8 * math.sqrt(longest))


def allowed(kernel: Kernel, output: Output, exact: bool = True) -> float:
    """The tolerance of an output."""
    kinds = [kind for kind in (output.buffer.dtype, output.term.dtype) if kind.is_float]
    held = min(kinds, key=lambda kind: kind.itemsize, default=output.buffer.dtype)
    return tolerance(kernel, held.name, exact) if kinds else 0.0  # parts are held wider


def _length(kernel: Kernel, axes: frozenset[int]) -> int:
    return math.prod(min(bounds(kernel.extents[a])[1], 1 << 20) for a in sorted(axes))


def judge(
    kernel: Kernel, found: Sequence[Array], expected: Expected, verify: bool = True,
    exact: bool = True,
) -> Outcome:  # fmt: skip
    """Compare a candidate's values with the reference's; `exact` as of `tolerance`."""
    worst = 0.0
    rounds = any(t.dtype.is_float for t in walk(*(o.term for o in kernel.outputs)))
    slacks = expected.slack or (0.0,) * len(expected.values)
    for output, got, want, slack in zip(
        kernel.outputs, found, expected.values, slacks, strict=True
    ):
        name, dtype = output.buffer.name, output.buffer.dtype
        if not verify or not len(got):
            continue
        if not dtype.is_float:
            wrong = np.count_nonzero(got != np.asarray(want).astype(dtype.numpy))
            if wrong > (len(got) // 200 if rounds else 0):
                return Outcome("wrong", message=f"output {name!r}: {wrong} of {len(got)} values")
            continue
        a, b = np.asarray(got, np.float64), np.asarray(want, np.float64)
        worst = max(worst, _error(a, b))
        most = allowed(kernel, output, exact) + slack
        if not worst <= most:
            message = f"output {name!r}: relative error {worst:.3g}, allowed {most:.3g}"
            return Outcome("wrong", error=worst, message=message)
    return Outcome("ok", error=worst)


def _error(a: Array, b: Array) -> float:
    """The largest difference, relative to |b| plus the mean magnitude; inf where kinds differ."""
    finite = np.isfinite(b)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if not np.all(same[~finite]) or not np.all(np.isfinite(a[finite])):
        return math.inf
    a, b = a[finite], b[finite]
    if not len(b):
        return 0.0
    scale = float(np.mean(np.abs(b))) or 1.0
    return float(np.max(np.abs(a - b) / (np.abs(b) + scale)))
