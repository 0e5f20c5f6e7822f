"""Donated inputs: an output in the caller's array, of which only what changes is written."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernels import moments

import lambent as lt
from lambent.backends.base import get
from lambent.backends.cpu.schedule import default_schedule
from lambent.graph.tensor import Tensor
from lambent.kernel.lower import lower
from lambent.runtime.build import build
from lambent.runtime.plan import Plan, Step

H, S, D = 2, 9, 4
FAR = (0, 4, S - 1, S, -1, -(2**31), 2**31 - 1)


def cache() -> Tensor:
    return lt.input("cache", (H, S, D))


def position() -> Tensor:
    return lt.input("pos", (1,), "int32")


def updated(old: Tensor, tokens: int = 1) -> Tensor:
    """old with new at pos, pos + 1, …"""
    new, places, pos = lt.input("new", (H, tokens, D)), lt.iota(S), position()
    if tokens == 1:
        return lt.where((places == pos).unsqueeze(-1), new, old)
    hits = (places.unsqueeze(-1) == pos + lt.iota(tokens)).unsqueeze(-1)
    spread = (hits * new.unsqueeze(1)).sum(-2)
    inside = (pos <= places).logical_and(places < pos + tokens)
    return lt.where(inside.unsqueeze(-1), spread, old)


def compiled(outputs: dict[str, Tensor], **donate: str) -> Any:
    return lt.compile(outputs, donate=donate, budget=0.5, progress=False)


def drawn(tokens: int = 1, seed: int = 0) -> tuple[Any, Any]:
    r = np.random.default_rng(seed)
    return (r.normal(size=(H, n, D)).astype(np.float32) for n in (S, tokens))


def after(old: Any, new: Any, pos: int) -> Any:
    want = old.copy()
    for i in range(new.shape[1]):
        if 0 <= pos + i < S:
            want[:, pos + i] = new[:, i]
    return want


def in_place(program: Any) -> bool:
    return any(kind == "input" for kind, _ in program.manifest.results)


@pytest.mark.parametrize("tokens", [1, 3])
def test_the_array_given_is_the_output(tokens: int) -> None:
    program = compiled({"cache": updated(cache(), tokens)}, cache="cache")
    assert in_place(program)
    for pos in FAR[:5] if tokens > 1 else FAR:
        old, new = drawn(tokens)
        want = after(old, new, pos)
        out = program(cache=old, new=new, pos=np.array([pos], np.int32))
        assert out["cache"] is old
        np.testing.assert_array_equal(old, want)


def test_what_else_reads_the_input_sees_it_before() -> None:
    old, new = cache(), updated(cache())
    outputs = {"c": new, "before": (old * 2.0).sum(1), "after": (new * 3.0).sum(1)}
    program = compiled(outputs, cache="c")
    a, b = drawn()
    want = after(a, b, 3)
    sums = (2 * a).sum(1), (3 * want).sum(1)
    out = program(cache=a, new=b, pos=np.array([3], np.int32))
    assert out["c"] is a
    np.testing.assert_array_equal(a, want)
    np.testing.assert_allclose(out["before"], sums[0], rtol=1e-5)
    np.testing.assert_allclose(out["after"], sums[1], rtol=1e-5)


def test_what_cannot_be_written_in_place_is_copied() -> None:
    """Neighbours read each other; the input itself is an output, too; nothing is to be done."""
    x = lt.input("x", (6, 4))
    a = np.arange(24, dtype=np.float32).reshape(6, 4)
    turned, same, twice = lt.roll(x, 1, 0), x, x * 2.0
    for outputs, wants in (
        ({"y": turned}, {"y": np.roll(a, 1, 0)}),
        ({"y": twice, "x": same}, {"y": 2 * a, "x": a}),
        ({"y": same}, {"y": a}),
        ({"y": twice, "z": twice}, {"y": 2 * a, "z": 2 * a}),
    ):
        given = a.copy()
        out = compiled(outputs, x="y")(x=given)
        assert out["y"] is given
        for name, want in wants.items():
            np.testing.assert_array_equal(out[name], want)
        assert not any(np.shares_memory(v, given) for n, v in out.items() if n != "y")


def test_two_outputs_of_both_inputs() -> None:
    """Neither may be written before the other has read: one of them is copied."""
    x, y = lt.input("x", (6, 4)), lt.input("y", (6, 4))
    program = compiled({"a": x + y * 2.0, "b": x - y}, x="a", y="b")
    a, b = np.arange(24, dtype=np.float32).reshape(6, 4), np.full((6, 4), 3, np.float32)
    wants = {"a": a + 2 * b, "b": a - b}
    out = program(x=a, y=b)
    assert out["a"] is a and out["b"] is b
    for name, want in wants.items():
        np.testing.assert_array_equal(out[name], want)


@pytest.mark.parametrize("tile", [1, 8])
def test_a_kernel_writes_all_its_outputs_in_place(tile: int) -> None:
    kernel = moments(40, 48)
    schedule = replace(default_schedule(kernel), tiles=((0, tile), (1, 16)), order=(0, 1), grid=2)
    step = Step(lower(kernel, schedule), ("P", "M", "V", *(b.name for b in kernel.inputs)))
    buffers = {b.name: b for b in (*(o.buffer for o in kernel.outputs), *kernel.inputs)}
    donate = (("p", 0), ("m", 1), ("v", 2))
    plan = Plan((step,), (), buffers, ("m", "v", "p", "g"), ("P", "M", "V"), {}, donate)
    program = build(plan, get("cpu"))
    assert [kind for kind, _ in program.manifest.results] == ["input"] * 3
    r = np.random.default_rng(0)
    m, v, p, g = given = [r.random((40, 48), np.float32) for _ in range(4)]
    new = m + g, v + g * g
    want = p + new[0] * new[1], *new
    found = program(**dict(zip("mvpg", given, strict=True)))
    for got, array, wanted in zip(found, (p, m, v), want, strict=True):
        assert got is array
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_a_saved_program_writes_in_place(tmp_path: Path) -> None:
    compiled({"cache": updated(cache())}, cache="cache").save(tmp_path / "p.lambent")
    old, new = drawn()
    want = after(old, new, 2)
    out = lt.load(tmp_path / "p.lambent")(cache=old, new=new, pos=np.array([2], np.int32))
    assert out["cache"] is old
    np.testing.assert_array_equal(old, want)


def test_symbolic_sizes() -> None:
    s = lt.Dim("donate_s", 1, 64)
    old, new = lt.input("cache", (s, D)), lt.input("new", (1, D))
    out = lt.where((lt.iota(s) == position()).unsqueeze(-1), new, old)
    program = compiled({"c": out}, cache="c")
    assert in_place(program)
    for n, pos in ((1, 0), (5, 4), (64, 33), (7, 7)):
        a, b = np.ones((n, D), np.float32), np.zeros((1, D), np.float32)
        assert program(cache=a, new=b, pos=np.array([pos], np.int32))["c"] is a
        assert [i for i in range(n) if not a[i].any()] == [pos] * (pos < n)


COUNTER = """
#include <signal.h>
#include <sys/mman.h>

static char *base, seen[4096];
static long size, page;

static void on_fault(int number, siginfo_t *info, void *context) {
  long at = (char *)info->si_addr - base;
  if (at < 0 || at >= size) { signal(SIGSEGV, SIG_DFL); return; }
  seen[at / page] = 1;
  mprotect(base + at / page * page, page, PROT_READ | PROT_WRITE);
}

void watch(char *memory, long bytes, long of) {
  struct sigaction action = {0};
  base = memory, size = bytes, page = of;
  action.sa_sigaction = on_fault, action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, 0);
  mprotect(memory, bytes, PROT_READ);
}

long written(void) {
  long count = 0;
  for (long i = 0; i < size / page; i++) count += seen[i];
  return count * page;
}
"""
ROWS_IN_PAGES = """
import ctypes, mmap, sys
import numpy as np
import lambent as lt

tokens, position, page = int(sys.argv[1]), int(sys.argv[2]), mmap.PAGESIZE
rows, width = 8, page // 4
old, new = lt.input("cache", (rows, width)), lt.input("new", (tokens, width))
pos, places = lt.input("pos", (1,), "int32"), lt.iota(rows)
hits = places.unsqueeze(-1) == pos + lt.iota(tokens)
inside = (pos <= places).logical_and(places < pos + tokens)
spread = (hits.unsqueeze(-1) * new).sum(1)
updated = lt.where(inside.unsqueeze(-1), spread, old)
out = old + new[:1] * 0.0 + pos.astype("float32") * 0.0 if sys.argv[4] == "all" else updated
program = lt.compile({"c": out}, donate={"cache": "c"}, budget=0.5, progress=False)
memory = mmap.mmap(-1, rows * page)
cache = np.frombuffer(memory, np.float32).reshape(rows, width)
cache[...] = 1
counter = ctypes.CDLL(sys.argv[3])
counter.watch(ctypes.c_void_p(cache.ctypes.data), ctypes.c_long(rows * page), ctypes.c_long(page))
program(cache=cache, new=np.zeros((tokens, width), np.float32), pos=np.array([position], np.int32))
print([row for row in range(rows) if not cache[row].any()], counter.written() // page)
"""


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that counts the pages that are written."""
    folder = tmp_path_factory.mktemp("counter")
    (folder / "counter.c").write_text(COUNTER)
    target = folder / "counter.so"
    command = [sys.executable, "-m", "ziglang", "cc", "-O1", "-shared", "-fPIC", "-o", str(target)]
    subprocess.run([*command, str(folder / "counter.c")], check=True, timeout=120)
    return target


@pytest.mark.skipif(sys.platform != "linux", reason="pages are protected by mprotect")
@pytest.mark.parametrize(("tokens", "pos", "what"), [(1, 5, ""), (3, 2, ""), (1, 5, "all")])
def test_bytes_written_are_those_of_the_rows(
    tokens: int, pos: int, what: str, counter: Path
) -> None:
    """Every row is a page, and the pages written are counted; a program of all rows writes all."""
    command = [sys.executable, "-c", ROWS_IN_PAGES, *map(str, (tokens, pos, counter, what))]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    rows = [] if what else [*range(pos, pos + tokens)]
    assert done.stdout.strip() == f"{rows} {8 if what else tokens}", done.stderr


# ---- refused ---------------------------------------------------------------------------------


def test_refused_when_compiled() -> None:
    x, y = lt.input("x", (3, 4)), lt.input("y", (3, 4), "int32")
    outputs = {"a": x * 2.0, "b": (x * 3.0).sum(0), "c": y + 1}
    for donate, message in (
        ({"z": "a"}, "no input 'z'; there are: x, y"),
        ({"x": "d"}, "no output 'd'; there are: 0, 1, 2, a, b, c"),
        ({"x": "b"}, "each output takes the memory of one input of its shape"),
        ({"y": "a"}, "'y' is"),
    ):
        with pytest.raises(ValueError, match=message):
            compiled(outputs, **donate)
    two = {"a": x + lt.input("x2", (3, 4))}
    with pytest.raises(ValueError, match="each output takes the memory of one input"):
        compiled(two, x="a", x2="a")


def test_refused_when_called() -> None:
    x, y = lt.input("x", (3, 4)), lt.input("y", (3, 4))
    program = lt.compile([x + y, y * 2.0], donate={"x": 0}, budget=0.5, progress=False)
    whole = np.ones((6, 8), np.float32)
    fixed = np.ones((3, 4), np.float32)
    fixed.flags.writeable = False
    good = np.ones((3, 4), np.float32)
    for bad in (whole[::2, ::2], whole.T[:3, :4], fixed, good.astype(">f4"), good.tolist()):
        with pytest.raises(ValueError, match="'x' is donated: it is written in place"):
            program(x=bad, y=good)
    for other in (good, good.reshape(-1)[::-1][::-1].reshape(3, 4)):
        with pytest.raises(ValueError, match="share memory"):
            program(x=good, y=other)
    assert program(x=good, y=whole[3:, :4])[0] is good
    assert program.run([good, np.ones((3, 4), np.float32)])[0] is good and (good == 3).all()
