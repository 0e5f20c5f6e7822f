"""The cache as a user sees it: contents, clearing, export and import."""

from __future__ import annotations

import shutil
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import Any

from lambent.backends.cache import cache_dir, write_atomic
from lambent.cli.errors import UserError, choose
from lambent.cli.output import console, print_json, size, table

ACTIONS = ("ls", "path", "clear", "export", "import")
KEPT = (".log", ".json")  # what an export holds; compiled code and programs are made again


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
    """The results in the log of measurements; None for any other file."""
    from lambent.search import database

    if path.name != database.FILE:
        return None
    return sum(len(database.results(lines)) for lines in database.read(path).values())


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
    """Write measurements and calibrations into one zip file; returns how many files it holds."""
    kept = [p for p in files() if p.suffix in KEPT]
    with tempfile.TemporaryDirectory() as work:
        packed = Path(work) / "cache.zip"
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in kept:
                archive.write(path, path.relative_to(cache_dir()).as_posix())
        write_atomic(target, packed.read_bytes())
    return len(kept)


def load(source: Path) -> int:
    """Add what an export holds and we lack; returns how many results and files were new.

    Raises:
        UserError: the file is missing, or not an export.
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
    except (zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{source} is not an export of `lambent cache export`: {error}") from None


def _load_one(archive: zipfile.ZipFile, name: str, work: Path) -> int:
    from lambent.search import database

    target = cache_dir() / name
    if name == database.FILE:
        return _merge(Path(archive.extract(name, work)), target)
    if target.exists():
        return 0
    write_atomic(target, archive.read(name))
    return 1


def _merge(theirs: Path, ours: Path) -> int:
    """Add the results that ours lacks; returns how many."""
    from lambent.search import database

    found = {key: database.results(lines) for key, lines in database.read(theirs).items()}
    if not any(found.values()):
        raise zipfile.BadZipFile("no result in it is whole")
    known = database.read(ours)
    new = [
        database.line(key, how, value)
        for key, results in found.items()
        for how, value in results.items()
        if how not in database.results(known.get(key, ()))
    ]
    database.append(ours, new)
    return len(new)
