"""Rendered C of lowered kernels, under random schedules, against the meaning of their terms."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from kernels import CASES, SYMBOLIC, data
from programs import Library

from lambent.backends.c.target import Target
from lambent.backends.cpu.features import detect
from lambent.backends.reference.kernel import evaluate
from lambent.graph.prove import bounds
from lambent.kernel.kernel import Kernel
from lambent.kernel.lower import lower
from lambent.kernel.rewrite import free_axes, split
from lambent.kernel.tile import Schedule

PACKS = ("pack_a", "pack_b")
EVERY = {**CASES, **SYMBOLIC}


def schedule(kernel: Kernel, rng: random.Random) -> Schedule:
    """Any tiles, order, grid, register block and packing."""
    parts = split(kernel).kernel
    free = sorted({i for o in parts.outputs for i in free_axes(o)})
    tiles = []
    for i, extent in sorted(parts.extents.items()):
        if rng.random() < 0.6:
            tiles.append((i, rng.choice((1, 4, 8, 16, 32, max(bounds(extent)[1], 1)))))
    order = rng.sample(free, rng.randint(0, len(free)))
    block = rng.choice((1, 4, 6, 8)), rng.choice((1, 2, 3))
    packs = tuple((n, rng.randint(0, 1)) for n in PACKS if rng.random() < 0.4)
    return Schedule(tuple(tiles), tuple(order), rng.randint(0, len(order)), block, packs)


def library(seed: int, target: Target, names: list[str]) -> tuple[Library, dict[str, Kernel]]:
    rng = random.Random(seed)
    kernels = {name: EVERY[name]() for name in names}
    programs = {name: lower(k, schedule(k, rng)) for name, k in kernels.items()}
    return Library(programs, target), kernels


def compare(kernel: Kernel, got: list[Any], want: list[Any], name: str) -> None:
    narrow = {b.dtype.itemsize for b in kernel.inputs if b.dtype.is_float}
    narrow |= {o.buffer.dtype.itemsize for o in kernel.outputs if o.buffer.dtype.is_float}
    rtol = 1.2e-2 if 2 in narrow else 3e-5
    for o, g, w in zip(kernel.outputs, got, want, strict=True):
        if o.buffer.dtype.is_float:
            scale = np.abs(np.where(np.isfinite(w), w, 0)).max(initial=1.0)
            np.testing.assert_allclose(
                g.astype(np.float64), w, rtol=rtol, atol=rtol * scale, err_msg=name
            )
        else:
            np.testing.assert_array_equal(g, w, err_msg=name)


def check(run: Library, kernels: Mapping[str, Kernel], seed: int) -> None:
    rng = random.Random(seed)
    for name, kernel in kernels.items():
        for _ in range(4 if name in SYMBOLIC else 1):
            symbols = {"kernels_s": rng.randint(1, 96), "kernels_z": rng.randint(1, 40)}
            inputs = data(kernel, seed, symbols)
            want = evaluate(kernel, inputs, symbols)
            given = [inputs[b.name] for b in kernel.inputs]
            got = run(name, given, [w.shape for w in want], symbols)
            compare(kernel, got, want, f"{name} {symbols}")


def test_every_kernel() -> None:
    native = Target(detect().vector_bytes)
    check(*library(0, native, sorted(EVERY)), 0)


@pytest.mark.parametrize(("seed", "target"), [(1, Target(16)), (2, Target(64))])
def test_other_widths(seed: int, target: Target) -> None:
    check(*library(seed, target, sorted(EVERY)[seed::3]), seed)
