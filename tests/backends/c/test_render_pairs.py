"""Products of bfloat16 in pairs: right at any width, and by the CPU's own instruction."""

from __future__ import annotations

import importlib.util
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from kernels import Build, data
from programs import Library

from lambent.backends.c.prelude import prelude
from lambent.backends.c.render import render
from lambent.backends.c.target import Target
from lambent.backends.cpu import schedule
from lambent.backends.cpu.features import detect
from lambent.backends.reference.kernel import evaluate
from lambent.graph.dtypes import bfloat16, float32
from lambent.kernel.kernel import Kernel
from lambent.kernel.lower import lower
from lambent.kernel.schedule import sample
from lambent.kernel.tile import Schedule, TileProgram

TILES = ((0, 16), (1, 32), (2, 10)), ((0, 12), (1, 64), (2, 40)), ((0, 8), (1, 16), (2, 40))


def product(depth: int = 40) -> Kernel:
    b = Build()
    i, j, p = b.axes(45, 70, depth)
    x, w = b.load("X", i, p, dtype=bfloat16), b.load("W", p, j, dtype=bfloat16)
    y = b.add(b.t.cast(b.sum(p, b.mul(x, w)), float32), b.load("bias", j))
    b.out("Y", y, i, j)
    return b.kernel()


def paired(
    kernel: Kernel, tiles: tuple[tuple[int, int], ...], order: tuple[int, ...]
) -> TileProgram:
    return lower(kernel, Schedule(tiles, order, 2, (4, 2), (("pairs", 1),)))


@pytest.mark.parametrize("width", [16, 32, 64])
def test_pairs_are_right(width: int) -> None:
    target = Target(width)
    programs = {f"k{n}": paired(product(), t, (0, 1)) for n, t in enumerate(TILES)}
    run = Library(programs, target)
    assert run.text.count("= vdot_pair(") >= 8 * len(programs)
    for name, program in programs.items():
        inputs = data(program.kernel, 3, {})
        (want,) = evaluate(program.kernel, inputs, {})
        (got,) = run(name, [inputs[b.name] for b in program.kernel.inputs], [want.shape])
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())


def test_what_has_no_pairs_is_multiplied_as_ever() -> None:
    odd = render(paired(product(33), ((0, 16), (1, 32), (2, 11)), (0, 1)), "k", Target(32))
    assert "vdot_pair" not in odd


@pytest.mark.parametrize("has", [True, False])
def test_the_search_may_choose_them_where_the_cpu_has_them(
    has: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = replace(detect(), features=("avx512_bf16",) if has else ())
    monkeypatch.setattr(schedule, "detect", lambda: cpu)
    found = schedule.moves(product())
    assert (("options", "pairs") in found) == has
    rng = random.Random(0)
    tried = {dict(sample(Schedule(), found, rng).options).get("pairs", 0) for _ in range(50)}
    assert tried == ({0, 1} if has else {0})


@pytest.mark.parametrize(
    ("machine", "width", "instruction"),
    [
        ("x86_64-linux-gnu -mcpu=sapphirerapids", 64, "vdpbf16ps"),
        ("aarch64-linux-gnu -mcpu=neoverse_v1", 16, "bfdot"),
    ],
)
def test_the_instruction_is_used(
    machine: str, width: int, instruction: str, tmp_path: Path
) -> None:
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("needs ziglang")
    target = Target(width)
    text = prelude(target) + render(paired(product(), TILES[1], (0, 1)), "k", target)
    keep = "void run(i64 t, void *const *buf, const i64 *size) { k_run(t, buf, size); }"
    (tmp_path / "k.c").write_text(text + keep, encoding="utf-8")
    command = [
        sys.executable, "-m", "ziglang", "cc", "-target", *machine.split(), "-O2", "-std=gnu11",
        "-w", "-S", str(tmp_path / "k.c"), "-o", str(tmp_path / "k.s"),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "k.s").read_text().count(instruction) >= 8
