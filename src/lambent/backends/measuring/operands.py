"""Random operands on which candidates are verified and timed: valid, well scaled, reproducible."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lambent.algebra.term import walk
from lambent.graph.dim import Size, evaluate, terms_of
from lambent.graph.dtypes import DTYPES, DType
from lambent.kernel.kernel import Buffer, Kernel

Array = np.ndarray[Any, Any]

# How floats are drawn: with signs or not, and a factor on magnitudes 0.5 … 1.5. The first that
# gives finite results is used: logarithms, roots, exponents are verified on numbers, not on NaN.
MODES: dict[str, tuple[bool, float]] = {
    "signed": (True, 1.0),
    "positive": (False, 1.0),
    "small": (True, 0.0625),
    "small positive": (False, 0.0625),
}
PERIOD = 1_000_003  # values before an operand repeats itself; a prime, so that no tile does


@dataclass(frozen=True, slots=True)
class Spec:
    """An array to allocate: integers are drawn from low … high − 1."""

    dtype: str
    shape: tuple[int, ...]
    low: int = 1
    high: int = 8

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize


def places(specs: Sequence[Spec]) -> list[int]:
    """Where each array begins in one piece of memory, of which large pages are made, as programs
    have theirs; and how long it is. Multiples of 64 bytes."""
    ends = [*itertools.accumulate((-(-s.nbytes // 64) * 64 for s in specs), initial=0)]
    return [*ends[:-1], max(64, ends[-1])]


def shape_of(shape: Sequence[Size], symbols: Mapping[str, int]) -> tuple[int, ...]:
    """The numbers of a shape at given symbols."""
    return tuple(int(evaluate(size, symbols)) for size in shape)


def spec(buffer: Buffer, symbols: Mapping[str, int], high: int = 8) -> Spec:
    """The buffer's array at given symbols."""
    return Spec(buffer.dtype.name, shape_of(buffer.shape, symbols), min(1, high - 1), high)


def input_specs(kernel: Kernel, symbols: Mapping[str, int]) -> tuple[Spec, ...]:
    """What to draw for each input; a buffer that others are indexed by stays in their range."""
    limits = index_limits(kernel, symbols)
    specs = []
    for b in kernel.inputs:
        limited = b.name in limits
        one = spec(b, symbols, limits.get(b.name, 8))
        specs.append(Spec(one.dtype, one.shape, 0, one.high) if limited else one)
    return tuple(specs)


def index_limits(kernel: Kernel, symbols: Mapping[str, int]) -> dict[str, int]:
    """For each buffer read by a gathered index: the number of valid indices."""
    shapes = {b.name: shape_of(b.shape, symbols) for b in kernel.inputs}
    limits: dict[str, int] = {}
    for term in walk(*(o.term for o in kernel.outputs)):
        if term.op != "in":
            continue
        for size, index in zip(shapes[term.args[0]], term.args[1], strict=True):
            for c, product in terms_of(index):
                for atom in (a for a, _ in product if a.kind == "value"):
                    for below in walk(atom.args[0]):
                        if below.op == "in":
                            name, most = below.args[0], max(1, size // abs(c))
                            limits[name] = min(limits.get(name, 127), most)
    return limits


@dataclass(frozen=True, slots=True)
class Drawn:
    """The values of an operand, which repeat themselves, to be read like an array of a shape.

    Some operands are gigabytes; of those a verification reads a few rows.
    """

    values: Array
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def __getitem__(self, places: tuple[Array, ...]) -> Array:
        flat: Any = 0
        for place, length in zip(places, self.shape, strict=True):
            flat = flat * length + np.asarray(place, np.int64)
        return np.asarray(self.values[flat % len(self.values)])


def drawn(spec: Spec, number: int, mode: str = "signed") -> Drawn:
    """Operand `number`; equal arguments give equal values in every process."""
    count, dtype = math.prod(spec.shape), DTYPES[spec.dtype]
    random = np.random.default_rng(number)
    n = min(count, PERIOD)
    values = _floats(random, n, mode) if dtype.is_float else _integers(random, n, spec, dtype)
    return Drawn(values.astype(dtype.numpy), spec.shape)


def draw(spec: Spec, number: int, mode: str = "signed") -> Array:
    """The same as an array."""
    return np.resize(drawn(spec, number, mode).values, spec.shape)


def _floats(random: np.random.Generator, n: int, mode: str) -> Array:
    signed, scale = MODES[mode]
    values = (random.random(n, np.float32) + np.float32(0.5)) * np.float32(scale)
    return np.where(random.random(n, np.float32) < 0.5, -values, values) if signed else values


def _integers(random: np.random.Generator, n: int, spec: Spec, dtype: DType) -> Array:
    low, high = (0, 2) if dtype.kind == "b" else (spec.low, max(spec.high, spec.low + 1))
    return random.integers(low, high, n)


def symbol_value(name: str, symbols: Mapping[str, int]) -> int:
    """The value of a symbol's atom; `s/8` is an eighth of s."""
    if name in symbols:
        return symbols[name]
    declared, _, multiple = name.rpartition("/")
    return symbols[declared] // int(multiple)
