"""ONNX files → models and arrays. Nothing that a file says of itself is trusted.

A tensor's size is compared with the bytes that are there before anything is allocated. External
data is mapped, not read, and must lie in the model's own folder.
"""

from __future__ import annotations

import os
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from lambent.frontends.onnx.errors import OnnxError
from lambent.graph.dtypes import DTYPES, DType

if TYPE_CHECKING:
    import onnx

Array: TypeAlias = "np.ndarray[Any, Any]"

ELEMENTS: dict[int, tuple[str, str]] = {
    1: ("float", "float32"),
    2: ("uint8", "uint8"),
    3: ("int8", "int8"),
    4: ("uint16", ""),
    5: ("int16", "int16"),
    6: ("int32", "int32"),
    7: ("int64", "int64"),
    8: ("string", ""),
    9: ("bool", "bool"),
    10: ("float16", "float16"),
    11: ("double", "float64"),
    12: ("uint32", ""),
    13: ("uint64", ""),
    14: ("complex64", ""),
    15: ("complex128", ""),
    16: ("bfloat16", "bfloat16"),
}
"""TensorProto.DataType → ONNX's name, and ours ("" where lambent has no such dtype)."""

TYPED = {
    "float32": "float_data",
    "float64": "double_data",
    "int64": "int64_data",
}
"""Where values are that are not raw bytes; those of other dtypes are in int32_data."""


def load_model(source: Any) -> tuple[onnx.ModelProto, Path | None]:
    """The model of a path, of bytes, or as it is; and the folder of its external data.

    Raises:
        OnnxError: not an ONNX model, or cut off.
        ModuleNotFoundError: the package onnx is missing.
    """
    try:
        import onnx
        from google.protobuf.message import DecodeError
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"lambent.from_onnx needs the package {error.name!r}: pip install 'lambent[onnx]'",
            name=error.name,
        ) from None
    if isinstance(source, onnx.ModelProto):
        return source, None
    is_path = isinstance(source, str | os.PathLike)
    data = Path(source).read_bytes() if is_path else bytes(source)
    name, folder = (str(source), Path(source).parent) if is_path else ("the model", None)
    try:
        model = onnx.ModelProto.FromString(data)
    except DecodeError as error:
        raise OnnxError(f"{name} is no ONNX model, or is cut off: {error}") from None
    if not model.HasField("graph") or not model.opset_import:
        raise OnnxError(f"{name} is no ONNX model, or is cut off: it has no graph or no opset")
    return model, folder


def dtype_of(element: int, what: str) -> DType:
    """Our dtype of an ONNX element type.

    Raises:
        OnnxError: there is none.
    """
    named, ours = ELEMENTS.get(element, (f"number {element}", ""))
    if not ours:
        raise OnnxError(f"{what} has elements of the type {named}; lambent has {', '.join(DTYPES)}")
    return DTYPES[ours]


def element_of(dtype: DType) -> int:
    """The ONNX element type of one of our dtypes."""
    return next(element for element, (_, ours) in ELEMENTS.items() if ours == dtype.name)


def array_of(tensor: onnx.TensorProto, folder: Path | None) -> Array:
    """The array that a TensorProto holds.

    Raises:
        OnnxError: another number of bytes than its dims say; a dtype that lambent lacks; external
            data that is missing, too short, or outside of the model's folder.
    """
    what = f"the tensor {tensor.name!r}"
    dtype, shape = dtype_of(tensor.data_type, what), tuple(tensor.dims)
    if any(n < 0 for n in shape):
        raise OnnxError(f"{what} has a negative dim: {list(shape)}")
    count = prod(shape)
    if tensor.data_location == 1:
        return _external(tensor, folder, dtype, shape)
    if tensor.HasField("raw_data"):
        raw = tensor.raw_data
        _check_length(what, len(raw), count * dtype.itemsize, "bytes")
        return _plain(np.frombuffer(raw, dtype.numpy.newbyteorder("<")), dtype).reshape(shape)
    values = getattr(tensor, TYPED.get(dtype.name, "int32_data"))
    _check_length(what, len(values), count, "values")
    if dtype.is_float and dtype.itemsize == 2:  # their bits, in the low half
        return np.array(values, np.int32).astype(np.uint16).view(dtype.numpy).reshape(shape)
    return np.array(values).astype(dtype.numpy).reshape(shape)


def _plain(array: Array, dtype: DType) -> Array:
    """Bytes as values: only 0 and 1 are bools."""
    return array.view(np.uint8) != 0 if dtype.kind == "b" else array


def _check_length(what: str, found: int, wanted: int, unit: str) -> None:
    if found != wanted:
        raise OnnxError(f"{what} should have {wanted} {unit} by its dims, but holds {found}")


def _external(
    tensor: onnx.TensorProto, folder: Path | None, dtype: DType, shape: tuple[int, ...]
) -> Array:
    what = f"the external data of {tensor.name!r}"
    said = {entry.key: entry.value for entry in tensor.external_data}
    place = Path(said.get("location", ""))
    if folder is None:
        raise OnnxError(f"{what} needs the model's folder: give from_onnx the path of its file")
    root = folder.resolve()
    path = (root / place).resolve()
    if not said.get("location") or place.is_absolute() or not path.is_relative_to(root):
        raise OnnxError(f"{what} is at {str(place)!r}, outside of the model's folder: refused")
    if not path.is_file():
        raise OnnxError(f"{what}: no file {path}")
    wanted = prod(shape) * dtype.itemsize
    numbers = [said.get("offset", "0"), said.get("length", str(wanted))]
    if not all(number.isdecimal() for number in numbers):
        raise OnnxError(f"{what} has the offset and length {numbers}, which are no numbers")
    offset, length = map(int, numbers)
    _check_length(what, length, wanted, "bytes")
    if offset + length > path.stat().st_size:
        raise OnnxError(
            f"{what} should be at {offset} … {offset + length} of {path}: it ends early"
        )
    if wanted == 0:
        return np.empty(shape, dtype.numpy)
    return _plain(np.memmap(path, dtype.numpy, "r", offset, shape), dtype)
