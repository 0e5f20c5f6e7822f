"""The command line over the whole path: real searches with tiny budgets."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lambent import compiler
from lambent.cli import bench, examples

SEEN = ("saturate", "enumerate", "cover", "lower", "compile", "verify", "measure", "rest")


@pytest.mark.parametrize("name", ["attention", "attention-causal"])
def test_attention_is_one_pass(call: Any, name: str) -> None:
    for budget in ("8", "30", "60"):  # each goes on where the last ended; a busy machine needs more
        code, out, err = call("explain", name, "--json", "--budget", budget)
        assert code == 0, err
        found = json.loads(out)
        whole = [s for s in found["stored"] if prod(s["shape"]) >= 8 * 1024 * 1024]
        if not whole:
            break
    assert not whole
    assert found["saturated"] and found["rules"]["online"] >= 1
    assert found["seconds"]["saturate"] < 1.0
    assert set(found["seconds"]) == set(SEEN)
    assert found["programs"] > 10 and found["candidates"] >= found["measured"] > 0
    for kernel in found["kernels"]:
        assert kernel["ms"] > 0 and kernel["bound_ms"] > 0 and kernel["count"] >= 1
        assert kernel["tile_program"] and kernel["source"]


def test_bench_and_a_saved_program(call: Any, monkeypatch: Any, tmp_path: Path) -> None:
    work = examples.softmax(16, 64)
    monkeypatch.setattr(bench, "SECONDS", 0.0)
    monkeypatch.setattr(examples, "EXAMPLES", {"softmax": lambda: work})
    command = ("bench", "softmax", "--against", "numpy", "--budget", "1", "--json")
    code, out, err = call(*command)
    assert code == 0, err
    [row] = json.loads(out)
    assert row["error"] < 1e-6 and row["ours_ms"] > 0
    assert row["ours_peak_bytes"] >= 2 * 16 * 64 * 4
    program = compiler.compile(work.graph(), budget=1.0, progress=False)
    saved = tmp_path / "softmax.lambent"
    program.save(saved)
    code, out, err = call("explain", str(saved), "--json")
    assert code == 0, err
    told = json.loads(out)
    assert told["name"] == str(saved) and told["kernels"] and told["e_nodes"] > 0
    entries = json.loads(call("cache", "--json")[1])["entries"]
    assert any(entry["rows"] for entry in entries)
    kept = tmp_path / "kept.zip"
    assert call("cache", "export", str(kept))[0] == 0 == call("cache", "clear")[0]
    assert json.loads(call("cache", "import", str(kept), "--json")[1])["imported"] > 0
    code, out, err = call(*command)
    assert code == 0 and json.loads(out)[0]["error"] < 1e-6, err
    assert np.asarray(program(**work.inputs)).shape == (16, 64)


def test_interrupting_a_search(tmp_path: Path) -> None:
    code = (
        "from lambent.cli import app, examples, progress; import sys; progress.EVERY = 0.1\n"
        "examples.EXAMPLES['matmul'] = lambda: examples.matmul(160)\n"
        "sys.exit(app.start(['explain', 'matmul', '--budget', '100', '--json']))"
    )
    source = str(Path(compiler.__file__).parent.parent)
    env = os.environ | {"PYTHONPATH": source, "XDG_CACHE_HOME": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if "best" in line:
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode in (0, 130), (said, err)
    assert "Traceback" not in err
    if process.returncode == 0:
        assert json.loads(out)["kernels"]
    else:
        assert not out
