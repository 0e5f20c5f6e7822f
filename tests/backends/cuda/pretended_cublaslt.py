"""A pretended cuBLASLt: it keeps what it is told, and multiplies in NumPy on the host's memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
from ml_dtypes import bfloat16

from lambent.backends.libraries import cublaslt

KINDS = {14: np.dtype(bfloat16), 2: np.dtype("f2"), 0: np.dtype("f4"), 1: np.dtype("f8")}
Array = np.ndarray[Any, Any]


class Pretended:
    """Stands in for the library. `suggestions`: of ways to compute a product."""

    def __init__(self, suggestions: int = 2) -> None:
        self.suggestions = suggestions
        self.made: list[dict[Any, Any]] = [{}]  # by handle: what was set
        self.used: list[int] = []  # the way of each call

    def __getattr__(self, name: str) -> Callable[..., int]:
        if name.endswith("SetAttribute"):
            return self._set
        if name.endswith("Create"):
            return self._create
        raise AttributeError(name)

    def _create(self, handle: Any, *given: Any) -> int:
        handle._obj.value = len(self.made)
        self.made.append({"given": [getattr(g, "value", g) for g in given]})
        return 0

    def _set(self, handle: Any, attribute: int, value: Any, size: Any) -> int:
        assert size.value == ctypes.sizeof(value._obj)
        self.made[handle.value][attribute] = value._obj.value or 0
        return 0

    def cublasLtGetVersion(self) -> int:
        return 130100

    def cublasLtMatmulAlgoGetHeuristic(self, *given: Any) -> int:
        wish, wanted, found, count = given[6:]
        assert self.made[wish.value][cublaslt.SCHEMES] == cublaslt.WIDE_SUMS
        count._obj.value = min(wanted, self.suggestions)
        for i in range(count._obj.value):
            found[i].algorithm[0] = i + 1
        return 0

    def _matrices(self, place: Any, layout: Any) -> Array:
        """[batch, rows, columns], on the memory itself."""
        told = self.made[layout.value]
        kind, rows, columns, apart = told["given"]
        dtype = KINDS[kind]
        count, stride = told[cublaslt.BATCH], told[cublaslt.STRIDE]
        elements = (count - 1) * stride + (columns - 1) * apart + rows
        raw = (ctypes.c_uint8 * (elements * dtype.itemsize)).from_address(place.value)
        steps = [dtype.itemsize * n for n in (stride, 1, apart)]
        flat: Any = np.frombuffer(raw, dtype)
        return np.lib.stride_tricks.as_strided(flat, (count, rows, columns), steps)

    def cublasCreate_v2(self, handle: Any) -> int:
        return self._create(handle)

    def cublasSetMathMode(self, handle: Any, mode: Any) -> int:
        assert mode.value == cublaslt.WIDE_MATH
        return 0

    def cublasSetStream_v2(self, *given: Any) -> int:
        return 0

    cublasSetWorkspace_v2 = cublasSetStream_v2

    def cublasGemmEx(self, handle: Any, *given: Any) -> int:
        turned, (m, n, k) = given[:2], (x.value for x in given[2:5])
        alpha, *places, beta = given[5], given[6:9], given[9:12], given[12]
        assert beta._obj.value == 0 and given[13:16][1].value == places[0][1].value
        shapes = ((m, k), (k, n))
        factors = []
        for (place, kind, apart), turn, shape in zip(places, turned, shapes, strict=True):
            stored = shape[::-1] if turn.value else shape
            x = self._columns(place, kind, apart, stored).astype(np.float64)
            factors.append(x.T if turn.value else x)
        out = self._columns(*given[13:16], (m, n))
        out[...] = (alpha._obj.value * (factors[0] @ factors[1])).astype(out.dtype)
        self.used.append(cublaslt.OWN)
        return 0

    def _columns(self, place: Any, kind: Any, apart: Any, shape: tuple[int, int]) -> Array:
        """[rows, columns], on the memory itself."""
        dtype, (rows, columns) = KINDS[kind.value], shape
        elements = (columns - 1) * apart.value + rows
        raw = (ctypes.c_uint8 * (elements * dtype.itemsize)).from_address(place.value)
        flat: Any = np.frombuffer(raw, dtype)
        steps = [dtype.itemsize, dtype.itemsize * apart.value]
        return np.lib.stride_tricks.as_strided(flat, shape, steps)

    def cublasLtMatmul(self, handle: Any, product: Any, *given: Any) -> int:
        alpha, b, kind_b, a, kind_a, beta, plus, kind_plus, out, kind_out, algorithm = given[:11]
        told = self.made[product.value]
        factors = [self._matrices(*pair) for pair in ((b, kind_b), (a, kind_a))]
        wide = np.float64
        factors = [
            (f.swapaxes(1, 2) if told[t] else f).astype(wide)
            for f, t in zip(factors, cublaslt.TRANSPOSE, strict=True)
        ]
        total = alpha._obj.value * (factors[0] @ factors[1])
        if beta._obj.value:
            total += beta._obj.value * self._matrices(plus, kind_plus).astype(wide)
        result = self._matrices(out, kind_out)
        if told[cublaslt.EPILOGUE] == cublaslt.WITH_BIAS:
            size = result.shape[1] * result.dtype.itemsize
            raw = (ctypes.c_uint8 * size).from_address(told[cublaslt.BIAS])
            total += np.frombuffer(raw, result.dtype).astype(wide)[None, :, None]
        result[...] = total.astype(result.dtype)
        self.used.append(algorithm._obj.algorithm[0])
        return 0
