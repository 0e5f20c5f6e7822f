"""The isolated process in which candidates run: an illegal access ends it, not the compiler.

Started by `measure` as `python -m lambent.backends.cuda.worker NUMBER`, that of its device; see
`measuring.process`.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lambent.backends.cuda.driver import (
    HARMLESS,
    CudaError,
    Device,
    Memory,
    Timer,
    call,
    device,
    synchronize,
)
from lambent.backends.cuda.image import Opened
from lambent.backends.measuring.measurer import Job
from lambent.backends.measuring.operands import PERIOD, Spec, draw
from lambent.backends.measuring.process import serve
from lambent.graph.dtypes import DTYPES

Array = np.ndarray[Any, Any]
GUARD = 4096  # bytes on either side of an output that a kernel must not touch
COPIED = 16 << 20  # bytes of a large array that are copied to the host to look at it
PLACE = 30_000  # bytes that are copied in the time in which one element is
_FILL = 0xA5
_SHARE = 4  # of the device's memory that operands kept for the next job may take: a quarter


class Worker:
    """The state between messages: opened files, and the operands of recent jobs."""

    def __init__(self, number: int) -> None:
        self._device: Device = device(number)
        self._device.enter()
        self._opened: dict[str, Opened] = {}
        self._inputs: dict[Any, list[tuple[Memory, int]]] = {}
        self._outputs: dict[Any, list[Memory]] = {}
        self._flush = Memory(2 * self._device.attribute("L2_CACHE_SIZE"))

    def opened(self, path: str) -> Opened:
        if path not in self._opened:
            self._opened[path] = Opened(Path(path).read_bytes())
        return self._opened[path]

    def check(self, path: str, job: Job, samples: Sequence[Array]) -> tuple[list[Array], str, int]:
        """Run once. Returns the outputs' values at flat indices, a complaint or "", and ns."""
        inputs, outputs = self._operands(job)
        for memory in outputs:
            memory.fill(_FILL)
        ns = self._time(path, job, 1)
        found, complaint = [], ""
        for memory, spec, places in zip(outputs, job.outputs, samples, strict=True):
            for offset in (0, memory.nbytes - GUARD):
                if (_bytes(memory, offset, GUARD) != _FILL).any():
                    complaint = "writes outside of an output"
            found.append(_values(memory, spec, places))
        for memory, checksum in inputs:
            if checksum != _checksum(memory):
                complaint = complaint or "writes to an input"
        return found, complaint, ns

    def time(self, path: str, job: Job, inner: int, copies: int, first: int) -> int:
        """Nanoseconds of `inner` runs, each with a second-level cache that holds no operand."""
        return self._time(path, job, inner)

    def close(self, path: str) -> None:
        """Forget operands and a file's codes."""
        self._inputs.clear()
        self._outputs.clear()
        if path in self._opened:
            self._opened.pop(path).close()

    def floor(self) -> float:
        """Seconds between two places of a stream with the smallest command between them."""
        timer, least = Timer(), 1.0
        for _ in range(200):
            self._flush.fill(0)
            timer.mark(0)
            call("cuMemsetD8Async", self._flush.pointer, 0, 1, 0)
            timer.mark(1)
            least = min(least, timer.seconds())
        return least

    def bandwidth(self) -> float:
        """Bytes a second, read and written, of a large copy within the device."""
        a, b = Memory(1 << 31), Memory(1 << 31)
        timer, least = Timer(), 1e9
        for _ in range(10):
            timer.mark(0)
            call("cuMemcpyDtoDAsync", b.pointer, a.pointer, a.nbytes, 0)
            timer.mark(1)
            least = min(least, timer.seconds())
        return 2 * a.nbytes / least

    def _operands(self, job: Job) -> tuple[list[tuple[Memory, int]], list[Memory]]:
        """Inputs with their checksums, and outputs between their guards."""
        key, results = (job.inputs, job.mode), job.outputs
        if key not in self._inputs:
            kept = sum(m.nbytes for found in self._inputs.values() for m, _ in found)
            if kept > call("cuDeviceTotalMem", self._device.handle) // _SHARE:
                self._inputs.clear()
            self._inputs[key] = [_upload(s, i, job.mode) for i, s in enumerate(job.inputs)]
        if results not in self._outputs:
            self._outputs.clear()
            self._outputs[results] = [Memory(s.nbytes + 2 * GUARD) for s in results]
        return self._inputs[key], self._outputs[results]

    def _time(self, path: str, job: Job, runs: int) -> int:
        opened = self.opened(path)
        step = opened.launches[job.number]
        inputs, outputs = self._operands(job)
        pointers = [m.pointer + GUARD for m in outputs] + [m.pointer for m, _ in inputs]
        symbols = dict(zip((name for name, _ in step.sizes), job.sizes, strict=True))
        opened.prepare(step)
        timers = [Timer() for _ in range(runs)]
        for timer in timers:
            self._flush.fill(0)
            timer.mark(0)
            opened.run(step, pointers, symbols, 0)
            timer.mark(1)
        seconds = sum(timer.seconds() for timer in timers)
        for timer in timers:
            timer.close()
        synchronize()
        return max(1, round(1e9 * seconds))


def _upload(spec: Spec, number: int, mode: str) -> tuple[Memory, int]:
    """The operand and its checksum. What repeats is copied on the device, doubling."""
    memory, count = Memory(spec.nbytes), math.prod(spec.shape)
    once = np.ascontiguousarray(draw(replace(spec, shape=(min(count, PERIOD),)), number, mode))
    memory.put(once)
    done = once.nbytes
    while 0 < done < spec.nbytes:
        part = min(done, spec.nbytes - done)
        call("cuMemcpyDtoD", memory.pointer + done, memory.pointer, part)
        done += part
    return memory, _checksum(memory)


def _bytes(memory: Memory, offset: int, count: int) -> Array:
    raw = np.empty(count, np.uint8)
    memory.get(raw, offset)
    return raw


def _values(memory: Memory, spec: Spec, places: Array) -> Array:
    """The elements of an output at flat places."""
    dtype = DTYPES[spec.dtype].numpy
    if spec.nbytes <= max(COPIED, PLACE * len(places)):
        whole: Array = _bytes(memory, GUARD, spec.nbytes).view(dtype)
        return whole[places]
    found = np.empty(len(places), dtype)
    for i, place in enumerate(places):
        memory.get(found[i : i + 1], GUARD + int(place) * dtype.itemsize)
    return found


def _checksum(memory: Memory) -> int:
    """Of the first `COPIED` bytes."""
    raw = _bytes(memory, 0, min(memory.nbytes, COPIED))
    words = raw[: raw.nbytes // 8 * 8].view(np.uint64)
    return int(np.bitwise_xor.reduce(words)) ^ int(raw[words.nbytes :].sum())


def survives(f: Callable[..., Any]) -> Callable[..., Any]:
    """The function; after an error that spoils the context the process ends, as after a crash."""

    def guarded(*args: Any) -> Any:
        try:
            return f(*args)
        except CudaError as error:
            if error.code not in HARMLESS:
                os._exit(100 + error.code % 100)
            raise

    return guarded


if __name__ == "__main__":
    worker = Worker(int(sys.argv[1]))
    names = ("check", "time", "close", "floor", "bandwidth")
    serve({name: survives(getattr(worker, name)) for name in names})
