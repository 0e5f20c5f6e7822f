"""A plan: the chosen kernels in order, and the buffers that they pass to each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lambent.backends.base import Step as Step
from lambent.kernel.kernel import Buffer


@dataclass(frozen=True, slots=True)
class Plan:
    """A program before it is assembled.

    steps:   run in order on every call.
    load:    steps that read weights only; they run once and their results are kept as weights.
    buffers: by name, with shapes over the program's symbols, every buffer that is named anywhere.
    outputs: names in the order of the graph's outputs; a name may occur twice, or be an input's.
    donated: (input, number of an output): the caller's array is to hold that output after a run.
    """

    steps: tuple[Step, ...]
    load: tuple[Step, ...]
    buffers: dict[str, Buffer]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: dict[str, np.ndarray[Any, Any]]
    donated: tuple[tuple[str, int], ...] = ()


def check(plan: Plan) -> None:
    """See that every buffer is written once, and before it is read; `load` has run before.

    Raises:
        ValueError: names the step and the buffer that break this.
    """
    known = {*plan.weights, *plan.inputs}
    for number, step in enumerate(plan.steps):
        found = [f"reads {n!r} before it is written" for n in step.reads if n not in known]
        again = [n for n in step.writes if n in known or step.writes.count(n) > 1]
        found += [f"writes {n!r}, which has a value already" for n in again]
        if len(step.reads) != (count := len(step.program.kernel.inputs)):
            found.append(f"reads {len(step.reads)} buffers, its kernel {count}")
        if found:
            raise ValueError(f"step {number}: {found[0]}")
        known.update(step.writes)
    for name in (*plan.outputs, *sorted(known)):
        if name not in known or name not in plan.buffers:
            raise ValueError(f"buffer {name!r} is not in the plan, or nothing writes it")
