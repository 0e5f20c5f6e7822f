"""A whole program on the device: its arena, its weights, arrays in and out, recorded runs.

A run on the same arrays and sizes as an earlier one is recorded as a CUDA graph, and replayed from
then on: one call of the driver in place of one for each kernel. For other arrays or sizes nothing
is recorded: kernels are nodes of a graph that are given new arguments where these differ.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lambent.backends.base import BackendError
from lambent.backends.cuda.driver import (
    Graph,
    Memory,
    Staged,
    captured,
    device,
    recorded,
    synchronize,
)
from lambent.backends.cuda.image import Opened, whole
from lambent.backends.sizes import number

Array = np.ndarray[Any, Any]
STAGED = 256 << 20  # bytes of an array that is copied by way of memory that the device reads
GRAPHS = 32  # recorded runs that are kept, and arrays and sizes that are remembered


class Program:
    """An opened program. Runs take turns: they share one arena.

    Args:
        requires: names of compute capabilities ("sm_90") that its code is for.

    Raises:
        BackendError: this device is another one.
    """

    def __init__(self, image: bytes, requires: Sequence[str], index: int = 0) -> None:
        self._device = device(index)
        here = f"sm_{self._device.capability}"
        if any(r != here for r in requires):
            raise BackendError(
                f"device 'cuda': the program was compiled for {', '.join(requires)}, this GPU is "
                f"{here}; compile the program again on this machine"
            )
        self._device.enter()
        self._opened = Opened(image)
        self._lock = threading.Lock()
        self._arena: Memory | None = None
        self._weights: tuple[Any, list[Memory]] = ((), [])
        self._arrays: dict[tuple[str, int], Memory] = {}
        self._graphs: dict[Any, Graph | None] = {}  # by arrays and sizes; None: seen once

    def run(
        self, inputs: Sequence[Array], outputs: Sequence[Array], weights: Sequence[Array],
        sizes: Sequence[int], arena_bytes: int,
    ) -> None:  # fmt: skip
        """From arrays of the host to arrays of the host."""
        with self._lock:
            self._device.enter()
            held = [self._array("input", i, a.nbytes) for i, a in enumerate(inputs)]
            results = [self._array("output", i, a.nbytes) for i, a in enumerate(outputs)]
            for memory, array in zip(held, inputs, strict=True):
                memory.put(array)
            given, made = ([m.pointer for m in part] for part in (held, results))
            self._enqueue(given, made, weights, sizes, arena_bytes, 0)
            for memory, array in zip(results, outputs, strict=True):
                memory.get(array)
            for i in self._opened.header.get("written", ()):
                held[i].get(inputs[i])

    def enqueue(
        self, inputs: Sequence[int], outputs: Sequence[int], weights: Sequence[Array],
        sizes: Sequence[int], arena_bytes: int, stream: int = 0,
    ) -> None:  # fmt: skip
        """Queue a run on the caller's stream, from and to memory of the device, by pointers.

        Runs on several streams at once would share the arena: let one wait for the other.
        """
        with self._lock:
            self._device.enter()
            self._enqueue(inputs, outputs, weights, sizes, arena_bytes, stream)

    def _enqueue(
        self, inputs: Sequence[int], outputs: Sequence[int], weights: Sequence[Array],
        sizes: Sequence[int], arena_bytes: int, stream: int,
    ) -> None:  # fmt: skip
        symbols = dict(zip(self._opened.header["symbols"], sizes, strict=True))
        pools = {"input": inputs, "output": outputs, "weight": self._bound(weights)}
        starts = self._starts(symbols, arena_bytes)

        def pointer(kind: str, index: int, offset: int) -> int:
            return (starts[index] if kind == "arena" else pools[kind][index]) + offset

        places = [[pointer(*p) for p in step.places] for step in self._opened.launches]

        def queue(stream: int) -> None:
            for step, pointers in zip(self._opened.launches, places, strict=True):
                self._opened.run(step, pointers, symbols, stream)

        if len(self._opened.launches) == 1:
            queue(stream)  # which a recording would not make shorter
            return
        key = tuple(inputs), tuple(outputs), tuple(sizes)
        if key in self._graphs and not captured(stream):
            graph = self._graphs.pop(key) or recorded(queue)
            self._graphs[key] = graph  # the last one used is the last to be forgotten
            graph.launch(stream)
            return
        if self._graphs and not captured(stream):
            self._opened.patch(places, symbols, stream)
        else:
            queue(stream)  # the first run loads what it needs
        while len(self._graphs) >= GRAPHS:
            del self._graphs[next(iter(self._graphs))]
        self._graphs.setdefault(key)

    def _starts(self, symbols: Mapping[str, int], arena_bytes: int) -> list[int]:
        """Where the blocks of the arena start."""
        if self._arena is None or self._arena.nbytes < arena_bytes:
            synchronize()
            self._graphs.clear()
            self._arena = None
            self._arena = Memory(arena_bytes)
        at, starts = self._arena.pointer, []
        for size in self._opened.header["blocks"]:
            starts.append(at)
            at += number(size, whole(symbols))
        return starts

    def _bound(self, weights: Sequence[Array]) -> list[int]:
        if self._weights[0] is not weights:
            self._graphs.clear()
            held = [Memory(a.nbytes) for a in weights]
            for memory, array in zip(held, weights, strict=True):
                memory.put(array)
            self._weights = (weights, held)
        return [m.pointer for m in self._weights[1]]

    def _array(self, kind: str, i: int, nbytes: int) -> Memory:
        """Memory for an array of the host; kept for the next run."""
        found = self._arrays.get((kind, i))
        if found is None or found.nbytes < nbytes:
            self._arrays.pop((kind, i), None)
            found = (Staged if nbytes <= STAGED else Memory)(nbytes)
            self._arrays[kind, i] = found
        return found
