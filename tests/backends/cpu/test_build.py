"""C text → shared library: caching, errors, and machines where things cannot be written."""

from __future__ import annotations

import ctypes
import errno
import importlib.util
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lambent.backends import base, cache
from lambent.backends.base import BackendError
from lambent.backends.cpu import build, features

TEXT = "int answer(void) { return %d; }"


def answer(image: bytes) -> int:
    path = build.place(image)
    return int(ctypes.CDLL(str(path)).answer())


@pytest.fixture
def xdg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    build._zig_caches.cache_clear()
    yield tmp_path
    build._zig_caches.cache_clear()


def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*args: Any, **more: Any) -> None:
        raise AssertionError("the compiler was started")

    monkeypatch.setattr(subprocess, "run", run)


def test_an_equal_text_is_compiled_once(xdg: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build.build(TEXT % 41)
    assert answer(first) == 41
    no_compiler(monkeypatch)
    assert build.build(TEXT % 41) == first
    with pytest.raises(AssertionError, match="was started"):
        build.build(TEXT % 42)


@pytest.mark.parametrize("what", ["compiler", "flags", "cpu"])
def test_another_compiler_flag_or_cpu_is_a_miss(
    xdg: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    build.build(TEXT % 43)
    other = features.Cpu("x86_64", "Linux", "another", ("avx2",), (1, 2, 3))
    match what:
        case "compiler":
            monkeypatch.setattr(build, "compiler_version", lambda: "0.0.1")
        case "flags":
            monkeypatch.setattr(build, "flags", lambda: ("-O1",))
        case "cpu":
            monkeypatch.setattr(build, "detect", lambda: other)
    no_compiler(monkeypatch)
    with pytest.raises(AssertionError, match="was started"):
        build.build(TEXT % 43)


def test_a_damaged_cache_file_is_built_again(xdg: Path) -> None:
    image = build.build(TEXT % 44)
    (file,) = (xdg / "lambent" / "objects").iterdir()
    for damage in (b"", file.read_bytes()[:-9], b"x" * 500):
        file.write_bytes(damage)
        assert build.build(TEXT % 44) == image


def test_it_works_where_no_cache_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("not a directory")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    build._zig_caches.cache_clear()
    assert answer(build.build(TEXT % 45)) == 45
    assert not cache.write("x", b"1") and cache.read("x") is None
    build._zig_caches.cache_clear()


def test_it_works_on_a_full_disk(xdg: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cache, "write_atomic", full)
    assert answer(build.build(TEXT % 46)) == 46


def test_an_interrupted_write_leaves_nothing(xdg: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = xdg / "a" / "file"
    cache.write_atomic(target, b"old")

    def broken(a: Any, b: Any) -> None:
        raise OSError("no")

    monkeypatch.setattr("os.replace", broken)
    with pytest.raises(OSError, match="no"):
        cache.write_atomic(target, b"new")
    assert [p.name for p in target.parent.iterdir()] == ["file"]
    assert target.read_bytes() == b"old"


def test_a_compile_error_shows_the_lines(xdg: Path) -> None:
    with pytest.raises(build.BuildError) as caught:
        build.build("int a;\nint f(void) {\n  return nonsense;\n}\n")
    message = str(caught.value)
    assert "nonsense" in message and "    3 |   return nonsense;" in message


def test_a_missing_compiler_names_the_extra(xdg: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build.compiler_version.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BackendError, match=r"pip install 'lambent\[cpu\]'"):
        build.build(TEXT % 47)


def test_a_full_temporary_directory_is_a_clear_error(
    xdg: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "work_dir", lambda: xdg / "missing")
    with pytest.raises(BackendError, match=r"cannot write temporary files.*set TMPDIR"):
        build.build(TEXT % 48)


def test_the_work_directory_goes_with_its_process_not_with_a_forked_child() -> None:
    script = """
import os, sys
from lambent.backends import cache
path = cache.work_dir()
child = os.fork()
if child == 0:
    sys.exit(0)
os.waitpid(child, 0)
assert path.is_dir()
print(path)
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, timeout=60,
    )  # fmt: skip
    assert not Path(done.stdout.strip()).exists()


def test_threads_may_build_at_once(xdg: Path) -> None:
    numbers = [50, 51, 52, 50, 51, 52]
    with ThreadPoolExecutor(6) as pool:
        images = list(pool.map(lambda n: build.build(TEXT % n), numbers))
    assert [answer(image) for image in images] == numbers


def test_equal_texts_give_equal_files(xdg: Path) -> None:
    assert build.build(TEXT % 53, keep=False) == build.build(TEXT % 53, keep=False)


def test_helpers_of_the_compiler_are_linked_where_needed(
    xdg: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_, asked = build._compile, []

    def spy(text: str, extra: tuple[str, ...], limit: float) -> bytes:
        asked.append(extra)
        return compile_(text, ("-nostdlib",), limit)  # linking them takes seconds the first time

    monkeypatch.setattr(build, "_compile", spy)
    build.build("int answer(__int128 *a, __int128 *b) { return (int)(*a / *b); }")
    assert asked == [("-nostdlib",), ()]
    build.build("int answer(long *a, long *b) { return (int)(*a / *b); }")
    assert asked[2:] == [("-nostdlib",)]


def test_devices_are_looked_up_by_name() -> None:
    assert base.get("cpu") is base.get("cpu")
    with pytest.raises(ValueError, match="unknown device 'abacus'; there are: cpu"):
        base.get("abacus")


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5"])
def test_a_senseless_thread_count_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("LAMBENT_THREADS", value)
    with pytest.raises(ValueError, match="LAMBENT_THREADS"):
        features.threads()


@pytest.mark.parametrize(
    ("siblings", "quota", "count"),
    [
        (("0", "1", "2", "3"), "max 100000", 4),
        (("0-1", "0-1", "2-3", "2-3"), "max 100000", 2),  # hyperthreads
        (("", "", "", ""), "", 4),  # nothing is known
        (("0", "1", "2", "3"), "150000 100000", 2),  # a container's share
        (("0", "1", "2", "3"), "10000 100000", 1),
    ],
)
def test_thread_count(
    monkeypatch: pytest.MonkeyPatch, siblings: tuple[str, ...], quota: str, count: int
) -> None:
    def read(path: str) -> str:
        return quota if "cgroup" in path else siblings[int(path.split("/cpu")[2][0])]

    monkeypatch.delenv("LAMBENT_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(features, "_read", read)
    assert features.threads() == count


def test_features_of_another_cpu_are_missing() -> None:
    assert features.missing(features.requires()) == []
    assert features.missing(["avx9000"]) == ["avx9000"]
    assert features.missing(["Plan9-mips"]) == ["Plan9-mips"]
