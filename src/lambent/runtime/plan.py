"""A plan: the chosen kernels in order, and the buffers that they pass to each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lambent.kernel.kernel import Buffer
from lambent.kernel.tile import TileProgram


@dataclass(frozen=True, slots=True)
class Step:
    """One kernel. `buffers` names its outputs, then its inputs, in the order of the kernel."""

    program: TileProgram
    buffers: tuple[str, ...]

    @property
    def writes(self) -> tuple[str, ...]:
        return self.buffers[: len(self.program.kernel.outputs)]

    @property
    def reads(self) -> tuple[str, ...]:
        return self.buffers[len(self.program.kernel.outputs) :]


@dataclass(frozen=True, slots=True)
class Plan:
    """A program before it is assembled.

    steps:   run in order on every call.
    load:    steps that read weights only; they run once and their results are kept as weights.
    buffers: by name, with shapes over the program's symbols, every buffer that is named anywhere.
    outputs: names in the order of the graph's outputs; a name may occur twice, or be an input's.
    """

    steps: tuple[Step, ...]
    load: tuple[Step, ...]
    buffers: dict[str, Buffer]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: dict[str, np.ndarray[Any, Any]]


def check(plan: Plan) -> None:
    """See that every buffer is written once, and before it is read.

    Raises:
        ValueError: names the step and the buffer that break this.
    """
    known = set(plan.weights)
    for steps, more in ((plan.load, ()), (plan.steps, plan.inputs)):
        known.update(more)
        for number, step in enumerate(steps):
            kernel = step.program.kernel
            count = len(kernel.outputs) + len(kernel.inputs)
            if len(step.buffers) != count:
                raise ValueError(
                    f"step {number}: {len(step.buffers)} buffers, its kernel has {count}"
                )
            for name in step.reads:
                if name not in known:
                    raise ValueError(f"step {number}: reads {name!r} before it is written")
            for name in step.writes:
                if name in known:
                    raise ValueError(f"step {number}: writes {name!r}, which has a value already")
                known.add(name)
    for name in (*plan.inputs, *plan.outputs, *sorted(known)):
        if name not in known or name not in plan.buffers:
            raise ValueError(f"buffer {name!r} is not in the plan, or nothing writes it")
