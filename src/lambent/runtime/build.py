"""Plan → Program: places for all buffers, where symbols come from, one library, the manifest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from lambent.backends.base import Assembly, Backend, Place, kernel_symbols
from lambent.backends.sizes import Text, text
from lambent.buckets import substituted, symbol
from lambent.graph import dim
from lambent.graph.dim import Atom, Size, symbols_in
from lambent.graph.prove import facts
from lambent.runtime.donate import donated
from lambent.runtime.memory import plan_memory
from lambent.runtime.plan import Plan, check
from lambent.runtime.program import Array, Manifest, Program, Slot


def build(
    plan: Plan, backend: Backend, form: str | tuple[str, ...] | None = None,
    names: Mapping[str, Size] = {},
) -> Program:  # fmt: skip
    """Run the load steps of a plan; assemble, compile and open the others.

    Args:
        names: what stands in the manifest for the atoms of symbols, where these stand for others.
        form: how outputs are returned: "one", "tuple" or the names of a dict; by default "one" for
            one output, else "tuple".

    Raises:
        ValueError: the plan breaks an invariant, or its inputs do not determine a symbol.
        BackendError: the code does not compile.
    """
    plan = replace(plan, load=(), weights=plan.weights | _loaded(plan, backend))
    check(plan)
    sources = _sources(plan)
    plan, over = donated(plan)
    assembly = assemble(plan, over)
    library = backend.assemble(assembly)

    def of_kind(kind: str) -> list[str]:
        found = [n for n, place in assembly.places.items() if place.kind == kind]
        return [n for n in found if n not in over]

    def shown(size: Size) -> Text:
        return text(substituted(size, names))

    def slots(kind: str) -> tuple[Slot, ...]:
        buffers = [plan.buffers[name] for name in of_kind(kind)]
        return tuple(Slot(b.name, b.dtype.name, tuple(map(shown, b.shape))) for b in buffers)

    manifest = Manifest(
        backend.name,
        library.requires,
        tuple(symbol(atom, names) for atom in sources),
        tuple(sources.values()),
        slots("input"),
        slots("output"),
        slots("weight"),
        tuple((assembly.places[n].kind, assembly.places[n].index) for n in plan.outputs),
        tuple((plan.inputs.index(name), number) for name, number in plan.donated),
        form or ("one" if len(plan.outputs) == 1 else "tuple"),
        shown(sum(assembly.blocks)),
        tuple(shown(fact) for fact in facts() if symbols_in(fact) <= sources.keys()),
        "{}",
    )
    weights = [np.require(plan.weights[name], None, ["C", "A"]) for name in of_kind("weight")]
    return Program(manifest, library.image, weights)


def _loaded(plan: Plan, backend: Backend) -> dict[str, Array]:
    """What the load steps make of the weights: they are a program of their own, run once."""
    if not plan.load:
        return {}
    results = tuple(name for step in plan.load for name in step.writes)
    read = {name for step in plan.load for name in step.reads}
    weights = {name: array for name, array in plan.weights.items() if name in read}
    buffers = {name: plan.buffers[name] for name in (*weights, *results)}
    first = Plan(plan.load, (), buffers, tuple(weights), results, {})
    return dict(build(first, backend, results)(**weights))


def assemble(plan: Plan, over: Mapping[str, str] = {}) -> Assembly:
    """The steps of a plan for a backend, with places for all that they name.

    over: outputs in the memory of an input.
    """
    memory = plan_memory(plan)
    written = {name for step in plan.steps for name in step.writes}
    needed = {name for step in plan.steps for name in step.reads}.union(plan.outputs)
    outside = {
        "input": plan.inputs,
        "output": dict.fromkeys(n for n in plan.outputs if n in written and n not in over),
        "weight": [name for name in plan.weights if name in needed],
    }
    places = {name: Place("arena", *at) for name, at in memory.places.items()}
    for kind, names in outside.items():
        places |= {name: Place(kind, i) for i, name in enumerate(names)}
    places |= {name: places[source] for name, source in over.items()}
    return Assembly(plan.steps, places, memory.blocks, tuple(_sources(plan)))


# ---- symbols ---------------------------------------------------------------------------------


def _sources(plan: Plan) -> dict[str, tuple[int, int]]:
    """The (input, dim) that gives each symbol's atom, after those of the symbols it also needs.

    Raises:
        ValueError: one does not follow from the shapes of the inputs.
    """
    kernels = [step.program.kernel for step in plan.steps]
    sizes = [size for buffer in plan.buffers.values() for size in buffer.shape]
    missing = {s for size in sizes for s in symbols_in(size)}.union(*map(kernel_symbols, kernels))
    shapes = [plan.buffers[name].shape for name in plan.inputs]
    dims = {(i, j): size for i, shape in enumerate(shapes) for j, size in enumerate(shape)}
    sources: dict[str, tuple[int, int]] = {}
    while missing:
        for at, size in dims.items():
            atom = _given(size, missing)
            if atom is not None:
                sources.setdefault(atom, at)
        if missing.isdisjoint(sources):
            raise ValueError(
                f"symbol {min(missing).partition('/')[0]!r} does not follow from the shapes of the "
                "inputs; give an input with a dim that is the symbol itself"
            )
        missing -= sources.keys()
    return sources


def _given(size: Size, unknown: set[str]) -> str | None:
    """The unknown symbol that the size gives: it is c · symbol + what is known."""

    def new(atom: Atom) -> bool:
        names = [atom.args] if atom.kind == "symbol" else map(symbols_in, atom.args)
        return not unknown.isdisjoint(frozenset[str]().union(*names))

    match [product for _, product in dim.terms_of(size) if any(new(atom) for atom, _ in product)]:
        case [((Atom("symbol", (str(name),)), 1),)]:
            return name
    return None
