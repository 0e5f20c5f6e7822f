"""Program: compiled code, its weights, and all that is needed to call it; nothing of the compiler.

Everything known of a program beside code and weights is in its `Manifest`, which is plain data: a
program loaded from a file is the same object as one just compiled.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lambent.backends.base import Executable, get
from lambent.graph.dtypes import DTYPES
from lambent.runtime.sizes import Plain, Symbol, number, text, unknown

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Slot:
    """An array that goes in or out, or a weight."""

    name: str
    dtype: str
    shape: tuple[Plain, ...]

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(text, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Manifest:
    """
    device:  of the backend that runs it; `requires`: device features its code uses.
    results: for each output of the graph, ("output" | "input" | "weight", number).
    form:    how outputs are returned: "one", "tuple", or the names of a dict.
    arena:   bytes of the arena. `facts` are sizes that must not be negative.
    kept:    numbers of the weights that a run reads (the others only fed the load steps).
    """

    device: str
    requires: tuple[str, ...]
    symbols: tuple[Symbol, ...]
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    weights: tuple[Slot, ...]
    results: tuple[tuple[str, int], ...]
    form: str | tuple[str, ...]
    arena: Plain
    facts: tuple[Plain, ...]
    kept: tuple[int, ...]
    explain: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Sizes:
    """What follows from the values of the symbols, computed once for each."""

    atoms: tuple[int, ...]
    inputs: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]
    arena: int


class Program:
    """Call it with one keyword argument per input; several threads may do so at once.

    Made by `lambent.compile` or `lambent.load`. `weights` maps numbers of `manifest.weights` to
    arrays; with `loaded` False the load steps run before the first use.
    """

    def __init__(
        self, manifest: Manifest, image: bytes, weights: Mapping[int, Array], loaded: bool
    ) -> None:
        self.manifest, self.image = manifest, image
        self._executable: Executable = get(manifest.device).open(image, manifest.requires)
        self._given, self._loaded = dict(weights), loaded
        self._weights: list[Array] | None = None
        self._lock = threading.Lock()
        self._known: dict[tuple[tuple[int, ...], ...], _Sizes] = {}

    # ---- calling -----------------------------------------------------------------------------

    def __call__(self, /, **arrays: Any) -> Any:
        """Run once.

        Args:
            arrays: every input by name: NumPy arrays or anything with DLPack in CPU memory, of the
                input's dtype; they need not be contiguous. Nothing given is ever written to.

        Returns:
            New NumPy arrays: one, or a tuple or dict as the graph's outputs were given.

        Raises:
            TypeError: a missing or unknown input, or one of another dtype.
            ValueError: a shape that does not fit, a size out of range, inputs that disagree.
        """
        slots = self.manifest.inputs
        _check_names(slots, arrays)
        given = [_as_array(slot, arrays[slot.name]) for slot in slots]
        sizes = self._sizes(tuple(a.shape for a in given))
        outputs = [
            np.empty(shape, numpy_dtype(slot.dtype))
            for slot, shape in zip(self.manifest.outputs, sizes.outputs, strict=True)
        ]
        weights = self._ready()
        self._executable.run(given, outputs, weights, sizes.atoms, sizes.arena)
        return self._results(given, outputs, weights)

    def _results(self, given: list[Array], outputs: list[Array], weights: list[Array]) -> Any:
        pools = {"input": given, "output": outputs, "weight": weights}
        results: list[Array] = []
        for place in self.manifest.results:
            array = pools[place[0]][place[1]]
            fresh = place[0] == "output" and not any(array is r for r in results)
            results.append(array if fresh else array.copy())
        form = self.manifest.form
        if form == "one":
            return results[0]
        return tuple(results) if form == "tuple" else dict(zip(form, results, strict=True))

    def _sizes(self, shapes: tuple[tuple[int, ...], ...]) -> _Sizes:
        known = self._known.get(shapes)
        if known is None:
            atoms = bind(self.manifest, shapes)
            known = self._at(atoms)
            if len(self._known) < 65536:
                self._known[shapes] = known
        return known

    def _at(self, atoms: Mapping[str, int]) -> _Sizes:
        m = self.manifest
        inputs, outputs = (
            tuple(tuple(number(d, atoms) for d in slot.shape) for slot in slots)
            for slots in (m.inputs, m.outputs)
        )
        values = tuple(atoms[s.atom] for s in m.symbols)
        return _Sizes(values, inputs, outputs, number(m.arena, atoms))

    # ---- weights -----------------------------------------------------------------------------

    def _ready(self) -> list[Array]:
        """The weights in the order of the manifest, after the load steps; made on first use."""
        weights = self._weights
        if weights is None:
            with self._lock:
                weights = self._weights
                if weights is None:
                    weights = self._weights = self._load()
        return weights

    def _load(self) -> list[Array]:
        slots = self.manifest.weights
        empty = np.empty(0, np.uint8)
        if self._loaded:
            return [self._given.get(i, empty) for i in range(len(slots))]
        arrays = [
            self._given[i] if i in self._given
            else np.empty([number(d, {}) for d in slot.shape], DTYPES[slot.dtype].numpy)
            for i, slot in enumerate(slots)
        ]  # fmt: skip
        self._executable.load(arrays)
        kept = set(self.manifest.kept)
        self._given, self._loaded = {i: a for i, a in enumerate(arrays) if i in kept}, True
        return [a if i in kept else empty for i, a in enumerate(arrays)]

    def weights(self) -> dict[int, Array]:
        """The weights that a run reads, by number in the manifest, as they are after loading."""
        ready = self._ready()
        return {i: ready[i] for i in self.manifest.kept}

    # ---- what it says of itself --------------------------------------------------------------

    def explain(self) -> dict[str, Any]:
        """What was found and how: plain JSON data, the form of `lambent explain --json`."""
        return self.manifest.explain

    def arena_bytes(self, **symbols: int) -> int:
        """Bytes of intermediates at given sizes of the symbols (by default their hints)."""
        return self._at(self._atoms(symbols)).arena

    def peak_bytes(self, **symbols: int) -> int:
        """Bytes of inputs, outputs, weights and intermediates together, at given sizes."""
        sizes = self._at(self._atoms(symbols))
        total = sizes.arena + sum(a.nbytes for a in self.weights().values())
        for slots, shapes in (
            (self.manifest.inputs, sizes.inputs), (self.manifest.outputs, sizes.outputs),
        ):  # fmt: skip
            for slot, shape in zip(slots, shapes, strict=True):
                total += int(np.prod(shape, dtype=np.int64)) * DTYPES[slot.dtype].itemsize
        return total

    def _atoms(self, symbols: Mapping[str, int]) -> dict[str, int]:
        return {
            s.atom: symbols[s.name] // s.multiple if s.name in symbols else s.hint
            for s in self.manifest.symbols
        }

    def save(self, path: Any) -> None:
        """Write everything into one file, which `lambent.load` reads. See `runtime.save`."""
        from lambent.runtime.save import save

        save(self, path)

    def __repr__(self) -> str:
        inputs = ", ".join(f"{s.name}: {s}" for s in self.manifest.inputs)
        outputs = ", ".join(str(s) for s in self.manifest.outputs)
        return f"Program({inputs} → {outputs}; {self.manifest.device})"


@functools.cache
def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype of a name, remembered: calls ask for it often."""
    return DTYPES[name].numpy


def _check_names(slots: Sequence[Slot], arrays: Mapping[str, Any]) -> None:
    if len(arrays) == len(slots) and all(slot.name in arrays for slot in slots):
        return
    names = [slot.name for slot in slots]
    missing = [n for n in names if n not in arrays]
    extra = [n for n in arrays if n not in names]
    parts = [f"missing input {n!r}" for n in missing] + [f"unknown input {n!r}" for n in extra]
    takes = ", ".join(f"{slot.name}: {slot}" for slot in slots) or "no inputs"
    raise TypeError(f"{'; '.join(parts)}; the program takes {takes}")


def _as_array(slot: Slot, value: Any) -> Array:
    want = numpy_dtype(slot.dtype)
    if not isinstance(value, np.ndarray):
        value = _foreign(slot, value, want)
    if value.dtype != want:
        if value.dtype.newbyteorder("=") != want:
            raise TypeError(
                f"input {slot.name!r}: dtype {value.dtype.name}, expected {slot.dtype}; "
                f"convert it with .astype"
            )
        value = value.astype(want)
    if len(value.shape) != len(slot.shape):
        raise ValueError(f"input {slot.name!r}: shape {value.shape}, expected {slot}")
    flags = value.flags
    if not (flags.c_contiguous and flags.aligned):
        value = np.require(value, requirements=["C", "A"])
    return np.asarray(value)


def _foreign(slot: Slot, value: Any, want: np.dtype[Any]) -> Array:
    """An array from DLPack, or from Python numbers."""
    if not hasattr(value, "__dlpack__"):
        try:
            found = np.asarray(value)
        except ValueError as error:
            raise TypeError(f"input {slot.name!r}: no array: {error}") from None
        fits = found.dtype == want or (
            isinstance(value, int | float | bool | list | tuple)
            and np.can_cast(found.dtype, want, "same_kind")
        )
        return found.astype(want) if fits else found
    try:
        if str(getattr(value, "dtype", "")) == "torch.bfloat16":  # NumPy has no name for it
            bits = value.detach().view(sys.modules["torch"].int16)
            return np.from_dlpack(bits).view(DTYPES["bfloat16"].numpy)
        return np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise TypeError(
            f"input {slot.name!r}: {type(value).__name__} cannot be read through DLPack: {error}; "
            f"give an array in CPU memory that needs no gradient"
        ) from None


def bind(manifest: Manifest, shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
    """The symbols' atoms that follow from the inputs' shapes.

    Raises:
        KeyError: the shapes do not determine a symbol.
        ValueError: a shape that does not fit, a size out of range, or inputs that disagree.
    """
    dims = [
        (slot, i, size, got)
        for slot, shape in zip(manifest.inputs, shapes, strict=True)
        for i, (size, got) in enumerate(zip(slot.shape, shape, strict=True))
    ]
    symbols = {s.atom: s for s in manifest.symbols}
    atoms: dict[str, int] = {}
    sources: list[str] = []
    while any(_solve(dim, symbols, atoms, sources) for dim in dims):
        pass
    for slot, i, size, got in dims:
        want = number(size, atoms)
        if got != want:
            why = "" if isinstance(size, int) else f" = {text(size)} ({', '.join(sources)})"
            raise ValueError(
                f"input {slot.name!r}: dim {i} is {got}, expected {want}{why}; its shape is {slot}"
            )
    for fact in manifest.facts:
        if number(fact, atoms) < 0:
            raise ValueError(f"assumed {text(fact)} >= 0, which fails at {', '.join(sources)}")
    return atoms


def _solve(
    dim: tuple[Slot, int, Plain, int],
    symbols: Mapping[str, Symbol],
    atoms: dict[str, int],
    sources: list[str],
) -> bool:
    """Learn an atom from a dim that is linear in one unknown atom; False if it is not."""
    slot, i, size, got = dim
    found = unknown(size, atoms)
    if found is None:
        return False
    atom, c, rest = found
    value, odd = divmod(got - rest, c)
    where, s = f"input {slot.name!r}: dim {i} is {got}", symbols[atom]
    if odd:
        many = f" with {s.name} a multiple of {s.multiple}" if s.multiple > 1 else ""
        raise ValueError(f"{where}, which cannot be {text(size)}{many}")
    if not s.low <= value <= s.high:
        low, at, high = (v * s.multiple for v in (s.low, value, s.high))
        raise ValueError(f"{where}, so {s.name} = {at}, which is out of its range {low} … {high}")
    atoms[atom] = value
    sources.append(f"{s.name} = {value * s.multiple} from dim {i} of {slot.name!r}")
    return True
