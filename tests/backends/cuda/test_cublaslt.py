"""The library's products as candidates: which kernels it computes, and what it is told."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import kernels as k
import numpy as np
import pretended_cublaslt
import pytest
from kernels import Build
from pretended import Pretended

from lambent.backends.base import Assembly, BackendError, Place, Step, kernel_symbols
from lambent.backends.cuda import backend as cuda_backend
from lambent.backends.cuda import driver, image, library
from lambent.backends.cuda.schedule import default_schedule
from lambent.backends.libraries import cublaslt
from lambent.backends.measuring.operands import draw, input_specs
from lambent.backends.reference.tile import interpret
from lambent.backends.triton.compiler import Code
from lambent.backends.triton.render import render
from lambent.graph.dim import Dim, evaluate
from lambent.graph.dtypes import bfloat16, float16, float64
from lambent.kernel.kernel import Kernel
from lambent.kernel.lower import lower

s = Dim("cublaslt_s", 1, 96)
SIZES = {"cublaslt_s": 23}


def plus(*axes: int, batch: int = 1, dtype: Any = bfloat16) -> Kernel:
    """A product of [batch, 5, 7] and [7, 6], plus a value of these of its axes."""
    b = Build()
    g, i, j, p = b.axes(batch, 5, 6, 7)
    x = b.mul(b.load("A", g, i, p, dtype=dtype), b.load("B", g, p, j, dtype=dtype))
    b.out("C", b.add(b.sum(p, x), b.load("D", *axes, dtype=dtype)), g, i, j)
    return b.kernel()


TAKEN: dict[str, Callable[[], Kernel]] = {
    **{f"matmul {ta} {tb}": lambda a=ta, b=tb: k.matmul(a, b) for ta in (0, 1) for tb in (0, 1)},
    "row": lambda: k.matmul(m=1),
    "column": lambda: k.matmul(n=1),
    **{dtype.name: lambda dtype=dtype: k.batched(dtype) for dtype in (bfloat16, float16, float64)},
    "symbolic": lambda: k.matmul(m=s),
    "all symbolic": lambda: k.matmul(m=s, n=s),
    "a matrix is added": lambda: plus(1, 2),
    "a matrix is added in float16": lambda: plus(1, 2, dtype=float16),
    "a row is added": lambda: plus(2),
    "matrices are added": lambda: plus(0, 1, 2, batch=3),
    "one matrix is added to each": lambda: plus(1, 2, batch=3),
}  # fmt: skip
BATCHED = ("bfloat16", "float16", "float64")
REFUSED: dict[str, Callable[[], Kernel]] = {
    "a column is added": lambda: plus(1),
    "a row is added to each": lambda: plus(2, batch=3),
    "no sum": lambda: k.matmul(k=0),
    "a chain": k.gelu_chain,
    "a mask": k.masked_product,
}


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = pretended_cublaslt.Pretended()
    monkeypatch.setattr(cublaslt, "api", lambda name="": found)
    monkeypatch.setattr(cublaslt, "path", lambda name="": "here")
    gpu = Pretended()
    monkeypatch.setattr(driver, "api", lambda: gpu)
    driver.device.cache_clear()
    yield found
    driver.device.cache_clear()


@pytest.mark.parametrize("way", [2, cublaslt.OWN])
@pytest.mark.parametrize("name", TAKEN)
def test_it_computes_what_the_kernel_means(name: str, way: int, pretended: Any) -> None:
    kernel = TAKEN[name]()
    found = cublaslt.routine(kernel, way)
    if way == cublaslt.OWN and (len(kernel.inputs) > 2 or name in BATCHED):
        assert found is None and cublaslt.OWN not in cublaslt.ways(kernel)
        return
    assert found is not None
    assert cublaslt.read(json.loads(json.dumps(asdict(found)))) == found
    given = [draw(one, i) for i, one in enumerate(input_specs(kernel, SIZES))]
    names = {b.name: x for b, x in zip(kernel.inputs, given, strict=True)}
    want = interpret(lower(kernel, default_schedule(kernel)), names, SIZES)
    o = kernel.outputs[0].buffer
    out = np.zeros([int(evaluate(n, SIZES)) for n in o.shape], o.dtype.numpy)
    calls = cublaslt.Calls(0)
    for _ in range(2):
        calls.run(found, [x.ctypes.data for x in (out, *given)], SIZES, 0)
    wide = [np.asarray(x, np.float64) for x in (out, want[o.name])]
    near = 1e-2 if o.dtype.itemsize == 2 else 1e-5
    np.testing.assert_allclose(*wide, rtol=near, atol=near)
    assert pretended.used == [way, way]


def test_float32_is_rounded_only_where_it_may_be(pretended: Any) -> None:
    for dtype, exact, arithmetic in (("float32", True, 68), ("tf32", False, 77)):
        found = cublaslt.routine(k.matmul(), exact=exact)
        assert found is not None
        assert (found.dtype, cublaslt.TYPES[found.dtype][1]) == (dtype, arithmetic)
    kernel = k.matmul()
    x, w = (draw(one, i) for i, one in enumerate(input_specs(kernel, {})))
    out = np.zeros((37, 50), np.float32)
    cublaslt.Calls(0).run(found, [a.ctypes.data for a in (out, x, w)], {}, 0)
    np.testing.assert_allclose(out, x @ w, rtol=1e-4, atol=1e-4)
    found = cublaslt.routine(k.batched(bfloat16), exact=False)
    assert found is not None and found.dtype == "bfloat16"


@pytest.mark.parametrize("name", REFUSED)
def test_other_kernels_are_refused(name: str, pretended: Any) -> None:
    assert cublaslt.routine(REFUSED[name]()) is None
    assert not cublaslt.ways(REFUSED[name]())


def test_it_takes_part_where_it_is_installed(
    pretended: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = k.matmul()
    assert list(cublaslt.ways(kernel)) == [1, 2, 3, 4, 5, 6, 7]
    assert cublaslt.version() == "cublaslt=130100"
    monkeypatch.setenv("LAMBENT_LIBRARIES", "0")
    assert (list(cublaslt.ways(kernel)), cublaslt.version()) == ([], "no-cublaslt")
    monkeypatch.delenv("LAMBENT_LIBRARIES")
    monkeypatch.setattr(cublaslt, "path", lambda name="": None)
    assert (list(cublaslt.ways(kernel)), cublaslt.version()) == ([], "no-cublaslt")


def test_a_program_calls_it(pretended: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = k.matmul(m=s)
    backend = cuda_backend.CudaBackend()
    try:
        monkeypatch.setattr(cuda_backend, "triton_version", lambda: "")
        own, first, *_ = backend.guesses(kernel)
        assert (own.tiles, dict(first.options)) == (first.tiles, {"library": 1})
        program = lower(kernel, first)
        assert "cuBLASLt" in backend.source(program)
        batch = backend.compile([program])
        assert batch.at[0] == 0 and batch.path is not None  # a witness may be beside it
        batch.close()
        wrong = lower(
            k.gelu_chain(), replace(default_schedule(k.gelu_chain()), options=first.options)
        )
        assert backend.compile([wrong]).failed[0].status == "render"
        places = {"y": Place("output", 0), "x": Place("input", 0), "w": Place("input", 1)}
        names = kernel_symbols(kernel)
        made = backend.assemble(Assembly((Step(program, ("y", "x", "w")),), places, (), names))
    finally:
        backend.close()
    ran = library.Program(made.image, made.requires)
    random = np.random.default_rng(1)
    x, w = (random.standard_normal(n, np.float32) for n in ((23, 45), (45, 50)))
    y = np.zeros((23, 50), np.float32)
    ran.run([x, w], [y], [], [23], 0)
    np.testing.assert_allclose(y, x @ w, rtol=1e-4, atol=1e-5)

    def missing(name: str = "") -> Any:
        raise BackendError(cublaslt.EXTRA)

    monkeypatch.setattr(cublaslt, "api", missing)
    with pytest.raises(
        BackendError, match=r"the program calls cuBLASLt.*pip install nvidia-cublas"
    ):
        image.Opened(made.image)


def test_a_product_it_cannot_do_is_told(pretended: Any) -> None:
    pretended.suggestions = 0
    found = cublaslt.routine(k.matmul())
    assert found is not None
    with pytest.raises(BackendError, match="cuBLASLt has no algorithm for"):
        cublaslt.Calls(0).run(found, [1 << 12, 1 << 13, 1 << 14], {}, 0)


def test_of_a_run_with_other_sizes_only_the_library_is_called_anew(
    pretended: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels before and after it stay nodes of graphs, of which what differs is changed."""
    kernel = k.matmul(m=s)
    program = lower(kernel, default_schedule(kernel))
    names = kernel_symbols(kernel)
    works = [render(program), cublaslt.routine(kernel), *[render(program)] * 2]
    steps = [
        image.launch(
            0, work, Step(program, ("y", "x", "w")),
            {"y": Place("output", i), "x": Place("input", 0), "w": Place("input", 1)},
        )
        for i, work in enumerate(works) if work is not None
    ]  # fmt: skip
    code = Code(b"code", "kernel", 128, 0, 0)
    data = image.pack([code], steps, symbols=list(names), blocks=[])
    ran = library.Program(data, ["sm_90"])
    gpu, random = driver.api(), np.random.default_rng(2)
    x, w = (random.standard_normal(n, np.float32) for n in ((96, 45), (45, 50)))
    out = [np.zeros((96, 50), np.float32) for _ in steps]
    addresses = [a.ctypes.data for a in (x, w)], [a.ctypes.data for a in out]

    def computes(n: int) -> Callable[[list[int]], None]:
        def run(at: list[int]) -> None:
            found: Any = (ctypes.c_float * (n * 50)).from_address(at[0])
            np.frombuffer(found, np.float32)[:] = (x[:n] @ w).reshape(-1)

        run.count = 3  # type: ignore[attr-defined]
        return run

    seen, weights = [], list[Any]()
    for n in (23, 40, 7, 7):
        gpu.run = computes(n)
        before = [len(part) for part in (gpu.launched, gpu.recorded, pretended.used, gpu.changed)]
        for a in out:
            a[:] = 0
        ran.enqueue(*addresses, weights, [n], 0)
        for a in out:
            np.testing.assert_allclose(a[:n], x[:n] @ w, rtol=1e-4, atol=1e-4)
        after = [len(part) for part in (gpu.launched, gpu.recorded, pretended.used, gpu.changed)]
        seen.append([b - a for a, b in zip(before, after, strict=True)])
    # kernels launched, graphs made, the library's calls, nodes changed
    assert seen == [[3, 0, 1, 0], [1, 1, 1, 0], [1, 0, 1, 2], [0, 1, 1, 0]]
