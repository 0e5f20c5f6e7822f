"""A plan: the chosen kernels in order, and the buffers that they pass to each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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


def faults(plan: Plan, over: Mapping[str, str] = {}) -> Iterator[str]:
    """Steps that read what is not written yet, or no longer, or that write what has a value.

    over: buffers that are written in the memory of another, which ends with that.
    """
    known = {*plan.weights, *plan.inputs}
    for number, step in enumerate(plan.steps):
        count = len(step.program.kernel.outputs) + len(step.program.kernel.inputs)
        found = [f"reads {n!r} before it is written" for n in step.reads if n not in known]
        again = [n for n in step.writes if n in known or step.writes.count(n) > 1]
        found += [f"writes {n!r}, which has a value already" for n in again]
        if len(step.buffers) != count:
            found.append(f"{len(step.buffers)} buffers, its kernel has {count}")
        yield from (f"step {number}: {fault}" for fault in found)
        known = known.union(step.writes).difference(over[n] for n in step.writes if n in over)
    for name in (*plan.inputs, *plan.outputs, *sorted(known)):
        if name not in {*known, *over.values()} or name not in plan.buffers:
            yield f"buffer {name!r} is not in the plan, or nothing writes it"


def check(plan: Plan) -> None:
    """See that every buffer is written once, and before it is read; `load` has run before.

    Raises:
        ValueError: names the step and the buffer that break this.
    """
    for fault in faults(plan):
        raise ValueError(fault)
