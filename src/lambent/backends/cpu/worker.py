"""The isolated process in which candidates run: it may hang or crash, the compiler does not.

Started by `measure` as `python -m lambent.backends.cpu.worker`; see `measuring.process`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lambent.backends.cpu.library import aligned, open_library, pointers
from lambent.backends.measuring.measurer import Job
from lambent.backends.measuring.operands import Spec, draw, places
from lambent.backends.measuring.process import serve
from lambent.graph.dtypes import DTYPES

Array = np.ndarray[Any, Any]
GUARD = 4096  # bytes on either side of an output that a kernel must not touch
_FILL = 0xA5


class Worker:
    """The state between messages: opened libraries, and the operands of recent jobs."""

    def __init__(self) -> None:
        self._libraries: dict[str, ctypes.CDLL] = {}
        self._sets: dict[Any, list[list[Array]]] = {}

    def library(self, path: str) -> ctypes.CDLL:
        if path not in self._libraries:
            self._libraries[path] = open_library(Path(path))
        return self._libraries[path]

    def check(self, path: str, job: Job, samples: Sequence[Array]) -> tuple[list[Array], str, int]:
        """Run once. Returns the outputs' values at flat indices, a complaint or "", and ns."""
        library = self.library(path)
        inputs = self._operands(job, 1)[0][len(job.outputs) :]
        raw = [aligned(s.nbytes + 2 * GUARD) for s in job.outputs]
        for r in raw:
            r[:] = _FILL
        outputs = [
            _view(r[GUARD : r.nbytes - GUARD], s) for r, s in zip(raw, job.outputs, strict=True)
        ]
        before = [_checksum(a) for a in inputs]
        ns = self._time(library, job, [[*outputs, *inputs]], 1, 0)
        complaint = ""
        if any((r[:GUARD] != _FILL).any() or (r[-GUARD:] != _FILL).any() for r in raw):
            complaint = "writes outside of an output"
        elif before != [_checksum(a) for a in inputs]:
            complaint = "writes to an input"
        found = [o.reshape(-1)[i] for o, i in zip(outputs, samples, strict=True)]
        return found, complaint, ns

    def time(self, path: str, job: Job, inner: int, copies: int, first: int) -> int:
        """Nanoseconds of `inner` runs, which use the copies of the operands in turn."""
        return self._time(self.library(path), job, self._operands(job, copies), inner, first)

    def close(self, path: str) -> None:
        """Forget a library's handle (its code stays mapped)."""
        self._libraries.pop(path, None)

    def _operands(self, job: Job, copies: int) -> list[list[Array]]:
        key = (job.outputs, job.inputs, job.mode)
        if key not in self._sets:
            if sum(a.nbytes for sets in self._sets.values() for s in sets for a in s) > 1 << 29:
                self._sets.clear()
            self._sets[key] = []
        sets, specs = self._sets[key], (*job.outputs, *job.inputs)
        *starts, size = places(specs)
        for memory in aligned(max(0, copies - len(sets)) * size).reshape(-1, size):
            drawn = (draw(s, i, job.mode) for i, s in enumerate(job.inputs))
            known = sets[0] if sets else [*(0 for _ in job.outputs), *drawn]
            sets.append([_view(memory[at:], s) for at, s in zip(starts, specs, strict=True)])
            for array, value in zip(sets[-1], known, strict=True):
                array[...] = value
        return sets[:copies]

    def _time(
        self, library: ctypes.CDLL, job: Job, sets: list[list[Array]], inner: int, first: int
    ) -> int:
        flat = pointers([a for arrays in sets for a in arrays])
        sizes = (ctypes.c_int64 * max(1, len(job.sizes)))(*job.sizes)
        ns = ctypes.c_int64()
        library.lambent_time(
            job.number, flat, len(sets[0]), len(sets), first, sizes, job.threads,
            ctypes.c_int64(inner), ctypes.byref(ns),
        )  # fmt: skip
        return ns.value


def _view(raw: Array, spec: Spec) -> Array:
    return raw[: spec.nbytes].view(DTYPES[spec.dtype].numpy).reshape(spec.shape)


def _checksum(array: Array) -> int:
    raw = array.reshape(-1).view(np.uint8)
    words = raw[: raw.nbytes // 8 * 8].view(np.uint64)
    return int(np.bitwise_xor.reduce(words)) ^ int(raw[words.nbytes :].sum())


if __name__ == "__main__":
    worker = Worker()
    serve({"check": worker.check, "time": worker.time, "close": worker.close})
