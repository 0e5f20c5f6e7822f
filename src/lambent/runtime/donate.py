"""Donated inputs: which outputs are written straight into the caller's array.

It takes a step that reads the input at the output's own places alone, and every other step that
reads the input before it. Any other output is copied into the array after the run.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from lambent.kernel.inplace import in_place, overwritable
from lambent.kernel.tile import TileProgram
from lambent.runtime.plan import Plan


def donated(plan: Plan) -> tuple[Plan, dict[str, str]]:
    """The plan with such outputs written in place, and the input whose memory each of them has."""
    over, moved = dict[str, str](), cache(_over)  # repeated segments share their programs
    for name, out in ((name, plan.outputs[number]) for name, number in plan.donated):
        able = out not in over and name not in plan.outputs
        for at, step in enumerate(plan.steps if able else ()):
            if out in step.writes and step.reads.count(name) == 1:
                own = {outside: inside for inside, outside in step.names.items()}
                new = replace(step, program=moved(step.program, own[out], own[name]))
                last = max(i for i, s in enumerate(plan.steps) if name in s.reads)
                between, after = plan.steps[at + 1 : last + 1], plan.steps[last + 1 :]
                kept = {*step.reads}.isdisjoint(over.get(n) for s in between for n in s.writes)
                unread = {*step.writes}.isdisjoint(n for s in between for n in s.reads)
                if new.program is not step.program and kept and unread:
                    plan = replace(plan, steps=(*plan.steps[:at], *between, new, *after))
                    over[out] = name
    return plan, over


def _over(program: TileProgram, out: str, name: str) -> TileProgram:
    """The program with an output over an input, if that can be, and what it has so already."""
    if (out, name) not in program.kernel.overwritable:
        return program
    new = in_place(program, out, name)
    taken = {(o.buffer.name, o.over) for o in new.kernel.outputs if o.over}
    return new if taken <= overwritable(new) else program
