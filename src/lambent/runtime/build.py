"""Plan → Program: places for all buffers, one library, and the manifest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from lambent.backends.base import Assembly, Backend, Call, Place
from lambent.graph.dim import Size, facts, symbols_in
from lambent.runtime.memory import Memory, plan_memory
from lambent.runtime.plan import Plan, Step, check
from lambent.runtime.program import Manifest, Program, Slot, bind
from lambent.runtime.sizes import all_symbols, number, plain


def build(
    plan: Plan,
    backend: Backend,
    *,
    form: str | tuple[str, ...] | None = None,
    explain: dict[str, Any] | None = None,
) -> Program:
    """Assemble, compile and open a plan.

    Args:
        form: how outputs are returned: "one", "tuple" or the names of a dict; by default "one" for
            one output, else "tuple".
        explain: JSON data that `Program.explain` returns.

    Raises:
        ValueError: the plan breaks an invariant, or its inputs do not determine a symbol.
        BackendError: the code does not compile.
    """
    check(plan)
    memory = plan_memory(plan)
    assembly, results = assemble(plan, memory)
    library = backend.assemble(assembly)
    names = weight_names(plan)
    read = {name for step in plan.steps for name in step.reads} | set(plan.outputs)
    symbols = all_symbols(_sizes(plan))
    known = {s.atom for s in symbols}
    manifest = Manifest(
        backend.name,
        library.requires,
        symbols,
        _slots(plan, plan.inputs),
        _slots(plan, _written(plan)),
        _slots(plan, names),
        results,
        form or ("one" if len(plan.outputs) == 1 else "tuple"),
        plain(memory.total),
        tuple(plain(fact) for fact in facts() if symbols_in(fact) <= known),
        tuple(i for i, name in enumerate(names) if name in read),
        explain or {},
    )
    _check_determined(manifest)
    weights = {
        i: np.require(plan.weights[name], requirements=["C", "A"])
        for i, name in enumerate(names)
        if name in plan.weights
    }
    return Program(manifest, library.image, weights, loaded=not plan.load)


def assemble(plan: Plan, memory: Memory) -> tuple[Assembly, tuple[tuple[str, int], ...]]:
    """The program for a backend, and where each output of the graph is found."""
    places = {name: Place("arena", *at) for name, at in memory.places.items()}
    for kind, names in (
        ("output", _written(plan)), ("weight", weight_names(plan)), ("input", plan.inputs),
    ):  # fmt: skip
        places |= {name: Place(kind, i) for i, name in enumerate(names)}

    def calls(steps: tuple[Step, ...]) -> tuple[Call, ...]:
        return tuple(Call(s.program, tuple(places[n] for n in s.buffers)) for s in steps)

    symbols = tuple(s.atom for s in all_symbols(_sizes(plan)))
    assembly = Assembly(calls(plan.steps), calls(plan.load), memory.blocks, symbols)
    return assembly, tuple((places[n].kind, places[n].index) for n in plan.outputs)


def weight_names(plan: Plan) -> tuple[str, ...]:
    """Weights, then results of load steps: the order in which the code receives them."""
    return (*plan.weights, *(name for step in plan.load for name in step.writes))


def _written(plan: Plan) -> tuple[str, ...]:
    """The buffers of outputs that steps write, each once."""
    written = {name for step in plan.steps for name in step.writes}
    return tuple(dict.fromkeys(name for name in plan.outputs if name in written))


def _sizes(plan: Plan) -> list[Size]:
    sizes: list[Size] = []
    for name in sorted(plan.buffers):
        sizes += plan.buffers[name].shape
    for step in (*plan.load, *plan.steps):
        sizes += [e for _, e in sorted(step.program.kernel.extents.items())]
    return sizes


def _slots(plan: Plan, names: tuple[str, ...]) -> tuple[Slot, ...]:
    buffers = [plan.buffers[name] for name in names]
    return tuple(
        Slot(name, b.dtype.name, tuple(plain(d) for d in b.shape))
        for name, b in zip(names, buffers, strict=True)
    )


def _check_determined(manifest: Manifest) -> None:
    """See that shapes of the inputs give every symbol (tried at the hints, without the facts)."""
    hints = {s.atom: s.hint for s in manifest.symbols}
    shapes = [tuple(number(d, hints) for d in slot.shape) for slot in manifest.inputs]
    try:
        missing = hints.keys() - bind(replace(manifest, facts=()), shapes).keys()
    except KeyError as error:
        missing = {error.args[0]}
    if missing:
        raise ValueError(
            f"symbol {min(missing).partition('/')[0]!r} does not follow from the shapes of the "
            "inputs; give an input with a dim that is the symbol itself"
        )
