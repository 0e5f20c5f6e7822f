"""What was measured before: one log in the cache, shared by processes, safe to kill.

A measurement is kept under everything that it depends on: the kernel's canonical text (with dtypes,
shapes and ranges of symbols), its schedule, the sizes it was measured at, the device (its key names
processor, threads, compiler, flags and libraries) and the version of our own sources that lower,
render, verify and time (so the state of the caches while timing is part of it). All of that but the
schedule is hashed to a key, the schedule is `how`; a chosen plan is kept likewise, its `how` empty.

    line  :=  checksum key [how, value]

A result is one line, appended when it is known. Of lines about the same the last one counts; one
that is torn or damaged says nothing. Where the file cannot be used memory stands in, with one
warning: it costs time, never a result.
"""

from __future__ import annotations

import functools
import hashlib
import json
import threading
import warnings
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import lambent
from lambent.backends.base import Outcome

FILE = "search.log"
_VERSIONED = ("graph", "algebra", "kernel", "search", "backends")


def digest(text: str) -> str:
    """A hash that stands for a text."""
    return hashlib.sha256(text.encode()).hexdigest()


@functools.cache
def code_version(*folders: str) -> str:
    """A hash of our own sources in these folders.

    With none given, of those that decide what code a kernel becomes and how it is judged.
    """
    root = Path(lambent.__file__).parent
    found = hashlib.sha256()
    for folder in folders or _VERSIONED:
        for path in sorted((root / folder).rglob("*.py")):
            found.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:16]


def sizes_text(symbols: Mapping[str, int]) -> str:
    return " ".join(f"{k}={v}" for k, v in sorted(symbols.items()))


class Like(NamedTuple):
    """A schedule that served, unsized; and its time over what the model says of first guesses."""

    schedule: str = ""
    ratio: float = 1.0


class Database:
    """Measurements and chosen plans of one device. Threads may share it.

    Args:
        folder: where the file is; None keeps everything in memory.
        device: the backend's device key.
        version: of the code that made the kernels.
    """

    def __init__(self, folder: Path | None, device: str, version: str | None = None) -> None:
        self.device, self.version = device, code_version() if version is None else version
        self._lock = threading.Lock()
        self._path = None if folder is None else folder / FILE
        self._lines: dict[bytes, list[bytes]] = {}
        try:
            if self._path is not None:
                self._lines = read(self._path)
        except OSError as error:
            self._forget(error)

    def get(self, kernel: str, sizes: str) -> dict[str, Outcome]:
        """Outcomes by schedule text of the kernel with this canonical text, at these sizes."""
        return {how: Outcome(**value) for how, value in self._get(kernel, sizes).items()}

    def put(self, kernel: str, sizes: str, outcomes: Mapping[str, Outcome]) -> None:
        """Keep outcomes by schedule text; what was known of a schedule is replaced."""
        for schedule, o in outcomes.items():
            self._put(kernel, sizes, schedule, asdict(o))

    def plan(self, program: str) -> tuple[float, str] | None:
        """The seconds spent on, and the choice for, the program with this canonical text."""
        return next(((float(e), str(c)) for e, c in self._get(program, "plan").values()), None)

    def put_plan(self, program: str, effort: float, chosen: str) -> None:
        self._put(program, "plan", "", (effort, chosen))

    def like(self, kind: str) -> Like:
        """What was learned last of kernels of a kind (see `canonical`)."""
        return Like(*self._get(kind, "like").get("", ()))

    def put_like(self, kind: str, like: Like) -> None:
        self._put(kind, "like", "", like)

    def _get(self, text: str, kind: str) -> dict[str, Any]:
        with self._lock:
            return results(self._lines.get(self._key(text, kind), ()))

    def _put(self, text: str, kind: str, how: str, value: Any) -> None:
        key = self._key(text, kind)
        new = line(key, how, value)
        with self._lock:
            self._lines.setdefault(key, []).append(new)
            try:
                if self._path is not None:
                    append(self._path, [new])
            except OSError as error:
                self._forget(error)

    def _key(self, *what: str) -> bytes:
        return digest("\0".join((*what, self.device, self.version))).encode()

    def _forget(self, error: OSError) -> None:
        self._path = None
        warnings.warn(
            f"the cache of measurements cannot be used, so nothing is remembered: {error}",
            RuntimeWarning,
            stacklevel=4,
        )


# ---- the file --------------------------------------------------------------------------------


def line(key: bytes, how: str, value: Any) -> bytes:
    text = key + b" " + json.dumps([how, value]).encode()
    return b"%08x %s" % (zlib.crc32(text), text)


def read(path: Path) -> dict[bytes, list[bytes]]:
    """The lines of a file by their keys, whole or not; none where there is no file."""
    found: dict[bytes, list[bytes]] = {}
    for text in path.read_bytes().splitlines() if path.exists() else ():
        found.setdefault(text[9:73], []).append(text)
    return found


def results(lines: Iterable[bytes]) -> dict[str, Any]:
    """What the lines of one key say, by `how` and in its order; the last one counts."""
    whole = [text for text in lines if text[:8] == b"%08x" % zlib.crc32(text[9:])]
    return dict(sorted(dict(json.loads(text[74:]) for text in whole).items()))


def append(path: Path, lines: Iterable[bytes]) -> None:
    """Add lines at once: each begins anew, whatever the one before it ends in.

    Raises:
        OSError: not all of it could be written.
    """
    text = b"".join(b"\n" + new for new in lines)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab", buffering=0) as file:
        if file.write(text) < len(text):
            raise OSError("no space is left for it")
