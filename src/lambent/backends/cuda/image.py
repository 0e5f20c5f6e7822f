"""Compiled kernels in one file, and the same on the device: `pack` writes it, `Opened` launches it.

The file is the length of a JSON header, the header, and the codes. It names no Python object: a
saved program runs from it with neither Triton nor egglog.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from lambent.backends.base import Place, Step, kernel_symbols
from lambent.backends.cuda.driver import Chain, Function, Launched, Memory
from lambent.backends.libraries import cublaslt
from lambent.backends.sizes import Text, number, text
from lambent.backends.triton.compiler import Code
from lambent.backends.triton.render import Rendered

_INTEGERS = {"i32": ctypes.c_int32, "i64": ctypes.c_int64}


@dataclass(frozen=True, slots=True)
class Launch:
    """One step: the number of its code, the size of its grid, places of its buffers in the order
    of the kernel, and of each symbol its name and type; or what a library is to do."""

    code: int
    tasks: Text
    places: Sequence[Sequence[Any]]
    sizes: Sequence[Sequence[str]]
    routine: cublaslt.Routine | None = None


Work = Rendered | cublaslt.Routine


def launch(code: int, work: Work, step: Step, places: Mapping[str, Place]) -> Launch:
    """The launch of a rendered step, or of a library's routine that does the same."""
    names = kernel_symbols(step.program.kernel)
    found = [(p.kind, p.index, p.offset) for p in (places[b] for b in step.buffers)]
    if isinstance(work, cublaslt.Routine):
        return Launch(-1, 1, found, [(name, "i64") for name in names], work)
    kinds = [k for k in work.signature.values() if not k.startswith("*")]
    return Launch(code, text(work.tasks), found, list(zip(names, kinds, strict=True)))


def pack(codes: Sequence[Code], launches: Sequence[Launch], **more: Any) -> bytes:
    """The file. `more` is kept in the header."""
    rows = []
    for code in codes:
        row = asdict(code)
        row["image"] = len(code.image)
        rows.append(row)
    header = json.dumps({"codes": rows, "launches": list(map(asdict, launches)), **more}).encode()
    return b"".join([len(header).to_bytes(8, "little"), header, *(c.image for c in codes)])


class Opened:
    """The file's codes loaded into the current context; each once it is first needed.

    Raises:
        BackendError: it calls a library that is not installed.
    """

    def __init__(self, data: bytes) -> None:
        end = 8 + int.from_bytes(data[:8], "little")
        self.header: dict[str, Any] = json.loads(data[8:end])
        self.launches = [_read(row) for row in self.header["launches"]]
        for way in {step.routine.way for step in self.launches if step.routine}:
            cublaslt.api("cublas" if way == cublaslt.OWN else "cublasLt")
        self._codes: list[Code] = []
        for row in self.header["codes"]:
            start, end = end, end + row["image"]
            self._codes.append(Code(**{**row, "image": data[start:end]}))
        self._functions: dict[int, Function] = {}
        self.chains: dict[int, Chain] = {}  # by their place among the steps
        self._calls: tuple[cublaslt.Calls, Memory] | None = None  # and the bytes that it uses

    def prepare(self, step: Launch) -> None:
        """Load what the step needs."""
        if step.routine is None:
            self.function(step.code)
        elif self._calls is None:
            space = Memory(cublaslt.SPACE)
            self._calls = cublaslt.Calls(space.pointer), space

    def function(self, code: int) -> Function:
        if code not in self._functions:
            c = self._codes[code]
            self._functions[code] = Function(
                c.image, c.name, c.threads, c.shared, c.scratch, c.each
            )
        return self._functions[code]

    def run(
        self, step: Launch, pointers: Sequence[int], symbols: Mapping[str, int], stream: int
    ) -> None:
        """Queue one step. `symbols` has the values of the atoms (`s`, `s/8`) by name."""
        if step.routine is not None:
            self.prepare(step)
            assert self._calls is not None
            self._calls[0].run(step.routine, pointers, whole(symbols), stream)
            return
        function, tasks, given = self._launched(step, pointers, symbols)
        function.launch(tasks, given, stream)

    def _launched(
        self, step: Launch, pointers: Sequence[int], symbols: Mapping[str, int]
    ) -> Launched:
        """A step that is a kernel: of what, how many programs, and what they are given."""
        tasks, function = number(step.tasks, whole(symbols)), self.function(step.code)
        sizes = [_INTEGERS[kind](symbols[name]) for name, kind in step.sizes]
        return function, tasks, function.arguments(tasks, pointers, sizes)

    def patch(
        self, places: Sequence[Sequence[int]], symbols: Mapping[str, int], stream: int
    ) -> None:
        """Queue all steps, from and to arrays at these places. Kernels one after another are one
        graph, of which only what differs from the last time is changed; a library is called."""
        pairs = zip(self.launches, places, strict=True)
        for at, (called, part) in enumerate(groupby(pairs, lambda p: p[0].routine is not None)):
            steps = list(part)
            launches = [] if called else [self._launched(*step, symbols) for step in steps]
            if len(launches) > 1 and all(tasks for _, tasks, _ in launches):
                chain = self.chains.get(at) or self.chains.setdefault(at, Chain(launches))
                chain.launch(launches, stream)
            else:
                for step, pointers in steps:
                    self.run(step, pointers, symbols, stream)

    def close(self) -> None:
        for function in self._functions.values():
            function.close()
        self._functions.clear()


def _read(row: Mapping[str, Any]) -> Launch:
    routine = row.get("routine")
    return Launch(**{**row, "routine": cublaslt.read(routine) if routine else None})


def whole(symbols: Mapping[str, int]) -> dict[str, int]:
    """The declared symbols' values, given those of their atoms: `s/8` is an eighth of s."""
    found = {}
    for atom, value in symbols.items():
        name, _, multiple = atom.partition("/")
        found[name] = value * int(multiple or 1)
    return found
