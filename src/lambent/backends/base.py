"""What search and runtime need of a backend: calibration, compiling, measuring, assembling.

A backend turns tile programs into native code. `get("cpu")` imports the module of that device on
first use, so that a missing extra is an error only for who asks for it.
"""

from __future__ import annotations

import importlib
import json
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np

from lambent.algebra.term import walk
from lambent.backends import cache
from lambent.graph.dim import Size, symbols_in
from lambent.graph.dtypes import DType
from lambent.kernel.kernel import Kernel
from lambent.kernel.schedule import Moves
from lambent.kernel.tile import Schedule, TileProgram

BACKENDS: dict[str, str] = {
    "cpu": "lambent.backends.cpu.backend",
    "cuda": "lambent.backends.cuda.backend",
    "cuda-tf32": "lambent.backends.cuda.tf32",
}
LACKING: dict[str, tuple[str, ...]] = {"cpu": ("float8_e4m3fn", "float8_e5m2")}
LACKING |= dict.fromkeys(("sm_80", "sm_86", "sm_87"), ("float8_e4m3fn",))
"""Names of the dtypes that kernels do not take, by a word of the device's key."""


_addresses: dict[int, int] = {}  # of arrays that are alive, by id
_alive: dict[int, weakref.ref[Any]] = {}


def address(array: np.ndarray[Any, Any]) -> int:
    """Of the first element. Asking NumPy takes longer than many kernels: what is known stays."""
    number = id(array)

    def forget(_: object) -> None:
        _addresses.pop(number, None)
        _alive.pop(number, None)

    if number not in _addresses:
        _alive[number] = weakref.ref(array, forget)
        _addresses[number] = array.__array_interface__["data"][0]
    return _addresses[number]


def addresses(arrays: Sequence[np.ndarray[Any, Any]]) -> list[int]:
    """Of the first elements of all, of which most are known."""
    known = map(_addresses.get, map(id, arrays))
    return [address(a) if at is None else at for a, at in zip(arrays, known, strict=True)]


class BackendError(RuntimeError):
    """A backend cannot do what was asked: a missing extra, a compiler that fails, a lost worker."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """The best rates ever seen on a device; bounds made from them are optimistic.

    flops:     operations a second by dtype name, all threads (an FMA counts as two).
    levels:    (capacity in bytes, bytes a second) from the nearest cache to memory, all threads.
    launch:    seconds that a step of a program costs even when it does nothing.
    threads:   threads that the figures are for.
    one:       the same figures for one thread: flops by dtype name, "read" for memory, and "steps"
               a second where a step of little work is not launched on all.
    held:      places of an axis for which a processor keeps what it has computed, where that is
               few; 0: as many as there are.
    """

    device: str
    threads: int
    flops: dict[str, float]
    levels: tuple[tuple[int, float], ...]
    launch: float
    one: dict[str, float] = field(default_factory=dict)
    held: int = 0

    @property
    def start(self) -> float:
        """Seconds that a step takes at least when it does next to nothing."""
        return 1 / self.one.get("steps", 1 / self.launch)

    def rate(self, dtype: DType) -> float:
        """Operations a second in a dtype; what is not calibrated goes by its size."""
        if dtype.name in self.flops:
            return self.flops[dtype.name]
        base = self.flops.get("float32") or max(self.flops.values())
        return base * 4 / max(dtype.compute.itemsize, 1)

    def byte_time(self, size: float) -> float:
        """Seconds to move so many bytes once, from the nearest levels that hold them."""
        left, seconds = size, 0.0
        for capacity, bandwidth in self.levels[:-1]:
            part = min(left, float(capacity))
            left, seconds = left - part, seconds + part / bandwidth
        return seconds + left / self.levels[-1][1]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Calibration:
        levels = tuple((int(size), float(rate)) for size, rate in data["levels"])
        return Calibration(
            data["device"], data["threads"], dict(data["flops"]), levels, data["launch"],
            dict(data["one"]), data["held"],
        )  # fmt: skip

    @staticmethod
    def stored(name: str, key: str) -> Calibration | None:
        """That of the device `key` in a file of the cache; None if an earlier version wrote it."""
        try:
            found = Calibration.from_json(json.loads(cache.read(name) or b""))
        except (ValueError, KeyError, TypeError):
            return None
        return found if found.device == key else None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one measured candidate.

    status:  ok, wrong, render, compile, crash, timeout, resources or unmeasured.
    seconds: median time of a run; None unless ok (and None for a candidate only verified).
    best:    least time of a run.
    spread:  half the interquartile range of the times over their median: the noise.
    error:   largest error found, relative to the scale of the output.
    """

    status: str
    seconds: float | None = None
    best: float | None = None
    spread: float = 0.0
    error: float = 0.0
    message: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a program's buffer lives: `kind` is input, output, weight (by number) or arena.

    In the arena `index` is the number of the block and `offset` the bytes into it.
    """

    kind: str
    index: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One kernel. `buffers` names its outputs, then its inputs, in the order of the kernel."""

    program: TileProgram
    buffers: tuple[str, ...]

    @property
    def writes(self) -> tuple[str, ...]:
        return self.buffers[: len(self.program.kernel.outputs)]

    @property
    def reads(self) -> tuple[str, ...]:
        return self.buffers[len(self.program.kernel.outputs) :]

    @property
    def names(self) -> dict[str, str]:
        """What the kernel's own buffers are called."""
        kernel = self.program.kernel
        inside = (*(o.buffer for o in kernel.outputs), *kernel.inputs)
        return dict(zip([b.name for b in inside], self.buffers, strict=True))


@dataclass(frozen=True, slots=True)
class Assembly:
    """A whole program: the steps of a run, in order.

    places:  of every buffer that a step names.
    blocks:  bytes of the arena's blocks, multiples of 64, as sizes over the symbols.
    symbols: names of the symbols in the order in which a run passes their values.
    """

    steps: tuple[Step, ...]
    places: Mapping[str, Place]
    blocks: tuple[Size, ...]
    symbols: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Library:
    """Compiled code: `image` is the file, `requires` the device features that it uses."""

    image: bytes
    text: str
    requires: tuple[str, ...]


class Executable(Protocol):
    """An opened library."""

    def run(
        self,
        inputs: Sequence[np.ndarray[Any, Any]],
        outputs: Sequence[np.ndarray[Any, Any]],
        weights: Sequence[np.ndarray[Any, Any]],
        sizes: Sequence[int],
        arena_bytes: int,
    ) -> None:
        """Run the program once; several threads may. All arrays are contiguous."""


class Batch(Protocol):
    """Several candidates compiled together."""

    def close(self) -> None: ...


class Backend(Protocol):
    """One device. Made once by `get`; its methods may be called from several threads."""

    name: str
    lanes: int  # schedules that it compiles at the same time
    apart: bool  # compiling leaves alone what measuring needs

    def device_key(self) -> str:
        """Names the device, its features, thread count and compiler version: a cache key."""

    def calibrate(self, refresh: bool = False) -> Calibration:
        """Stored figures of this device, measured when there are none (about four seconds)."""

    def default_schedule(self, kernel: Kernel) -> Schedule:
        """A sensible first guess for a kernel."""

    def moves(self, kernel: Kernel) -> Moves:
        """What the search may set each part of a schedule of the kernel to."""

    def guesses(self, kernel: Kernel) -> list[Schedule]:
        """Schedules to try before all others: the default, a library's routine (the option
        `library`) where there is one."""

    def likely(self, program: TileProgram, rates: Calibration) -> float:
        """Seconds that a run is likely to take: it orders what is measured, and never certifies."""

    def source(self, program: TileProgram) -> str:
        """The source text of one kernel."""

    def compile(self, programs: Sequence[TileProgram]) -> Batch:
        """Compile candidates into one library. Thread-safe: several batches at once are right."""

    def measure(
        self,
        batch: Any,
        symbols: Mapping[str, int],
        *,
        repeats: int = 5,
        cold: bool = False,
        limit: float = 10.0,
        verify: bool = True,
        only: Sequence[int] | None = None,
    ) -> list[Outcome]:
        """Verify, then time the candidates of a batch, interleaved, in an isolated process.

        Args:
            symbols: sizes to time at; symbolic kernels are verified at others, too.
            repeats: times taken of each; 0 only verifies.
            cold: operands are rotated among copies that no cache holds.
            limit: seconds that one request may take; a candidate that hangs is killed.
            only: numbers of the candidates meant; the others are reported as unmeasured.
        """

    def assemble(self, assembly: Assembly) -> Library:
        """Compile a whole program into one library with one entry point."""

    def open(self, image: bytes, requires: Sequence[str]) -> Executable:
        """Load a library into this process. Raises BackendError if this device cannot run it."""

    def close(self) -> None:
        """End the worker process, if any."""


def kernel_symbols(kernel: Kernel) -> tuple[str, ...]:
    """The kernel's symbols in the order in which its code receives their values: by name."""
    sizes: list[Size] = list(kernel.extents.values())
    for output in kernel.outputs:
        sizes += [*output.buffer.shape, *output.index]
    for buffer in kernel.inputs:
        sizes += buffer.shape
    for term in walk(*(output.term for output in kernel.outputs)):
        sizes += term.indices
    return tuple(sorted(frozenset[str]().union(*map(symbols_in, sizes))))


_made: dict[str, Backend] = {}


def get(device: str) -> Backend:
    """The backend of a device.

    Raises:
        ValueError: no such device; the message lists those there are.
    """
    if device not in BACKENDS:
        raise ValueError(f"unknown device {device!r}; there are: {', '.join(BACKENDS)}")
    if device not in _made:
        _made[device] = importlib.import_module(BACKENDS[device]).make()
    return _made[device]
