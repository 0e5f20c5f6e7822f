"""Compiled kernels in one file, and the same on the device: `pack` writes it, `Opened` launches it.

The file is the length of a JSON header, the header, and the codes. It names no Python object: a
saved program runs from it with neither Triton nor egglog.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lambent.backends.base import Place, Step, kernel_symbols
from lambent.backends.cuda.driver import Function
from lambent.backends.sizes import Text, number, text
from lambent.backends.triton.compiler import Code
from lambent.backends.triton.render import Rendered

_INTEGERS = {"i32": ctypes.c_int32, "i64": ctypes.c_int64}


@dataclass(frozen=True, slots=True)
class Launch:
    """One step: the number of its code, the size of its grid, places of its buffers in the order
    of the kernel, and of each symbol its name and type."""

    code: int
    tasks: Text
    places: Sequence[Sequence[Any]]
    sizes: Sequence[Sequence[str]]


def launch(code: int, rendered: Rendered, step: Step, places: Mapping[str, Place]) -> Launch:
    """The launch of a rendered step."""
    names = kernel_symbols(step.program.kernel)
    kinds = [k for k in rendered.signature.values() if not k.startswith("*")]
    found = [(p.kind, p.index, p.offset) for p in (places[b] for b in step.buffers)]
    return Launch(code, text(rendered.tasks), found, list(zip(names, kinds, strict=True)))


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
    """The file's codes loaded into the current context; each once it is first needed."""

    def __init__(self, data: bytes) -> None:
        end = 8 + int.from_bytes(data[:8], "little")
        self.header: dict[str, Any] = json.loads(data[8:end])
        self.launches = [Launch(**row) for row in self.header["launches"]]
        self._codes: list[Code] = []
        for row in self.header["codes"]:
            start, end = end, end + row["image"]
            self._codes.append(Code(**{**row, "image": data[start:end]}))
        self._functions: dict[int, Function] = {}

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
        sizes = [_INTEGERS[kind](symbols[name]) for name, kind in step.sizes]
        tasks = number(step.tasks, whole(symbols))
        self.function(step.code).launch(tasks, pointers, sizes, stream)

    def close(self) -> None:
        for function in self._functions.values():
            function.close()
        self._functions.clear()


def whole(symbols: Mapping[str, int]) -> dict[str, int]:
    """The declared symbols' values, given those of their atoms: `s/8` is an eighth of s."""
    found = {}
    for atom, value in symbols.items():
        name, _, multiple = atom.partition("/")
        found[name] = value * int(multiple or 1)
    return found
