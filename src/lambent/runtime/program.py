"""Program: compiled code, its weights, and all that is needed to call it; nothing of the compiler.

Everything known of a program beside code and weights is in its `Manifest`, which is plain data: a
program loaded from a file is the same object as one just compiled.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from lambent.backends.base import Executable, address, get
from lambent.backends.sizes import Text, number
from lambent.graph.dim import Symbol
from lambent.graph.dtypes import DTYPES

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
_NUMPY = {name: dtype.numpy for name, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Slot:
    """An array that goes in or out, or a weight."""

    name: str
    dtype: str
    shape: Sequence[Text]

    def at(self, symbols: Mapping[str, int]) -> Shape:
        """The shape at values of the symbols."""
        return tuple(number(size, symbols) for size in self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Manifest:
    """
    device:  of the backend that runs it; `requires`: device features its code uses.
    symbols: in the order in which the code receives them; `sources` (input, dim) of each: a size
             that is linear in it and in no later symbol.
    weights: that a run reads.
    results: for each output of the graph, ("output" | "input" | "weight", number).
    donated: (input, result): the caller's array that holds the result after a run.
    form:    how outputs are returned: "one", "tuple", or the names of a dict.
    arena:   bytes of the arena. `facts` are sizes that must not be negative.
    explain: of the search, as JSON text: most programs are loaded only to be run.
    """

    device: str
    requires: Sequence[str]
    symbols: Sequence[Symbol]
    sources: Sequence[tuple[int, int]]
    inputs: Sequence[Slot]
    outputs: Sequence[Slot]
    weights: Sequence[Slot]
    results: Sequence[tuple[str, int]]
    donated: Sequence[tuple[int, int]]
    form: str | Sequence[str]
    arena: Text
    facts: Sequence[Text]
    explain: str


class Program:
    """Call it with one keyword argument per input; several threads may do so at once.

    Made by `lambent.compile` or `lambent.load`; `weights` are arrays in the manifest's order.
    `narrower` are programs for a part of the sizes: the first that takes those of a call runs it.
    """

    def __init__(self, manifest: Manifest, image: bytes, weights: Sequence[Array]) -> None:
        self.manifest, self.image, self.weights = manifest, image, weights
        self.narrower: Sequence[Program] = ()
        self._executable: Executable = get(manifest.device).open(image, manifest.requires)
        self._at = functools.lru_cache(65536)(self._for)

    def _for(self, *shapes: Shape) -> tuple[Program, tuple[int, ...], list[Shape], int]:
        """The program for inputs of these shapes, and what follows from them."""
        for program in self.narrower:
            with contextlib.suppress(ValueError):
                return program, *sizes_at(program.manifest, *shapes)
        return self, *sizes_at(self.manifest, *shapes)

    def __call__(self, /, **arrays: Any) -> Any:
        """Run once.

        Args:
            arrays: every input by name: NumPy arrays or anything with DLPack in CPU memory, of the
                input's dtype; they need not be contiguous. Only donated ones are ever written to.

        Returns:
            NumPy arrays: one, or a tuple or dict as the graph's outputs were given. They are new,
            but for outputs that have a donated input's memory.

        Raises:
            TypeError: a missing or unknown input, or one of another dtype.
            ValueError: a shape that does not fit, a size out of range, inputs that disagree; a
                donated array that cannot be written in place.
        """
        m = self.manifest
        _check_names(m.inputs, arrays)
        given = [_as_array(slot, arrays[slot.name]) for slot in m.inputs]
        if m.donated:
            _check_donated(m, given, arrays)
        return self.run(given)

    def run(self, given: Sequence[Array]) -> Any:
        """A call with arrays that need no look, in the manifest's order: contiguous, of the inputs'
        dtypes, and donated ones writable, apart from the others. For a loop that knows them."""
        runs, symbols, shapes, arena = self._at(*(a.shape for a in given))
        m = runs.manifest
        new = zip(m.outputs, shapes, strict=True)
        outputs = [np.empty(shape, _NUMPY[slot.dtype]) for slot, shape in new]
        runs._executable.run(given, outputs, runs.weights, symbols, arena)
        pools = {"input": given, "output": outputs, "weight": runs.weights}
        taken = {result: given[i] for i, result in m.donated}
        results: list[Array] = []
        for n, (kind, i) in enumerate(m.results):
            array = pools[kind][i]
            fresh = kind == "output" and not any(array is r for r in results)
            results.append(array if fresh or array is taken.get(n) else array.copy())
        for n, array in taken.items():
            if results[n] is not array:  # it could not be written in place
                np.copyto(array, results[n])
                results[n] = array
        if m.form == "one":
            return results[0]
        return tuple(results) if m.form == "tuple" else dict(zip(m.form, results, strict=True))

    def enqueue(
        self, inputs: Sequence[int], shapes: Sequence[Shape], outputs: Sequence[int],
        stream: int = 0,
    ) -> None:  # fmt: skip
        """Queue a run on a stream of the device, from and to contiguous arrays that are there.

        Args:
            inputs: addresses, in the manifest's order; `shapes` are those of their arrays.
            outputs: addresses of the manifest's outputs; they must hold what follows from shapes.
                What is written in place of a donated input is not among them.
            stream: the caller's stream, 0 for the default one.

        Raises:
            TypeError: the program's device has no streams.
            ValueError: as for a call.
        """
        runs, symbols, _, arena = self._at(*shapes)
        queue = getattr(runs._executable, "enqueue", None)
        if queue is None:
            raise TypeError(f"device {self.manifest.device!r} has no streams; call the program")
        queue(inputs, outputs, runs.weights, symbols, arena, stream)

    # ---- what it says of itself --------------------------------------------------------------

    def explain(self) -> dict[str, Any]:
        """What was found and how: plain JSON data, the form of `lambent explain --json`.

        `sizes`: (least, most, tuned for) by symbol; `narrower`: the same of narrower programs.
        """
        told: dict[str, Any] = json.loads(self.manifest.explain)
        return told | ({"narrower": [p.explain() for p in self.narrower]} if self.narrower else {})

    def arena_bytes(self, **symbols: int) -> int:
        """Bytes of intermediates at given sizes of the symbols (by default their hints)."""
        return number(self.manifest.arena, self._hints() | symbols)

    def peak_bytes(self, **symbols: int) -> int:
        """Bytes of inputs, outputs, weights and intermediates together, at given sizes."""
        m, sizes = self.manifest, self._hints() | symbols
        slots = (*m.inputs, *m.outputs, *m.weights)
        held = sum(math.prod(s.at(sizes)) * DTYPES[s.dtype].itemsize for s in slots)
        return number(m.arena, sizes) + held

    def _hints(self) -> dict[str, int]:
        return {s.name: s.hint for s in self.manifest.symbols}

    def save(self, path: Any) -> None:
        """Write everything into one file, which `lambent.load` reads. See `runtime.save`."""
        from lambent.runtime.save import save

        save(self, path)

    def __repr__(self) -> str:
        inputs = ", ".join(f"{s.name}: {s}" for s in self.manifest.inputs)
        outputs = ", ".join(str(s) for s in self.manifest.outputs)
        return f"Program({inputs} → {outputs}; {self.manifest.device})"


# ---- inputs ----------------------------------------------------------------------------------


def _check_names(slots: Sequence[Slot], arrays: Mapping[str, Any]) -> None:
    names = dict.fromkeys(slot.name for slot in slots)
    parts = [f"missing input {n!r}" for n in names if n not in arrays]
    parts += [f"unknown input {n!r}" for n in arrays if n not in names]
    if parts:
        takes = ", ".join(f"{slot.name}: {slot}" for slot in slots) or "no inputs"
        raise TypeError(f"{'; '.join(parts)}; the program takes {takes}")


def _check_donated(m: Manifest, given: Sequence[Array], arrays: Mapping[str, Any]) -> None:
    """See that donated arrays can be written in place, and share no memory with another input."""
    owned = {i for i, _ in m.donated}
    for i in owned:
        slot, value = m.inputs[i], arrays[m.inputs[i].name]
        view = value if isinstance(value, np.ndarray) else _foreign(slot, value, given[i].dtype)
        ours = given[i].size == 0 or np.may_share_memory(given[i], view)
        if not (ours and given[i].flags.writeable and hasattr(value, "__dlpack__")):
            raise ValueError(
                f"input {slot.name!r} is donated: it is written in place, so its array must be "
                f"writable, contiguous and of {slot.dtype} in native order; give a copy"
            )
    end, before = 0, -1
    for start, size, i in sorted((address(a), a.nbytes, i) for i, a in enumerate(given)):
        if start < end and size and not owned.isdisjoint((i, before)):
            names = f"{m.inputs[before].name!r} and {m.inputs[i].name!r}"
            raise ValueError(f"inputs {names} share memory, and one of them is donated")
        end, before = max((end, before), (start + size, i))


def _as_array(slot: Slot, value: Any) -> Array:
    want = _NUMPY[slot.dtype]
    if not isinstance(value, np.ndarray):
        value = _foreign(slot, value, want)
    if value.dtype is not want and value.dtype.newbyteorder("=") != want:
        raise TypeError(
            f"input {slot.name!r}: dtype {value.dtype.name}, expected {slot.dtype}; "
            f"convert it with .astype"
        )
    if value.ndim != len(slot.shape):
        raise ValueError(f"input {slot.name!r}: shape {value.shape}, expected {slot}")
    flags = value.flags
    if not (flags.c_contiguous and flags.aligned and value.dtype == want):
        value = np.require(value, want, ["C", "A"])
    return np.asarray(value)


def _foreign(slot: Slot, value: Any, want: np.dtype[Any]) -> Array:
    """An array from DLPack, or from Python numbers where their kind fits."""
    try:
        if not hasattr(value, "__dlpack__"):
            found = np.asarray(value)
            plain = isinstance(value, int | float | list | tuple)
            fits = plain and np.can_cast(found.dtype, want, "same_kind")
            return found.astype(want) if fits else found
        if str(getattr(value, "dtype", "")) == "torch.bfloat16":  # NumPy has no name for it
            bits = value.detach().view(sys.modules["torch"].int16)
            return np.from_dlpack(bits).view(DTYPES["bfloat16"].numpy)
        return np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise TypeError(
            f"input {slot.name!r}: {type(value).__name__} cannot be read through DLPack or as "
            f"numbers: {error}; give an array in CPU memory that needs no gradient"
        ) from None


# ---- sizes -----------------------------------------------------------------------------------


def sizes_at(manifest: Manifest, *shapes: Shape) -> tuple[Shape, list[Shape], int]:
    """What follows from the inputs' shapes: symbols as the code wants them, outputs, the arena."""
    symbols = bind(manifest, shapes)
    parts = tuple(symbols[s.name] // s.multiple for s in manifest.symbols)
    return parts, [s.at(symbols) for s in manifest.outputs], number(manifest.arena, symbols)


def bind(manifest: Manifest, shapes: Sequence[Shape]) -> dict[str, int]:
    """The symbols' values that follow from the inputs' shapes.

    Raises:
        ValueError: a shape that does not fit, a size out of range, or inputs that disagree.
    """
    values: dict[str, int] = {}
    told: list[str] = []
    for s, (i, dim) in zip(manifest.symbols, manifest.sources, strict=True):
        name, size, got = manifest.inputs[i].name, manifest.inputs[i].shape[dim], shapes[i][dim]
        at0, at1 = (number(size, values | {s.name: v}) for v in (0, s.multiple))
        value = Fraction(got - at0, at1 - at0) * s.multiple
        if value % s.multiple or not s.low <= value <= s.high:
            many = f" and a multiple of {s.multiple}" if s.multiple > 1 else ""
            raise ValueError(
                f"input {name!r}: dim {dim} is {got}, so {s.name} = {value}, which must be in the "
                f"range {s.low} … {s.high}{many}"
            )
        values[s.name] = int(value)
        told.append(f"{s.name} = {value} from dim {dim} of {name!r}")
    where = ", ".join(told)
    pairs = zip(manifest.inputs, shapes, strict=True)
    for slot, shape in ((s, shape) for s, shape in pairs if (*s.shape,) != shape):
        for i, (size, got, want) in enumerate(zip(slot.shape, shape, slot.at(values), strict=True)):
            if got != want:
                why = "" if isinstance(size, int) else f" = {size} ({where})"
                raise ValueError(
                    f"input {slot.name!r}: dim {i} is {got}, expected {want}{why}; "
                    f"its shape is {slot}"
                )
    for fact in manifest.facts:
        if number(fact, values) < 0:
            raise ValueError(f"assumed {fact} >= 0, which fails at {where}")
    return values
