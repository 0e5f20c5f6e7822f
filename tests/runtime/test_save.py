"""Saved programs: loadable without the compiler; a clear error for every file that is not one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from plans import backend, chain, random, weight, with_load

from lambent.graph.dim import Dim
from lambent.graph.dtypes import bfloat16, bool_, float32
from lambent.kernel.kernel import Buffer
from lambent.runtime.build import build
from lambent.runtime.plan import Plan
from lambent.runtime.save import VERSION, LoadError, load

S = Dim("save_s", 1, 64)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "p.lambent"
    program = build(with_load(S), backend)
    told = json.dumps({"kernels": [{"name": "k"}]})
    program.manifest = replace(program.manifest, explain=told)
    program.save(path)
    return path


def rewrite(saved: Path, to: Path, **changes: Any) -> Path:
    """The same file with parts of its manifest changed."""
    with zipfile.ZipFile(saved) as old, zipfile.ZipFile(to, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name == "manifest.json":
                header = json.loads(data)
                for key, value in changes.items():
                    (header if key in header else header["programs"][-1])[key] = value
                data = json.dumps(header).encode()
            new.writestr(name, data)
    return to


def test_a_loaded_program_is_the_same(saved: Path) -> None:
    program = load(saved)
    x, v = random(7, 100), 2 * weight() * weight()
    np.testing.assert_allclose(program(x=x), 2 * x * v, rtol=1e-6)
    assert program.explain()["kernels"] == [{"name": "k"}]
    with pytest.raises(ValueError, match="save_s = 65"):
        program(x=random(65, 100))
    again = saved.with_name("again")
    program.save(again)
    assert (load(str(again))(x=x) == program(x=x)).all()


def test_it_loads_where_nothing_of_the_compiler_is_installed(saved: Path) -> None:
    script = f"""
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("egglog", "scipy", "ziglang", "torch"):
            raise ImportError(name + " is blocked")
sys.meta_path.insert(0, Blocked())
import numpy as np
from lambent.runtime.save import load
x = np.ones((5, 100), np.float32)
w = np.linspace(0.5, 1.5, 100, dtype=np.float32)
y = load({str(saved)!r})(x=x)
assert np.allclose(y, 4 * w * w), y
"""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "XDG_CACHE_HOME": "/dev/null/none",
    }
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60, env=environment)


def test_every_dtype_of_weights_is_kept(tmp_path: Path) -> None:
    arrays = {
        "a": np.arange(6, dtype=ml_dtypes.bfloat16).reshape(2, 3),
        "b": np.array([True, False]),
        "c": np.zeros((0, 4), np.float32),
        "d": np.array(2.5, np.float32),
    }
    dtypes = {"a": bfloat16, "b": bool_, "c": float32, "d": float32}
    buffers = {n: Buffer(n, dtypes[n], x.shape, weight=True) for n, x in arrays.items()}
    program = build(Plan((), (), buffers, (), tuple(arrays), arrays), backend)
    program.save(tmp_path / "w")
    for name, got in zip(arrays, load(tmp_path / "w")(), strict=True):
        assert got.dtype == arrays[name].dtype and got.shape == arrays[name].shape
        assert (got == arrays[name]).all()


def test_a_file_holds_no_pickle(saved: Path) -> None:
    with zipfile.ZipFile(saved) as archive:
        assert sorted(archive.namelist()) == ["library/0", "manifest.json", "weights/0.npy"]
        assert json.loads(archive.read("manifest.json"))["version"] == VERSION


@pytest.mark.parametrize("keep", [0, 1, 10, 100, 1000, -1, -30, -500])
def test_truncated_files(saved: Path, tmp_path: Path, keep: int) -> None:
    path = tmp_path / "cut"
    path.write_bytes(saved.read_bytes()[:keep])
    with pytest.raises(LoadError, match="cut: "):
        load(path)


def test_flipped_bytes_never_crash_and_never_pass_unnoticed(saved: Path, tmp_path: Path) -> None:
    data, path = saved.read_bytes(), tmp_path / "flipped"
    x, want = np.ones((3, 100), np.float32), load(saved)(x=np.ones((3, 100), np.float32))
    refused = 0
    for at in range(5, len(data), max(1, len(data) // 150)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
        try:
            program = load(path)
        except LoadError:
            refused += 1
        else:  # fields that matter to nobody, such as a time
            assert (program(x=x) == want).all()
    assert refused > 100


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 99}, f"format 99, this lambent reads {VERSION}"),
        ({"format": "other"}, "not a lambent program"),
        ({"device": "abacus"}, "for device 'abacus'; this lambent has cpu"),
        ({"requires": ["Linux-mips"]}, "another CPU; this one lacks Linux-mips"),
        ({"requires": ["avx9000"]}, "lacks avx9000; compile the program again"),
        ({"inputs": 7}, "missing or wrong"),
        ({"symbols": [{"atom": "s"}]}, "missing or wrong"),
        ({"weights": [{"name": "v", "dtype": "float32", "shape": [100]}] * 2}, "missing or wrong"),
        ({"outputs": [{"name": "y"}]}, "missing or wrong"),
        ({"weights": [{"name": "w", "dtype": "float3", "shape": [1]}] * 2}, "missing or wrong"),
        ({"weights": [{"name": "w", "dtype": "float32", "shape": [99]}] * 2}, "its shape"),
        ({"weights": [{"name": "w", "dtype": "float32", "shape": [101]}] * 2}, "its shape"),
        ({"weights": [{"name": "w", "dtype": "float32", "shape": [-1]}] * 2}, "wrong"),
    ],
)
def test_wrong_manifests(
    saved: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(LoadError, match=message):
        load(rewrite(saved, tmp_path / "changed", **changes))


def test_foreign_files(tmp_path: Path) -> None:
    path = tmp_path / "foreign"
    for data in (b"", b"#!/bin/sh\n", b"PK\x03\x04" + b"\0" * 100, b"\x80\x04N."):
        path.write_bytes(data)
        with pytest.raises(LoadError, match="not a lambent program"):
            load(path)
    for members in ({}, {"a.txt": "hi"}, {"manifest.json": "[1]"}, {"manifest.json": "{"}):
        with zipfile.ZipFile(path, "w") as archive:
            for name, text in members.items():
                archive.writestr(name, text)
        with pytest.raises(LoadError):
            load(path)
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "nothing")
    with pytest.raises(OSError):
        load(tmp_path)


def test_a_library_that_is_none(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad"
    with zipfile.ZipFile(saved) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            new.writestr(name, b"no library" if name == "library/0" else old.read(name))
    with pytest.raises(LoadError, match="cannot be loaded"):
        load(path)


def test_a_failed_save_keeps_the_old_file(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "p"
    path.write_bytes(saved.read_bytes())

    def broken(*arguments: Any, **more: Any) -> None:
        raise OSError("No space left on device")

    program = build(chain(S, 8, 1), backend)
    monkeypatch.setattr(zipfile.ZipFile, "writestr", broken)
    with pytest.raises(OSError, match="No space"):
        program.save(path)
    assert [p.name for p in tmp_path.iterdir()] == ["p"]
    assert path.read_bytes() == saved.read_bytes()


def test_saving_where_nothing_can_be_written(tmp_path: Path) -> None:
    program = build(chain(S, 8, 1), backend)
    with pytest.raises(FileNotFoundError):
        program.save(tmp_path / "no" / "such" / "folder")
