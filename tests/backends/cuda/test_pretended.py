"""From a program to launches, on a pretended device: files, arenas, weights, guards, failures."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernels import fold, matmul
from pretended import Pretended

from lambent.backends.base import Assembly, BackendError, Place, Step
from lambent.backends.cuda import backend as cuda_backend
from lambent.backends.cuda import calibrate, driver, image, library
from lambent.backends.cuda.schedule import default_schedule
from lambent.backends.cuda.worker import Worker
from lambent.backends.measuring.measurer import Job
from lambent.backends.measuring.operands import draw, input_specs, spec
from lambent.backends.reference.tile import interpret
from lambent.backends.triton.compiler import Code
from lambent.backends.triton.render import render
from lambent.graph.dim import Dim, evaluate
from lambent.kernel.lower import lower
from lambent.kernel.tile import TileProgram

Array = np.ndarray[Any, Any]
s = Dim("pretended_s", 1, 64)
CODE = Code(b"code", "kernel", 128, 60000, 2)


class Meaning:
    """What a launch does: the tile program's meaning, on memory at addresses."""

    def __init__(self, program: TileProgram, symbols: Mapping[str, int] = {}) -> None:
        self.program, self.symbols = program, symbols
        kernel = program.kernel
        self.buffers = [*(o.buffer for o in kernel.outputs), *kernel.inputs]
        self.count = len(self.buffers)

    def __call__(self, addresses: list[int]) -> None:
        arrays = {}
        for b, address in zip(self.buffers, addresses, strict=True):
            shape = [int(evaluate(n, self.symbols)) for n in b.shape]
            raw = (ctypes.c_uint8 * (math.prod(shape) * b.dtype.itemsize)).from_address(address)
            arrays[b.name] = np.frombuffer(raw, b.dtype.numpy).reshape(shape)
        for name, found in interpret(self.program, arrays, self.symbols).items():
            arrays[name][...] = found


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pretended]:
    fake = Pretended()
    monkeypatch.setattr(driver, "api", lambda: fake)
    driver.device.cache_clear()
    yield fake
    driver.device.cache_clear()


def program(n: Any = 33) -> TileProgram:
    kernel = matmul(m=n)
    return lower(kernel, default_schedule(kernel))


def packed(p: TileProgram, names: tuple[str, ...], places: Mapping[str, Place], **more: Any) -> Any:
    return image.pack([CODE], [image.launch(0, render(p), Step(p, names), places)], **more)


def test_a_candidate_is_verified_and_timed(pretended: Pretended, tmp_path: Any) -> None:
    p = program(s)
    symbols = {"pretended_s": 19}
    pretended.run = Meaning(p, symbols)
    names = ("0", "1", "2")
    path = tmp_path / "image"
    path.write_bytes(packed(p, names, {n: Place("input", i) for i, n in enumerate(names)}))
    kernel = p.kernel
    specs = input_specs(kernel, symbols)
    outputs = tuple(spec(o.buffer, symbols) for o in kernel.outputs)
    job = Job(0, outputs, specs, (19,), "signed", 1)
    worker = Worker(0)
    found, complaint, ns = worker.check(str(path), job, [np.arange(19 * 50)])
    a, b = (draw(x, i) for i, x in enumerate(specs))
    np.testing.assert_allclose(found[0], (a @ b).reshape(-1), rtol=1e-5)
    assert (complaint, ns) == ("", 500_000)
    assert worker.time(str(path), job, 3, 1, 0) == 1_500_000
    tasks, threads, shared, _ = pretended.launched[0]
    assert (tasks, threads, shared) == (1, 128, 60000)

    def spoils(addresses: list[int]) -> None:
        ctypes.memset(addresses[1], 0, 4)

    spoils.count = 3  # type: ignore[attr-defined]
    pretended.run = spoils
    assert worker.check(str(path), job, [np.arange(1)])[1] == "writes to an input"

    def beyond(addresses: list[int]) -> None:
        ctypes.memset(addresses[0] - 1, 0, 1)

    beyond.count = 3  # type: ignore[attr-defined]
    pretended.run = beyond
    worker.close(str(path))
    assert worker.check(str(path), job, [np.arange(1)])[1] == "writes outside of an output"


def test_a_program_runs_from_and_to_the_host(pretended: Pretended) -> None:
    p = program(s)
    places = {"x": Place("input", 0), "w": Place("weight", 0), "y": Place("output", 0)}
    data = packed(p, ("y", "x", "w"), places, symbols=["pretended_s"], blocks=[])
    ran = library.Program(data, ["sm_90"])
    random = np.random.default_rng(1)
    weights = [random.standard_normal((45, 50), np.float32)]
    for n in (7, 64):
        pretended.run = Meaning(p, {"pretended_s": n})
        x = random.standard_normal((n, 45), np.float32)
        y = np.zeros((n, 50), np.float32)
        ran.run([x], [y], weights, [n], 0)
        np.testing.assert_allclose(y, x @ weights[0], rtol=1e-4, atol=1e-5)
    assert all(isinstance(held, driver.Staged) for held in ran._arrays.values())
    with pytest.raises(BackendError, match="compiled for sm_80, this GPU is sm_90"):
        library.Program(data, ["sm_80"])


def test_a_run_on_the_same_arrays_is_recorded(pretended: Pretended) -> None:
    p = program(33)
    places = {"x": Place("input", 0), "w": Place("input", 1), "y": Place("output", 0)}
    step = image.launch(0, render(p), Step(p, ("y", "x", "w")), places)
    one, two = (
        library.Program(image.pack([CODE], [step] * n, symbols=[], blocks=[]), ["sm_90"])
        for n in (1, 2)
    )
    pretended.run = Meaning(p)
    random = np.random.default_rng(2)
    x, w = (random.standard_normal(n, np.float32) for n in ((33, 45), (45, 50)))
    results = [np.zeros((33, 50), np.float32) for _ in range(2)]
    given, weights = [a.ctypes.data for a in (x, w)], list[Array]()

    def launches(y: Array, stream: int = 0, ran: library.Program = two) -> tuple[int, int]:
        """How many kernels, and recorded runs, one more run launches."""
        before = len(pretended.launched), len(pretended.replayed)
        y[...] = 0
        ran.enqueue(given, [y.ctypes.data], weights, [], 0, stream)
        np.testing.assert_allclose(y, x @ w, rtol=1e-4, atol=1e-5)
        return len(pretended.launched) - before[0], len(pretended.replayed) - before[1]

    assert [launches(y) for y in (results[0], results[0], results[1], results[0])] == [
        (2, 0), (0, 1), (0, 1), (0, 1)
    ]  # fmt: skip
    assert launches(results[1]) == (0, 1)
    assert pretended.replayed == [0, 1, 0, 2]  # the second for whatever has no graph of its own
    pretended.capturing.add(7)
    assert launches(results[0], stream=7) == (2, 0)  # it is part of the caller's own graph
    x += 1  # the graph reads what is there now
    assert launches(results[0]) == (0, 1)
    for i in range(library.GRAPHS):
        launches(np.zeros((33, 50), np.float32) if i else results[1])
    assert len(two._graphs) <= library.GRAPHS
    for _ in range(3):  # one launch is as short itself
        assert launches(results[0], ran=one) == (1, 0)


def test_of_a_run_on_other_arrays_or_sizes_only_what_differs_is_changed(
    pretended: Pretended,
) -> None:
    p = program(s)
    places = {"x": Place("input", 0), "w": Place("input", 1)}
    steps = [
        image.launch(0, render(p), Step(p, ("y", "x", "w")), places | {"y": Place("output", i)})
        for i in range(2)
    ]
    data = image.pack([CODE], steps, symbols=["pretended_s"], blocks=[])
    ran = library.Program(data, ["sm_90"])
    random = np.random.default_rng(3)
    w = random.standard_normal((45, 50), np.float32)
    weights, runs = list[Array](), list[tuple[int, int]]()
    out = [np.zeros((64, 50), np.float32) for _ in range(3)]
    held = random.standard_normal((64, 45), np.float32)
    for n, first, second in ((17, 0, 1), (17, 0, 2), (17, 1, 2), (40, 1, 2), (3, 0, 1)):
        pretended.run = Meaning(p, {"pretended_s": n})
        before = len(pretended.launched), len(pretended.changed)
        ran.enqueue(
            [held.ctypes.data, w.ctypes.data],
            [out[i].ctypes.data for i in (first, second)], weights, [n], 0,
        )  # fmt: skip
        for i in (first, second):
            np.testing.assert_allclose(out[i][:n], held[:n] @ w, rtol=1e-4, atol=1e-5)
        runs.append((len(pretended.launched) - before[0], len(pretended.changed) - before[1]))
    assert runs == [(2, 0), (0, 0), (0, 1), (0, 2), (0, 2)]


def test_intermediates_lie_in_the_arena(pretended: Pretended) -> None:
    p = program(45)
    places = {"x": Place("input", 0), "t": Place("arena", 1, 64), "y": Place("output", 0)}
    data = packed(p, ("t", "x", "x"), places, symbols=["s/8"], blocks=["64*s", 128])
    found = library.Program(data, [])
    starts = found._starts({"s/8": 2}, 5000)
    assert starts[1] - starts[0] == 64 * 16


def test_figures_of_an_earlier_version_are_made_anew(
    pretended: Pretended, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def found(launch: float) -> float:
        return calibrate.calibration(driver.device(), "key", lambda: launch).launch

    assert (found(1.0), found(2.0)) == (1.0, 1.0)
    (file,) = (tmp_path / "lambent" / "calibration").iterdir()
    file.write_text(
        json.dumps({k: v for k, v in json.loads(file.read_text()).items() if k != "held"})
    )
    assert (found(3.0), found(4.0)) == (3.0, 3.0)


def test_errors_name_the_call(pretended: Pretended) -> None:
    with pytest.raises(driver.CudaError, match="cuMemAlloc: OUT_OF_MEMORY"):
        driver.Memory(1 << 41)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_the_backend_compiles_and_assembles(
    pretended: Pretended, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_backend, "COMPILE_LIMIT", 120.0)  # of a busy machine
    backend = cuda_backend.CudaBackend()
    try:
        assert backend.device_key().startswith("cuda pretended sm_90 driver=")
        kernel = fold("causal")
        good = lower(kernel, default_schedule(kernel))
        batch = backend.compile([good, program()])
        assert batch.path is not None and not batch.failed
        opened = image.Opened(batch.path.read_bytes())
        assert [row.tasks for row in opened.launches][:2] == [2, 1]
        assert {*batch.plain.values()} == {*range(2, len(opened.launches))}  # their witnesses
        names = ("y", "x", "x2")
        places = {"y": Place("output", 0), "x": Place("input", 0), "x2": Place("input", 1)}
        step = Step(program(), names)
        made = backend.assemble(Assembly((step, step), places, (), ()))
        assert len(image.Opened(made.image).header["codes"]) == 1  # equal kernels once
        assert made.requires == ("sm_90",)
        figures = cuda_backend.calibrate.figures(backend._gpu, "key", 2e-6)
        assert figures.flops["bfloat16"] == pytest.approx(1.07e15, rel=0.01)
        assert figures.levels[-1][1] == pytest.approx(4.9e12, rel=0.01)
    finally:
        backend.close()
