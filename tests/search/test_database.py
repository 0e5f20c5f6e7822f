"""The database: hits only for equal keys; safe under processes, kills, and files it cannot use."""

from __future__ import annotations

import fcntl
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest

from lambent.backends.base import Outcome
from lambent.search.database import FILE, Database, code_version, merge

GOOD = Outcome("ok", seconds=1.5, best=1.0, spread=0.1, error=1e-7)


def test_what_is_put_is_found_again(tmp_path: Path) -> None:
    db = Database(tmp_path, "cpu", "v")
    db.put("kernel", "s=4", {"a": GOOD, "b": Outcome("wrong", message="off by 3")})
    db.close()
    again = Database(tmp_path, "cpu", "v")
    assert again.get("kernel", "s=4") == {"a": GOOD, "b": Outcome("wrong", message="off by 3")}


@pytest.mark.parametrize("other", ["kernel", "sizes", "device", "version"])
def test_another_key_is_a_miss(tmp_path: Path, other: str) -> None:
    Database(tmp_path, "cpu", "v").put("k float32", "s=4", {"a": GOOD})
    device, version = ("gpu" if other == "device" else "cpu"), ("w" if other == "version" else "v")
    db = Database(tmp_path, device, version)
    kernel = "k float64" if other == "kernel" else "k float32"
    assert not db.get(kernel, "s=5" if other == "sizes" else "s=4")


def test_plans(tmp_path: Path) -> None:
    db = Database(tmp_path, "cpu", "v")
    assert db.plan("p") is None
    db.put_plan("p", 10.0, "[1]")
    db.put_plan("p", 20.0, "[2]")
    assert db.plan("p") == (20.0, "[2]")


WRITER = """
import sys, itertools
from pathlib import Path
from lambent.backends.base import Outcome
from lambent.search.database import Database
db = Database(Path(sys.argv[1]), "cpu", "v")
print("ready", flush=True)
for i in itertools.count():
    db.put(f"{sys.argv[2]} {i}", "", {"a": Outcome("ok", seconds=float(i))})
    if i == int(sys.argv[3]):
        break
print("done", flush=True)
"""


def writer(folder: Path, name: str, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(folder), name, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_two_processes_at_once(tmp_path: Path) -> None:
    both = [writer(tmp_path, name, 60) for name in "ab"]
    assert [p.communicate(timeout=60)[0].split() for p in both] == [["ready", "done"]] * 2
    db = Database(tmp_path, "cpu", "v")
    assert all(db.get(f"{name} {i}", "") for name in "ab" for i in range(61))


def test_killed_while_writing(tmp_path: Path) -> None:
    p = writer(tmp_path, "a", -1)
    assert p.stdout is not None and p.stdout.readline() == "ready\n"
    time.sleep(0.3)
    os.kill(p.pid, signal.SIGKILL)
    p.wait()
    p.stdout.close()
    db = Database(tmp_path, "cpu", "v")
    assert db.get("a 0", "") == {"a": Outcome("ok", seconds=0.0)}
    db.put("b", "", {"a": GOOD})
    assert db.get("b", "") == {"a": GOOD}


def test_a_corrupt_file_is_set_aside(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"this is no database " * 500)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        db = Database(tmp_path, "cpu", "v")
    db.put("k", "", {"a": GOOD})
    db.close()
    assert Database(tmp_path, "cpu", "v").get("k", "") == {"a": GOOD}


def test_a_corrupt_file_is_set_aside_once(tmp_path: Path) -> None:
    """Several processes find it at once: one new file, and every result is in it."""
    (tmp_path / FILE).write_bytes(b"this is no database " * 500)
    all_of_them = [writer(tmp_path, name, 20) for name in "ab"]
    for p in all_of_them:
        assert p.communicate(timeout=60)[0].split() == ["ready", "done"] and p.returncode == 0
    db = Database(tmp_path, "cpu", "v")
    assert all(db.get(f"{name} {i}", "") for name in "ab" for i in range(21))
    assert (tmp_path / FILE).with_suffix(".corrupt").read_bytes().startswith(b"this is no")


def test_one_at_a_time_sets_a_file_aside(tmp_path: Path) -> None:
    file = tmp_path / FILE
    file.write_bytes(b"this is no database " * 500)
    other = threading.Thread(target=lambda: Database(tmp_path, "cpu", "v").close())
    handle = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)  # as by one that mends it just now
    other.start()
    other.join(0.3)
    assert other.is_alive() and file.read_bytes().startswith(b"this is no")
    os.close(handle)
    other.join(30)
    assert not other.is_alive() and not file.read_bytes().startswith(b"this is no")


def damage(path: Path) -> None:
    """Pages in the middle are overwritten: opening notices nothing."""
    with Database(path.parent, "cpu", "v") as db:
        for i in range(200):
            db.put(f"k {i}", "", {"a": GOOD})
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        size = db.execute("PRAGMA page_size").fetchone()[0]
    db.close()
    with path.open("r+b") as file:
        file.seek(4 * size)
        file.write(b"damage! " * (size // 2))


def test_damage_found_late_costs_only_what_was_known(tmp_path: Path) -> None:
    damage(tmp_path / FILE)
    with Database(tmp_path, "cpu", "v") as db, warnings.catch_warnings():
        warnings.simplefilter("error")
        found = [db.get(f"k {i}", "") for i in range(200)]
        assert all(f in ({}, {"a": GOOD}) for f in found) and {} in found
        db.put("new", "", {"a": GOOD})
    assert Database(tmp_path, "cpu", "v").get("new", "") == {"a": GOOD}
    assert (tmp_path / FILE).with_suffix(".corrupt").exists()


FULL = """
import resource, sys, warnings
from pathlib import Path
from lambent.backends.base import Outcome
from lambent.search.database import Database
db = Database(Path(sys.argv[1]), "cpu", "v")
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))  # as a full disk: writes fail
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    for i in range(2000):
        db.put(f"k {i}", "", {"a": Outcome("ok", seconds=float(i))})
assert db.get("k 1999", "")["a"].seconds == 1999.0
print(len(said))
"""


def test_a_disk_that_fills_up_costs_one_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FULL, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "1\n", done.stderr
    db = Database(tmp_path, "cpu", "v")  # what was written before is whole
    assert db.get("k 0", "") == {"a": Outcome("ok", seconds=0.0)} and not db.get("k 1999", "")
    db.put("b", "", {"a": GOOD})
    assert db.get("b", "") == {"a": GOOD}


def test_what_another_knows_is_added(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    with Database(ours, "cpu", "v") as db:
        db.put("k", "", {"a": GOOD})
    with Database(theirs, "cpu", "v") as db:
        db.put("k", "", {"a": Outcome("wrong"), "b": GOOD})
        db.put_plan("p", 1.0, "[]")
    assert merge(ours, theirs / FILE) == 2
    db = Database(ours, "cpu", "v")
    assert db.get("k", "") == {"a": GOOD, "b": GOOD} and db.plan("p") == (1.0, "[]")
    assert merge(ours, theirs / FILE) == 0


def test_what_cannot_be_trusted_is_not_added(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs" / FILE
    theirs.parent.mkdir()
    damage(theirs)
    with pytest.raises(sqlite3.DatabaseError):
        merge(ours, theirs)
    with sqlite3.connect(theirs) as other:
        other.execute("PRAGMA user_version=999")
    other.close()
    with pytest.raises(ValueError, match="another version"):
        merge(ours, theirs)
    assert not Database(ours, "cpu", "v").get("k 0", "")


def test_an_older_schema_is_rebuilt(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / FILE) as old:
        old.execute("CREATE TABLE found (what TEXT)")
        old.execute("PRAGMA user_version=999")
    old.close()
    db = Database(tmp_path, "cpu", "v")
    db.put("k", "", {"a": GOOD})
    assert db.get("k", "") == {"a": GOOD}


def test_a_place_that_cannot_be_written_costs_one_warning(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("not a folder")
    with pytest.warns(RuntimeWarning, match="cannot be used"):
        db = Database(file / "below", "cpu", "v")
    db.put("k", "", {"a": GOOD})
    assert db.get("k", "") == {"a": GOOD}


def test_a_file_that_becomes_unusable_costs_one_warning(tmp_path: Path) -> None:
    db = Database(tmp_path, "cpu", "v")
    with sqlite3.connect(tmp_path / FILE) as other:
        other.execute("DROP TABLE found")
    other.close()
    with pytest.warns(RuntimeWarning, match="cannot be used"):
        db.put("k", "", {"a": GOOD})
    assert db.get("k", "") == {"a": GOOD}


def test_the_version_depends_on_our_sources() -> None:
    assert len(code_version()) == 16 and code_version() == code_version()
    assert len({code_version(), code_version("search"), code_version(".")}) == 3
