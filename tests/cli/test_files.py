"""`run FILE`, `compile FILE -o` and `export --onnx`, with a small model and a real search."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import INT, info, model, node

import lambent.cli.files as files

KEYS = ["file", "device", "seconds_to_first", "inputs", "outputs", "ours_ms", "peers",
        "ratio_best", "error"]  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """relu(x) · scale with rows of a symbolic number, and a constant that is an input."""
    m = model(
        [node("Relu", "x", "r"), node("Cast", "k", "f", to=1), node("Mul", "r,f", "y")],
        [info("x", ["rows", 4]), info("k", [], INT)], [info("y", ["rows", 4])],
    )  # fmt: skip
    path = tmp_path / "small.onnx"
    path.write_bytes(m.SerializeToString())
    return path


def test_run_against_onnxruntime(call: Any, file: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(files, "SECONDS", 0.0)
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    np.save(tmp_path / "x.npy", x)
    code, out, err = call(
        "run", str(file), "--value", "k=3", "--dim", "rows=1..16", "--input",
        f"x={tmp_path / 'x.npy'}", "--budget", "0.5", "--against", "onnxruntime", "--json",
    )  # fmt: skip
    found = json.loads(out)
    assert code == 0, err
    assert list(found) == KEYS and found["error"] < 1e-6
    (y,) = found["outputs"]
    assert (y["name"], y["dtype"], y["shape"]) == ("y", "float32", [3, 4])
    assert y["greatest"] == pytest.approx(3.0) and found["ratio_best"] > 0


def test_compile_and_run(call: Any, file: Path, tmp_path: Path) -> None:
    saved = tmp_path / "small.lam"
    code, out, err = call(
        "compile", str(file), "-o", str(saved), "--value", "k=2", "--dim", "rows=6", "--budget",
        "0.5", "--json",
    )  # fmt: skip
    assert code == 0, err
    assert json.loads(out)["inputs"] == [{"name": "x", "dtype": "float32", "shape": [6, 4]}]
    code, out, err = call("run", str(saved), "--seed", "4")
    assert code == 0 and "6×4" in out and "first result after" in out, err
    code, again, _ = call("run", str(saved), "--seed", "4", "--json")
    assert code == 0 and json.loads(again)["outputs"][0]["name"] == "y"


def test_export(call: Any, file: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.onnx"
    code, out, err = call("export", "softmax", "--onnx", str(target), "--json")
    assert code == 0 and json.loads(out)["bytes"] == target.stat().st_size, err
    code, out, err = call("export", str(file), "--onnx", str(target), "--value", "k=1")
    assert code == 0 and "opset 18" in out, err


@pytest.mark.parametrize(
    "arguments,message",
    [
        (["run", "missing.onnx"], "no file missing.onnx"),
        (["run", "FILE", "--value", "k=x"], "--value k=x: give numbers"),
        (["run", "FILE", "--dim", "rows"], "give it as name=…"),
        (["run", "FILE", "--dim", "rows=a..b"], "give a number, or a range"),
        (["run", "FILE", "--value", "q=1"], "the model has no input 'q'"),
        (["run", "FILE", "--against", "numpy"], "unknown peer 'numpy'"),
        (["run", "FILE.lam"], "no file"),
        (["export", "missing.onnx", "--onnx", "x.onnx"], "no file missing.onnx"),
        (["export", "nothing", "--onnx", "x.onnx"], "unknown example 'nothing'"),
        (["compile", "FILE", "-o", "x.lam", "--shape", "x=2,3", "--value", "k=1", "--budget", "0"],
         "positive number of seconds"),
    ],
)  # fmt: skip
def test_mistakes(call: Any, file: Path, arguments: list[str], message: str) -> None:
    given = [a.replace("FILE", str(file)) for a in arguments]
    code, out, err = call(*given)
    assert code == 2 and message in err and out == "" and err.count("\n") == 1
