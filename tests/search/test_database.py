"""The database: hits only for equal keys; safe under processes, kills, and files it cannot use."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from lambent.backends.base import Outcome
from lambent.search.database import FILE, Database, code_version

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


def test_an_older_schema_is_rebuilt(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / FILE) as old:
        old.execute("CREATE TABLE measurement (kernel TEXT)")
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
        other.execute("DROP TABLE measurement")
    other.close()
    with pytest.warns(RuntimeWarning, match="cannot be used"):
        db.put("k", "", {"a": GOOD})
    assert db.get("k", "") == {"a": GOOD}


def test_the_version_depends_on_our_sources() -> None:
    assert len(code_version()) == 16 and code_version() == code_version()
