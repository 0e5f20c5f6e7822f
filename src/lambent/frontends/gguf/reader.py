"""The container: header, metadata and the places of tensors, checked before anything is read.

Layout (ggml's docs/gguf.md, versions 2 and 3, little endian): magic, version, two counts, pairs of
key and value, tensor descriptions, padding, data. The file is mapped; every count is checked
against the bytes that are left before memory is asked for, so that memory stays within a small
multiple of the file whatever it says.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from lambent.frontends.gguf.formats import FORMATS, NUMBERS

__all__ = ["GGUF", "Stored", "read"]

Array = np.ndarray[Any, Any]

_SCALARS = "BbHhIif?..Qqd"  # by type number; 8 is a string, 9 an array
_STRING, _ARRAY = 8, 9
_SIZE = struct.Struct("<Q")
_MOST_DIMS = 4


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor in a file: shape as NumPy counts (rows last), format by name, bytes as mapped."""

    name: str
    shape: tuple[int, ...]
    format: str
    data: Array


@dataclass(frozen=True, slots=True)
class GGUF:
    """A mapped file. Metadata arrays of numbers are NumPy arrays, those of strings are lists."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, Stored]


def read(path: str | Path) -> GGUF:
    """Map a GGUF file and check all of its structure.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no GGUF file, of another version, cut short, or contradicts itself.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"gguf: no file {path}")
    if path.stat().st_size < 24:
        raise ValueError(f"gguf: {path} is too short for a GGUF file")
    reader = _Reader(np.memmap(path, np.uint8, "r"))
    try:
        return GGUF(path, *reader.file())
    except ValueError as error:
        raise ValueError(f"gguf: {path}, at byte {reader.at}: {error}") from None


class _Reader:
    """A place in the bytes of a file; everything that moves it checks the end first."""

    def __init__(self, data: Array) -> None:
        self.data, self.view, self.at = data, data.data, 0

    def take(self, count: int) -> memoryview:
        left = len(self.data) - self.at
        if count > left:
            raise ValueError(f"{count} bytes are announced and {left} are left")
        self.at += count
        return self.view[self.at - count : self.at]

    def number(self, code: str) -> Any:
        return struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")))[0]

    def count(self, what: str, least: int) -> int:
        """A number of things of at least so many bytes each."""
        count: int = self.number("Q")
        if count > (len(self.data) - self.at) // least:
            raise ValueError(f"{count} {what} do not fit in the rest of the file")
        return count

    def text(self) -> str:
        return str(self.take(self.number("Q")), "utf-8")

    def texts(self, count: int) -> list[str]:
        """As many calls of `text`, of which a vocabulary needs a hundred thousand."""
        found, view, end = list[str](), self.view, len(self.data)
        for _ in range(count):
            first = self.at + 8
            (size,) = _SIZE.unpack(view[self.at : first]) if first <= end else (end,)
            if size > end - first:
                return [*found, self.text()]  # which says what is wrong
            self.at = first + size
            found.append(str(view[first : self.at], "utf-8"))
        return found

    def value(self, kind: int, nested: bool = False) -> Any:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY and not nested:
            return self.array()
        if kind >= len(_SCALARS) or kind in (_STRING, _ARRAY):
            raise ValueError(f"a metadata value of the unknown or nested type {kind}")
        return self.number(_SCALARS[kind])

    def array(self) -> Any:
        kind = self.number("I")
        if kind == _STRING:
            return self.texts(self.count("strings", 8))
        if kind >= len(_SCALARS) or kind == _ARRAY:
            raise ValueError(f"an array of the unknown or nested type {kind}")
        dtype = np.dtype(_SCALARS[kind]).newbyteorder("<")
        count = self.count("numbers", dtype.itemsize)
        return np.frombuffer(self.take(count * dtype.itemsize), dtype)

    def once(self, many: int, what: str, one: Callable[[str], Any]) -> dict[str, Any]:
        """So many things that start with a name, by their names."""
        found: dict[str, Any] = {}
        for _ in range(many):
            name = self.text()
            if name in found:
                raise ValueError(f"two {what} are called {name!r}")
            found[name] = one(name)
        return found

    def file(self) -> tuple[dict[str, Any], dict[str, Stored]]:
        if bytes(self.take(4)) != b"GGUF":
            raise ValueError("it does not start with GGUF")
        version = self.number("I")
        if version not in (2, 3):
            raise ValueError(f"version {version}; readable are 2 and 3, little endian")
        tensors, pairs = self.count("tensors", 24), self.count("metadata pairs", 13)
        metadata = self.once(pairs, "metadata keys", lambda _: self.value(self.number("I")))
        places = self.once(tensors, "tensors", lambda _: self.place())
        alignment = metadata.get("general.alignment", 32)
        if type(alignment) is not int or alignment < 8 or alignment & (alignment - 1):
            raise ValueError(f"an alignment of {alignment!r}")
        base = -(-self.at // alignment) * alignment
        ends = sorted((start, start + size, name) for name, (*_, start, size) in places.items())
        for (_, end, name), (start, _, other) in pairwise(ends):
            if start < end:
                raise ValueError(f"the tensors {name!r} and {other!r} overlap")
        return metadata, {
            name: Stored(name, shape, kind, self.data_at(name, base + start, size, alignment))
            for name, (shape, kind, start, size) in places.items()
        }

    def place(self) -> tuple[tuple[int, ...], str, int, int]:
        """(shape, format, offset, bytes) of a tensor."""
        rank = self.number("I")
        if rank > _MOST_DIMS:
            raise ValueError(f"a tensor of {rank} dims")
        shape = tuple(int(self.number("Q")) for _ in range(rank))[::-1]
        kind = NUMBERS.get(self.number("I"))
        if kind is None:
            raise ValueError(f"a tensor of a format that is not readable; {', '.join(FORMATS)} are")
        form, last = FORMATS[kind], shape[-1] if shape else 1
        if last % form.block:
            raise ValueError(f"rows of {last} do not divide into blocks of {form.block} ({kind})")
        return shape, kind, self.number("Q"), prod(shape) // form.block * form.bytes

    def data_at(self, name: str, start: int, size: int, alignment: int) -> Array:
        if start % alignment or start + size > len(self.data):
            raise ValueError(
                f"the tensor {name!r} lies at {start} … {start + size}, which is not aligned to "
                f"{alignment} or beyond the end of the file, {len(self.data)}"
            )
        return self.data[start : start + size]
