"""cuBLASLt, which the package nvidia-cublas brings: a schedule of plain matrix products.

It multiplies, scales, and adds a matrix or a row; cuBLAS beside it picks a way of its own for one
product. A saved program that calls it needs it when it is
loaded.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lambent.backends.base import BackendError
from lambent.backends.libraries import allowed, gemm
from lambent.backends.sizes import Text, number, text
from lambent.graph.dim import Size
from lambent.graph.dtypes import DTYPES
from lambent.graph.prove import Prover
from lambent.kernel.kernel import Kernel

EXTRA = "device 'cuda': the program calls cuBLASLt, which is not here; pip install nvidia-cublas"
TYPES: dict[str, tuple[int, int, Any]] = {
    "bfloat16": (14, 68, ctypes.c_float),
    "float16": (2, 68, ctypes.c_float),
    "float32": (0, 68, ctypes.c_float),
    "float64": (1, 70, ctypes.c_double),
    "tf32": (0, 77, ctypes.c_float),
}
"""Its number of a dtype, of the arithmetic for it (float32 stays float32), and factors' type; and
of float32 whose factors may be rounded to TF32."""
SCALES = {ctypes.c_float: 0, ctypes.c_double: 1}
WAYS = 6  # of its suggestions for a product, how many are candidates
OWN = WAYS + 1  # the way that cuBLAS picks
WIDE_MATH = 16  # of cuBLAS: parts of a sum are added as wide as they are
SPACE = 32 << 20  # bytes that it may use beside
WIDEST = 256  # bytes: what it can make of an address that is a multiple of more
TRANSPOSE, EPILOGUE, BIAS = (3, 4), 7, 8  # attributes of a product: of each factor; see its header
BATCH, STRIDE = 5, 6  # of a matrix
MOST, SCHEMES, ALIGNED = 1, 3, (5, 6, 7, 8)  # of a wish: bytes beside, reductions, of each matrix
WIDE_SUMS = 3  # parts of a sum are added as wide as they are
PLAIN, WITH_BIAS = 1, 4


@dataclass(frozen=True, slots=True)
class Operand:
    """A matrix, columns first. `buffer`: its number, outputs of the kernel first; `start`: elements
    before it; `apart`: elements from one column to the next; `stride`: to the next matrix."""

    buffer: int
    start: Text
    rows: Text
    columns: Text
    apart: Text
    stride: Text
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class Routine:
    """One call: out = alpha · b · a (+ plus). Columns come first, so b is the first factor.

    way: which of the library's suggestions; row: the value that is added is a row of its own.
    """

    way: int
    dtype: str
    alpha: float
    batch: Text
    operands: tuple[Operand, ...]
    row: bool = False


def read(data: Mapping[str, Any]) -> Routine:
    """What a saved program has of a routine."""
    return Routine(**{**data, "operands": tuple(Operand(**o) for o in data["operands"])})


def routine(kernel: Kernel, way: int = 1, exact: bool = True) -> Routine | None:
    """The call that computes the kernel; None where none does.

    exact: float32 factors are not rounded.
    """
    found = gemm.product(kernel, TYPES, plus=True)
    loops = [r for r in found.loops if r.extent != 1] if found else []
    if found is None or len(loops) > 1:
        return None
    m, n, k = found.m, found.n, found.k
    each = loops[0] if loops else gemm.Run(1)
    prover, outputs = Prover(kernel.extents), len(kernel.outputs)
    if not all(prover.ge0(r.extent - 1) for r in (m, n, k, each)):
        return None
    (tb, ldb), (ta, lda) = found.given
    buffers = [outputs + i for i in found.buffers]

    def matrix(buffer: int, start: Size, rows: Size, columns: Size, apart: Size, stride: Size,
               transposed: bool = False) -> Operand:  # fmt: skip
        if transposed:
            rows, columns = columns, rows
        a, b, c, d, e = map(text, (start, rows, columns, apart, stride))
        return Operand(buffer, a, b, c, d, e, transposed)

    def result(buffer: int, start: Size, apart: Size, stride: Size) -> Operand:
        apart = n.extent if apart == 0 else apart
        return matrix(buffer, start, n.extent, m.extent, apart, stride)

    if way == OWN and (loops or len(buffers) > 2):
        return None
    operands = [
        matrix(buffers[1], found.start[1], n.extent, k.extent, ldb, each.b, tb),
        matrix(buffers[0], found.start[0], k.extent, m.extent, lda, each.a, ta),
        result(0, found.start[2], m.out, each.out),
    ]
    row = False
    if len(buffers) > 2:
        row = m.plus == 0
        near = n.plus == 1 or n.extent == 1
        if not near or (row and loops) or not (row or prover.ge0(m.plus - n.extent)):
            return None
        operands.append(result(buffers[2], found.start[3], m.plus, each.plus))
    dtype = "tf32" if found.dtype == "float32" and not exact else found.dtype
    return Routine(way, dtype, found.alpha, text(each.extent), tuple(operands), row)


# ---- the library itself --------------------------------------------------------------------------


@functools.cache
def path(name: str = "cublasLt") -> str | None:
    """The library's file; None where it is not installed."""
    spec = importlib.util.find_spec("nvidia")
    folders = (spec.submodule_search_locations if spec else None) or []
    found = sorted(p for f in folders for p in Path(f).glob(f"*/lib/lib{name}.so.*"))
    return str(found[-1]) if found else None


@functools.cache
def api(name: str = "cublasLt") -> Any:
    """The library.

    Raises:
        BackendError: it is not installed, or cannot be loaded.
    """
    where = path(name)
    if where is None:
        raise BackendError(EXTRA)
    try:
        return ctypes.CDLL(where)
    except OSError as error:
        raise BackendError(f"{EXTRA} ({error})") from None


def version() -> str:
    """Which library takes part in a search."""
    if not allowed() or path() is None:
        return "no-cublaslt"
    return f"cublaslt={api().cublasLtGetVersion()}"


def ways(kernel: Kernel) -> range:
    """Numbers of the ways that are candidates for a kernel: none, or 1 to WAYS or OWN."""
    able = allowed() and path() is not None and routine(kernel) is not None
    own = able and path("cublas") is not None and routine(kernel, OWN) is not None
    return range(1, (OWN if own else WAYS) + 1 if able else 1)


def _call(name: str, *args: Any, library: str = "cublasLt") -> None:
    status = getattr(api(library), name)(*args)
    if status:
        raise BackendError(f"device 'cuda': {name}: status {status}")


def _made(kind: str, *args: Any) -> ctypes.c_void_p:
    found = ctypes.c_void_p()
    _call(f"cublasLt{kind}Create", ctypes.byref(found), *args)
    return found


def _set(kind: str, of: ctypes.c_void_p, attribute: int, value: Any) -> None:
    size = ctypes.c_size_t(ctypes.sizeof(value))
    _call(f"cublasLt{kind}SetAttribute", of, attribute, ctypes.byref(value), size)


class Suggestion(ctypes.Structure):
    """Its cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8), ("space", ctypes.c_size_t), ("status", ctypes.c_int),
        ("waves", ctypes.c_float), ("reserved", ctypes.c_int * 4),
    )  # fmt: skip


class Calls:
    """The library on the current device. `run` queues a routine; what is prepared for sizes and
    addresses is kept. Calls share their space: let one end before the next on another stream."""

    def __init__(self, space: int) -> None:
        self._handle, self._space = _made(""), space
        self._own: ctypes.c_void_p | None = None  # cuBLAS's handle
        self._ready: dict[Any, tuple[Any, ...]] = {}

    def run(
        self, r: Routine, pointers: Sequence[int], symbols: Mapping[str, int], stream: int
    ) -> None:
        """`pointers`: of the kernel's buffers, outputs first."""
        size = DTYPES["float32" if r.dtype == "tf32" else r.dtype].itemsize
        places = [pointers[o.buffer] + size * number(o.start, symbols) for o in r.operands]
        if r.way == OWN:
            self._pick(r, places, symbols, stream)
            return
        key = r, tuple(symbols.items()), tuple(p % WIDEST for p in places)
        if key not in self._ready:
            self._ready[key] = self._prepared(r, symbols, places)
        product, layouts, algorithm, space = self._ready[key]
        if r.row:
            _set("MatmulDesc", product, BIAS, ctypes.c_void_p(places[3]))
        real = TYPES[r.dtype][2]
        added = len(r.operands) > 3 and not r.row
        b, a, out, *plus = (ctypes.c_void_p(p) for p in places)
        _call(
            "cublasLtMatmul", self._handle, product, ctypes.byref(real(r.alpha)), b, layouts[0],
            a, layouts[1], ctypes.byref(real(added)), plus[0] if added else out, layouts[-1],
            out, layouts[2], ctypes.byref(algorithm), ctypes.c_void_p(self._space),
            ctypes.c_size_t(space), ctypes.c_void_p(stream),
        )  # fmt: skip

    def _pick(
        self, r: Routine, places: Sequence[int], symbols: Mapping[str, int], stream: int
    ) -> None:
        """Queue one product as cuBLAS computes it."""

        def told(name: str, *args: Any) -> None:
            _call(f"cublas{name}", *args, library="cublas")

        if self._own is None:
            self._own = ctypes.c_void_p()
            told("Create_v2", ctypes.byref(self._own))
            told("SetMathMode", self._own, ctypes.c_int(WIDE_MATH))
        told("SetStream_v2", self._own, ctypes.c_void_p(stream))
        told(
            "SetWorkspace_v2", self._own, ctypes.c_void_p(self._space), ctypes.c_size_t(SPACE)
        )  # fmt: skip
        kind, arithmetic, real = (*map(ctypes.c_int, TYPES[r.dtype][:2]), TYPES[r.dtype][2])
        b, a, out = r.operands
        depth = b.rows if b.transposed else b.columns
        m, n, k = (ctypes.c_int(number(t, symbols)) for t in (out.rows, out.columns, depth))
        turns = [ctypes.c_int(o.transposed) for o in (b, a)]
        pairs = [
            (ctypes.c_void_p(p), kind, ctypes.c_int(number(o.apart, symbols)))
            for p, o in zip(places, r.operands, strict=True)
        ]
        told(
            "GemmEx", self._own, *turns, m, n, k, ctypes.byref(real(r.alpha)), *pairs[0],
            *pairs[1], ctypes.byref(real(0)), *pairs[2], arithmetic, ctypes.c_int(-1),
        )  # fmt: skip

    def _prepared(
        self, r: Routine, symbols: Mapping[str, int], places: Sequence[int]
    ) -> tuple[Any, ...]:
        """The product, its matrices' layouts and the algorithm.

        Raises:
            BackendError: the library has none for it.
        """
        kind, arithmetic, real = TYPES[r.dtype]
        product = _made("MatmulDesc", arithmetic, SCALES[real])
        for attribute, o in zip(TRANSPOSE, r.operands[:2], strict=True):
            _set("MatmulDesc", product, attribute, ctypes.c_int32(o.transposed))
        _set("MatmulDesc", product, EPILOGUE, ctypes.c_int32(WITH_BIAS if r.row else PLAIN))
        if r.row:
            _set("MatmulDesc", product, BIAS, ctypes.c_void_p(places[3]))
        layouts = []
        for o in r.operands[: 3 if r.row else 4]:
            rows, columns, apart, stride, batch = (
                number(t, symbols) for t in (o.rows, o.columns, o.apart, o.stride, r.batch)
            )
            layout = _made(
                "MatrixLayout", kind, *map(ctypes.c_uint64, (rows, columns)), ctypes.c_int64(apart)
            )
            _set("MatrixLayout", layout, BATCH, ctypes.c_int32(batch))
            _set("MatrixLayout", layout, STRIDE, ctypes.c_int64(stride))
            layouts.append(layout)
        wish = _made("MatmulPreference")
        _set("MatmulPreference", wish, MOST, ctypes.c_uint64(SPACE))
        _set("MatmulPreference", wish, SCHEMES, ctypes.c_uint32(WIDE_SUMS))
        b, a, out, *plus = places
        for attribute, place in zip(ALIGNED, (b, a, (plus or [out])[0], out), strict=True):
            aligned = (place | WIDEST) & -(place | WIDEST)
            _set("MatmulPreference", wish, attribute, ctypes.c_uint32(aligned))
        found, count = (Suggestion * r.way)(), ctypes.c_int()
        _call(
            "cublasLtMatmulAlgoGetHeuristic", self._handle, product, *layouts[:2], layouts[-1],
            layouts[2], wish, r.way, found, ctypes.byref(count),
        )  # fmt: skip
        if not count.value:
            raise BackendError(f"device 'cuda': cuBLASLt has no algorithm for {r}")
        best = found[count.value - 1]
        return product, layouts, best, best.space
