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
from lambent.buckets import joined
from lambent.graph.dim import Symbol
from lambent.graph.dtypes import DTYPES
from lambent.runtime.program import Array, Manifest, Program, Slot

FORMAT = "lambent program"
VERSION = 5


class LoadError(ValueError):
    """A file that is not a program, is damaged, or cannot run here; the message says which."""


def save(program: Program, path: str | os.PathLike[str]) -> None:
    """Write a program; weights as they are after the load steps. A file there is replaced at once.

    Raises:
        OSError: the place cannot be written; an older file there stays as it was.
    """
    parts = (*program.narrower, program)
    arrays = {id(array): array for part in parts for array in part.weights}  # shared ones once
    number = {key: i for i, key in enumerate(arrays)}
    headers = [asdict(p.manifest) | {"arrays": [number[id(a)] for a in p.weights]} for p in parts]
    header = {"format": FORMAT, "version": VERSION, "device": program.manifest.device}
    with replacing(Path(path)) as file, zipfile.ZipFile(file, "w") as archive:
        manifest = json.dumps(header | {"programs": headers})
        archive.writestr("manifest.json", manifest, zipfile.ZIP_DEFLATED)
        for i, part in enumerate(parts):
            archive.writestr(f"library/{i}", part.image, zipfile.ZIP_DEFLATED)
        for i, array in enumerate(arrays.values()):
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
            return _program(archive, header["programs"])
    except LoadError:
        raise
    except BackendError as error:
        raise LoadError(f"{path}: {error}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # no offset that is none
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


def _program(archive: zipfile.ZipFile, headers: list[dict[str, Any]]) -> Program:
    """The narrower ones and that for all sizes. An array that several read is one in memory."""
    read, programs = dict[int, Array](), list[Program]()
    for i, header in enumerate(headers):
        manifest, numbers = _manifest(header), header["arrays"]
        for n, slot in zip(numbers, manifest.weights, strict=True):
            read[n] = read[n] if n in read else _weight(archive, n, slot)
        programs.append(Program(manifest, archive.read(f"library/{i}"), [read[n] for n in numbers]))
    return joined(programs)


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
