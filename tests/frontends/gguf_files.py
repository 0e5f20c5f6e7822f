"""A small writer of GGUF files and a seeded mutator of bytes, for tests alone."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Tensors = dict[str, tuple[tuple[int, ...], int, bytes]]
_KINDS = {bool: (7, "?"), int: (4, "I"), float: (6, "f")}


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def _value(value: Any) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    if isinstance(value, list):
        inner = [_value(v) for v in value]
        kind = inner[0][:4] if inner else struct.pack("<I", 4)
        body = b"".join(v[4:] for v in inner)
        return struct.pack("<I", 9) + kind + struct.pack("<Q", len(value)) + body
    number, code = _KINDS[type(value)]
    return struct.pack(f"<I{code}", number, value)


def gguf_bytes(metadata: dict[str, Any], tensors: Tensors, version: int = 3) -> bytes:
    """A file. Tensors by name: shape (rows last), ggml's number of the format, data."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    head += b"".join(_text(key) + _value(value) for key, value in metadata.items())
    data = b""
    for name, (shape, kind, content) in tensors.items():
        head += _text(name) + struct.pack("<I", len(shape))
        head += struct.pack(f"<{len(shape)}Q", *shape[::-1]) + struct.pack("<IQ", kind, len(data))
        data += content + bytes(-len(content) % 32)
    return head + bytes(-len(head) % 32) + data


def small(path: Path) -> Path:
    """A file with every kind of part."""
    rng = np.random.default_rng(0)
    metadata = {
        "general.architecture": "llama",
        "general.alignment": 32,
        "llama.eps": 0.5,
        "yes": True,
        "tokens": ["a", "bc", "", "é"],
        "scores": [1.0, 2.0, 3.0],
        "none": [],
    }
    tensors: Tensors = {
        "a": ((3, 4), 0, rng.standard_normal((3, 4)).astype(np.float32).tobytes()),
        "b": ((2, 64), 3, rng.integers(0, 256, 80, np.uint8).tobytes()),
        "c": ((5,), 1, np.ones(5, np.float16).tobytes()),
    }
    path.write_bytes(gguf_bytes(metadata, tensors))
    return path


def mutations(whole: bytes, count: int, head: int, seed: int = 0) -> Iterator[bytes]:
    """Seeded damage, mostly in the first `head` bytes: cuts, bytes, numbers of all sizes, moves."""
    rng = np.random.default_rng(seed)
    extremes = [0, 1, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1, 2**40, len(whole)]
    for i in range(count):
        data = bytearray(whole)
        at = int(rng.integers(0, head if i % 5 else len(whole)))
        kind = i % 6
        if kind == 0:
            del data[at:]
        elif kind == 1:
            data[at] = int(rng.integers(0, 256))
        elif kind == 2:
            data[at] ^= 1 << int(rng.integers(0, 8))
        elif kind == 3:
            data[at : at + 8] = struct.pack("<Q", extremes[int(rng.integers(len(extremes)))])
        elif kind == 4:
            other = int(rng.integers(0, head))
            data[at : at + 16] = data[other : other + 16]
        else:
            del data[at : at + int(rng.integers(1, 32))]
        yield bytes(data)
