"""The thread pool: every task once, whatever the threads do; and sizes as C text."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from lambent.backends.cpu import build
from lambent.backends.cpu.library import open_library
from lambent.backends.cpu.pool import RUNTIME, size_text
from lambent.graph.dim import Dim, evaluate
from lambent.graph.prove import maximum, minimum

PROBE = r"""
typedef struct { _Atomic int *hits; int64_t spin; } probe_arg;
static void probe(void *p, int64_t i) {
  probe_arg *a = p;
  for (volatile int64_t j = 0; j < a->spin * (i % 7); j++) ;
  atomic_fetch_add(&a->hits[i], 1);
}
void many(int64_t count, int threads, int steps, int64_t spin, void *hits) {
  probe_arg a = {hits, spin};
  for (int i = 0; i < steps; i++) lp_parallel(count, threads, probe, &a);
}
int workers(void) { return lp_workers; }
"""


@pytest.fixture(scope="module")
def image() -> bytes:
    return build.build(RUNTIME + PROBE)


@pytest.fixture(scope="module")
def library(image: bytes) -> ctypes.CDLL:
    return open_library(build.place(image))


def hits(library: ctypes.CDLL, count: int, threads: int, steps: int, spin: int = 0) -> set[int]:
    found = np.zeros(count, np.int32)
    library.many(
        ctypes.c_int64(count), threads, steps, ctypes.c_int64(spin),
        ctypes.c_void_p(found.ctypes.data),
    )  # fmt: skip
    return set(found.tolist())


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("count", [1, 2, 3, 17, 1000])
def test_every_task_runs_once_a_step(library: ctypes.CDLL, threads: int, count: int) -> None:
    assert hits(library, count, threads, 300) == {300}


def test_uneven_tasks(library: ctypes.CDLL) -> None:
    assert hits(library, 50, 4, 100, spin=300) == {100}


def test_no_tasks(library: ctypes.CDLL) -> None:
    library.many(ctypes.c_int64(0), 4, 3, ctypes.c_int64(0), None)


def test_sleeping_workers_wake(library: ctypes.CDLL) -> None:
    for _ in range(10):
        time.sleep(0.003)
        assert hits(library, 64, 3, 1, spin=1000) == {1}


def test_callers_from_several_threads(library: ctypes.CDLL) -> None:
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda n: hits(library, n, 3, 400), [5, 64, 200, 3]))
    assert results == [{400}] * 4


def test_all_libraries_share_one_pool(image: bytes, library: ctypes.CDLL) -> None:
    other = open_library(build.place(image))
    assert other.lambent_pool(None) == library.lambent_pool(None)
    assert hits(other, 100, 4, 50) == {50}
    assert other.workers() == 0  # its own pool never started


def test_a_forked_child_makes_its_own_workers(image: bytes, tmp_path: Path) -> None:
    path = build.place(image)
    script = f"""
import ctypes, os, sys
lib = ctypes.CDLL({str(path)!r})
def run():
    hits = (ctypes.c_int * 64)()
    lib.many(ctypes.c_int64(64), 3, 50, ctypes.c_int64(200), hits)
    return set(hits) == {{50}}
assert run()
child = os.fork()
if child == 0:
    os._exit(0 if run() and lib.workers() == 2 else 1)
assert os.waitpid(child, 0)[1] == 0
assert run()
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, timeout=60)


def test_size_text_is_the_size() -> None:
    s, t = Dim("pool_s", 0, 100), Dim("pool_t", 0, 64, multiple=8)
    sizes = [
        7, 2 * s + 3, (s - 9) // 4, (3 * s + 1) % 5, minimum(s, t), maximum(s - 5, 2 * t) // 3,
        s * s - t, t // 8,
    ]  # fmt: skip
    names = ["pool_s", "pool_t/8"]
    body = ", ".join(size_text(size, names) for size in sizes)
    text = f"{RUNTIME} void sizes(const int64_t *size, int64_t *out) {{ int64_t r[] = {{{body}}};"
    text += f" for (int i = 0; i < {len(sizes)}; i++) out[i] = r[i]; }}"
    library = open_library(build.place(build.build(text)))
    for a, b in ((0, 0), (1, 8), (50, 24), (100, 64)):
        out = (ctypes.c_int64 * len(sizes))()
        library.sizes((ctypes.c_int64 * 2)(a, b // 8), out)
        assert list(out) == [evaluate(e, {"pool_s": a, "pool_t": b}) for e in sizes]
