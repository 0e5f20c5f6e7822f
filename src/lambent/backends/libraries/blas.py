"""The BLAS that SciPy brings: a schedule of plain matrix products.

`text` writes the call around the kernel's own code, which still runs where no BLAS is connected: a
saved program needs no SciPy.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.util
import os
from importlib import metadata

from lambent.backends.base import kernel_symbols
from lambent.backends.cpu import features
from lambent.backends.cpu.pool import size_text
from lambent.backends.libraries import allowed, gemm
from lambent.graph.dim import Size
from lambent.kernel.kernel import Kernel

ROUTINES: dict[str, tuple[str, str]] = {
    "float32": ("sgemm", "float"),
    "float64": ("dgemm", "double"),
}


@functools.cache
def available() -> bool:
    """Libraries may be used, SciPy is there, and its BLAS uses as many threads as programs do."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found = importlib.util.find_spec("scipy") is not None and features.threads() == cores
    return found and allowed()


@functools.cache
def version() -> str:
    """Which library takes part in a search."""
    return f"scipy={metadata.version('scipy')}" if available() else "no-blas"


def product(kernel: Kernel) -> gemm.Product | None:
    """The call that computes the kernel; None where none does."""
    return gemm.product(kernel, ROUTINES)


def text(found: gemm.Product, kernel: Kernel, name: str, own: str) -> str:
    """The functions `name` of a kernel; `own` are those of the kernel's own code, `{name}_own`."""
    routine, real = ROUTINES[found.dtype]
    names = kernel_symbols(kernel)

    def size(s: Size) -> str:
        return size_text(s, names)

    steps = [(r.a, r.b, r.out) for r in found.loops]
    offsets = [
        " + ".join([size(start), *(f"i{n} * {size(s[which])}" for n, s in enumerate(steps))])
        for which, start in enumerate(found.start)
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
    api.PyCapsule_GetName.restype = ctypes.c_char_p
    api.PyCapsule_GetName.argtypes = [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    name = api.PyCapsule_GetName(capsule)
    if name.count(b"int *") != 6 or name.count(b"char *") != 2:
        return None
    address: int | None = api.PyCapsule_GetPointer(capsule, name)
    return address
