"""The least time a kernel can take on a device: what the certificate of a search rests on.

Optimistic is the contract: work as a DAG over the best rate ever seen, bytes once over the best
bandwidth of the nearest levels that hold them, and the cost of a launch. A measurement below its
bound is a fault of the calibration: the search loosens its bounds, and the certificate is void.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
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
from lambent.kernel.kernel import Buffer, Kernel
from lambent.search.space import MATH, TRANSCENDENTAL, Prices

FREE = frozenset(("in", "const", "inf", "nan", "val", "mask", "cast", "not"))  # cost nothing
INDEX = frozenset(("val", "less", "eq", "mask", "not", "const", "add", "mul", "mod"))
LAUNCH = 0.5  # the share of a calibrated launch that every kernel pays at least
SAMPLES = 64  # points an axis, where the share of a mask is counted


def rate(calibration: Calibration, dtype: DType) -> float:
    """Operations a second in a dtype (an FMA is two); what is not calibrated goes by its size."""
    known = calibration.flops
    if dtype.name in known:
        return known[dtype.name]
    base = known.get("float32") or max(known.values())
    return base * 4 / max(dtype.compute.itemsize, 1)


def prices(calibration: Calibration, total_bytes: float) -> Prices:
    """Unit prices for enumeration: bytes at the level that holds all arrays of the program."""
    flops = rate(calibration, float32)
    levels = calibration.levels
    byte = 1 / next((bw for size, bw in levels if size >= total_bytes), levels[-1][1])
    return Prices(1 / flops, byte, calibration.launch)


@dataclass(slots=True)
class Bounder:
    """Bounds of the kernels of one e-graph: they share terms, and a term is priced once."""

    calibration: Calibration
    extents: Mapping[int, Size]
    sizes: dict[int, int] = field(default_factory=dict)
    priced: dict[Term, tuple[frozenset[int], float]] = field(default_factory=dict)
    kept: dict[Term, float] = field(default_factory=dict)
    regions: dict[Term, float] = field(default_factory=dict)

    def bound(self, kernel: Kernel) -> float:
        """Optimistic seconds of a kernel at the representative sizes; 0 if it runs at load."""
        if kernel.weights_only:
            return 0.0
        terms = list(walk(*(o.term for o in kernel.outputs)))
        moved = byte_time(self.footprint(kernel, terms), self.calibration)
        return max(sum(s for _, s in self.work(terms)), moved) + LAUNCH * self.calibration.launch

    def demand(self, kernel: Kernel) -> tuple[float, float, float]:
        """Operations, bytes read and bytes written, as the bound counts them."""
        terms = list(walk(*(o.term for o in kernel.outputs)))
        operations = sum(s * rate(self.calibration, t.dtype) for t, s in self.work(terms))
        written = _written(kernel)
        return operations, self.footprint(kernel, terms) - written, written

    def size(self, a: int) -> int:
        if a not in self.sizes:
            self.sizes[a] = representative(self.extents[a])
        return self.sizes[a]

    def volume(self, axes: Iterable[int]) -> float:
        return float(math.prod(self.size(a) for a in axes))

    # ---- work ----

    def work(self, terms: list[Term]) -> Iterator[tuple[Term, float]]:
        """Seconds of arithmetic of every distinct term, without the points that a mask voids."""
        shares = self.shares(terms)
        for t in terms:
            axes, own = self.priced.get(t) or self.price(t)
            if own:
                yield t, own * min((f for a, f in shares if a <= axes), default=1.0)

    def price(self, t: Term) -> tuple[frozenset[int], float]:
        axes = t.free | t.axes
        operations = self.operations(t)
        seconds = operations and self.volume(axes) * operations / rate(self.calibration, t.dtype)
        self.priced[t] = (axes, seconds)
        return self.priced[t]

    def operations(self, t: Term) -> float:
        """Operations for each point of a term's space; a product and its sum: an FMA, two."""
        if t.op in FREE:
            return 0.0
        if t.op in TRANSCENDENTAL:
            return MATH
        if t.op in ("fold", "part"):  # maximum, difference and exp2 where a varies
            a = t.kids[0]
            return 1.0 + MATH / max(1.0, self.volume(t.free - a.free - t.axes))
        return 1.0

    def shares(self, terms: list[Term]) -> list[tuple[frozenset[int], float]]:
        """Per mask over indices alone: its axes, and the share of points that it keeps."""
        conditions = dict.fromkeys(
            t.kids[0]
            for t in terms
            if t.op == "mask" and t.kids[1].op not in ("const", "inf", "nan")
        )
        for c in conditions:
            if c not in self.kept:
                self.kept[c] = self.fraction(c) if c.free and _index_only(c) else 1.0
        return [(c.free, self.kept[c]) for c in conditions if self.kept[c] < 1.0]

    def fraction(self, cond: Term) -> float:
        """The share of points where a condition holds, on a grid of SAMPLES points an axis."""
        axes = sorted(cond.free)
        if len(axes) > 3:
            return 0.0
        points = [np.linspace(0, self.size(a) - 1, SAMPLES).round().astype(np.int64) for a in axes]
        grid = dict(zip(axes, np.meshgrid(*points, indexing="ij"), strict=True))
        known: dict[Term, Any] = {}
        for t in walk(cond):
            known[t] = _evaluate(t, [known[k] for k in t.kids], grid)
        return 0.95 * float(np.mean(np.broadcast_to(known[cond], [SAMPLES] * len(axes))))

    # ---- bytes ----

    def footprint(self, kernel: Kernel, terms: list[Term]) -> float:
        """Bytes that a kernel reads and writes at least: of each buffer its largest access."""
        most: dict[str, float] = {}
        for t in terms:
            if t.op == "in":
                if t not in self.regions:
                    self.regions[t] = self.region(t.args[1])
                most[t.args[0]] = max(most.get(t.args[0], 0.0), self.regions[t])
        total = 0.0
        for b in kernel.inputs:
            total += min(most.get(b.name, 0.0), _elements(b)) * b.dtype.itemsize
        return total + _written(kernel)

    def region(self, index: tuple[Size, ...]) -> float:
        """Elements that an access touches at least: a gathered dim may always be the same one."""
        return math.prod(self.volume(axes_in(i)) for i in index if not values_in(i))


def bound(kernel: Kernel, calibration: Calibration) -> float:
    """Optimistic seconds of one kernel."""
    return Bounder(calibration, kernel.extents).bound(kernel)


def byte_time(size: float, calibration: Calibration) -> float:
    """Seconds to move so many bytes once, from the nearest levels that hold them."""
    left, seconds = size, 0.0
    for capacity, bandwidth in calibration.levels[:-1]:
        part = min(left, float(capacity))
        left, seconds = left - part, seconds + part / bandwidth
    return seconds + left / calibration.levels[-1][1]


def _written(kernel: Kernel) -> float:
    return float(sum(_elements(o.buffer) * o.buffer.dtype.itemsize for o in kernel.outputs))


def _elements(b: Buffer) -> int:
    return math.prod(representative(d) for d in b.shape)


def _index_only(t: Term) -> bool:
    return all(u.op in INDEX and not any(values_in(i) for i in u.indices) for u in walk(t))


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
