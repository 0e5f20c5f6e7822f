"""One file per program: a zip of a JSON manifest, the library, and the weights as `.npy` files.

No pickle and no compiler: reading it needs NumPy alone. A file is bound to the kind of CPU that its
code was compiled for, and says so.
"""

from __future__ import annotations

import errno
import json
import os
import zipfile
import zlib
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from lambent.backends.base import BACKENDS, BackendError
from lambent.backends.cache import replacing
from lambent.graph.dim import Symbol
from lambent.graph.dtypes import DTYPES
from lambent.runtime.program import Array, Manifest, Program, Slot

FORMAT = "lambent program"
VERSION = 3


class LoadError(ValueError):
    """A file that is not a program, is damaged, or cannot run here; the message says which."""


def save(program: Program, path: str | os.PathLike[str]) -> None:
    """Write a program; weights as they are after the load steps. A file there is replaced at once.

    Raises:
        OSError: the place cannot be written; an older file there stays as it was.
    """
    with replacing(Path(path)) as file, zipfile.ZipFile(file, "w") as archive:
        header = {"format": FORMAT, "version": VERSION, **asdict(program.manifest)}
        archive.writestr("manifest.json", json.dumps(header), zipfile.ZIP_DEFLATED)
        archive.writestr("library", program.image, zipfile.ZIP_DEFLATED)
        for i, array in enumerate(program.weights):
            with archive.open(f"weights/{i}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def load(path: str | os.PathLike[str]) -> Program:
    """Read a program that `save` wrote.

    Raises:
        FileNotFoundError: there is no such file.
        LoadError: it is damaged, not a program, of a newer version, or for another device.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            header = json.loads(archive.read("manifest.json"))
            _check_header(path, header)
            manifest = _manifest(header)
            weights = [_weight(archive, i, slot) for i, slot in enumerate(manifest.weights)]
            return Program(manifest, archive.read("library"), weights)
    except LoadError:
        raise
    except BackendError as error:
        raise LoadError(f"{path}: {error}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise LoadError(f"{path}: not a lambent program, or damaged: {error}") from None
    except OSError as error:
        if error.errno != errno.EINVAL:  # an offset in the file that is none
            raise
        raise LoadError(f"{path}: not a lambent program, or damaged: {error}") from None
    except (LookupError, TypeError, ValueError, AttributeError, MemoryError) as error:
        raise LoadError(f"{path}: a part of the program is missing or wrong: {error}") from None


def _check_header(path: Any, header: Any) -> None:
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise LoadError(f"{path}: not a lambent program (it is a zip file of something else)")
    if header["version"] != VERSION:
        raise LoadError(
            f"{path}: written in format {header['version']}, this lambent reads {VERSION}; "
            "use the lambent that wrote it, or compile again"
        )
    if header["device"] not in BACKENDS:
        raise LoadError(
            f"{path}: for device {header['device']!r}; this lambent has {', '.join(BACKENDS)}"
        )


def _manifest(header: dict[str, Any]) -> Manifest:
    """The inverse of `asdict`; tuples may be lists."""
    kinds = {"symbols": Symbol, "inputs": Slot, "outputs": Slot, "weights": Slot}
    parts = {name: [kind(**part) for part in header[name]] for name, kind in kinds.items()}
    return Manifest(**{f.name: parts.get(f.name, header[f.name]) for f in fields(Manifest)})


def _weight(archive: zipfile.ZipFile, i: int, slot: Slot) -> Array:
    """The array of a weight; the archive's checksum covers its bytes."""
    with archive.open(f"weights/{i}.npy") as member:
        found: Array = np.lib.format.read_array(member, allow_pickle=False)
    if found.shape != slot.at({}):
        raise ValueError(f"weight {i}: its shape is {found.shape}, not {slot}")
    return found.view(DTYPES[slot.dtype].numpy)  # NumPy's format has no name for bfloat16
