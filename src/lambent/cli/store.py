"""The cache as a user sees it: contents, clearing, export and import."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import zipfile
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any

from lambent.backends.cpu.cache import cache_dir, write_atomic
from lambent.cli.errors import UserError, choose
from lambent.cli.output import console, print_json, size, table

ACTIONS = ("ls", "path", "clear", "export", "import")
DATABASE = ".db"
KEPT = (DATABASE, ".json")  # what an export holds; compiled code and programs are made again


def cache_action(action: str, file: Path | None, json: bool) -> None:
    """Do one of ACTIONS.

    Raises:
        UserError: no such action, a file missing or not wanted, not one of our exports.
    """
    choose("action", action, ACTIONS)
    if (file is not None) != (action in ("export", "import")):
        wants = "wants no" if file else "needs a"
        raise UserError(f"lambent cache {action} {wants} FILE")
    if action == "ls":
        _show(json)
        return
    if action == "path":
        print_json({"path": str(cache_dir())}) if json else print(cache_dir())
        return
    count = clear() if file is None else export(file) if action == "export" else load(file)
    done = {"clear": "removed", "export": "exported", "import": "imported"}[action]
    if json:
        print_json({"path": str(cache_dir()), done: count})
    else:
        print(f"{done} {count} {'files' if action != 'import' else 'entries'}")


def files() -> list[Path]:
    """The cache's files, by name; empty when there is no cache."""
    return sorted(p for p in cache_dir().rglob("*") if p.is_file() and not p.is_symlink())


def rows(path: Path) -> int | None:
    """All rows of a database; None for what is none."""
    if path.suffix != DATABASE:
        return None
    tables = "SELECT name FROM sqlite_master WHERE type = 'table'"
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
            names = [name for (name,) in db.execute(tables).fetchall()]
            counts = (db.execute(f'SELECT count(*) FROM "{name}"').fetchone() for name in names)
            return sum(int(count) for (count,) in counts)
    except sqlite3.Error:
        return None


def _show(json: bool) -> None:
    root = cache_dir()
    groups: dict[str, list[Path]] = {}
    for path in files():  # one entry a folder: there may be thousands of compiled objects
        groups.setdefault(path.relative_to(root).parts[0], []).append(path)
    found: list[dict[str, Any]] = [
        {
            "name": name,
            "files": len(group),
            "bytes": sum(p.stat().st_size for p in group),
            "rows": rows(group[0]),
        }
        for name, group in groups.items()
    ]
    if json:
        print_json({"path": str(root), "entries": found})
        return
    out = table(str(root), "entry", "files", "size", "rows")
    for entry in found:
        count = "" if entry["rows"] is None else str(entry["rows"])
        out.add_row(entry["name"], str(entry["files"]), size(entry["bytes"]), count)
    console().print(out)


def clear() -> int:
    """Remove every file; returns how many."""
    count = len(files())
    if cache_dir().exists():
        shutil.rmtree(cache_dir())
    return count


def export(target: Path) -> int:
    """Write the database and calibrations into one zip file; returns how many files it holds.

    Raises:
        UserError: the database is damaged.
    """
    kept = [p for p in files() if p.suffix in KEPT]
    with tempfile.TemporaryDirectory() as work:
        packed, copy = Path(work) / "cache.zip", Path(work) / "copy"
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in kept:
                name = path.relative_to(cache_dir()).as_posix()
                if path.suffix == DATABASE:
                    _snapshot(path, copy)
                archive.write(copy if path.suffix == DATABASE else path, name)
        write_atomic(target, packed.read_bytes())
    return len(kept)


def _snapshot(path: Path, copy: Path) -> None:
    """What is committed now, also while others write."""
    copy.unlink(missing_ok=True)
    try:
        with closing(sqlite3.connect(path)) as db, closing(sqlite3.connect(copy)) as to:
            db.backup(to)
    except sqlite3.DatabaseError as error:
        raise UserError(f"{path} cannot be exported: {error}; the next search mends it") from None


def load(source: Path) -> int:
    """Add what an export holds and we lack; returns how many rows and files were new.

    Raises:
        UserError: the file is missing, not an export, or of another version.
    """
    if not source.is_file():
        raise UserError(f"no file {source}")
    try:
        with zipfile.ZipFile(source) as archive, tempfile.TemporaryDirectory() as work:
            for name in archive.namelist():
                path = Path(name)
                if path.is_absolute() or ".." in path.parts or path.suffix not in KEPT:
                    raise zipfile.BadZipFile(f"it holds {name!r}")
            return sum(_load_one(archive, name, Path(work)) for name in archive.namelist())
    except (zipfile.BadZipFile, zlib.error, sqlite3.DatabaseError) as error:
        raise UserError(f"{source} is not an export of `lambent cache export`: {error}") from None
    except ValueError as error:
        raise UserError(f"{source} cannot be imported: {error}") from None


def _load_one(archive: zipfile.ZipFile, name: str, work: Path) -> int:
    from lambent.search import database

    if name == database.FILE:
        return database.merge(cache_dir(), Path(archive.extract(name, work)))
    target = cache_dir() / name
    if Path(name).suffix == DATABASE or target.exists():
        return 0
    write_atomic(target, archive.read(name))
    return 1
