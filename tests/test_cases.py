"""The cases of faults that users of such compilers met, each over the whole path.

Case 9 (decoding) is timed by the benchmarks; cases 5 and 10 have more tests beside what they test.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lambent as lt
from lambent.backends.base import get
from lambent.backends.cpu import build, features
from lambent.backends.cpu.backend import CpuBackend, RenderC
from lambent.search.database import FILE, read, results

Array = np.ndarray[Any, Any]
random = np.random.default_rng(0)


def compiled(what: Any, budget: float = 0.01, **more: Any) -> Any:
    return lt.compile(what, budget=budget, progress=False, **more)


def floats(*shape: int) -> Array:
    return random.standard_normal(shape, np.float32)


@pytest.fixture
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache, but for the calibration of the device."""
    get("cpu").calibrate()
    known = Path(os.environ["XDG_CACHE_HOME"]) / "lambent"
    mine = tmp_path / "cache"
    shutil.copytree(known, mine / "lambent", ignore=shutil.ignore_patterns(FILE, "zig"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(mine))
    return mine / "lambent"


def test_case_1_layer_norm_from_sums_of_products_is_no_matmul() -> None:
    x = lt.input("x", (1, 4, 64))
    centred = x - x.sum(-1, keepdims=True) / 64
    norm = centred * lt.rsqrt((centred * centred).sum(-1, keepdims=True) / 64 + 1e-5)
    moments = x.sum(-1, keepdims=True) / 64, (x * x).sum(-1, keepdims=True) / 64
    other = (x - moments[0]) * lt.rsqrt(moments[1] - moments[0] * moments[0] + 1e-5)
    a = floats(1, 4, 64)
    b = a.astype(np.float64)
    want = (b - b.mean(-1, keepdims=True)) / np.sqrt(b.var(-1, keepdims=True) + 1e-5)
    for got in compiled([norm, other])(x=a):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_case_2_a_batched_product_keeps_its_batch() -> None:
    program = compiled(lt.input("x", (2, 3, 4)) @ lt.input("y", (2, 4, 5)))
    x, y = floats(2, 3, 4), floats(2, 4, 5)
    got = program(x=x, y=y)
    assert got.shape == (2, 3, 5) and got.size == 30
    np.testing.assert_allclose(got, x @ y, rtol=1e-5, atol=1e-5)


def test_case_3_a_gather_along_an_axis_is_no_embedding() -> None:
    x, table = lt.input("x", (5, 7)), lt.input("table", (11, 6))
    i, j, ids = (
        lt.input(n, s, "int64") for n, s in (("i", (5, 3)), ("j", (3, 7)), ("ids", (2, 3)))
    )
    program = compiled(
        [lt.take_along_axis(x, i, 1), lt.take_along_axis(x, j, 0), lt.embedding(ids, table)]
    )
    a, t = floats(5, 7), floats(11, 6)
    along1, along0 = random.integers(0, 7, (5, 3)), random.integers(0, 5, (3, 7))
    rows = random.integers(0, 11, (2, 3))
    got = program(x=a, table=t, i=along1, j=along0, ids=rows)
    np.testing.assert_array_equal(got[0], np.take_along_axis(a, along1, 1))
    np.testing.assert_array_equal(got[1], np.take_along_axis(a, along0, 0))
    np.testing.assert_array_equal(got[2], t[rows])


def test_case_4_low_precision_products_are_summed_in_float32() -> None:
    """The error stays that of one rounding of the result, however long the sum."""
    for k in (64, 8192):
        x, y = lt.input("x", (4, k), "bfloat16"), lt.input("y", (k, 4), "bfloat16")
        a, b = (floats(*s).astype(lt.bfloat16.numpy) for s in ((4, k), (k, 4)))
        want = a.astype(np.float64) @ b.astype(np.float64)
        got = compiled(x @ y)(x=a, y=b).astype(np.float64)
        assert np.abs(got - want).max() < 1e-2 * np.abs(want).max()
        np.testing.assert_allclose(got, want, rtol=2.0**-8, atol=1e-5 * np.sqrt(k))


def test_case_5_division_has_floor_semantics() -> None:
    a, b = np.meshgrid(np.arange(-12, 13), [n for n in range(-5, 6) if n], indexing="ij")
    for dtype in ("int32", "float32"):
        x, y = lt.input("a", a.shape, dtype), lt.input("b", a.shape, dtype)
        given = {"a": a.astype(dtype), "b": b.astype(dtype)}
        pairs = [
            (x // y, a // b), (x % y, a % b), ((x * y + 3) // y, (a * b + 3) // b),
            ((x // y) // 3, (a // b) // 3), ((x % y) % -3, (a % b) % -3),
        ]  # fmt: skip
        for some in (pairs[:2], pairs[2:4], pairs[4:]) if dtype == "int32" else (pairs[:2],):
            found = compiled([output for output, _ in some])(**given)
            for got, (_, want) in zip(found, some, strict=True):
                np.testing.assert_array_equal(got, want)


SAME = """
import lambent as lt
x, w, v = lt.input("x", (24, 32)), lt.input("w", (32, 48)), lt.input("v", (48, 16))
program = lt.compile(lt.softmax(lt.relu(x @ w) @ v), budget=3.0, progress=False, seed=7)
for k in program.explain()["kernels"]:
    print(k["tile_program"], k["source"])
"""


def environment(**more: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | more


def test_case_6_equal_runs_choose_equal_programs(own_cache: Path, tmp_path: Path) -> None:
    """Two processes that start from equal caches, with another order of sets and dicts."""

    def run(seed: str, cache: Path) -> str:
        env = environment(PYTHONHASHSEED=seed, XDG_CACHE_HOME=str(cache))
        command = [sys.executable, "-c", SAME]
        return subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout

    first = run("0", own_cache.parent)
    for copy in ("one", "two"):
        shutil.copytree(own_cache.parent, tmp_path / copy)
    assert run("1", tmp_path / "one") == run("2", tmp_path / "two") == first != ""


def test_case_7_candidates_are_verified_on_valid_data(own_cache: Path) -> None:
    """No zeros, ones or negative numbers where an op has no value: nothing is rejected."""
    x, i, j = lt.input("x", (40, 30)), lt.input("i", (64,), "int32"), lt.input("j", (64,), "int32")
    outputs = [
        lt.log(x) / lt.sqrt(x), x**2.5, lt.erf(x) % x, lt.cast(x * 10.0, "int32") // 3,
        (i * 3 + 1) // j, (i % j) + i // j,
    ]  # fmt: skip
    program = compiled(outputs)
    assert not program.explain()["rejected"]
    a = random.uniform(0.1, 3.0, (40, 30)).astype(np.float32)
    given = {"x": a, "i": random.integers(-50, 50, 64).astype("i4")}
    given["j"] = random.choice([-3, -1, 2, 5], 64).astype("i4")
    wanted = lt.evaluate(outputs, given)
    for got, want in zip(program(**given), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_case_8_weights_outlive_runs() -> None:
    n = lt.Dim("case_8", 1, 64)
    w, b = floats(16, 8), floats(8)
    scale = lt.weight("b", b)
    program = compiled(lt.input("x", (n, 16)) @ lt.weight("w", w) * (scale * scale + 1.0))
    for rows in (5, 5, 64, 1):
        x = floats(rows, 16)
        np.testing.assert_allclose(program(x=x), x @ w * (b * b + 1), rtol=1e-4, atol=1e-4)


def test_case_10_symbolic_windows_build_and_compile() -> None:
    n = lt.Dim("case_10", 3, 4096)
    start = time.process_time()
    x = lt.input("x", (2, n))
    outputs = [lt.unfold(x, 1, 3, 2), lt.max_pool1d(x.reshape(1, 2, n), 3, 2)]
    assert time.process_time() - start < 1.0
    program = compiled(outputs)
    for size in (3, 4, 101):
        a = floats(2, size)
        windows = np.lib.stride_tricks.sliding_window_view(a, 3, 1)[:, ::2]
        got = program(x=a)
        np.testing.assert_array_equal(got[0], windows)
        np.testing.assert_array_equal(got[1][0], windows.max(-1))


def test_case_11_a_large_product_is_not_materialised() -> None:
    n = 1024
    x, w = lt.input("x", (n, n)), lt.input("w", (n, n))
    program = compiled((x.reshape(n, n, 1) * w.reshape(1, n, n)).sum(1))
    a, b = floats(n, n), floats(n, n)
    assert program.peak_bytes() <= 1.5 * (3 * a.nbytes)
    np.testing.assert_allclose(program(x=a, w=b), a @ b, rtol=1e-3, atol=1e-3)


def test_case_13_another_dtype_device_or_compiler_is_a_miss(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    compile, link = CpuBackend.compile, build._compile

    def counted(self: CpuBackend, programs: Any) -> Any:
        asked.append(len(programs))
        return compile(self, programs)

    def linked(*arguments: Any) -> bytes:
        asked.append("C")
        return link(*arguments)

    def again(dtype: str = "float32") -> int:
        asked.clear()
        x, w = lt.input("x", (8, 16), dtype), lt.input("w", (16, 4), dtype)
        a, b = (random.standard_normal(s).astype(dtype) for s in ((8, 16), (16, 4)))
        np.testing.assert_allclose(compiled(x @ w)(x=a, w=b), a @ b, rtol=1e-4, atol=1e-5)
        return len(asked)

    calibration = get("cpu").calibrate()
    monkeypatch.setattr(get("cpu"), "calibrate", lambda refresh=False: calibration)
    monkeypatch.setattr(CpuBackend, "compile", counted)
    monkeypatch.setattr(build, "_compile", linked)
    assert again() > 0
    assert again() == 0
    assert again("float64") > 0
    with monkeypatch.context() as patch:
        patch.setattr(build, "compiler_version", lambda: "0.0.1")
        assert again() > 0
    with monkeypatch.context() as patch:
        patch.setattr(features, "threads", lambda: 1)
        assert again() > 0
    cpu = features.detect()
    with monkeypatch.context() as patch:
        other = features.Cpu(cpu.arch, cpu.system, "another", cpu.features, cpu.caches)
        patch.setattr(features, "detect", lambda: other)
        patch.setattr(build, "detect", lambda: other)
        assert again() > 0
    assert again() == 0


LONG = """
import lambent as lt
q, k, v = (lt.input(n, (2, 96, 16)) for n in "qkv")
print("ready", flush=True)
program = lt.compile(lt.softmax(q @ k.mT) @ v, budget=60.0, progress=False, stop_gap=0.0)
print(len(program.explain()["kernels"]))
"""


def rows(folder: Path) -> dict[tuple[bytes, str], float | None]:
    """What is measured: seconds by kernel and schedule."""
    found = {key: results(lines) for key, lines in read(folder / FILE).items()}
    return {
        (key, how): value["seconds"]
        for key, several in found.items()
        for how, value in several.items()
        if how
    }


@pytest.mark.parametrize("with_signal", [signal.SIGINT, signal.SIGKILL])
def test_case_14_an_interrupted_search_keeps_its_measurements(
    own_cache: Path, with_signal: signal.Signals
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", LONG], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment(),
    )  # fmt: skip
    try:
        until = time.monotonic() + 60
        while len(rows(own_cache)) < 8 and process.poll() is None and time.monotonic() < until:
            time.sleep(0.1)
        process.send_signal(with_signal)
        printed, complaint = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    before = rows(own_cache)
    assert len(before) >= 8 and printed.startswith("ready")
    if with_signal == signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
    else:  # the best program so far, or a plain interrupt where there is none
        assert process.returncode == 0 or complaint.strip().endswith("KeyboardInterrupt")
    q, k, v = (lt.input(n, (2, 96, 16)) for n in "qkv")
    program = compiled(lt.softmax(q @ k.mT) @ v)
    after = rows(own_cache)
    assert {key: after[key] for key in before} == before
    assert program.explain()["schedules"] >= len(before)


def test_case_15_candidates_that_hang_or_crash_are_skipped(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first candidate of all loops for ever, the second one writes to address 8."""
    faults = ["for (volatile int i = 1; i; ) ;", "*(volatile int *)8 = 1;"]
    bad: dict[str, str] = {}
    render = RenderC.render

    def spoiled(self: RenderC, program: Any, name: str) -> str:
        text = render(self, program, name)
        key = text.replace(name, "kernel")
        if key not in bad:
            bad[key] = faults[len(bad)] if len(bad) < len(faults) else ""
        head, run, body = text.partition(f"static void {name}_run(")
        at = body.index("{") + 1
        return head + run + body[:at] + bad[key] + body[at:]

    measure = get("cpu").measure

    def impatient(*arguments: Any, limit: float = 10.0, **more: Any) -> Any:
        return measure(*arguments, limit=1.0, **more)

    monkeypatch.setattr(RenderC, "render", spoiled)
    monkeypatch.setattr(get("cpu"), "measure", impatient)
    program = compiled(lt.softmax(lt.input("x", (40, 50))), budget=2.0)
    told = program.explain()
    assert set(told["rejected"]) == {"timeout", "crash"}, told["rejected_because"]
    assert "SIGSEGV" in told["rejected_because"]["crash"]
    a = floats(40, 50)
    want = np.exp(a) / np.exp(a).sum(-1, keepdims=True)
    np.testing.assert_allclose(program(x=a), want, rtol=1e-4)
