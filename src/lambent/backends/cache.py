"""Files that outlive a process: compiled code and calibrations, in the XDG cache or not at all."""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO


def cache_dir() -> Path:
    """`$XDG_CACHE_HOME/lambent` or `~/.cache/lambent`; it may not exist and may not be writable."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "lambent"


def digest(*parts: str) -> str:
    """A hash of the parts, each with its length, as 32 hex digits."""
    text = "".join(f"{len(part)}:{part}" for part in parts)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def checksum(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def read(name: str) -> bytes | None:
    """The cached file's bytes, or None where there is none that can be read."""
    try:
        return (cache_dir() / name).read_bytes()
    except OSError:
        return None


def write(name: str, data: bytes) -> bool:
    """Store atomically; False where the cache cannot be written (read-only, full, no home)."""
    try:
        write_atomic(cache_dir() / name, data)
    except OSError:
        return False
    return True


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file as `replacing` does, in a directory that is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(data)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A new file that takes the place of the path at the end, or never if something fails.

    Raises:
        OSError: the place cannot be written; nothing is left behind.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


@functools.cache
def work_dir() -> Path:
    """A directory of this process for unique file names; removed when the process ends."""
    path, owner = Path(tempfile.mkdtemp(prefix="lambent-")), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # not in a forked child that ends
            shutil.rmtree(path, ignore_errors=True)

    atexit.register(remove)
    return path
