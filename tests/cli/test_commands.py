"""The commands: their JSON forms, to the letter, and what they say about mistakes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import lambent
from lambent import compiler
from lambent.backends.base import Outcome
from lambent.frontends import kept
from lambent.runtime import save
from lambent.search.database import FILE, Database

EXPLAIN_KEYS = [
    "name", "device", "e_classes", "e_nodes", "rounds", "saturated", "rules", "programs",
    "candidates", "measured", "gap", "noise", "additivity_error", "stored", "kernels",
    "arena_bytes", "seconds",
    # what was added later stands behind
    "ms", "certificate_void", "segments", "instances", "progress", "roofline",
]  # fmt: skip
BENCH_KEYS = [
    "work", "shape", "dtype", "device", "threads", "ours_ms", "peers", "ratio_best", "error",
    "ours_peak_bytes", "peers_peak_bytes",
]  # fmt: skip


def test_explain_json(call: Any, small: Any, stand_in: Any) -> None:
    code, out, _ = call("explain", "attention", "--json")
    found = json.loads(out)
    assert code == 0 and list(found) == EXPLAIN_KEYS
    assert {k: v for k, v in found.items() if v is not None} == (
        {"name": "attention"} | stand_in.told
    )
    assert found["programs"] == 10**31


def test_explain_human(call: Any, small: Any) -> None:
    code, out, err = call("explain", "attention")
    assert code == 0
    for text in ("201 e-nodes", "about 10^31 programs", "online", "8×64", "2.0 KiB", "75.0%"):
        assert text in out, text
    assert "unused" not in out
    assert "tile program" not in out and "--source" in err
    _, out, _ = call("explain", "attention", "--source")
    assert "k0: tile program" in out and "k0: source" in out


def test_explain_a_saved_program(
    call: Any, small: Any, tmp_path: Path, monkeypatch: Any, stand_in: Any
) -> None:
    saved = tmp_path / "p.lambent"
    saved.write_text("x")
    monkeypatch.setattr(save, "load", lambda path: stand_in(small["gelu"]))
    code, out, _ = call("explain", str(saved), "--json")
    assert code == 0 and list(json.loads(out)) == EXPLAIN_KEYS


def test_explain_values_that_are_not_known(
    call: Any, small: Any, monkeypatch: Any, stand_in: Any
) -> None:
    monkeypatch.setattr(stand_in, "explain", lambda self: {"gap": float("nan")})
    code, out, _ = call("explain", "gelu", "--json")
    found = json.loads(out)
    assert code == 0 and list(found) == EXPLAIN_KEYS
    assert found["gap"] is None and found["kernels"] is None
    code, out, _ = call("explain", "gelu")
    assert code == 0 and "none" in out


def test_bench_json(call: Any, small: Any) -> None:
    code, out, err = call("bench", "softmax", "attention", "--against", "torch,numpy", "--json")
    rows = json.loads(out)
    assert code == 0, err
    assert [row["work"] for row in rows] == ["softmax", "attention"]
    for row in rows:
        assert list(row)[: len(BENCH_KEYS)] == BENCH_KEYS  # what was added later stands behind
        assert row["error"] < 1e-5 and row["dtype"] == "float32" and row["device"] == "cpu"
        assert row["ratio_best"] == pytest.approx(min(row["peers"].values()) / row["ours_ms"])
        assert set(row["peers"]) == set(row["peers_peak_bytes"])
    assert list(rows[1]["peers"]) == ["torch", "torch.sdpa", "numpy"]
    assert rows[1]["shape"] == [2, 32, 16] and rows[1]["ours_peak_bytes"] == 4096


def test_bench_human_and_no_peers(call: Any, small: Any) -> None:
    code, out, _ = call("bench", "gelu", "--against", "numpy")
    assert code == 0 and "gelu" in out and "numpy" in out
    code, out, _ = call("bench", "gelu", "--against", "", "--json")
    assert code == 0 and json.loads(out)[0]["ratio_best"] is None


def test_a_wrong_result_is_code_1(call: Any, small: Any, monkeypatch: Any, stand_in: Any) -> None:
    def compile(graph: Any, **how: Any) -> Any:
        return stand_in(graph, off=0.1)

    monkeypatch.setattr(compiler, "compile", compile)
    code, out, err = call("bench", "softmax", "--against", "numpy", "--json")
    assert code == 1 and json.loads(out)[0]["error"] > 1e-4 and "wrong result: softmax" in err


def one_line(err: str) -> str:
    lines = err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("lambent: "), err
    return lines[0]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["explain", "nope"], "attention-causal"),
        (["bench", "nope"], "layernorm"),
        (["bench", "softmax", "--against", "nope"], "onnxruntime"),
        (["bench", "softmax", "--device", "nope"], "cpu"),
        (["bench", "softmax", "--budget", "0"], "positive"),
        (["bench", "softmax", "--budget", "x"], "number"),
        (["bench", "softmax", "--threads", "-1"], "greater"),
        (["bench"], "--suite"),
        (["bench", "--suite", "nope"], "cpu"),
        (["bench", "nope", "--suite", "cpu"], "nope"),
        (["run", "nope"], "minilm"),
        (["run", "minilm", "--text", " "], "empty"),
        (["nope"], "nope"),
        (["cache", "nope"], "export"),
        (["cache", "export"], "FILE"),
        (["cache", "ls", "x"], "FILE"),
        (["cache", "import", "/nonexistent/x.zip"], "no file"),
        (["cache", "export", "/proc/none/x.zip"], "/proc/none"),
    ],
)
def test_mistakes_are_one_line(call: Any, small: Any, arguments: list[str], told: str) -> None:
    code, out, err = call(*arguments)
    assert code == 2 and not out
    assert told.lower() in one_line(err).lower()


def test_a_corrupt_program_is_one_line(call: Any, tmp_path: Path) -> None:
    bad = tmp_path / "bad.lambent"
    bad.write_bytes(b"PK\x03\x04 nothing")
    code, out, err = call("explain", str(bad))
    assert code == 2 and not out
    assert str(bad) in one_line(err)


@pytest.mark.parametrize("module", ["torch", "onnxruntime", "onnx"])
def test_a_missing_library_is_one_line(
    call: Any, small: Any, monkeypatch: Any, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    name = "torch" if module == "torch" else "onnxruntime"
    code, out, err = call("bench", "gelu", "--against", name)
    assert code == 2 and not out
    assert f"pip install {module}" in one_line(err)


def test_interrupted_is_130(call: Any, small: Any, monkeypatch: Any) -> None:
    def compile(graph: Any, **how: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(compiler, "compile", compile)
    code, out, err = call("explain", "gelu", "--json")
    assert code == 130 and not out and one_line(err)


def test_devices(call: Any) -> None:
    code, out, _ = call("devices", "--json")
    cpu = json.loads(out)[0]
    assert code == 0 and cpu["name"] == "cpu" and cpu["available"] and cpu["calibration"] is None
    from lambent.backends import cache

    figures = {
        "device": cpu["key"], "threads": 2, "flops": {"float32": 2e11},
        "levels": [[32768, 3e11], [2**40, 3e10]], "launch": 2e-6, "one": {},
    }  # fmt: skip
    cache.write(f"calibration/{cache.digest(cpu['key'])}.json", json.dumps(figures).encode())
    assert json.loads(call("devices", "--json")[1])[0]["calibration"] == figures
    _, out, _ = call("devices")
    assert ("200.0 GFLOP/s" in out and "avx2" in out) or "asimd" in out


def fill(root: Path) -> None:
    (root / "calibration").mkdir(parents=True)
    (root / "calibration" / "a.json").write_text("{}")
    (root / "programs").mkdir()
    (root / "programs" / "big.lambent").write_bytes(bytes(1000))
    both = {"a": Outcome("ok", seconds=1.0), "b": Outcome("ok", seconds=2.0)}
    Database(root, "cpu", "v").put("k", "", both)


def test_cache(call: Any, tmp_path: Path) -> None:
    root = tmp_path / "cache" / "lambent"
    assert call("cache", "path")[1].strip() == str(root)
    assert json.loads(call("cache", "--json")[1]) == {"path": str(root), "entries": []}
    fill(root)
    entries = {e["name"]: e for e in json.loads(call("cache", "ls", "--json")[1])["entries"]}
    assert entries["search.log"]["rows"] == 2 and entries["programs"]["bytes"] == 1000
    assert "search.log" in call("cache")[1]
    kept = tmp_path / "kept.zip"
    assert json.loads(call("cache", "export", str(kept), "--json")[1])["exported"] == 2
    assert call("cache", "clear")[0] == 0
    assert not root.exists()
    assert json.loads(call("cache", "import", str(kept), "--json")[1])["imported"] == 3
    ours = {"a": Outcome("wrong"), "c": Outcome("ok", seconds=9.0)}
    Database(root, "cpu", "v").put("k", "", ours)
    assert json.loads(call("cache", "import", str(kept), "--json")[1])["imported"] == 0
    kept_ones = Database(root, "cpu", "v").get("k", "")
    assert {s: o.status for s, o in kept_ones.items()} == {"a": "wrong", "b": "ok", "c": "ok"}


def test_an_export_while_others_write(call: Any, tmp_path: Path) -> None:
    root, kept = tmp_path / "cache" / "lambent", tmp_path / "kept.zip"
    db = Database(root, "cpu", "v")
    for i in range(30):
        db.put("k", "", {str(i): Outcome("ok", seconds=1.0)})
        if i == 20:
            assert call("cache", "export", str(kept))[0] == 0
    db.put("k", "", {"last": Outcome("ok", seconds=1.0)})  # it goes on as before
    assert json.loads(call("cache", "import", str(kept), "--json")[1])["imported"] == 0
    assert len(db.get("k", "")) == 31
    call("cache", "clear")
    assert json.loads(call("cache", "import", str(kept), "--json")[1])["imported"] == 21


def test_a_damaged_log_has_no_results(call: Any, tmp_path: Path) -> None:
    root = tmp_path / "cache" / "lambent"
    root.mkdir(parents=True)
    (root / FILE).write_bytes(b"this is no log\n" * 500)
    assert json.loads(call("cache", "--json")[1])["entries"][0]["rows"] == 0
    assert call("cache", "export", str(tmp_path / "kept.zip"))[0] == 0
    code, out, err = call("cache", "import", str(tmp_path / "kept.zip"))
    assert code == 2 and not out and "not an export" in one_line(err)


def test_programs_are_kept_under_all_that_made_them(call: Any, monkeypatch: Any) -> None:
    from lambent.search import database

    def key(*what: object) -> str:
        return kept.program_key("x", "cpu", what)

    one = key(1, "a")
    assert key(1, "a") == one and key(2, "a") != one
    monkeypatch.setattr(database, "code_version", lambda *folders: "another" + str(folders))
    assert key(1, "a") != one
    monkeypatch.setenv("LAMBENT_THREADS", "1")
    by_threads = key(1, "a")
    monkeypatch.setenv("LAMBENT_THREADS", "2")
    assert key(1, "a") != by_threads


def test_a_foreign_import_is_one_line(call: Any, tmp_path: Path) -> None:
    import zipfile

    text, escape, other = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    whole, damaged, old = tmp_path / "d", tmp_path / "e", tmp_path / "f"
    text.write_text("nothing")
    with zipfile.ZipFile(whole, "w") as archive:
        archive.writestr(str(tmp_path / "evil.json"), "{}")
    with zipfile.ZipFile(damaged, "w") as archive:
        archive.writestr(FILE, b"this is no log\n" * 500)
    with zipfile.ZipFile(old, "w") as archive:
        archive.writestr("search.db", b"of another version of lambent")
    with zipfile.ZipFile(escape, "w") as archive:
        archive.writestr("../evil.json", "{}")
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("x.py", "")
    for file in (text, escape, other, whole, damaged, old):
        code, out, err = call("cache", "import", str(file))
        assert code == 2 and not out and "not an export" in one_line(err)
    assert not (tmp_path / "cache" / "evil.json").exists()
    assert not (tmp_path / "evil.json").exists()


def python(code: str, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    source = str(Path(lambent.__file__).parent.parent)
    env = os.environ | {"PYTHONPATH": source} | more
    return subprocess.run(
        [sys.executable, *(["-c", code] if code else ["-m", "lambent"]), *arguments],
        capture_output=True, text=True, env=env, timeout=60, check=False,
    )  # fmt: skip


def test_as_a_process() -> None:
    done = python("", "explain", "nope")
    assert done.returncode == 2 and not done.stdout and one_line(done.stderr)
    done = python("", "--help")
    assert done.returncode == 0 and "explain" in done.stdout


def test_starting_imports_no_heavy_library() -> None:
    heavy = "torch onnxruntime onnx egglog scipy tokenizers"
    code = (
        "import sys; from lambent.cli.app import start; start(['cache', 'path']); "
        f"print([m for m in {heavy.split()} if m in sys.modules])"
    )
    assert python(code).stdout.splitlines()[-1] == "[]"
