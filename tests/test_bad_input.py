"""Bad input and bad surroundings, over the whole path: a clear error or the right result."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lambent as lt
from lambent.backends import cache
from lambent.backends.base import get
from lambent.backends.cpu import features
from lambent.runtime.save import LoadError

Array = np.ndarray[Any, Any]
N = lt.Dim("bad_n", 1, 64)


def compiled(what: Any) -> Any:
    return lt.compile(what, budget=0.01, progress=False)


def product() -> lt.Tensor:
    return lt.input("x", (N, 4)) @ lt.weight("w", np.full((4, 2), 0.5, np.float32))


@pytest.fixture(scope="module")
def program() -> Any:
    return compiled(product())


X = np.ones((3, 4), np.float32)


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"x": X[:, :3]}, ValueError, r"input 'x': dim 1 is 3, expected 4; its shape is float32\["),
        ({"x": X[0]}, ValueError, r"input 'x': shape \(4,\), expected float32\[bad_n, 4\]"),
        ({"x": X.astype("f8")}, TypeError, "'x': dtype float64, expected float32"),
        ({}, TypeError, "missing input 'x'; the program takes x: float32"),
        ({"x": X, "y": X}, TypeError, "unknown input 'y'; the program takes x: float32"),
        (
            {"x": np.ones((65, 4), "f4")},
            ValueError,
            "bad_n = 65, which must be .* 1 … 64",
        ),
        ({"x": np.ones((0, 4), "f4")}, ValueError, "bad_n = 0, which must be .* 1 … 64"),
    ],
)
def test_inputs_that_do_not_fit(
    program: Any, given: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        program(**given)


def test_rows_of_nan_and_rows_without_a_key() -> None:
    """NaN stays in its own row; the average over no key is NaN, as elsewhere."""
    x, m = lt.input("x", (4, 40)), lt.input("m", (4, 40), "bool")
    v = lt.input("v", (40, 3))
    masked = lt.softmax(lt.where(m, x, float("-inf")))
    outputs = [lt.softmax(x), masked, masked @ v, lt.logsumexp(lt.where(m, x, float("-inf")), -1),
               lt.log_softmax(x), x.max(-1), lt.softmax(lt.where(m, x, -1e9))]  # fmt: skip
    random = np.random.default_rng(0)
    a, b = random.standard_normal((4, 40), np.float32), random.standard_normal((40, 3), np.float32)
    keys = random.random((4, 40)) < 0.5
    a[1] = np.nan
    a[3, 5] = np.inf
    keys[2] = False
    given = {"x": a, "m": keys, "v": b}
    wanted = lt.evaluate(outputs, given, float64=True)
    for got, want in zip(compiled(outputs)(**given), wanted, strict=True):
        assert np.isfinite(got[0]).all()
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert np.isnan(wanted[0][1]).all() and np.isnan(wanted[1][2]).all()


def test_sizes_of_zero() -> None:
    n = lt.Dim("bad_zero", 0, 9)
    x = lt.input("x", (n, 4))
    program = compiled([lt.softmax(x), x.sum(0), x.sum(1), x @ x.mT])
    for rows in (0, 3):
        a = np.ones((rows, 4), np.float32)
        for got, want in zip(program(x=a), (a / 4, a.sum(0), a.sum(1), a @ a.T), strict=True):
            np.testing.assert_array_equal(got, want)


# ---- files -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(program: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "program"
    program.save(path)
    return path


def test_a_saved_program_is_loaded(saved: Path) -> None:
    np.testing.assert_allclose(lt.load(saved)(x=X), np.full((3, 2), 2.0), rtol=1e-6)


@pytest.mark.parametrize("kind", ["empty", "text", "cut", "changed", "other zip", "pickle"])
def test_files_that_are_no_program(saved: Path, tmp_path: Path, kind: str) -> None:
    path, data = tmp_path / "file", saved.read_bytes()
    made = {
        "empty": b"", "text": b"hello\n", "cut": data[: len(data) // 2], "pickle": b"\x80\x04N.",
        "changed": data[:3000] + bytes(64) + data[3064:], "other zip": b"",
    }  # fmt: skip
    path.write_bytes(made[kind])
    if kind == "other zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("word/document.xml", "<a/>")
    with pytest.raises(LoadError, match=str(path)):
        lt.load(path)


def test_a_program_for_instructions_that_this_cpu_lacks(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = features.detect()
    less = features.Cpu(cpu.arch, cpu.system, cpu.model, cpu.features[1:], cpu.caches)
    monkeypatch.setattr(features, "detect", lambda: less)
    with pytest.raises(LoadError, match=f"this one lacks {cpu.features[0]}; compile the program"):
        lt.load(saved)


def test_saving_without_permission_or_room(
    program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (errno.EACCES, errno.EROFS, errno.ENOSPC):

        def refused(*arguments: Any, number: int = number, **more: Any) -> Any:
            raise OSError(number, os.strerror(number))

        with monkeypatch.context() as patch:
            patch.setattr(cache.tempfile, "mkstemp", refused)
            with pytest.raises(OSError, match=os.strerror(number)):
                program.save(tmp_path / "program")
    assert not list(tmp_path.iterdir())


# ---- the cache -------------------------------------------------------------------------------


@pytest.fixture
def right(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A compilation that must be right, with at most the one warning of a lost cache."""
    calibration = get("cpu").calibrate()  # elsewhere it is measured again: seconds, no more
    monkeypatch.setattr(get("cpu"), "calibrate", lambda refresh=False: calibration)

    def run(place: Path | str) -> list[str]:
        monkeypatch.setenv("XDG_CACHE_HOME", str(place))
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            program = compiled(product() * 3.0)
        np.testing.assert_allclose(program(x=X), np.full((3, 2), 6.0), rtol=1e-6)
        return [str(w.message) for w in said]

    yield run


def test_a_cache_below_a_file(right: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    (said,) = right(tmp_path / "file")
    assert "the cache of measurements cannot be used" in said


def test_a_cache_without_permission(
    right: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a user who owns nothing there: root may write everywhere, so it is refused here."""
    place, mkdir = tmp_path / "cache", Path.mkdir

    def refused(self: Path, *arguments: Any, **more: Any) -> None:
        if place in (self, *self.parents):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))
        mkdir(self, *arguments, **more)

    monkeypatch.setattr(Path, "mkdir", refused)
    (said,) = right(place)
    assert "Permission denied" in said and not place.exists()


def test_no_room_in_the_cache(right: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(cache, "write_atomic", full)
    assert not right(tmp_path)


def mount(place: Path, options: str) -> bool:
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("options", ["size=16k", "ro"])
def test_a_cache_on_a_full_or_read_only_disk(right: Any, tmp_path: Path, options: str) -> None:
    place = tmp_path / "disk"
    if not mount(place, options):
        pytest.skip("this user may not mount a disk")
    try:
        assert len(right(place)) <= 1
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


# ---- extras ----------------------------------------------------------------------------------

WITHOUT = """
import importlib.machinery, sys
find = importlib.machinery.PathFinder.find_spec
def without(name, path=None, target=None):
    return None if name.partition(".")[0] == sys.argv[1] else find(name, path, target)
importlib.machinery.PathFinder.find_spec = without
import lambent as lt
try:
    lt.compile(lt.input("x", (3,)) * 2.0, budget=0.01)
except Exception as error:
    print(type(error).__name__, error)
from lambent.cli.app import start
sys.exit(start(["explain", "softmax", "--budget", "0.1"]))
"""


@pytest.mark.parametrize("package", ["egglog", "ziglang"])
def test_a_missing_extra(package: str, tmp_path: Path) -> None:
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, package], capture_output=True, text=True, check=False,
        env=os.environ | environment, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2 and "Traceback" not in done.stderr
    for said in (done.stdout, done.stderr):
        assert package in said and "pip install 'lambent[cpu]'" in said
