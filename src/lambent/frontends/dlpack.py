"""Arrays that are on a GPU already, of whatever library: taken and given by DLPack, not copied."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lambent.backends.cuda.driver import Memory
from lambent.graph.dtypes import DTYPES
from lambent.runtime.program import Program

CUDA = 2  # DLPack's number of the device
KINDS = {"i": 0, "u": 1, "f": 2, "b": 6}  # its codes of dtypes
OWN = {"bfloat16": 4, "float8_e4m3fn": 10, "float8_e5m2": 12}  # of those that have one
NAME = b"dltensor"  # of a capsule that nobody has taken yet


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("device", ctypes.c_int32), ("number", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("offset", ctypes.c_uint64),
    )  # fmt: skip


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    """A tensor, and what whoever took it calls with this structure's address in the end."""

    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _DELETER))


_api = ctypes.pythonapi
_api.PyCapsule_GetPointer.restype = _api.PyCapsule_New.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
_api.PyCapsule_New.restype = ctypes.py_object
_api.PyCapsule_New.argtypes = (ctypes.c_void_p, ctypes.c_char_p, _DELETER)
_given: dict[int, Any] = {}  # what others hold, by the address of its structure


def _forget(address: int) -> None:
    _given.pop(address, None)


def _unused(capsule: int) -> None:
    """A capsule ends; nobody took the tensor if its name is the one that it got."""
    valid, pointer = _api["PyCapsule_IsValid"], _api["PyCapsule_GetPointer"]
    pointer.restype = ctypes.c_void_p
    if valid(ctypes.c_void_p(capsule), NAME):
        _given.pop(pointer(ctypes.c_void_p(capsule), NAME), None)


_FORGET, _UNUSED = _DELETER(_forget), _DELETER(_unused)


@dataclass(frozen=True, slots=True)
class DeviceArray:
    """An array on a GPU: contiguous, and with `__dlpack__`, so that others can take it."""

    shape: tuple[int, ...]
    dtype: str
    memory: Memory = field(repr=False)
    number: int = 0

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self.number

    def __dlpack__(self, *, stream: Any = None, **_: Any) -> Any:
        """A capsule. What was queued runs on the stream that the call was given."""
        shape = (ctypes.c_int64 * len(self.shape))(*self.shape)
        tensor = _Tensor(
            self.memory.pointer, CUDA, self.number, len(shape), *_kind(self.dtype), 1, shape, None,
            0,
        )  # fmt: skip
        managed = _Managed(tensor, None, _FORGET)
        address = ctypes.addressof(managed)
        _given[address] = managed, shape, self.memory
        return _api.PyCapsule_New(address, NAME, _UNUSED)


def on_device(program: Program, /, *, stream: int = 0, **arrays: Any) -> Any:
    """Run a program once on arrays that are on its GPU.

    Args:
        arrays: every input by name, contiguous, with `__dlpack__`, as PyTorch's and CuPy's have.
            Donated ones are written in place.
        stream: where the run is queued; 0 is the default stream.

    Returns:
        What a call returns, but of `DeviceArray`s: `torch.from_dlpack(y)` has the same memory. What
        is written in place is the array that was given.

    Raises:
        TypeError: a missing or unknown input, one elsewhere or of another dtype; the program's
            device is no GPU.
        ValueError: an array that is not contiguous, or a shape that does not fit.
    """
    m = program.manifest
    if {s.name for s in m.inputs} != arrays.keys():
        wanted = ", ".join(s.name for s in m.inputs)
        raise TypeError(f"inputs {', '.join(arrays)} were given, the program has: {wanted}")
    given = [_taken(slot.name, slot.dtype, arrays[slot.name], stream) for slot in m.inputs]
    shapes = [shape for _, shape, _ in given]
    outputs = [
        DeviceArray(tuple(shape), slot.dtype, Memory(_bytes(slot.dtype, shape)))
        for slot, shape in zip(m.outputs, program._at(*shapes)[2], strict=True)
    ]
    addresses = [address for _, _, address in given]
    program.enqueue(addresses, shapes, [o.memory.pointer for o in outputs], stream)
    pools: dict[str, Sequence[Any]] = {
        "input": [arrays[slot.name] for slot in m.inputs], "output": outputs
    }  # fmt: skip
    results = [pools[kind][i] for kind, i in m.results]
    if m.form == "one":
        return results[0]
    return tuple(results) if m.form == "tuple" else dict(zip(m.form, results, strict=True))


def _bytes(dtype: str, shape: Sequence[int]) -> int:
    return math.prod(shape) * DTYPES[dtype].itemsize


def _kind(dtype: str) -> tuple[int, int]:
    """DLPack's code and the bits of a dtype."""
    kind = DTYPES[dtype]
    return OWN.get(dtype, KINDS[kind.kind]), 8 * kind.itemsize


def _taken(name: str, dtype: str, array: Any, stream: int) -> tuple[Any, tuple[int, ...], int]:
    """The capsule, which keeps the array alive, the shape and the address."""
    if not hasattr(array, "__dlpack__") or array.__dlpack_device__()[0] != CUDA:
        raise TypeError(f"input {name!r}: {type(array).__name__} is no array on the GPU")
    capsule = array.__dlpack__(stream=stream or 1)  # 1 is the default stream
    address = _api.PyCapsule_GetPointer(capsule, NAME)
    t = _Managed.from_address(address).tensor
    if (t.code, t.bits, t.lanes) != (*_kind(dtype), 1):
        raise TypeError(f"input {name!r}: its dtype is not {dtype}")
    shape = tuple(t.shape[i] for i in range(t.ndim))
    if t.strides:
        steps = [math.prod(shape[i + 1 :]) for i in range(t.ndim)]
        if any(shape[i] > 1 and t.strides[i] != step for i, step in enumerate(steps)):
            raise ValueError(f"input {name!r}: not contiguous; give a copy")
    return capsule, shape, (t.data or 0) + t.offset
