"""The least time a kernel can take on a device: what the certificate of a search rests on.

Optimistic is the contract: work as a DAG over the best rate ever seen, bytes once over the best
bandwidth of the nearest levels that hold them, and the cost of a launch. A measurement below its
bound is a fault of the calibration: the search loosens its bounds, and the certificate is void.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import cache

import numpy as np

from lambent.algebra.term import Term, walk
from lambent.backends.base import Calibration
from lambent.backends.reference.kernel import evaluate
from lambent.graph.dim import Size, axes_in, axis, hints, representative, symbols_in, values_in
from lambent.graph.dtypes import bool_, float32
from lambent.kernel.kernel import Buffer, Kernel, Output
from lambent.search.space import MATH, TRANSCENDENTAL, Prices

FREE = frozenset(("in", "const", "inf", "nan", "val", "mask", "cast", "not"))  # cost nothing
LAUNCH = 0.5  # the share of a calibrated start that every kernel pays at least
SAMPLES = 64  # points an axis, where the share of a mask is counted


def prices(calibration: Calibration, total_bytes: float, rent: float = 0.0) -> Prices:
    """Unit prices for enumeration: bytes at the level that holds all arrays, with their rent."""
    levels = calibration.levels
    byte = rent + 1 / next((bw for size, bw in levels if size >= total_bytes), levels[-1][1])
    return Prices(1 / calibration.rate(float32), byte, calibration.launch, calibration)


class Bounder:
    """Bounds of the kernels of one e-graph: they share terms, and a term is priced once."""

    def __init__(self, calibration: Calibration, extents: Mapping[int, Size]) -> None:
        self.calibration = calibration
        self.size = cache(lambda a: representative(extents[a]))
        self.price, self.share = cache(self._price), cache(self._share)
        self.region = cache(self._region)

    def bound(self, kernel: Kernel) -> float:
        """Optimistic seconds of a kernel at the representative sizes; 0 if it runs at load."""
        if kernel.weights_only:
            return 0.0
        terms = list(walk(*(o.term for o in kernel.outputs)))
        moved = self.calibration.byte_time(sum(self.footprint(kernel, terms)))
        return max(sum(s for _, s in self.work(terms)), moved) + LAUNCH * self.calibration.start

    def volume(self, axes: Iterable[int]) -> float:
        return float(math.prod(self.size(a) for a in axes))

    # ---- work ----

    def work(self, terms: list[Term]) -> Iterator[tuple[Term, float]]:
        """Seconds of arithmetic of every distinct term, without the points that a mask voids."""
        shares = self.shares(terms)
        for t in terms:
            axes, own = self.price(t)
            if own:
                yield t, own * min((f for a, f in shares if a <= axes), default=1.0)

    def _price(self, t: Term) -> tuple[frozenset[int], float]:
        """The axes of a term's space, and the seconds that it takes."""
        axes, operations = t.free | t.axes, self.operations(t)
        return axes, operations and self.volume(axes) * operations / self.calibration.rate(t.dtype)

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
        return [(c.free, self.share(c)) for c in conditions if self.share(c) < 1.0]

    def _share(self, condition: Term) -> float:
        """The share of points where it holds, on a grid; 1 if it depends on more than indices."""
        axes, terms = sorted(condition.free), list(walk(condition))
        if condition.op == "eq":  # an index that is chosen: only where the choice leads
            for one, other in (condition.kids, condition.kids[::-1]):
                if one.op == "val" and len(own := one.free - other.free) == 1:
                    return 1 / self.volume(own)
        if not axes or any(t.op == "in" for t in terms):
            return 1.0
        if len(axes) > 3:
            return 0.0
        grid = {a: np.linspace(0, self.size(a) - 1, SAMPLES).round().astype(np.int64) for a in axes}
        whole = Output(Buffer("", bool_, ()), tuple(map(axis, axes)), condition)
        kernel = Kernel((whole,), (), {a: self.size(a) for a in axes})
        names = frozenset[str]().union(*(symbols_in(i) for t in terms for i in t.indices))
        (holds,) = evaluate(kernel, {}, hints(names), grid)
        return 0.95 * float(np.mean(holds))

    # ---- bytes ----

    def footprint(self, kernel: Kernel, terms: list[Term]) -> tuple[float, float]:
        """Bytes that a kernel reads, and writes, at least: of each buffer its largest access."""
        most: dict[str, float] = {}
        for t in terms:
            if t.op == "in":
                most[t.args[0]] = max(most.get(t.args[0], 0.0), self.region(t))
        read = sum(min(most.get(b.name, 0.0) * b.dtype.itemsize, b.bytes) for b in kernel.inputs)
        return read, float(sum(o.buffer.bytes for o in kernel.outputs))

    def _region(self, t: Term) -> float:
        """Elements that an access touches at least: a gathered dim may always be the same one."""
        return math.prod(self.volume(axes_in(i)) for i in t.indices if not values_in(i))
