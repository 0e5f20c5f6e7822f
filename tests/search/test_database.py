"""The database: hits only for equal keys; safe under processes, kills, and files it cannot use."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lambent.backends.base import Outcome
from lambent.search.database import FILE, Database, code_version

GOOD = Outcome("ok", seconds=1.5, best=1.0, spread=0.1, error=1e-7)


def test_what_is_put_is_found_again(tmp_path: Path) -> None:
    db = Database(tmp_path, "cpu", "v")
    db.put("kernel", "s=4", {"a": GOOD, "b": Outcome("wrong", message="off by 3")})
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


def test_a_file_of_something_else_says_nothing(tmp_path: Path) -> None:
    """It goes on behind it, also where several processes find it at once."""
    (tmp_path / FILE).write_bytes(b"this is no log\xff\r\n\0" * 500)
    both = [writer(tmp_path, name, 20) for name in "ab"]
    assert [p.communicate(timeout=60)[0].split() for p in both] == [["ready", "done"]] * 2
    db = Database(tmp_path, "cpu", "v")
    assert all(db.get(f"{name} {i}", "") for name in "ab" for i in range(21))


@pytest.mark.parametrize("damage", [b"damage! " * 60, b"\0" * 500, b"\n" * 500, b""])
def test_damage_costs_only_what_it_hit(tmp_path: Path, damage: bytes) -> None:
    """Overwritten in the middle, or torn at the end."""
    db = Database(tmp_path, "cpu", "v")
    for i in range(200):
        db.put(f"k {i}", "", {"a": GOOD})
    text = (tmp_path / FILE).read_bytes()
    at = len(text) // 2 if damage else len(text) - 10
    after = text[at + len(damage) :] if damage else b""
    (tmp_path / FILE).write_bytes(text[:at] + damage + after)
    db = Database(tmp_path, "cpu", "v")
    db.put("new", "", {"a": GOOD})
    again = Database(tmp_path, "cpu", "v")
    found = [again.get(f"k {i}", "") for i in range(200)]
    assert all(f in ({}, {"a": GOOD}) for f in found) and 1 <= found.count({}) <= 5
    assert again.get("new", "") == {"a": GOOD}


def test_every_changed_byte_is_noticed(tmp_path: Path) -> None:
    Database(tmp_path, "cpu", "v").put("k", "", {"a": GOOD})
    text = (tmp_path / FILE).read_bytes()
    for i in range(len(text)):
        (tmp_path / FILE).write_bytes(text[:i] + bytes([text[i] ^ 1]) + text[i + 1 :])
        assert Database(tmp_path, "cpu", "v").get("k", "") in ({}, {"a": GOOD})


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


def test_a_place_that_cannot_be_written_costs_one_warning(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("not a folder")
    db = Database(file / "below", "cpu", "v")
    with pytest.warns(RuntimeWarning, match="cannot be used"):
        db.put("k", "", {"a": GOOD})
    db.put("k", "", {"b": GOOD})
    assert db.get("k", "") == {"a": GOOD, "b": GOOD}


def test_a_file_that_becomes_unusable_costs_one_warning(tmp_path: Path) -> None:
    db = Database(tmp_path, "cpu", "v")
    (tmp_path / FILE).mkdir()
    with pytest.warns(RuntimeWarning, match="cannot be used"):
        db.put("k", "", {"a": GOOD})
    db.put("k", "", {"b": GOOD})
    assert db.get("k", "") == {"a": GOOD, "b": GOOD}


def test_the_version_depends_on_our_sources() -> None:
    assert len(code_version()) == 16 and code_version() == code_version()
    assert len({code_version(), code_version("search"), code_version(".")}) == 3
