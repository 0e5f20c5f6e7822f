"""On a GPU: kernels against the reference, whole programs, streams, and what must not take us down.

Run by `scripts/gpu_check.sh`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from kernels import CASES, SYMBOLIC, matmul
from test_cublaslt import TAKEN

import lambent as lt
from lambent.algebra.egraph import saturate
from lambent.backends.base import BackendError, get
from lambent.backends.cuda import backend as cuda_backend
from lambent.backends.libraries import cublaslt
from lambent.backends.triton.render import Rendered, render
from lambent.cli import cuda_works as works_of
from lambent.graph.dim import Dim
from lambent.graph.dtypes import DTYPES
from lambent.kernel.lower import lower
from lambent.kernel.schedule import sample
from lambent.kernel.tile import TileProgram
from lambent.request import outputs_of
from lambent.search.bound import prices
from lambent.search.enumerate import enumerate_kernels

pytestmark = pytest.mark.gpu
n = Dim("gpu_n", 1, 300)
SIZES = {"kernels_s": 37, "kernels_z": 19}


@pytest.fixture(scope="module")
def backend() -> Iterator[Any]:
    try:
        found = get("cuda")
    except BackendError as error:
        pytest.skip(str(error))
    yield found
    found.close()


def programs(backend: Any, samples: int) -> dict[str, TileProgram]:
    found = {}
    for name, make in {**CASES, **SYMBOLIC}.items():
        kernel, random = make(), Random(name)
        first = backend.default_schedule(kernel)
        table = backend.moves(kernel)
        for one in [first, *(sample(first, table, random) for _ in range(samples))]:
            found[f"{name} {one}"] = lower(kernel, one)
    return found


def test_kernels_mean_what_their_terms_mean(backend: Any) -> None:
    found = programs(backend, 1)
    batch = backend.compile(list(found.values()))
    outcomes = backend.measure(batch, SIZES, repeats=1, limit=30.0)
    batch.close()
    ok = ("ok", "resources", "render")  # a sample may be too large
    crashed = "PassManager::run failed"  # or the compiler gives up
    wrong = [
        f"{name}: {o}"
        for name, o in zip(found, outcomes, strict=True)
        if o.status not in ok and crashed not in o.message
    ]
    assert not wrong, "\n".join(wrong)
    assert sum(o.status == "ok" for o in outcomes) > 0.9 * len(outcomes)


def test_a_library_multiplies(backend: Any) -> None:
    if cublaslt.path() is None:
        pytest.skip("nvidia-cublas is not installed")
    found = {}
    for name, make in TAKEN.items():
        kernel = make()
        for one in backend.guesses(kernel):
            if "library" in dict(one.options):
                found[f"{name} {one.options}"] = lower(kernel, one)
    assert len(found) == sum(len(cublaslt.ways(make())) for make in TAKEN.values())
    batch = backend.compile(list(found.values()))
    outcomes = backend.measure(batch, {"cublaslt_s": 23}, repeats=1)
    batch.close()
    wrong = [f"{n}: {o}" for n, o in zip(found, outcomes, strict=True) if o.status != "ok"]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(("a", "b"), [("e4m3fn", "e4m3fn"), ("e4m3fn", "e5m2")])
def test_floats_of_eight_bits(backend: Any, a: str, b: str) -> None:
    x = lt.input("x", (256, 512), f"float8_{a}")
    y = lt.input("y", (384, 512), f"float8_{b}")
    program = lt.compile((x @ y.mT).astype("bfloat16"), device="cuda", budget=4, progress=False)
    random = np.random.default_rng(0)
    given = {
        name: random.standard_normal(t.shape, np.float32).astype(t.dtype.numpy)
        for name, t in (("x", x), ("y", y))
    }
    want = given["x"].astype(np.float32) @ given["y"].astype(np.float32).T
    found = np.asarray(program(**given), np.float32)
    np.testing.assert_allclose(found, want, rtol=1e-2, atol=2e-2 * np.abs(want).mean())
    [kernel] = program.explain()["kernels"]
    assert "max_num_imprecise_acc" in kernel["source"]


def test_what_has_no_place_in_eight_bits(backend: Any) -> None:
    x = lt.input("x", (8,), "float32")
    out = {k: x.astype(k).astype("float32") for k in ("float8_e4m3fn", "float8_e5m2")}
    given = np.array([1.1, -464, 465, -1e9, 61000, -61440, np.inf, np.nan], np.float32)
    found = lt.compile(out, device="cuda", budget=2, progress=False)(x=given)
    for name, got in found.items():
        with np.errstate(all="ignore"):
            want = given.astype(DTYPES[name].numpy).astype(np.float32)
        np.testing.assert_array_equal(got, want)


def test_float32_is_exact_unless_tf32_is_allowed(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAMBENT_LIBRARIES", "0")  # their sums are exact
    x, y = lt.input("x", (512, 512)), lt.input("y", (512, 512))
    random = np.random.default_rng(0)
    given = {n: random.standard_normal((512, 512), np.float32) for n in "xy"}
    want = given["x"].astype(np.float64) @ given["y"]
    errors = {}
    for tf32 in (False, True):
        made = lt.compile(x @ y, device="cuda", budget=4, progress=False, tf32=tf32)
        errors[tf32] = np.linalg.norm(made(**given) - want) / np.linalg.norm(want)
    assert errors[False] < 1e-6 < 1e-4 < errors[True] < 2e-3


def test_no_first_guess_is_wrong(backend: Any) -> None:
    """Nor what warps that only copy, and the copy engine, do; each beside its witness."""
    works = (
        works_of.attention(2, 128, works_of.CAUSAL, n=512, batch=1),
        works_of.attention(2, 64, works_of.capped(50.0), n=500, batch=1),
        works_of.mlp(256, 512, 1024),
    )
    wrong, fine = [], 0
    for work in works:
        outputs, _ = outputs_of(work.graph())
        source = saturate([t.node for t in outputs])
        found = enumerate_kernels(source, prices(backend.calibrate(), 1e9), 12).candidates
        kernels = [c.kernel for c in found if len(c.kernel.inputs) > 1][:6]
        for kernel in kernels:
            tried = [lower(kernel, s) for s in backend.guesses(kernel)[:6]]
            batch = backend.compile(tried)
            outcomes = backend.measure(batch, {}, repeats=0)
            batch.close()
            pairs = zip(tried, outcomes, strict=True)
            wrong += [f"{work.name}: {p.schedule} {o}" for p, o in pairs if o.status == "wrong"]
            fine += sum(o.status == "ok" for o in outcomes)
    assert not wrong, "\n".join(wrong)
    assert fine > 30


def attention(q: Any, k: Any, v: Any) -> Any:
    return lt.softmax(q @ k.mT * 0.125, axis=-1) @ v


def expected(q: Any, k: Any, v: Any) -> Any:
    s = q @ k.swapaxes(-1, -2) * 0.125
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) @ v


@pytest.fixture(scope="module")
def program(backend: Any) -> Any:
    given = [lt.input(name, (4, n, 64), "float32") for name in "qkv"]
    return lt.compile(attention(*given), device="cuda", budget=8.0, progress=False)


def arrays(size: int) -> dict[str, Any]:
    random = np.random.default_rng(size)
    return {name: random.standard_normal((4, size, 64), np.float32) for name in "qkv"}


@pytest.mark.parametrize("size", [1, 37, 128, 300])
def test_a_program_of_symbolic_sizes(program: Any, size: int) -> None:
    given = arrays(size)
    np.testing.assert_allclose(program(**given), expected(**given), rtol=2e-4, atol=2e-4)


def test_every_size_is_right_by_one_graph(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a run with other sizes only the arguments that differ are changed."""
    torch = pytest.importorskip("torch")
    x = lt.input("x", (n, 64))
    monkeypatch.setenv("LAMBENT_LIBRARIES", "0")  # which are no kernels of a graph
    out = x @ x.mT, x.sum(0)
    made: Any = lt.compile(out, device="cuda", budget=6.0, progress=False, buckets={})
    assert len(made.explain()["kernels"]) > 1
    for size in (5, 64, 65, 300, 1, 17, 17, 17, 200, 300):
        given = torch.randn(size, 64, device="cuda")
        product, total = map(torch.from_dlpack, lt.on_device(made, x=given))
        torch.cuda.synchronize()
        torch.testing.assert_close(product, (given.double() @ given.mT.double()).float())
        torch.testing.assert_close(total, given.sum(0), rtol=1e-4, atol=1e-4)
    assert made._executable._opened.chains


def test_a_program_is_saved_and_loaded(program: Any, tmp_path: Path) -> None:
    program.save(tmp_path / "program")
    given = arrays(50)
    np.testing.assert_array_equal(lt.load(tmp_path / "program")(**given), program(**given))


ALONE = """
import sys
sys.modules["triton"] = sys.modules["egglog"] = sys.modules["torch"] = None
import numpy as np
import lambent as lt
program, given, found = sys.argv[1:]
np.save(found, lt.load(program)(**np.load(given)))
"""


def test_a_saved_program_needs_neither_triton_nor_egglog(program: Any, tmp_path: Path) -> None:
    """Nor PyTorch: its code is in the file."""
    given, files = arrays(60), [str(tmp_path / n) for n in ("program", "given.npz", "found.npy")]
    program.save(files[0])
    np.savez(files[1], **given)
    subprocess.run([sys.executable, "-c", ALONE, *files], check=True)
    np.testing.assert_array_equal(np.load(files[2]), program(**given))


def test_it_runs_on_the_callers_stream(program: Any) -> None:
    torch = pytest.importorskip("torch")
    given = arrays(200)
    held = [torch.from_numpy(given[slot.name]).cuda() for slot in program.manifest.inputs]
    out = torch.full((4, 200, 64), float("nan"), device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    shapes = [tuple(x.shape) for x in held]
    program.enqueue([x.data_ptr() for x in held], shapes, [out.data_ptr()], stream.cuda_stream)
    stream.synchronize()
    np.testing.assert_allclose(out.cpu().numpy(), expected(**given), rtol=2e-4, atol=2e-4)


def test_arrays_of_the_device_are_taken_and_given(program: Any) -> None:
    torch = pytest.importorskip("torch")
    given = arrays(100)
    found = lt.on_device(program, **{n: torch.from_numpy(a).cuda() for n, a in given.items()})
    out = torch.from_dlpack(found)
    torch.cuda.synchronize()
    assert out.data_ptr() == found.memory.pointer
    np.testing.assert_allclose(out.cpu().numpy(), expected(**given), rtol=2e-4, atol=2e-4)


def test_recorded_runs_read_what_is_there_now(program: Any) -> None:
    torch = pytest.importorskip("torch")
    given = arrays(64)
    held = {name: torch.from_numpy(a).cuda() for name, a in given.items()}
    out = torch.empty((4, 64, 64), device="cuda")
    order = [held[slot.name] for slot in program.manifest.inputs]
    for n in range(4):
        out.fill_(float("nan"))
        torch.cuda.synchronize()
        addresses, shapes = [x.data_ptr() for x in order], [tuple(x.shape) for x in order]
        program.enqueue(addresses, shapes, [out.data_ptr()])
        torch.cuda.synchronize()
        want = expected(**{name: x.cpu().numpy() for name, x in held.items()})
        np.testing.assert_allclose(out.cpu().numpy(), want, rtol=2e-4, atol=2e-4, err_msg=str(n))
        held["v"] += 1
    for _ in range(3):
        np.testing.assert_allclose(program(**given), expected(**given), rtol=2e-4, atol=2e-4)


@pytest.mark.usefixtures("backend")
def test_a_cache_is_written_in_place() -> None:
    old, new = lt.input("old", (3, 64, 16), "bfloat16"), lt.input("new", (3, 1, 16), "bfloat16")
    at = lt.input("at", (1,), "int64")
    kept = lt.where((lt.iota(64) == at).unsqueeze(-1), new, old)
    outputs = {"kept": kept, "total": lt.sum(kept.astype("float32"))}
    p = lt.compile(outputs, device="cuda", budget=5.0, progress=False, donate={"old": "kept"})
    assert "kept" not in [slot.name for slot in p.manifest.outputs]
    random = np.random.default_rng(5)
    cache = random.standard_normal((3, 64, 16), np.float32).astype(old.dtype.numpy)
    want = cache.copy()
    for i in range(5):
        row = random.standard_normal((3, 1, 16), np.float32).astype(old.dtype.numpy)
        want[:, 7 * i] = row[:, 0]
        found = p(old=cache, new=row, at=np.array([7 * i]))
        assert found["kept"] is cache
        np.testing.assert_array_equal(cache, want)
        total = want.astype(np.float32).sum()
        np.testing.assert_allclose(found["total"], total, rtol=1e-3, atol=1e-2)


@pytest.mark.usefixtures("backend")
def test_two_runs_choose_the_same_program() -> None:
    def found() -> Any:
        x = lt.input("x", (512, 1024), "bfloat16")
        y = lt.softmax(x, axis=-1)
        return lt.compile(y, device="cuda", budget=6.0, progress=False)

    first, second = found(), found()
    assert first.image == second.image
    kernels = [
        [(k["tile_program"], k["schedule"]) for k in p.explain()["kernels"]]
        for p in (first, second)
    ]
    assert kernels[0] == kernels[1]


FAULTS = {
    "crash": "    tl.store(C + 1000000000000, 1.0)\n",
    "timeout": "    spin = 0\n    while tl.load(A, volatile=True) < 1e30:\n        spin += 1\n",
    "wrong": "    tl.store(C, 12345.0)\n",
}


@pytest.mark.parametrize("status", FAULTS)
def test_faults_do_not_take_the_compiler_down(
    backend: Any, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = matmul()
    p = lower(kernel, backend.default_schedule(kernel))

    def faulty(program: TileProgram, name: str = "kernel", exact: bool = True) -> Rendered:
        found = render(program, name, exact)
        return replace(found, source=found.source + FAULTS[status])

    def outcomes() -> Sequence[Any]:
        batch = backend.compile([p])
        found: Sequence[Any] = backend.measure(batch, {}, repeats=1, limit=8.0)
        batch.close()
        return found

    with monkeypatch.context() as patch:
        patch.setattr(cuda_backend, "render", faulty)
        assert outcomes()[0].status == status, outcomes()[0]
    assert outcomes()[0].status == "ok"


def test_too_much_shared_memory_is_refused(backend: Any) -> None:
    kernel = matmul(m=512, n=512, k=4096)
    one = backend.default_schedule(kernel)
    tiles = tuple((i, 128) for i, _ in one.tiles)
    large = replace(one, tiles=tiles, options=(("num_stages", 8), ("num_warps", 8)))
    batch = backend.compile([lower(kernel, large)])
    assert batch.failed[0].status == "resources"
    assert "shared memory" in batch.failed[0].message
