"""A library's matrix product as a candidate: which kernels it computes, and how."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import kernels as k
import pytest
from kernels import Build

from lambent.backends.base import Assembly, Place, Step
from lambent.backends.cpu.backend import CpuBackend
from lambent.backends.cpu.schedule import default_schedule
from lambent.backends.libraries import blas
from lambent.graph.dim import Dim, axis
from lambent.graph.dtypes import bfloat16, float64
from lambent.kernel.kernel import Kernel
from lambent.kernel.lower import lower

s, z = Dim("blas_s", 1, 96), Dim("blas_z", 1, 40)


def heads(t: bool = False) -> Kernel:
    """Scores of heads that lie in the columns of one buffer, [n, heads · d]."""
    b = Build()
    h, i, j, d = b.axes(3, 11, 13, 8)
    b.buffer("A", (11, 24))
    b.buffer("B", (13, 24))
    x, y = b.at("A", axis(i), axis(h) * 8 + axis(d)), b.at("B", axis(j), axis(h) * 8 + axis(d))
    b.out("C", b.mul(b.c(1, 1), b.sum(d, b.mul(x, y))), h, *((j, i) if t else (i, j)))
    return b.kernel()


def two_summed() -> Kernel:
    """Σ over (p, q), which are one in both operands; rows of two axes that are one, too."""
    b = Build()
    g, i, j, p, q = b.axes(4, 5, 9, 6, 7)
    b.out("C", b.sum((p, q), b.mul(b.load("A", g, i, p, q), b.load("B", p, q, j))), g, i, j)
    return b.kernel()


def sliced() -> Kernel:
    b = Build()
    i, j, p = b.axes(5, 6, 7)
    b.buffer("A", (9, 20))
    x = b.at("A", axis(i) + 2, axis(p) + 3)
    b.out("C", b.sum(p, b.mul(x, b.load("B", p, j))), i, j)
    return b.kernel()


def vector(rows: bool) -> Kernel:
    b = Build()
    i, p = b.axes(33, 20)
    a, x = b.load("A", *((p, i) if rows else (i, p))), b.load("x", p)
    b.out("C", b.sum(p, b.mul(a, x)), i)
    return b.kernel()


def windows(step: int) -> Kernel:
    """Rows that overlap in memory: no distance between them that a library would take."""
    b = Build()
    i, j, p = b.axes(10, 6, 4)
    b.buffer("A", (10 * step + 4,))
    x = b.at("A", axis(i) * step + axis(p))
    b.out("C", b.sum(p, b.mul(x, b.load("B", p, j))), i, j)
    return b.kernel()


def clamped() -> Kernel:
    b = Build()
    i, j, p = b.axes(10, 6, 4)
    b.buffer("A", (9, 4))
    b.out("C", b.sum(p, b.mul(b.at("A", axis(i), axis(p)), b.load("B", p, j))), i, j)
    return b.kernel()


def strided() -> Kernel:
    b = Build()
    i, j, p = b.axes(5, 6, 7)
    b.buffer("A", (10, 14))
    x = b.at("A", axis(i) * 2, axis(p) * 2)
    b.out("C", b.sum(p, b.mul(x, b.load("B", p, j))), i, j)
    return b.kernel()


def biased() -> Kernel:
    b = Build()
    i, j, p = b.axes(5, 6, 7)
    x = b.sum(p, b.mul(b.load("A", i, p), b.load("B", p, j)))
    b.out("C", b.add(x, b.load("bias", j)), i, j)
    return b.kernel()


TAKEN: dict[str, Callable[[], Kernel]] = {
    **{f"matmul {ta} {tb}": lambda a=ta, b=tb: k.matmul(a, b) for ta in (0, 1) for tb in (0, 1)},
    "one": lambda: k.matmul(m=1, n=1, k=1),
    "row": lambda: k.matmul(m=1),
    "column": lambda: k.matmul(n=1),
    "no sum": lambda: k.matmul(k=0),
    "no rows": lambda: k.matmul(m=0),
    "batched and scaled": k.batched,
    "float64": lambda: k.batched(float64),
    "symbolic": lambda: k.matmul(m=s, k=z),
    "symbolic, transposed": lambda: k.matmul(True, True, m=s, n=z),
    "heads": heads,
    "heads, out transposed": lambda: heads(True),
    "two summed": two_summed,
    "sliced": sliced,
    "rows times vector": lambda: vector(False),
    "columns times vector": lambda: vector(True),
    "rows apart": lambda: windows(5),
}  # fmt: skip
REFUSED: dict[str, Callable[[], Kernel]] = {
    "bfloat16": lambda: k.batched(bfloat16),
    "overlapping rows": lambda: windows(2),
    "an index that is clamped": clamped,
    "steps in both dims": strided,
    "a sum beside it": biased,
    "a chain": k.gelu_chain,
    "a mask": k.masked_product,
    "a norm": k.layernorm,
    "padding": k.conv,
}


@pytest.fixture(scope="module")
def backend() -> Iterator[CpuBackend]:
    made = CpuBackend()
    yield made
    made.close()


def test_it_computes_what_it_says(backend: CpuBackend) -> None:
    programs, sizes = [], {"blas_s": 50, "blas_z": 30}
    for make in TAKEN.values():
        kernel = make()
        first = default_schedule(kernel)
        programs.append(lower(kernel, replace(first, options=(("library", 1),))))
    batch = backend.compile(programs)
    found = backend.measure(batch, sizes, repeats=0)
    batch.close()
    assert {n: o.status for n, o in zip(TAKEN, found, strict=True)} == dict.fromkeys(TAKEN, "ok")


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_does_not_compute(name: str, backend: CpuBackend) -> None:
    kernel = REFUSED[name]()
    assert blas.product(kernel) is None
    program = lower(kernel, replace(default_schedule(kernel), options=(("library", 1),)))
    found = backend.measure(batch := backend.compile([program]), {}, repeats=0)
    batch.close()
    assert found[0].status == "render"


@pytest.mark.parametrize(("field", "change"), [("given", None), ("alpha", 2.0), ("start", None)])
def test_a_wrong_argument_is_found_out(
    field: str, change: object, backend: CpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = sliced()
    right = blas.product(kernel)
    assert right is not None
    (tb, ldb), a = right.given
    wrong: dict[str, object] = {"given": ((tb, ldb + 1), a), "start": (0, 0, 0)}
    mutant = replace(right, **{field: wrong.get(field, change)})  # type: ignore[arg-type]
    monkeypatch.setattr(blas, "product", lambda _: mutant)
    program = lower(kernel, replace(default_schedule(kernel), options=(("library", 1),)))
    found = backend.measure(batch := backend.compile([program]), {}, repeats=0)
    batch.close()
    assert found[0].status == "wrong"


CHILD = """
import sys
if sys.argv[2] == "without": sys.modules["scipy"] = None
from pathlib import Path
import numpy as np
from lambent.backends.cpu.library import Program
a, b = np.random.rand(37, 45).astype("f"), np.random.rand(45, 50).astype("f")
c = np.empty((37, 50), "f")
Program(Path(sys.argv[1]).read_bytes(), ()).run([a, b], [c], [], [], 64)
assert np.allclose(c, a @ b, atol=1e-4)
print("scipy.linalg" in sys.modules)
"""


@pytest.mark.parametrize("scipy", ["with", "without"])
def test_a_program_runs_where_scipy_is_missing(
    scipy: str, backend: CpuBackend, tmp_path: Path
) -> None:
    kernel = k.matmul()
    program = lower(kernel, replace(default_schedule(kernel), options=(("library", 1),)))
    places = {"C": Place("output", 0), "A": Place("input", 0), "B": Place("input", 1)}
    assembly = Assembly((Step(program, ("C", "A", "B")),), places, (64,), ())
    path = tmp_path / "image"
    path.write_bytes(backend.assemble(assembly).image)
    command = [sys.executable, "-c", CHILD, str(path), scipy]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(scipy == "with")]
