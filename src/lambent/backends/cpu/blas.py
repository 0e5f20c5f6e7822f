"""A library candidate: plain matrix products by the BLAS that SciPy brings.

A kernel whose term is a constant times Σ a·b over one stored index each may be computed by `gemm`:
`product` reads the row's arguments off the kernel's strides, `text` writes the call around the
kernel's own code, which still runs where no BLAS is connected (a saved program needs no SciPy).
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.util
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata

from lambent.algebra.term import Term
from lambent.backends.base import kernel_symbols
from lambent.backends.cpu import features
from lambent.backends.cpu.pool import size_text
from lambent.graph.dim import Size, axes_in, intern, representative, split
from lambent.graph.prove import Prover
from lambent.kernel.kernel import Kernel
from lambent.kernel.rewrite import free_axes
from lambent.kernel.values import literal

ROUTINES: dict[str, tuple[str, str]] = {
    "float32": ("sgemm", "float"),
    "float64": ("dgemm", "double"),
}
_MODULE = "scipy.linalg.cython_blas"
_MOST = (1 << 31) - 1  # this interface has 32-bit integers


@dataclass(frozen=True, slots=True)
class Run:
    """Axes that lie behind one another in every operand: their extent and the steps along them."""

    extent: Size
    a: Size = 0
    b: Size = 0
    out: Size = 0


@dataclass(frozen=True, slots=True)
class Product:
    """out[m, n] = alpha · Σ a[m, k] · b[k, n], once for every index of `loops`.

    buffers: the numbers of a and b among the kernel's inputs.
    start:   the elements of a, b and the output at which they begin.
    given:   per factor (b first, as `gemm` has columns first): is it transposed, and the distance
             of its columns.
    """

    buffers: tuple[int, int]
    start: tuple[Size, Size, Size]
    alpha: float
    m: Run
    n: Run
    k: Run
    loops: tuple[Run, ...]
    given: tuple[tuple[bool, Size], tuple[bool, Size]]
    dtype: str


# ---- which kernels -----------------------------------------------------------------------------


@functools.cache
def available() -> bool:
    """SciPy is installed, and its BLAS uses as many threads as programs do."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return importlib.util.find_spec("scipy") is not None and features.threads() == cores


@functools.cache
def version() -> str:
    """Which library takes part in a search."""
    return f"scipy={metadata.version('scipy')}" if available() else "no-blas"


def product(kernel: Kernel) -> Product | None:
    """The `gemm` that computes the kernel; None where none does."""
    output = kernel.outputs[0]
    alpha, term = 1.0, output.term
    if term.op == "mul" and term.kids[0].op == "const":
        alpha, term = float(literal(term.kids[0])), term.kids[1]
    if len(kernel.outputs) > 1 or term.op != "sum" or term.kids[0].op != "mul":
        return None
    a, b = term.kids[0].kids
    dtypes = {t.dtype.name for t in (a, b, term, output.term)} | {output.buffer.dtype.name}
    if (a.op, b.op) != ("in", "in") or len(dtypes) > 1 or dtypes.isdisjoint(ROUTINES):
        return None
    return _product(kernel, a, b, term.axes, alpha) or _product(kernel, b, a, term.axes, alpha)


def _product(
    kernel: Kernel, a: Term, b: Term, summed: frozenset[int], alpha: float
) -> Product | None:
    """With the output's innermost axis on b's side."""
    prover, output = Prover(kernel.extents), kernel.outputs[0]
    own = free_axes(output)
    numbers = {buffer.name: i for i, buffer in enumerate(kernel.inputs)}
    buffers = numbers[a.args[0]], numbers[b.args[0]]
    places = [(kernel.inputs[n], t.args[1]) for n, t in zip(buffers, (a, b), strict=True)]
    places.append((output.buffer, output.index))
    flats = [_flat(buffer.shape, index, prover) for buffer, index in places]
    if a.free | b.free != own | summed or not summed <= a.free & b.free or None in flats:
        return None
    tables = [_steps(flat, own | summed) for flat in flats if flat is not None]
    if any(axes_in(e) for start, steps in tables for e in (start, *steps.values())):
        return None

    def runs(axes: frozenset[int]) -> list[Run]:
        each = [Run(kernel.extents[i], *(steps[i] for _, steps in tables)) for i in axes]
        return _joined(each)

    rows, columns = runs((a.free - b.free) & own), runs((b.free - a.free) & own)
    inner, loops = runs(summed), runs(a.free & b.free & own)
    m, n = (rows or [Run(1)])[-1], (columns or [Run(1)])[-1]
    if len(inner) != 1 or (n.out != 1 and columns) or not _small((m, n, inner[0]), prover):
        return None
    k = inner[0]
    given = (
        _given(n.b, k.b, n.extent, k.extent, prover),
        _given(k.a, m.a, k.extent, m.extent, prover),
    )
    if given[0] is None or given[1] is None or not (prover.ge0(m.out - n.extent) or not rows):
        return None
    return Product(
        buffers,
        (tables[0][0], tables[1][0], tables[2][0]), alpha, m, n, k,
        (*loops, *rows[:-1], *columns[:-1]), (given[0], given[1]), output.buffer.dtype.name,
    )  # fmt: skip


def _flat(shape: Sequence[Size], index: Sequence[Size], prover: Prover) -> Size | None:
    """The number of an element; None where the index may leave the buffer."""
    flat: Size = 0
    for e, extent in zip(index, shape, strict=True):
        if not (prover.ge0(e) and prover.ge0(extent - 1 - e)):
            return None
        flat = flat * extent + e
    return flat


def _steps(flat: Size, axes: Iterable[int]) -> tuple[Size, dict[int, Size]]:
    """What is left of a place where every axis is 0, and the step of each axis."""
    steps: dict[int, Size] = {}
    for i in axes:
        steps[i], flat = split(flat, intern("axis", i))
    return flat, steps


def _joined(runs: list[Run]) -> list[Run]:
    """The outermost first; neighbours that lie behind one another in every operand are one."""
    found: list[Run] = []
    for run in sorted(runs, key=lambda r: [-representative(s) for s in (r.out, r.a, r.b)]):
        steps = (run.a, run.b, run.out)
        last = found[-1] if found else None
        if last and (last.a, last.b, last.out) == tuple(s * run.extent for s in steps):
            run = Run(last.extent * run.extent, *steps)
            found.pop()
        found.append(run)
    return found


def _small(runs: Iterable[Run], prover: Prover) -> bool:
    sizes = [size for r in runs for size in (r.extent, r.a, r.b, r.out)]
    return all(prover.ge0(size) and prover.ge0(_MOST - size) for size in sizes)


def _given(
    down: Size, across: Size, height: Size, width: Size, prover: Prover
) -> tuple[bool, Size] | None:
    """How a factor of `height` rows lies in memory: (transposed, distance of its columns)."""
    for transposed, near, far, length in (
        (False, down, across, height),
        (True, across, down, width),
    ):
        far = length if far == 0 else far  # there is but one
        if near in (0, 1) and prover.ge0(far - length):
            return transposed, far
    return None


# ---- the call ----------------------------------------------------------------------------------


def text(found: Product, kernel: Kernel, name: str, own: str) -> str:
    """The functions `name` of a kernel; `own` are those of the kernel's own code, `{name}_own`."""
    routine, real = ROUTINES[found.dtype]
    names = kernel_symbols(kernel)

    def size(s: Size) -> str:
        return size_text(s, names)

    offsets = [
        " + ".join([size(start), *(f"i{n} * {size(step)}" for n, step in enumerate(steps))])
        for start, steps in zip(
            found.start,
            ([r.a for r in found.loops], [r.b for r in found.loops], [r.out for r in found.loops]),
            strict=True,
        )
    ]
    loops = "".join(
        f" for (int64_t i{n} = 0; i{n} < {size(r.extent)}; i{n}++)\n"
        for n, r in enumerate(found.loops)
    )
    (tb, ldb), (ta, lda) = found.given
    ldc = found.m.out if found.m.out != 0 else found.n.extent
    integers = {
        "m": found.m.extent, "n": found.n.extent, "k": found.k.extent,
        "lda": lda, "ldb": ldb, "ldc": ldc,
    }  # fmt: skip
    declared = ", ".join(f"{key} = (int){size(s)}" for key, s in integers.items())
    a, b = (n + len(kernel.outputs) for n in found.buffers)
    return (
        f"{own}\nvoid (*lambent_{routine})(const char *, const char *, int *, int *, int *,\n"
        f"    {real} *, {real} *, int *, {real} *, int *, {real} *, {real} *, int *);\n"
        f"static int64_t {name}_tasks(const int64_t *size) {{\n"
        f" return lambent_{routine} ? 1 : {name}_own_tasks(size);\n}}\n"
        f"static void {name}_run(int64_t task, void *const *buf, const int64_t *size) {{\n"
        f" if (!lambent_{routine}) {{ {name}_own_run(task, buf, size); return; }}\n"
        f" {real} alpha = {found.alpha!r}, zero = 0;\n int {declared};\n"
        f" if (m < 1 || n < 1) return;\n{loops}"
        f'  lambent_{routine}("{"NT"[tb]}", "{"NT"[ta]}", &n, &m, &k, &alpha,\n'
        f"      ({real} *)buf[{b}] + {offsets[1]}, &ldb, ({real} *)buf[{a}] + {offsets[0]}, &lda,\n"
        f"      &zero, ({real} *)buf[0] + {offsets[2]}, &ldc);\n}}\n"
    )


def connect(library: ctypes.CDLL) -> None:
    """Give a library the routines that it calls, if SciPy is there."""
    for routine, _ in ROUTINES.values():
        try:
            place = ctypes.c_void_p.in_dll(library, f"lambent_{routine}")
        except ValueError:
            continue  # it calls none
        place.value = _address(routine)


@functools.cache
def _address(routine: str) -> int | None:
    """The routine's address; None without SciPy, or where its interface is another."""
    try:
        capsule = importlib.import_module("scipy.linalg.cython_blas").__pyx_capi__[routine]
    except (ImportError, AttributeError, KeyError):
        return None
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype, api.PyCapsule_GetName.argtypes = (
        ctypes.c_char_p,
        [ctypes.py_object],
    )
    name = api.PyCapsule_GetName(capsule)
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    if name.count(b"int *") != 6 or name.count(b"char *") != 2:
        return None
    address: int | None = api.PyCapsule_GetPointer(capsule, name)
    return address
