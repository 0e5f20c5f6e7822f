"""Donated inputs: which outputs are written straight into the caller's array.

It takes a step that reads the input at the output's own places alone, and every other step that
reads the input before it. Any other output is copied into the array after the run.
"""

from __future__ import annotations

from dataclasses import replace

from lambent.kernel.inplace import in_place, overwritable
from lambent.runtime.plan import Plan, Step, faults


def donated(plan: Plan) -> tuple[Plan, dict[str, str]]:
    """The plan with such outputs written in place, and the input whose memory each of them has."""
    over = dict[str, str]()
    for name, out in ((name, plan.outputs[number]) for name, number in plan.donated):
        able = out not in over and name not in plan.outputs
        for at, step in enumerate(plan.steps if able else ()):
            if (written := _written(step, out, name)) is not None:
                last = max(i for i, s in enumerate(plan.steps) if name in s.reads)
                before, after = plan.steps[: last + 1], plan.steps[last + 1 :]
                moved = replace(plan, steps=(*before[:at], *before[at + 1 :], written, *after))
                if not any(faults(moved, over | {out: name})):
                    plan, over = moved, over | {out: name}
    return plan, over


def _written(step: Step, out: str, name: str) -> Step | None:
    """The step with an output over an input, if that can be, and what it has in place already."""
    pairs = step.program.kernel.overwritable if out in step.writes and name in step.reads else ()
    able = {(step.names[o], step.names[b]): (o, b) for o, b in pairs}
    if (out, name) not in able or step.reads.count(name) > 1:
        return None
    program = in_place(step.program, *able[out, name])
    taken = {(o.buffer.name, o.over) for o in program.kernel.outputs if o.over}
    return replace(step, program=program) if taken <= overwritable(program) else None
