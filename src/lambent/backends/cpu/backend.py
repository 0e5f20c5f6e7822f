"""The CPU backend: tile program → C → shared library → run and time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Protocol

from lambent.backends.base import Assembly, BackendError, Calibration, Library, Outcome
from lambent.backends.c import render
from lambent.backends.c.prelude import prelude
from lambent.backends.c.target import Target
from lambent.backends.cpu import assemble, build, calibrate, features, library
from lambent.backends.cpu.schedule import default_schedule, moves
from lambent.backends.libraries import blas
from lambent.backends.measuring.measurer import Batch, Measurer
from lambent.backends.measuring.model import likely
from lambent.backends.roles import Structure, one_whole
from lambent.kernel.kernel import Kernel
from lambent.kernel.tile import Schedule, TileProgram

PACKED = (("pack_a", 1), ("pack_b", 1))
STACK = 4 << 20  # bytes of tiles: half of the stack of a main thread, where the caller works too


class Renderer(Protocol):
    """How kernels become C text (see `assemble` for what the functions must be)."""

    def prelude(self) -> str: ...
    def render(self, program: TileProgram, name: str) -> str: ...


class RenderC:
    """The renderer of tile programs for this CPU."""

    def __init__(self) -> None:
        self._target = Target(features.detect().vector_bytes)

    def prelude(self) -> str:
        return prelude(self._target)

    def render(self, program: TileProgram, name: str) -> str:
        """The kernel's text.

        Raises:
            ValueError: it cannot be rendered, or its tiles need more than `STACK` bytes.
        """
        return self._rendered(program).replace(assemble.COMMON, name)

    @lru_cache(512)  # noqa: B019  # a text is asked for up to three times
    def _rendered(self, program: TileProgram, name: str = assemble.COMMON) -> str:
        if dict(program.schedule.options).get("library"):
            call = blas.product(program.kernel)
            if call is None:
                raise ValueError("no library routine computes this kernel")
            return blas.text(call, program.kernel, name, self._own(program, f"{name}_own"))
        return self._own(program, name)

    def _own(self, program: TileProgram, name: str) -> str:
        renderer = render.Renderer(program, name, self._target)
        text = renderer.text()
        if renderer.scratch > STACK:
            raise ValueError(f"tiles of {renderer.scratch} bytes, more than the stack of {STACK}")
        return text


class CpuBackend:
    """See `base.Backend`. A renderer can be given, for tests."""

    name = "cpu"
    lanes = 2

    def __init__(self, renderer: Renderer | None = None) -> None:
        self.renderer: Renderer = renderer or RenderC()
        self._measurer = Measurer(
            "lambent.backends.cpu.worker", features.threads, features.detect().caches[2]
        )
        self.measure = self._measurer.measure
        self.close = self._measurer.close

    @property
    def apart(self) -> bool:
        """See `base.Backend`."""
        return features.cores() >= features.threads() + self.lanes

    def device_key(self) -> str:
        return (
            f"cpu {features.detect().key} threads={features.threads()} "
            f"ziglang={build.compiler_version()} {' '.join(build.flags())} {blas.version()}"
        )

    def calibrate(self, refresh: bool = False) -> Calibration:
        return calibrate.calibration(self.device_key(), refresh)

    default_schedule = staticmethod(default_schedule)
    moves = staticmethod(moves)
    likely = staticmethod(likely)

    def guesses(self, kernel: Kernel) -> list[Schedule]:
        first = default_schedule(kernel)
        able = blas.available() and blas.product(kernel) is not None
        packs = PACKED * (not first.options and Structure(kernel).contracts)
        others = [replace(first, options=o) for o in (packs, (("library", 1),) * able) if o]
        return [*one_whole(kernel, first, 32, 2048), first, *others]

    def source(self, program: TileProgram) -> str:
        return self.renderer.render(program, "kernel")

    def compile(self, programs: Sequence[TileProgram]) -> Batch:
        """Candidates that cannot be rendered or compiled are kept as failed, with the reason."""
        failed: dict[int, Outcome] = {}
        texts: dict[int, str] = {}
        for i, program in enumerate(programs):
            try:
                texts[i] = self.renderer.render(program, f"k{i}")
            except (ValueError, NotImplementedError, ArithmeticError, LookupError) as error:
                failed[i] = Outcome("render", message=f"{type(error).__name__}: {error}")
        image, numbers = self._build(programs, texts, failed)
        path = build.place(image) if numbers else None
        return Batch(tuple(programs), path, {i: n for n, i in enumerate(numbers)}, failed)

    def _build(
        self, programs: Sequence[TileProgram], texts: dict[int, str], failed: dict[int, Outcome]
    ) -> tuple[bytes, list[int]]:
        """Compile all in one file; only where that fails, find out alone which ones cannot be."""

        def one(numbers: Sequence[int]) -> bytes:
            kernels = [(f"k{i}", texts[i], programs[i].kernel) for i in numbers]
            text = assemble.candidates_text(self.renderer.prelude(), kernels)
            return build.build(text, keep=False)  # what is kept of candidates are their times

        numbers = sorted(texts)
        if not numbers:
            return b"", []
        try:
            return one(numbers), numbers
        except build.BuildError as error:
            if len(numbers) == 1:
                failed[numbers[0]] = Outcome("compile", message=str(error))
                return b"", []
        good = [i for i in numbers if self._build(programs, {i: texts[i]}, failed)[1]]
        return (one(good), good) if good else (b"", [])

    def assemble(self, assembly: Assembly) -> Library:
        text = assemble.program_text(self.renderer.prelude(), self.renderer.render, assembly)
        return Library(build.build(text, limit=600.0), text, features.requires())

    def open(self, image: bytes, requires: Sequence[str]) -> library.Program:
        return library.Program(image, requires)


def make() -> CpuBackend:
    """The backend of this machine's CPU; ziglang is needed only once something is compiled."""
    if features.detect().arch not in ("x86_64", "aarch64"):
        raise BackendError(
            f"device 'cpu': {features.detect().arch} is not supported; x86_64 and aarch64 are"
        )
    return CpuBackend()
