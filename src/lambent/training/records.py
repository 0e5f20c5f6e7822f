"""Where metrics go: a CSV file, and event files that TensorBoard reads, written without it.

An event file is a sequence of records: length (8 bytes, little endian), a checksum of it, data and
a checksum of that (CRC-32C, rotated). The data is a protocol buffer `Event` of wall time, step and
`Summary` values with a tag and a float.
"""

from __future__ import annotations

import csv
import struct
import time
from collections.abc import Mapping
from pathlib import Path


class Records:
    """Appends metrics to `metrics.csv` and to an event file in a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._csv = folder / "metrics.csv"
        self._events = folder / f"events.out.tfevents.{time.time():.0f}.lambent"
        if not self._events.exists():
            version = _field(3, 2, b"brain.Event:2")
            self._append(_double(1, time.time()) + version)

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        """One row. The first of a file decides which metrics its columns are."""
        new = not self._csv.exists()
        with self._csv.open("a", newline="") as file:
            writer = csv.writer(file)
            if new:
                writer.writerow(["step", *metrics])
            writer.writerow([step, *(f"{v:.9g}" for v in metrics.values())])
        values = b"".join(
            _field(1, 2, _field(1, 2, tag.encode()) + _key(2, 5) + struct.pack("<f", v))
            for tag, v in metrics.items()
        )
        self._append(_double(1, time.time()) + _key(2, 0) + _varint(step) + _field(5, 2, values))

    def _append(self, event: bytes) -> None:
        length = struct.pack("<Q", len(event))
        with self._events.open("ab") as file:
            file.write(length + _checksum(length) + event + _checksum(event))


# ---- protocol buffers ------------------------------------------------------------------------


def _varint(n: int) -> bytes:
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes([*out, n])


def _key(field: int, kind: int) -> bytes:
    return _varint(field << 3 | kind)


def _field(field: int, kind: int, data: bytes) -> bytes:
    return _key(field, kind) + _varint(len(data)) + data


def _double(field: int, value: float) -> bytes:
    return _key(field, 1) + struct.pack("<d", value)


def _table() -> list[int]:
    rows = []
    for n in range(256):
        for _ in range(8):
            n = n >> 1 ^ (0x82F63B78 if n & 1 else 0)
        rows.append(n)
    return rows


_CRC = _table()


def crc32c(data: bytes) -> int:
    """Castagnoli's checksum."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _checksum(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
