"""The least time a kernel can take on a device: what the certificate of a search rests on.

Optimistic is the contract: work as a DAG over the best rate ever seen, bytes once over the best
bandwidth of the nearest levels that hold them, and the cost of a launch. A measurement below its
bound is a fault of the calibration; `loosen` makes up for it and the certificate is void.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from lambent.algebra.term import Term, walk
from lambent.backends.base import Calibration
from lambent.graph.dim import (
    Size,
    axes_in,
    evaluate,
    representative,
    symbol_hint,
    symbols_in,
    values_in,
)
from lambent.graph.dtypes import DType, float32
from lambent.kernel.kernel import Kernel
from lambent.search.space import TRANSCENDENTAL, Prices

MATH = 6.0  # operations that the cheapest transcendental function or division takes at least
SAMPLES = 64  # points an axis, where the share of a mask is counted


def rate(calibration: Calibration, dtype: DType) -> float:
    """Operations a second in a dtype (an FMA is two); what is not calibrated goes by its size."""
    known = calibration.flops
    name = dtype.compute.name
    if name in known:
        return known[name]
    base = known.get("float32") or max(known.values())
    return base * 4 / max(dtype.compute.itemsize, 1)


def prices(calibration: Calibration, total_bytes: float) -> Prices:
    """Unit prices for enumeration: bytes at the level that holds all arrays of the program."""
    flops = rate(calibration, float32)
    levels = calibration.levels
    byte = 1 / next((bw for size, bw in levels if size >= total_bytes), levels[-1][1])
    return Prices(2 / flops, 1 / flops, MATH / flops, byte, calibration.launch)


def bound(kernel: Kernel, calibration: Calibration) -> float:
    """Optimistic seconds of a kernel at the representative sizes; 0 if it runs once, at load."""
    if kernel.weights_only:
        return 0.0
    return max(work_time(kernel, calibration), byte_time(kernel, calibration)) + calibration.launch


def loosen(calibration: Calibration, factor: float) -> Calibration:
    """The calibration with every rate higher by a factor (> 1): after a bound was beaten."""
    return replace(
        calibration,
        flops={k: v * factor for k, v in calibration.flops.items()},
        levels=tuple((size, bw * factor) for size, bw in calibration.levels),
        launch=calibration.launch / factor,
    )


# ---- work ------------------------------------------------------------------------------------


def work_time(kernel: Kernel, calibration: Calibration) -> float:
    """Seconds of the kernel's arithmetic, every distinct term once, void tiles left out."""
    sizes = {a: representative(e) for a, e in kernel.extents.items()}
    roots = [o.term for o in kernel.outputs]
    terms = list(walk(*roots))
    shares = _shares(terms, sizes)
    folded = _fused_products(terms)
    seconds = 0.0
    for t in terms:
        axes = t.free | t.axes
        count = _volume(axes, sizes) * _share(axes, shares)
        seconds += count * _operations(t, folded, sizes) / rate(calibration, t.dtype)
    return seconds


def _volume(axes: Iterable[int], sizes: Mapping[int, int]) -> float:
    return float(math.prod(sizes[a] for a in axes))


def _operations(t: Term, folded: set[Term], sizes: Mapping[int, int]) -> float:
    """Operations for each point of a term's iteration space."""
    if t.op in ("in", "const", "inf", "nan", "val") or t in folded:
        return 0.0
    if t.op in TRANSCENDENTAL:
        return MATH
    if t.op in (
        "fold",
        "part",
    ):  # maximum, difference and exp2 where a varies; a product everywhere
        a = t.kids[0]
        inner = _volume(a.free | t.axes, sizes) / _volume(t.free | t.axes, sizes)
        return 1.0 + inner * MATH
    return 1.0


def _fused_products(terms: list[Term]) -> set[Term]:
    """Products that a sum takes at once: the multiplication is half of an FMA of two operations.

    A map counts one operation at the FMA rate's two a cycle, so a product and its sum count two
    together, at any shape; what is left out is a scale of masks, which costs nothing.
    """
    return {t for t in terms if t.op in ("mask", "cast", "not")}


def _shares(terms: list[Term], sizes: Mapping[int, int]) -> list[tuple[frozenset[int], float]]:
    """Per mask over indices alone: its axes, and the share of points that it keeps."""
    found: dict[Term, tuple[frozenset[int], float]] = {}
    for t in terms:
        if t.op == "mask" and t.kids[1].op not in ("const", "inf", "nan"):
            cond = t.kids[0]
            if cond not in found and cond.free and _index_only(cond):
                found[cond] = (cond.free, _fraction(cond, sizes))
    return list(found.values())


def _share(axes: frozenset[int], shares: list[tuple[frozenset[int], float]]) -> float:
    return min((f for a, f in shares if a <= axes), default=1.0)


def _index_only(t: Term) -> bool:
    return all(u.op in ("val", "less", "eq", "mask", "not", "const", "add", "mul", "mod")
               and not any(values_in(i) for i in u.indices) for u in walk(t))  # fmt: skip


def _fraction(cond: Term, sizes: Mapping[int, int]) -> float:
    """The share of points where a condition holds, on a grid of at most SAMPLES points an axis."""
    axes = sorted(cond.free)
    points = [
        np.unique(np.linspace(0, sizes[a] - 1, SAMPLES).round().astype(np.int64)) for a in axes
    ]
    grid = (
        dict(zip(axes, np.meshgrid(*points, indexing="ij"), strict=True)) if len(axes) < 4 else {}
    )
    if not grid:
        return 0.0
    known: dict[Term, Any] = {}
    for t in walk(cond):
        known[t] = _evaluate(t, [known[k] for k in t.kids], grid)
    return 0.95 * float(
        np.mean(np.broadcast_to(np.asarray(known[cond]), next(iter(grid.values())).shape))
    )


def _evaluate(t: Term, kids: list[Any], grid: Mapping[int, Any]) -> Any:
    if t.op == "val":
        symbols = {name: symbol_hint(name) for name in symbols_in(t.args[0])}
        return evaluate(t.args[0], symbols, grid)
    if t.op == "const":
        return float(t.args[0])
    f: Any = {
        "less": np.less, "eq": np.equal, "add": np.add, "mul": np.multiply, "mod": np.mod,
        "mask": lambda c, x: np.where(c, x, False), "not": np.logical_not,
    }[t.op]  # fmt: skip
    return f(*kids)


# ---- bytes -----------------------------------------------------------------------------------


def byte_time(kernel: Kernel, calibration: Calibration) -> float:
    """Seconds to move every byte once, from the nearest levels that hold them all."""
    left, seconds = footprint(kernel), 0.0
    for size, bandwidth in calibration.levels[:-1]:
        part = min(left, float(size))
        left, seconds = left - part, seconds + part / bandwidth
    return seconds + left / calibration.levels[-1][1]


def footprint(kernel: Kernel) -> float:
    """Bytes that a kernel reads and writes at least: of each buffer its largest access."""
    sizes = {a: representative(e) for a, e in kernel.extents.items()}
    most: dict[str, float] = {}
    for t in walk(*(o.term for o in kernel.outputs)):
        if t.op == "in":
            most[t.args[0]] = max(most.get(t.args[0], 0.0), _region(t.args[1], sizes))
    total = 0.0
    for b in kernel.inputs:
        whole = math.prod(representative(d) for d in b.shape)
        total += min(most.get(b.name, 0.0), whole) * b.dtype.itemsize
    for o in kernel.outputs:
        total += math.prod(representative(d) for d in o.buffer.shape) * o.buffer.dtype.itemsize
    return total


def _region(index: tuple[Size, ...], sizes: Mapping[int, int]) -> float:
    """Elements that an access touches at least: a gathered dim may always be the same one."""
    return math.prod(
        min(_volume(axes_in(i), sizes), _span(i, sizes)) for i in index if not values_in(i)
    )


def _span(index: Size, sizes: Mapping[int, int]) -> float:
    return _volume(axes_in(index), sizes)
