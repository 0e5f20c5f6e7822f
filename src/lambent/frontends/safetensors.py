"""safetensors files, whole or in shards, mapped into memory: arrays by name.

Layout (huggingface/safetensors): the header's length as 8 bytes, little endian; a JSON header of
dtype, shape and place of every tensor; the data, without gaps. Everything that a header says is
checked against the file before an array is made, and arrays are views of the mapped file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from lambent.frontends.files import load_config, parse_object
from lambent.graph.dtypes import as_dtype

__all__ = ["load_safetensors", "save_safetensors"]

Array = np.ndarray[Any, np.dtype[Any]]

_DTYPES: dict[str, np.dtype[Any]] = {  # the format's names for the dtypes that lambent has
    name: as_dtype(ours).numpy
    for name, ours in (
        ("BOOL", "bool"),
        ("I8", "int8"),
        ("I16", "int16"),
        ("I32", "int32"),
        ("I64", "int64"),
        ("U8", "uint8"),
        ("F16", "float16"),
        ("BF16", "bfloat16"),
        ("F32", "float32"),
        ("F64", "float64"),
    )
}
_LONGEST = 100 << 20  # bytes of a header, as the format's own library allows
_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"


def load_safetensors(path: str | Path) -> dict[str, Array]:
    """All arrays by name (bfloat16 as of `ml_dtypes`), read-only views of the mapped files.

    Args:
        path: a file, an index of shards (`model.safetensors.index.json`), or a folder with one.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a file is no safetensors file, is cut short, contradicts itself or the index, or
            holds a dtype that we lack.
    """
    path = Path(path)
    if path.is_dir():
        path = path / (_SINGLE if (path / _SINGLE).exists() else _INDEX)
    if not path.is_file():
        raise FileNotFoundError(f"load_safetensors: no file {path}")
    return _sharded(path) if path.suffix == ".json" else _file(path)


def save_safetensors(path: str | Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays by name. The file is replaced whole or not at all, also if the machine stops.

    Raises:
        TypeError: a dtype that the format or lambent lacks.
        OSError: the file cannot be written.
    """
    path, header, end = Path(path), {}, 0
    names = {dtype: name for name, dtype in _DTYPES.items()}
    for key, array in arrays.items():
        if array.dtype not in names:
            raise TypeError(f"save_safetensors: {key!r} is {array.dtype}; cast it")
        place = [end, end + array.nbytes]
        header[key] = {"dtype": names[array.dtype], "shape": array.shape, "data_offsets": place}
        end += array.nbytes
    told = json.dumps(header).encode()
    told += b" " * (-len(told) % 8)  # the data starts aligned
    part = path.with_name(f"{path.name}.part")
    with part.open("wb") as file:
        file.write(len(told).to_bytes(8, "little") + told)
        for array in arrays.values():
            file.write(np.ascontiguousarray(array).tobytes())
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def _sharded(index: Path) -> dict[str, Array]:
    places = load_config(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(p, str) for p in places.values()):
        raise ValueError(f"load_safetensors: {index} has no `weight_map` of names to files")
    shards = {}
    for shard in sorted(set(places.values())):
        if Path(shard).name != shard:
            raise ValueError(f"load_safetensors: {index} names {shard!r}, not a file beside it")
        shards[shard] = load_safetensors(index.parent / shard)
    lost = [name for name, shard in places.items() if name not in shards[shard]]
    if lost:
        raise ValueError(f"load_safetensors: {index}: not in their shards: {', '.join(lost[:5])}")
    return {name: shards[shard][name] for name, shard in places.items()}


def _file(path: Path) -> dict[str, Array]:
    try:
        if path.stat().st_size < 8:
            raise ValueError("it is too short")
        return _arrays(np.memmap(path, np.uint8, "r"))
    except ValueError as error:
        raise ValueError(
            f"load_safetensors: {path} is no whole safetensors file: {error}"
        ) from None


def _arrays(data: Array) -> dict[str, Array]:
    length = int.from_bytes(data[:8].tobytes(), "little")
    if length > min(_LONGEST, len(data) - 8):
        raise ValueError(f"a header of {length} bytes in a file of {len(data)}")
    header = parse_object(data[8 : 8 + length].tobytes())
    header.pop("__metadata__", None)
    body = data[8 + length :]
    places = sorted((*_place(name, told), name) for name, told in header.items())
    end = 0
    for start, stop, name in places:
        if start != end:
            raise ValueError(f"{name!r} starts at {start}, where the tensor before ends at {end}")
        end = stop
    if end != len(body):
        raise ValueError(f"the tensors take {end} bytes, the file holds {len(body)}")
    return {
        name: np.asarray(body[start:stop]).view(_DTYPES[header[name]["dtype"]])
        .reshape(header[name]["shape"])
        for start, stop, name in places
    }  # fmt: skip


def _place(name: str, told: Any) -> tuple[int, int]:
    """Where a tensor lies, by its entry in the header."""
    told = told if isinstance(told, dict) else {}
    kind, shape, place = (told.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not _sizes(shape) or not _sizes(place) or len(place) != 2:
        raise ValueError(f"{name!r} is described by {str(told)[:200]}")
    if not isinstance(kind, str) or kind not in _DTYPES:
        raise ValueError(f"{name!r} is of dtype {kind!r}; readable: {', '.join(_DTYPES)}")
    start, stop = place
    if stop - start != prod(shape) * _DTYPES[kind].itemsize or len(shape) > 32:
        raise ValueError(f"{name!r} is {kind}{shape} in {stop - start} bytes")
    return start, stop


def _sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(v) is int and 0 <= v < 1 << 48 for v in value)
