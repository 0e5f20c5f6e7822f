"""Donated inputs: which outputs are written straight into the caller's array.

It takes a step that reads the input at the output's own places alone, and every other step that
reads the input before it. Any other output is copied into the array after the run.
"""

from __future__ import annotations

from dataclasses import replace

from lambent.kernel.inplace import in_place
from lambent.runtime.plan import Plan


def donated(plan: Plan) -> tuple[Plan, dict[str, str]]:
    """The plan with such outputs written in place, and the input whose memory each of them has."""
    steps, over = list(plan.steps), dict[str, str]()
    for name, number in plan.donated:
        out = plan.outputs[number]
        at = next((i for i, step in enumerate(steps) if out in step.writes), len(steps))
        last = max((i for i, step in enumerate(steps) if name in step.reads), default=-1)
        if out in over or name in plan.outputs or last < at:
            continue
        step, between = steps[at], steps[at + 1 : last + 1]
        kernel = step.program.kernel
        inside = [b.name for n, b in zip(step.reads, kernel.inputs, strict=True) if n == name]
        alone = len(inside) == 1 and inside[0] in kernel.overwritable
        if alone and not any(out in s.reads for s in between):
            written = replace(step, program=in_place(step.program, inside[0]))
            steps[at : last + 1] = [*between, written]
            over[out] = name
    return replace(plan, steps=tuple(steps)), over
