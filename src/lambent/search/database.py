"""What was measured before: one SQLite file in the cache, shared by processes, safe to kill.

A measurement is kept under everything that it depends on: the kernel's canonical text (with dtypes,
shapes and ranges of symbols), its schedule, the sizes it was measured at, the device (its key names
processor, threads, compiler, flags and libraries) and the version of our own sources that lower,
render, verify and time (so the state of the caches while timing is part of it). All of that but the
schedule is hashed to `what`, the schedule is `how`; a chosen plan is kept likewise, its `how`
empty.
Every result is committed when it is known. A file of another schema is rebuilt, a corrupt one set
aside; where none can be used memory stands in, with one warning: it costs time, never a result.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import os
import sqlite3
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lambent
from lambent.backends.base import Outcome

SCHEMA = 2
FILE = "search.db"
_TABLE = """CREATE TABLE IF NOT EXISTS found (
    what TEXT, how TEXT, value TEXT, PRIMARY KEY (what, how)) WITHOUT ROWID"""
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
        try:
            self._db = _memory() if self._path is None else _open(self._path)
        except (OSError, sqlite3.Error) as error:
            self._warn(error)
            self._db = _memory()

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

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

    def _get(self, text: str, kind: str) -> dict[str, Any]:
        select = "SELECT how, value FROM found WHERE what = ? ORDER BY how"
        return {how: json.loads(value) for how, value in self._run(select, self._key(text, kind))}

    def _put(self, text: str, kind: str, how: str, value: Any) -> None:
        insert = "INSERT OR REPLACE INTO found VALUES (?, ?, ?)"
        self._run(insert, self._key(text, kind), how, json.dumps(value))

    def _key(self, *what: str) -> str:
        return digest("\0".join((*what, self.device, self.version)))

    def _run(self, statement: str, *values: str) -> list[Any]:
        """Run and commit one statement. A file that fails is left, for a new one or for memory."""
        with self._lock:
            try:
                return self._execute(statement, values)
            except sqlite3.Error as error:
                with suppress(sqlite3.Error):
                    self._db.close()
                self._db = self._instead(error)
                return self._execute(statement, values)

    def _instead(self, error: sqlite3.Error) -> sqlite3.Connection:
        if type(error) is sqlite3.DatabaseError and self._path is not None:  # corrupt, found late
            with suppress(OSError, sqlite3.Error):
                return _open(self._path, thorough=True)
        self._warn(error)
        return _memory()

    def _execute(self, statement: str, values: tuple[str, ...]) -> list[Any]:
        with self._db:
            return self._db.execute(statement, values).fetchall()

    def _warn(self, error: Exception) -> None:
        warnings.warn(
            f"the cache of measurements cannot be used, so nothing is remembered: {error}",
            RuntimeWarning,
            stacklevel=4,
        )


def _memory() -> sqlite3.Connection:
    db = sqlite3.connect(":memory:", check_same_thread=False)
    db.execute(_TABLE)
    return db


def merge(folder: Path, other: Path) -> int:
    """Add what another database file knows and ours does not; returns how many rows.

    Raises:
        ValueError: it is of another schema.
        OSError, sqlite3.Error: it is damaged, or ours cannot be written; nothing was added.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with closing(_open(folder / FILE)) as db:
        db.execute("ATTACH ? AS other", (str(other),))
        if db.execute("PRAGMA other.user_version").fetchone()[0] != SCHEMA:
            raise ValueError(f"{FILE} in it is of another version of lambent")
        _check(db, "other")
        before = db.total_changes
        with db:
            db.execute("INSERT OR IGNORE INTO main.found SELECT * FROM other.found")
        return db.total_changes - before


# ---- the file --------------------------------------------------------------------------------


def _open(path: Path, thorough: bool = False) -> sqlite3.Connection:
    """The database, made or rebuilt where its schema is another; a corrupt file is set aside.

    Args:
        thorough: look at every page, not only at those that opening needs.

    Raises:
        OSError, sqlite3.Error: the file cannot be made or written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _alone(path.parent):
        try:
            return _connect(path, thorough)
        except sqlite3.OperationalError:  # full, read-only, locked
            raise
        except sqlite3.DatabaseError:
            _set_aside(path)
            return _connect(path)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """While this is held no other process opens, rebuilds or sets aside a database there."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _set_aside(path: Path) -> None:
    """Rename the file with its log and index: who has them open goes on with these, alone."""
    for end in ("-shm", "-wal", ""):
        with suppress(FileNotFoundError):
            Path(f"{path}{end}").replace(f"{path.with_suffix('.corrupt')}{end}")


def _connect(path: Path, thorough: bool = False) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=30, check_same_thread=False)
    try:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=NORMAL")
        if thorough:
            _check(db, "main")
        if db.execute("PRAGMA user_version").fetchone()[0] not in (0, SCHEMA):
            db.execute("DROP TABLE IF EXISTS found")
        db.execute(_TABLE)
        db.execute(f"PRAGMA user_version={SCHEMA}")
        return db
    except BaseException:
        db.close()
        raise


def _check(db: sqlite3.Connection, schema: str) -> None:
    """Raises sqlite3.DatabaseError where some page is damaged."""
    told = db.execute(f"PRAGMA {schema}.quick_check(1)").fetchone()[0]
    if told != "ok":
        raise sqlite3.DatabaseError(told)
