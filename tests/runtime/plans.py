"""Plans of hand-written kernels: y = 2·x·w, once or several times."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

import handmade as h
from lambent.graph.dim import Size
from lambent.graph.dtypes import float32
from lambent.kernel.kernel import Buffer
from lambent.runtime.plan import Plan, Step

backend = h.backend()


def weight(m: int = 100) -> np.ndarray[Any, Any]:
    return np.linspace(0.5, 1.5, m, dtype=np.float32)


def chain(n: Size, m: Size, steps: int, outputs: tuple[str, ...] = ()) -> Plan:
    """x → t1 → t2 → … with an input w for all; the last is the output unless some are named."""
    kernel = h.scale(n, m)
    names = ["x", *(f"t{i + 1}" for i in range(steps))]
    buffers = {name: Buffer(name, float32, (n, m)) for name in names}
    buffers["w"] = Buffer("w", float32, (m,))
    run = tuple(Step(kernel, (b, a, "w")) for a, b in pairwise(names))
    return Plan(run, (), buffers, ("x", "w"), outputs or (names[-1],), {})


def with_load(n: Size, m: int = 100) -> Plan:
    """y = 2·x·v, where v = 2·w·w is computed at load."""
    buffers = {
        "x": Buffer("x", float32, (n, m)),
        "y": Buffer("y", float32, (n, m)),
        "w": Buffer("w", float32, (m,), weight=True),
        "v": Buffer("v", float32, (m,), weight=True),
    }
    load = Step(h.scale(1, m), ("v", "w", "w"))
    run = Step(h.scale(n, m), ("y", "x", "v"))
    return Plan((run,), (load,), buffers, ("x",), ("y",), {"w": weight(m)})


def random(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(3).random(shape, np.float32)
