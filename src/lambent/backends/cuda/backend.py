"""The CUDA backend: tile program → Triton → cubin → run and time."""

from __future__ import annotations

import importlib.util
import os
import queue
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import metadata

from lambent.backends.base import (
    Assembly,
    BackendError,
    Calibration,
    Library,
    Outcome,
    Place,
    Step,
)
from lambent.backends.cpu.build import place
from lambent.backends.cuda import calibrate, driver, library, schedule
from lambent.backends.cuda.image import Launch, launch, pack
from lambent.backends.libraries import cublaslt
from lambent.backends.measuring.measurer import Batch, Measurer
from lambent.backends.measuring.model import likely
from lambent.backends.measuring.process import Failed, WorkerProcess
from lambent.backends.sizes import text
from lambent.backends.triton.blocks import pow2
from lambent.backends.triton.compiler import EXTRA, Code, cuda
from lambent.backends.triton.render import Rendered, render
from lambent.kernel.kernel import Kernel
from lambent.kernel.schedule import Moves
from lambent.kernel.tile import Schedule, TileProgram

COMPILE_LIMIT = 15.0  # seconds for one kernel; what takes longer is no kernel that is fast
WARPS = 16  # of a program, at most; it has as many as its largest tile needs, if that is more
MOST = 256  # elements of a tile for each thread, which has 255 registers
REFUSED = (ValueError, NotImplementedError, ArithmeticError, LookupError)


Built = tuple[Rendered, Code] | tuple[cublaslt.Routine]


class Compilers:
    """Processes that compile, started when they are first needed."""

    def __init__(self, count: int) -> None:
        self._free: queue.Queue[WorkerProcess] = queue.Queue()
        self._every = [WorkerProcess("lambent.backends.triton.compiler") for _ in range(count)]
        for process in self._every:
            self._free.put(process)
        self.threads = ThreadPoolExecutor(count)

    def compile(self, rendered: Rendered, capability: int, options: dict[str, int]) -> Code:
        """Raises Failed: it does not compile, or not in time."""
        process = self._free.get()
        try:
            found: Code = process.request(
                "compile", rendered.source, rendered.signature, cuda(capability), options,
                limit=COMPILE_LIMIT,
            )  # fmt: skip
            return found
        finally:
            self._free.put(process)

    def close(self) -> None:
        for process in self._every:
            process.close()


class CudaBackend:
    """See `base.Backend`.

    Args:
        exact: float32 operands of products stay float32; else matrix units may take them as TF32.
    """

    name = "cuda"
    apart = True
    default_schedule = staticmethod(schedule.default_schedule)

    def __init__(self, number: int = 0, exact: bool = True) -> None:
        self._exact = exact
        self._gpu = driver.device(number)
        self._processors = self._gpu.attribute("MULTIPROCESSOR_COUNT")
        self._shared = self._gpu.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
        self.lanes = max(1, min(16, (os.cpu_count() or 2) - 1))
        self._compilers = Compilers(self.lanes)
        worker = f"lambent.backends.cuda.worker {number}"
        self._measurer = Measurer(worker, lambda: 1, 0, exact=exact, guesses=self.guesses)
        self.measure = self._measurer.measure

    def device_key(self) -> str:
        gpu = self._gpu
        version = driver.call("cuDriverGetVersion")
        return (
            f"cuda {gpu.name} sm_{gpu.capability} driver={version} triton={triton_version()} "
            f"{cublaslt.version()}{'' if self._exact else ' tf32'}"
        )

    def calibrate(self, refresh: bool = False) -> Calibration:
        return calibrate.calibration(
            self._gpu, self.device_key(), lambda: self._measurer.ask("floor"), refresh, self._exact
        )

    def guesses(self, kernel: Kernel) -> list[Schedule]:
        """A library's suggestions come second: they are not compiled."""
        own = schedule.guesses(kernel, self._gpu.capability, self._processors)
        calls = [replace(own[0], options=(("library", n),)) for n in cublaslt.ways(kernel)]
        return [*own[:1], *calls, *own[1:]]

    def moves(self, kernel: Kernel) -> Moves:
        return schedule.moves(kernel, self._gpu.capability, self._processors)

    def likely(self, program: TileProgram, rates: Calibration) -> float:
        """Very many seconds for what is refused once it is compiled."""
        moved, sums = schedule.held(program)
        fits = moved <= self._shared and sums <= MOST
        return likely(program, rates) if fits or _called(program, self._exact) else 1e3

    def source(self, program: TileProgram) -> str:
        return _text(_called(program, self._exact) or render(program, exact=self._exact))

    def compile(self, programs: Sequence[TileProgram]) -> Batch:
        """Candidates that cannot be rendered or compiled are kept as failed, with the reason."""
        triton_version()
        failed: dict[int, Outcome] = {}
        codes: list[Code] = []
        launches: list[Launch] = []
        at: dict[int, int] = {}
        more, plain = self._measurer.witnesses(programs)
        every = [*programs, *more]
        for i, (program, found) in enumerate(zip(every, self._built(every), strict=True)):
            if isinstance(found, Outcome):
                failed[i] = found
                continue
            names = tuple(map(str, range(len(program.kernel.outputs) + len(program.kernel.inputs))))
            places = {n: Place("input", k) for k, n in enumerate(names)}
            at[i] = len(launches)
            launches.append(launch(len(codes), found[0], Step(program, names), places))
            codes += found[1:]
        path = place(pack(codes, launches)) if launches else None
        return Batch(tuple(programs), path, at, failed, plain=plain)

    def _built(self, programs: Sequence[TileProgram]) -> list[Built | Outcome]:
        return list(self._compilers.threads.map(self._one, programs))

    def _one(self, program: TileProgram) -> Built | Outcome:
        gpu, options = self._gpu, schedule.compiler_options(program.schedule)
        try:
            if routine := _called(program, self._exact):
                return (routine,)
            rendered = render(program, exact=self._exact)
        except REFUSED as error:
            return Outcome("render", message=f"{type(error).__name__}: {error}")
        needed = pow2(-(-rendered.largest // (MOST * schedule.WARP)))
        if needed > WARPS:
            text = f"a tile of {rendered.largest} elements, {WARPS} warps hold {MOST} a thread"
            return Outcome("resources", message=text)
        options["num_warps"] = max(options["num_warps"], needed)
        try:
            code = self._compilers.compile(rendered, gpu.capability, options)
        except Failed as error:
            status = error.status if error.status == "timeout" else "compile"
            return Outcome(status, message=str(error))
        if code.shared > self._shared:
            text = f"{code.shared} bytes of shared memory, a block here has {self._shared}"
            return Outcome("resources", message=text)
        return rendered, code

    def assemble(self, assembly: Assembly) -> Library:
        """One file of all kernels, equal ones once, and how they are launched."""
        codes: list[Code] = []
        launches: list[Launch] = []
        texts: dict[tuple[str, str], int] = {}
        found = self._built([step.program for step in assembly.steps])
        for step, built in zip(assembly.steps, found, strict=True):
            if isinstance(built, Outcome):
                raise BackendError(f"device 'cuda': a kernel failed: {built.message}")
            key = _text(built[0]), str(step.program.schedule.options)
            number = texts.setdefault(key, len(codes))
            if number == len(codes):
                codes += built[1:]
            launches.append(launch(number, built[0], step, assembly.places))
        blocks = [text(size) for size in assembly.blocks]
        places = [assembly.places[name] for step in assembly.steps for name in step.writes]
        written = sorted({place.index for place in places if place.kind == "input"})
        image = pack(
            codes, launches, symbols=list(assembly.symbols), blocks=blocks, written=written
        )
        return Library(image, "\n".join(t for t, _ in texts), (f"sm_{self._gpu.capability}",))

    def open(self, image: bytes, requires: Sequence[str]) -> library.Program:
        return library.Program(image, requires, self._gpu.number)

    def close(self) -> None:
        self._measurer.close()
        self._compilers.close()


def _called(program: TileProgram, exact: bool) -> cublaslt.Routine | None:
    """The library's routine that a schedule asks for.

    Raises:
        ValueError: there is none.
    """
    way = dict(program.schedule.options).get("library")
    found = cublaslt.routine(program.kernel, way, exact) if way else None
    if way and found is None:
        raise ValueError("no library routine computes this kernel")
    return found


def _text(work: Rendered | cublaslt.Routine) -> str:
    return work.source if isinstance(work, Rendered) else f"# cuBLASLt: {work}\n"


def triton_version() -> str:
    """The version of Triton.

    Raises:
        BackendError: it is not installed.
    """
    if importlib.util.find_spec("triton") is None:
        raise BackendError(EXTRA)
    return metadata.version("triton")


def make(exact: bool = True) -> CudaBackend:
    """The backend of the first GPU; Triton is needed only once something is compiled."""
    return CudaBackend(exact=exact)
