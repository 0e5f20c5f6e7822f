"""Opened shared libraries: a program's entry point, and one thread pool for all of them."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lambent.backends.base import BackendError, addresses
from lambent.backends.cpu import features
from lambent.backends.cpu.build import place
from lambent.backends.libraries import blas

Array = np.ndarray[Any, Any]
_lock = threading.Lock()
_pool: list[ctypes.c_void_p] = []


def open_library(path: Path) -> ctypes.CDLL:
    """Load a library and give it the pool of this process (its own if it is the first).

    Raises:
        BackendError: the system refuses the file.
    """
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise BackendError(f"device 'cpu': the compiled code cannot be loaded: {error}") from None
    with _lock:
        library.lambent_pool.restype = ctypes.c_void_p
        library.lambent_pool.argtypes = [ctypes.c_void_p]
        own = library.lambent_pool(_pool[0] if _pool else None)
        if not _pool:
            _pool.append(own)
    blas.connect(library)
    return library


def pointers(arrays: Sequence[Array]) -> ctypes.Array[ctypes.c_void_p]:
    """A C array of the addresses of the arrays' first elements."""
    return (ctypes.c_void_p * max(1, len(arrays)))(*addresses(arrays))


def aligned(nbytes: int) -> Array:
    """Uninitialised bytes at an address that is a multiple of 64."""
    raw = np.empty(nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + nbytes]


class Program:
    """An opened program. Each run in progress has an arena of its own; a few are kept for reuse.

    Raises:
        BackendError: this CPU lacks instructions that the program was compiled for.
    """

    def __init__(self, image: bytes, requires: Sequence[str]) -> None:
        lacking = features.missing(requires)
        if lacking:
            raise BackendError(
                f"device 'cpu': the program was compiled for another CPU; this one lacks "
                f"{', '.join(lacking)}; compile the program again on this machine"
            )
        path = place(image)
        try:
            self._library = open_library(path)
        finally:
            path.unlink(missing_ok=True)
        self._arenas: list[tuple[Array, ctypes.c_void_p]] = []
        self._weights: tuple[Any, Any] = ((), pointers(()))
        self._threads = ctypes.c_int(features.threads())

    def run(
        self, inputs: Sequence[Array], outputs: Sequence[Array], weights: Sequence[Array],
        sizes: Sequence[int], arena_bytes: int,
    ) -> None:  # fmt: skip
        bound = self._weights
        if bound[0] is not weights:
            bound = self._weights = (weights, pointers(weights))
        numbers = (ctypes.c_int64 * max(1, len(sizes)))(*sizes)
        with _lock:
            arena = self._arenas.pop() if self._arenas else None
        if arena is None or arena[0].nbytes < arena_bytes:
            fresh = aligned(arena_bytes)
            arena = fresh, ctypes.c_void_p(fresh.ctypes.data)
        self._library.lambent_run(
            pointers(inputs), pointers(outputs), bound[1], arena[1], numbers, self._threads
        )
        with _lock:
            if len(self._arenas) < 2:
                self._arenas.append(arena)
