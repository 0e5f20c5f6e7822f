"""Quantised formats as rows of a table: where a block keeps its parts, and what they mean.

A block of a row holds scales and packed integers. `packed` takes the blocks apart into one array a
part, without a bit more than the file has; the formula of a format says which integers they hold,
and the scale and the offset of each group of them. A formula is written once, with operators that
arrays and Tensors share: over arrays it is the yardstick, over Tensors it is a graph of ordinary
primitives that ends up inside of a kernel.

Layouts: ggml's `ggml-common.h` and `ggml-quants.c`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from operator import add
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from lambent.functional.indexing import embedding
from lambent.graph.tensor import iota

if TYPE_CHECKING:
    from lambent.frontends.gguf.reader import Stored
    from lambent.graph.dim import Size
    from lambent.graph.tensor import Tensor

__all__ = ["FORMATS", "NUMBERS", "Format", "Groups", "Packed", "dequantise", "packed"]

Array = np.ndarray[Any, Any]
Parts = Mapping[str, Any]
"""Arrays or Tensors [..., blocks, k] by the name of the part."""
PANEL = 16
"""Rows that lie side by side, where there are that many."""


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes start … stop of a block as numbers of a dtype, rearranged where that is named."""

    start: int
    stop: int
    dtype: Any
    rearrange: Callable[[Array], Array] | None = None

    def of(self, blocks: Array) -> Array:
        """[..., bytes of a block] → [..., k]."""
        part = blocks[..., self.start : self.stop]
        return (self.rearrange(part) if self.rearrange else part).view(self.dtype)


@dataclass(frozen=True, slots=True)
class Format:
    """`number` is ggml's; a block of so many elements takes so many bytes; `meaning`: Groups."""

    number: int
    block: int
    bytes: int
    parts: dict[str, Part]
    meaning: Callable[[Parts], Groups]


@dataclass(frozen=True, slots=True)
class Groups:
    """Numbers scale · q + offset: q [..., groups, n], scale and offset [..., groups] if any.

    The groups of a row may be several dims.
    """

    q: Any
    scale: Any = None
    offset: Any = None

    def values(self, shape: tuple[Size, ...]) -> Any:
        """The numbers themselves."""
        found = self.q if self.scale is None else self.q * self.scale[..., None]
        return (found if self.offset is None else found + self.offset[..., None]).reshape(shape)

    def linear(self, x: Tensor) -> Tensor:
        """x […, in] → […, out] for q [out, groups, n]: a scale stands outside of its group's sum,
        and an offset meets the sum of x alone."""
        parts = x.reshape(*x.shape[:-1], 1, *self.q.shape[1:])
        over = tuple(range(1 - self.q.ndim, 0))[1:]
        y: Tensor = ((parts * self.q).sum(-1) * self.scale).sum(over)
        return y if self.offset is None else y + (parts.sum(-1) * self.offset).sum(over)


@dataclass(frozen=True, slots=True)
class Packed:
    """A tensor as its parts, each an array of its own."""

    shape: tuple[int, ...]
    format: str
    parts: dict[str, Array]
    panels: bool = False

    @property
    def plain(self) -> bool:
        """Whether it is an array of numbers as they are."""
        return FORMATS[self.format].block == 1

    def values(self, parts: Parts) -> Any:
        """float32 values of the whole shape, of the parts as arrays or as Tensors."""
        return self._groups(parts).values(self.shape)

    def linear(self, parts: Parts, x: Tensor) -> Tensor:
        """x […, in] times a quantised matrix [out, in] whose parts are Tensors."""
        return self._groups(parts).linear(x)

    def rows(self, parts: Parts, ids: Tensor) -> Tensor:
        """Rows [t, in] of a quantised matrix whose parts are Tensors, for ids [t]."""
        if self.panels:
            width = math.gcd(self.shape[0], PANEL)
            lane = iota(width) == (ids % width)[:, None, None]
            found = {k: (lane * embedding(ids // width, p)).sum(-1) for k, p in parts.items()}
        else:
            found = {k: embedding(ids, p) for k, p in parts.items()}
        form, (t,), row = FORMATS[self.format], ids.shape, self.shape[1]
        blocks = {k: p.reshape(t, row // form.block, -1) for k, p in found.items()}
        values: Tensor = form.meaning(blocks).values((t, row))
        return values

    def _groups(self, parts: Parts) -> Groups:
        form = FORMATS[self.format]
        if self.panels:
            rows, row = self.shape
            parts = {k: p.mT.reshape(rows, row // form.block, -1) for k, p in parts.items()}
        return form.meaning(parts)

    def in_panels(self) -> Packed:
        """A quantised matrix with its parts as [rows / w, .., w]: a vector reads w rows at once."""
        width = math.gcd(self.shape[0], PANEL)
        if self.plain or len(self.shape) != 2 or width < 8:
            return self
        parts = {}
        for name, part in self.parts.items():
            cut = np.moveaxis(part.reshape(-1, width, *part.shape[1:]), 1, -1)
            parts[name] = np.ascontiguousarray(cut).reshape(len(cut), -1, width)
        return replace(self, parts=parts, panels=True)


def packed(stored: Stored) -> Packed:
    """The parts of a stored tensor; what is not quantised stays where it is mapped."""
    form = FORMATS[stored.format]
    *before, row = stored.shape or (1,)
    blocks = stored.data.reshape(*before, row // form.block, form.bytes)
    if form.block == 1:
        plain = stored.data.view(form.parts["x"].dtype).reshape(stored.shape)
        return Packed(stored.shape, stored.format, {"x": plain})
    parts = {name: part.of(blocks) for name, part in form.parts.items()}
    return Packed(stored.shape, stored.format, parts)


def dequantise(stored: Stored) -> Array:
    """float32 values of a stored tensor."""
    whole = packed(stored)
    return np.asarray(whole.values(whole.parts))


# ---- formulas --------------------------------------------------------------------------------


def _f32(x: Any) -> Any:
    return x.astype(np.dtype(np.float32))


def _planes(x: Any, bits: int) -> Any:
    """Bytes [..., j] → [..., f, j]: the fields of so many bits, from the lowest.

    Field f is what byte mod 2^(bits · (f + 1)) has above byte mod 2^(bits · f).
    """
    x = x.astype(np.dtype(np.int32))
    count = 8 // bits
    number = np.arange(count) if isinstance(x, np.ndarray) else iota(count)
    ends = [*(x % (1 << at) for at in range(bits, 8, bits)), x]
    parts = [ends[0], *(high - low for low, high in pairwise(ends))]
    fields = (_f32(p)[..., None, :] * 2.0 ** (-bits * f) for f, p in enumerate(parts))
    return reduce(add, ((number == f)[:, None] * y for f, y in enumerate(fields)))


def _grouped(x: Any, *last: int) -> Any:
    """The last dim as several."""
    return x.reshape(*x.shape[:-1], *last)


def _joined(x: Any, *last: int) -> Any:
    """The last two dims as others."""
    return x.reshape(*x.shape[:-2], *last)


def _nibbles(p: Parts) -> Any:
    return _joined(_planes(p["q"], 4), 32)


def _fives(p: Parts) -> Any:
    return _nibbles(p) + _joined(_planes(p["high"], 1), 32) * 16.0


def _scaled(p: Parts, q: Any) -> Groups:
    return Groups(q, _f32(p["d"])[..., 0])


def _around(p: Parts, q: Any, middle: float) -> Groups:
    """d · (q − middle)."""
    d = _f32(p["d"])[..., 0]
    return Groups(q, d, d * -middle)


def _above(p: Parts, q: Any) -> Groups:
    """d · q + m."""
    return Groups(q, _f32(p["d"])[..., 0], _f32(p["m"])[..., 0])


def _k_nibbles(p: Parts) -> Any:
    """[..., 128] bytes → [..., 8, 32]."""
    q = _planes(_grouped(p["q"], 4, 32), 4)
    return q.reshape(*q.shape[:-3], 8, 32)


def _k_groups(p: Parts, q: Any) -> Groups:
    """Of q [..., 8, 32]: scales and offsets [..., 2, 8] have six bits each, four and two apart."""
    six = _planes(p["low"], 4) + _joined(_planes(p["two"], 2), 2, 8) * 16.0
    s = _f32(p["d"])[..., None] * six
    return Groups(q, s[..., 0, :], -s[..., 1, :])


def _q6_k(p: Parts) -> Groups:
    low = _joined(_planes(_grouped(p["q"], 2, 64), 4), 128)
    high = _joined(_planes(_grouped(p["high"], 2, 32), 2), 128)
    s = _f32(p["d"]) * _f32(p["scales"])
    return Groups(_joined(low + high * 16.0, 16, 16), s, s * -32.0)


# ---- rearrangements --------------------------------------------------------------------------


def _bit_planes(x: Array) -> Array:
    """32 bits of 4 bytes, a bit an element, so that byte j holds elements j, j + 4, j + 8, …"""
    bits = np.unpackbits(x, axis=-1, bitorder="little").reshape(*x.shape[:-1], 8, 4)
    return np.packbits(bits, axis=-2, bitorder="little")[..., 0, :]


def _low_fours(x: Array) -> Array:
    """Of 12 bytes the low four bits of each scale, and of each offset above them: 8 bytes."""
    d, m, both = x[..., 0:4], x[..., 4:8], x[..., 8:12]
    first = (d & 15) | (m & 15) << 4
    return np.concatenate([first, both], axis=-1)


def _high_twos(x: Array) -> Array:
    """Of 12 bytes the other two bits: byte j holds those of scales j, j + 4, offsets j, j + 4."""
    d, m = x[..., 0:4], x[..., 4:8]
    return (d >> 4 & 3) | (d >> 6) << 2 | (m >> 4 & 3) << 4 | (m >> 6) << 6


# ---- the table -------------------------------------------------------------------------------


def _plain(number: int, dtype: Any) -> Format:
    size = np.dtype(dtype).itemsize
    return Format(number, 1, size, {"x": Part(0, size, dtype)}, lambda p: Groups(_f32(p["x"])))


_HALF, _BYTE = np.float16, np.uint8
_K_SCALES = {
    "d": Part(0, 4, _HALF),
    "low": Part(4, 16, _BYTE, _low_fours),
    "two": Part(4, 16, _BYTE, _high_twos),
}

FORMATS: dict[str, Format] = {
    "F32": _plain(0, np.float32),
    "F16": _plain(1, np.float16),
    "BF16": _plain(30, ml_dtypes.bfloat16),
    "Q8_0": Format(
        8, 32, 34, {"d": Part(0, 2, _HALF), "q": Part(2, 34, np.int8)},
        lambda p: _scaled(p, _f32(p["q"])),
    ),
    "Q4_0": Format(
        2, 32, 18, {"d": Part(0, 2, _HALF), "q": Part(2, 18, _BYTE)},
        lambda p: _around(p, _nibbles(p), 8.0),
    ),
    "Q4_1": Format(
        3, 32, 20, {"d": Part(0, 2, _HALF), "m": Part(2, 4, _HALF), "q": Part(4, 20, _BYTE)},
        lambda p: _above(p, _nibbles(p)),
    ),
    "Q5_0": Format(
        6, 32, 22,
        {"d": Part(0, 2, _HALF), "high": Part(2, 6, _BYTE, _bit_planes), "q": Part(6, 22, _BYTE)},
        lambda p: _around(p, _fives(p), 16.0),
    ),
    "Q5_1": Format(
        7, 32, 24,
        {"d": Part(0, 2, _HALF), "m": Part(2, 4, _HALF),
         "high": Part(4, 8, _BYTE, _bit_planes), "q": Part(8, 24, _BYTE)},
        lambda p: _above(p, _fives(p)),
    ),
    "Q4_K": Format(
        12, 256, 144, _K_SCALES | {"q": Part(16, 144, _BYTE)},
        lambda p: _k_groups(p, _k_nibbles(p)),
    ),
    "Q5_K": Format(
        13, 256, 176, _K_SCALES | {"high": Part(16, 48, _BYTE), "q": Part(48, 176, _BYTE)},
        lambda p: _k_groups(p, _k_nibbles(p) + _planes(p["high"], 1) * 16.0),
    ),
    "Q6_K": Format(
        14, 256, 210,
        {"q": Part(0, 128, _BYTE), "high": Part(128, 192, _BYTE),
         "scales": Part(192, 208, np.int8), "d": Part(208, 210, _HALF)},
        _q6_k,
    ),
}  # fmt: skip

NUMBERS = {form.number: name for name, form in FORMATS.items()}
