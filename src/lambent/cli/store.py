"""The cache as a user sees it: contents, clearing, export and import; and the stored programs."""

from __future__ import annotations

import shutil
import sqlite3
import sys
import tempfile
import zipfile
from contextlib import closing
from pathlib import Path
from typing import Any

from lambent.backends.cpu.cache import cache_dir, digest, write_atomic
from lambent.cli.errors import UserError, choose
from lambent.cli.output import console, print_json, size, table

ACTIONS = ("ls", "path", "clear", "export", "import")
DATABASES = (".db", ".sqlite", ".sqlite3")


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


def _tables(db: sqlite3.Connection, schema: str = "main") -> list[str]:
    found = db.execute(f"SELECT name FROM {schema}.sqlite_master WHERE type = 'table' ORDER BY 1")
    return [name for (name,) in found if not name.startswith("sqlite_")]


def rows(path: Path) -> int | None:
    """All rows of a database; None for what is none."""
    if path.suffix not in DATABASES:
        return None
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
            counts = (db.execute(f'SELECT count(*) FROM "{t}"').fetchone() for t in _tables(db))
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
    """Write databases and calibrations into one zip file; returns how many files it holds."""
    kept = [p for p in files() if p.suffix in (*DATABASES, ".json")]
    with tempfile.TemporaryDirectory() as work:
        packed, copy = Path(work) / "cache.zip", Path(work) / "copy"
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in kept:
                name = path.relative_to(cache_dir()).as_posix()
                if path.suffix not in DATABASES:
                    archive.write(path, name)
                    continue
                copy.unlink(missing_ok=True)  # a snapshot, also while others write
                with closing(sqlite3.connect(path)) as db, closing(sqlite3.connect(copy)) as to:
                    db.backup(to)
                archive.write(copy, name)
        write_atomic(target, packed.read_bytes())
    return len(kept)


def load(source: Path) -> int:
    """Add what an export holds and we lack; returns how many rows and files were new.

    Raises:
        UserError: the file is missing or not an export.
    """
    if not source.is_file():
        raise UserError(f"no file {source}")
    try:
        with zipfile.ZipFile(source) as archive, tempfile.TemporaryDirectory() as work:
            for name in archive.namelist():
                path = Path(name)
                if ".." in path.parts or path.suffix not in (*DATABASES, ".json"):
                    raise zipfile.BadZipFile(f"it holds {name!r}")
            return sum(_load_one(archive, name, Path(work)) for name in archive.namelist())
    except (zipfile.BadZipFile, sqlite3.DatabaseError) as error:
        raise UserError(f"{source} is not an export of `lambent cache export`: {error}") from None


def _load_one(archive: zipfile.ZipFile, name: str, work: Path) -> int:
    target = cache_dir() / name
    if not target.exists():
        write_atomic(target, archive.read(name))
        return rows(target) or 1
    if target.suffix not in DATABASES:
        return 0
    other = archive.extract(name, work)
    with closing(sqlite3.connect(target)) as db:
        db.execute("ATTACH ? AS other", (other,))
        versions = {db.execute(f"PRAGMA {n}.user_version").fetchone()[0] for n in ("main", "other")}
        if len(versions) > 1:
            raise UserError(f"{name} in the export is of another version of lambent")
        before = db.total_changes
        for found in sorted({*_tables(db)} & {*_tables(db, "other")}):
            db.execute(f'INSERT OR IGNORE INTO main."{found}" SELECT * FROM other."{found}"')
        db.commit()
        return db.total_changes - before


# ---- whole programs --------------------------------------------------------------------------


def program_key(name: str, device: str, what: tuple[object, ...]) -> str:
    """The file of a program in the cache: what it computes, where, and by which compiler."""
    from lambent.backends.base import get
    from lambent.search.database import code_version

    return f"programs/{name}-{digest(code_version(), get(device).device_key(), str(what))}.lambent"


def load_program(key: str) -> Any:
    """The cached program, or None: not there, or no longer readable."""
    path = cache_dir() / key
    if not path.is_file():
        return None
    from lambent.runtime import save

    try:
        return save.load(path)
    except (ValueError, OSError) as error:
        print(f"cached program not usable, searching anew: {error}", file=sys.stderr)
        return None


def save_program(key: str, program: Any) -> None:
    """Keep a program for the next run; a cache that cannot be written costs only time."""
    path = cache_dir() / key
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        program.save(path)
    except OSError as error:
        print(f"program not kept: {error}", file=sys.stderr)
