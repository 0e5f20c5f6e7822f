"""Hand-made tile programs and a way to run them: what the tests of the C renderer share."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lambent.algebra.term import Terms
from lambent.backends.base import kernel_symbols
from lambent.backends.cpu.build import build, place
from lambent.backends.cpu.render import PRELUDE, render
from lambent.backends.cpu.target import Target
from lambent.graph.dim import Size, axis
from lambent.graph.dtypes import DType, float32, int64
from lambent.kernel.kernel import Buffer, Kernel, Output
from lambent.kernel.tile import (
    Axis, Index, Lit, Load, Map, Ref, Schedule, Stmt, TileProgram, Value,
)  # fmt: skip


def a(i: int) -> Size:
    return axis(i)


def load(name: str, *index: Size, dtype: DType = float32) -> Load:
    return Load(name, index, dtype)


def lit(x: float, dtype: DType = float32) -> Lit:
    return Lit(x, dtype)


def ref(name: str, *axes: int, dtype: DType = float32) -> Ref:
    return Ref(name, frozenset(axes), dtype)


def op(name: str, *args: Value, dtype: DType | None = None) -> Map:
    return Map(name, args, dtype or args[-1].dtype)


def index(e: Size) -> Index:
    return Index(e, int64)


def program(
    body: Sequence[Stmt],
    axes: Mapping[int, tuple[Size, int]],
    outputs: Mapping[str, tuple[Size, ...]],
    inputs: Mapping[str, tuple[Size, ...]],
    dtypes: Mapping[str, DType] = {},
    **schedule: Any,
) -> TileProgram:
    """A tile program whose kernel has the right buffers and extents; its terms do not matter."""
    term = Terms().const(0, float32)
    extents = {i: e for i, (e, _) in axes.items()}

    def buffer(name: str, shape: tuple[Size, ...]) -> Buffer:
        return Buffer(name, dtypes.get(name, float32), shape)

    kernel = Kernel(
        tuple(Output(buffer(n, s), (), term) for n, s in outputs.items()),
        tuple(buffer(n, s) for n, s in inputs.items()),
        extents,
    )
    return TileProgram(
        kernel, {i: Axis(e, t) for i, (e, t) in axes.items()}, tuple(body), Schedule(**schedule)
    )


class Library:
    """Programs compiled together."""

    def __init__(self, programs: Mapping[str, TileProgram], target: Target) -> None:
        self.programs = programs
        parts = [PRELUDE(target)]
        for name, p in programs.items():
            parts.append(render(p, name, target))
            parts.append(
                f"__attribute__((visibility(\"default\"))) void run_{name}(void *const *buf, "
                f"const int64_t *size, int64_t first) {{ int64_t n = {name}_tasks(size); "
                f"for (int64_t t = first; t < n; t++) {name}_run(t, buf, size); }}"
            )
        self.text = "\n".join(parts)
        self.library = ctypes.CDLL(str(place(build(self.text, keep=False))))

    def entry(self, name: str) -> Any:
        f = getattr(self.library, f"run_{name}")
        f.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
        f.restype = None
        return f

    def __call__(
        self, name: str, inputs: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]],
        symbols: Mapping[str, int] = {},
    ) -> list[np.ndarray]:  # fmt: skip
        """Run it. Outputs start as garbage, and end at a page of guard elements that are checked."""
        kernel = self.programs[name].kernel
        outputs, guarded = [], []
        for o, shape in zip(kernel.outputs, shapes, strict=True):
            n = int(np.prod(shape))
            whole = np.full(n + 64, 77, o.buffer.dtype.numpy)
            guarded.append(whole[n:])
            outputs.append(whole[:n].reshape(shape))
        arrays = [*outputs, *(np.ascontiguousarray(x) for x in inputs)]
        buf = (ctypes.c_void_p * len(arrays))(*(x.ctypes.data for x in arrays))
        sizes = [symbols[s] for s in kernel_symbols(kernel)]
        self.entry(name)(buf, (ctypes.c_int64 * (len(sizes) + 1))(*sizes, 0), 0)
        for guard in guarded:
            assert (guard == np.asarray(77, guard.dtype)).all(), f"{name} wrote beyond its output"
        return outputs
