"""The meaning of a kernel's terms in NumPy float64, whole or at sampled points.

It reads the terms as they stand, without schedule, splitting or rewriting: what a lowered kernel is
verified against. Floats are float64 (a cast still rounds to its dtype), integers wrap as they do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import reduce as fold_left
from typing import Any

import numpy as np

from lambent.algebra.term import REDUCTIONS, Term, literal
from lambent.backends.reference.tile import (
    FUNCTIONS,
    Array,
    NDArray,
    Readable,
    converted,
    dot,
    gather,
    together,
)
from lambent.graph.dim import Size, axes_in, values_in
from lambent.graph.dim import evaluate as number
from lambent.graph.dtypes import DType
from lambent.kernel.kernel import Kernel, Output

Sample = Mapping[int, NDArray]
POINTS = 1 << 16  # at which a kernel is verified, at most


def held(dtype: DType) -> np.dtype[Any]:
    """The NumPy dtype in which values of a dtype are held here."""
    return np.dtype(np.float64) if dtype.is_float else dtype.numpy


class _Evaluator:
    def __init__(
        self,
        kernel: Kernel,
        buffers: Mapping[str, Readable],
        symbols: Mapping[str, int],
        sample: Sample,
    ) -> None:
        self.buffers, self.symbols = buffers, symbols
        self.whole = {i: np.arange(number(n, symbols)) for i, n in kernel.extents.items()}
        self.sample = {**self.whole, **sample}
        self.memo: dict[tuple[Term, frozenset[int]], Array] = {}

    def term(self, t: Term, bound: frozenset[int]) -> Array:
        """The value of t; axes of `bound` take all indices in it, others the sampled ones."""
        key = (t, bound & t.free)
        if key not in self.memo:
            self.memo[key] = self.compute(t, bound & t.free)
        return self.memo[key]

    def compute(self, t: Term, bound: frozenset[int]) -> Array:
        if t.op == "in":
            index = tuple(self.index(i, bound) for i in t.args[1])
            found = gather(self.buffers[t.args[0]], index, t.dtype)
            return Array(found.axes, found.data.astype(held(t.dtype)))
        if t.op == "val":
            return self.index(t.args[0], bound)
        if t.op in ("const", "inf", "nan"):
            scalar = literal(t)
            return Array((), np.asarray(scalar, held(t.dtype)))
        if t.op in REDUCTIONS:
            return self.reduction(t, bound | t.axes)
        if t.op == "cast":
            x = self.term(t.kids[0], bound)
            return Array(x.axes, converted(x.data, t.dtype).astype(held(t.dtype)))
        axes, parts = together(tuple(self.term(k, bound) for k in t.kids))
        return Array(axes, np.asarray(FUNCTIONS[t.op](*parts)).astype(held(t.dtype)))

    def reduction(self, t: Term, bound: frozenset[int]) -> Array:
        if t.op == "sum":
            return self.total(t.axes, self.factors(t.kids[0], bound), t.dtype)
        a = self.term(t.kids[0], bound)
        dims = tuple(i for i, x in enumerate(a.axes) if x in t.axes)
        rest = tuple(x for x in a.axes if x not in t.axes)
        most = Array(rest, np.asarray(a.data.max(axis=dims)))
        if t.op == "max":
            return most
        if t.op == "part":
            most = Array(rest, np.where(np.isneginf(most.data), 0.0, most.data))
        axes, (x, m) = together((a, most))
        p = Array(axes, np.exp2(x - m))
        out = self.total(t.axes, [p, *self.factors(t.kids[1], bound)], t.dtype)
        if t.op == "fold":
            return out
        axes, (y, x) = together((out, Array(rest, a.data.max(axis=dims))))
        return Array(axes, np.where(np.isneginf(x), 0.0, y))

    def factors(self, t: Term, bound: frozenset[int]) -> list[Array]:
        if t.op == "mul":
            return [f for k in t.kids for f in self.factors(k, bound)]
        return [self.term(t, bound)]

    def total(self, axes: frozenset[int], parts: list[Array], dtype: DType) -> Array:
        """The sum over axes of the product; products of matrices where there are two factors."""
        parts = [Array(p.axes, p.data.astype(held(dtype))) for p in parts]
        inside = [p for p in parts if set(p.axes) & axes]
        outside = [p for p in parts if not set(p.axes) & axes]
        seen = frozenset(x for p in inside for x in p.axes) & axes
        count = math.prod(len(self.whole[x]) for x in sorted(axes - seen))
        if count != 1 or not inside:
            outside.append(Array((), np.asarray(count).astype(held(dtype))))
        if len(inside) == 2 and all(axes & seen <= set(p.axes) for p in inside):
            outside.append(dot(seen, *inside))
        elif inside:
            outside.append(self.einsum(seen, inside))
        return fold_left(self.product, outside)

    def product(self, a: Array, b: Array) -> Array:
        axes, (x, y) = together((a, b))
        return Array(axes, np.asarray(x * y))

    def einsum(self, axes: frozenset[int], parts: list[Array]) -> Array:
        every = sorted({x for p in parts for x in p.axes})
        place = {x: n for n, x in enumerate(every)}
        rest = [x for x in every if x not in axes]
        operands = [o for p in parts for o in (p.data, [place[x] for x in p.axes])]
        out = np.einsum(*operands, [place[x] for x in rest], optimize=len(parts) > 2)
        return Array(tuple(rest), np.asarray(out))

    def index(self, index: Size, bound: frozenset[int]) -> Array:
        named = {
            i: Array((i,), (self.whole if i in bound else self.sample)[i])
            for i in sorted(axes_in(index))
        }
        values = {v: self.term(v, bound) for v in values_in(index)}
        axes, parts = together((*named.values(), *values.values()))
        given = dict(zip([*named, *values], parts, strict=True))
        return Array(axes, np.asarray(number(index, self.symbols, given, given), np.int64))


def evaluate(
    kernel: Kernel,
    buffers: Mapping[str, Readable],
    symbols: Mapping[str, int] | None = None,
    sample: Sample | None = None,
) -> list[NDArray]:
    """The outputs in order, floats in float64.

    Args:
        buffers: the inputs by name.
        symbols: the value of every symbol of the shapes.
        sample: indices to which free axes are restricted; reduced axes stay whole. With it, an
            output has one dim for each of its axes, ascending (see `picked`), instead of its shape.
    """
    symbols = symbols or {}
    with np.errstate(all="ignore"):
        work = _Evaluator(kernel, buffers, symbols, sample or {})
        found = [work.term(o.term, frozenset()) for o in kernel.outputs]
        if sample is not None:
            return [_spread(o, v, work) for o, v in zip(kernel.outputs, found, strict=True)]
        outputs = []
        for o, v in zip(kernel.outputs, found, strict=True):
            shape = [number(n, symbols) for n in o.buffer.shape]
            out = np.zeros(shape, held(o.buffer.dtype))
            out[_places(o, work)] = _spread(o, v, work)
            outputs.append(out)
        return outputs


def picked(
    kernel: Kernel, arrays: list[NDArray], sample: Sample, symbols: Mapping[str, int] | None = None
) -> list[NDArray]:
    """The points of computed outputs that `evaluate` gives for the same sample."""
    work = _Evaluator(kernel, {}, symbols or {}, sample)
    return [x[_places(o, work)] for o, x in zip(kernel.outputs, arrays, strict=True)]


def _axes(output: Output) -> tuple[int, ...]:
    return tuple(sorted(frozenset[int]().union(*(axes_in(i) for i in output.index))))


def _places(output: Output, work: _Evaluator) -> tuple[NDArray, ...]:
    """The position of each point in the output's buffer, one array a dim."""
    frame = Array(_axes(output), np.zeros([len(work.sample[i]) for i in _axes(output)], np.int64))
    index = tuple(work.index(i, frozenset()) for i in output.index)
    _, (*places, zeros) = together((*index, frame))
    return tuple(p + zeros for p in places)


def _spread(output: Output, v: Array, work: _Evaluator) -> NDArray:
    """The value with a dim for every axis of the output."""
    shape = [len(work.sample[i]) for i in _axes(output)]
    _, (data, _zeros) = together((v, Array(_axes(output), np.zeros(shape, np.bool_))))
    return np.broadcast_to(data, shape)


def sample_axes(
    kernel: Kernel, symbols: Mapping[str, int] | None = None, seed: int = 0, budget: float = 1e7
) -> dict[int, NDArray]:
    """Indices of the free axes at which to verify a kernel within a budget of scalar operations.

    First and last, both sides of powers of two (where tiles end), the rest at random. Until the
    work fits, the sample is halved whose halving saves most, the longest of those that save alike;
    so rows stay whole where their parts share work. No axis keeps fewer than two indices.
    """
    symbols = symbols or {}
    extents = {i: int(number(n, symbols)) for i, n in kernel.extents.items()}
    free = sorted({i for o in kernel.outputs for i in _axes(o)})
    counts = {i: extents[i] for i in free}
    while _work(kernel, extents, counts) > budget or math.prod(counts.values()) > POINTS:
        halves = {i: counts | {i: max(2, counts[i] // 2)} for i in free if counts[i] > 2}
        if not halves:
            break
        works = {i: _work(kernel, extents, found) for i, found in halves.items()}
        counts = halves[
            min(halves, key=lambda i: (works[i] > 1.1 * min(works.values()), -counts[i], i))
        ]
    random = np.random.default_rng(seed)
    return {i: _indices(extents[i], counts[i], random) for i in free}


def _indices(extent: int, count: int, random: np.random.Generator) -> NDArray:
    if count >= extent:
        return np.arange(extent)
    edges = [p + d for p in (1 << n for n in range(3, 13)) for d in (-1, 0) if p + d < extent - 1]
    chosen = {0, extent - 1}
    spare = max(0, count - 2)
    chosen.update(int(e) for e in random.permutation(edges)[: spare // 2])
    while len(chosen) < count:
        chosen.add(int(random.integers(extent)))
    return np.asarray(sorted(chosen), np.int64)


def _work(kernel: Kernel, extents: Mapping[int, int], counts: Mapping[int, int]) -> float:
    """Scalar operations of `evaluate`, counted once for each value that it keeps."""
    seen: set[tuple[Term, frozenset[int]]] = set()
    stack = [(o.term, frozenset[int]()) for o in kernel.outputs]
    total = 0.0
    while stack:
        t, bound = stack.pop()
        key = (t, bound & t.free)
        if key in seen:
            continue
        seen.add(key)
        inner = bound | t.axes
        axes = t.free | t.axes
        total += math.prod(extents[i] if i in inner else counts.get(i, 1) for i in sorted(axes))
        stack.extend((k, inner) for k in t.kids)
        stack.extend((v, inner) for i in t.indices for v in values_in(i))
    return total
