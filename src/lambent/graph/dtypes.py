"""Dtypes: what a value is stored as, and what it is computed in.

A dtype is a storage type. Arithmetic inside a kernel runs in `DType.compute` (float32 for the
narrow floats; integers exactly, wrapping); a value is rounded to its dtype when stored or cast.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np


@dataclass(frozen=True, slots=True)
class DType:
    """A storage type: `kind` is 'b' (bool), 'i' (signed), 'u' (unsigned) or 'f' (floating)."""

    name: str
    kind: str
    itemsize: int

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype (of `ml_dtypes` for bfloat16 and floats of 8 bits)."""
        return np.dtype(getattr(ml_dtypes, self.name, self.name))

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def is_integer(self) -> bool:
        """True for signed and unsigned integers, not for bool."""
        return self.kind in "iu"

    @property
    def compute(self) -> DType:
        """The type that a kernel computes in: float32 for narrow floats, else the dtype itself."""
        return float32 if self.kind == "f" and self.itemsize < 4 else self

    def __repr__(self) -> str:
        return self.name


bool_ = DType("bool", "b", 1)
int8 = DType("int8", "i", 1)
int16 = DType("int16", "i", 2)
int32 = DType("int32", "i", 4)
int64 = DType("int64", "i", 8)
uint8 = DType("uint8", "u", 1)
float16 = DType("float16", "f", 2)
bfloat16 = DType("bfloat16", "f", 2)
float32 = DType("float32", "f", 4)
float64 = DType("float64", "f", 8)
float8_e4m3fn = DType("float8_e4m3fn", "f", 1)
float8_e5m2 = DType("float8_e5m2", "f", 1)

_FLOATS = (float16, bfloat16, float32, float64, float8_e4m3fn, float8_e5m2)
DTYPES: dict[str, DType] = {d.name: d for d in (bool_, int8, int16, int32, int64, uint8, *_FLOATS)}


def as_dtype(x: object) -> DType:
    """A DType from a DType, a name, a Python type or anything NumPy takes for a dtype.

    Raises:
        TypeError: for a dtype that lambent does not have; the message lists those it has.
    """
    if isinstance(x, DType):
        return x
    try:
        name = np.dtype(x).name  # type: ignore[call-overload]
    except TypeError:
        name = str(x).removeprefix("torch.")
    if name not in DTYPES:
        raise TypeError(f"unsupported dtype {x!r}; supported: {', '.join(DTYPES)}")
    return DTYPES[name]
