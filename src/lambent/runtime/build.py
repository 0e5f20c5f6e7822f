"""Plan → Program: places for all buffers, where symbols come from, one library, the manifest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from lambent.backends.base import Assembly, Backend, Place, kernel_symbols
from lambent.graph import dim
from lambent.graph.dim import Atom, Size, symbols_in
from lambent.graph.prove import facts
from lambent.runtime.memory import plan_memory
from lambent.runtime.plan import Plan, check
from lambent.runtime.program import Manifest, Program, Slot
from lambent.runtime.sizes import Symbol, Text


def build(
    plan: Plan,
    backend: Backend,
    *,
    form: str | tuple[str, ...] | None = None,
    explain: dict[str, Any] | None = None,
) -> Program:
    """Assemble, compile and open a plan, and run its load steps.

    Args:
        form: how outputs are returned: "one", "tuple" or the names of a dict; by default "one" for
            one output, else "tuple".
        explain: JSON data that `Program.explain` returns.

    Raises:
        ValueError: the plan breaks an invariant, or its inputs do not determine a symbol.
        BackendError: the code does not compile.
    """
    check(plan)
    symbols = _symbols(plan)
    assembly = assemble(plan)
    library = backend.assemble(assembly)
    names = _outside(plan)
    kept = [name for name in names["weight"] if name in _read(plan)]

    def slots(names: Iterable[str]) -> tuple[Slot, ...]:
        buffers = [plan.buffers[name] for name in names]
        return tuple(Slot(b.name, b.dtype.name, tuple(map(_text, b.shape))) for b in buffers)

    manifest = Manifest(
        backend.name,
        library.requires,
        tuple(symbols.values()),
        slots(plan.inputs),
        slots(names["output"]),
        slots(kept),
        tuple((assembly.places[n].kind, assembly.places[n].index) for n in plan.outputs),
        form or ("one" if len(plan.outputs) == 1 else "tuple"),
        _text(sum(assembly.blocks)),
        tuple(_text(fact) for fact in facts() if symbols_in(fact) <= symbols.keys()),
        explain or {},
    )
    weights = [_weight(plan, name) for name in names["weight"]]
    program = Program(manifest, library.image, weights[: len(kept)])
    program.executable.load(weights)
    return program


def assemble(plan: Plan) -> Assembly:
    """The program for a backend."""
    memory = plan_memory(plan)
    places = {name: Place("arena", *at) for name, at in memory.places.items()}
    for kind, names in _outside(plan).items():
        places |= {name: Place(kind, i) for i, name in enumerate(names)}
    return Assembly(plan.steps, plan.load, places, memory.blocks, tuple(_symbols(plan)))


def _read(plan: Plan) -> set[str]:
    """The buffers that a run reads or returns."""
    return {name for step in plan.steps for name in step.reads}.union(plan.outputs)


def _outside(plan: Plan) -> dict[str, tuple[str, ...]]:
    """The buffers outside of the arena by kind, numbered as the code receives them.

    Outputs are those that steps write. Weights that only load steps read come last.
    """
    written = {name for step in plan.steps for name in step.writes}
    outputs = dict.fromkeys(name for name in plan.outputs if name in written)
    weights = [*plan.weights, *(name for step in plan.load for name in step.writes)]
    read = _read(plan)
    return {
        "input": plan.inputs,
        "output": tuple(outputs),
        "weight": tuple(sorted(weights, key=lambda name: name not in read)),
    }


def _weight(plan: Plan, name: str) -> np.ndarray[Any, Any]:
    """A weight's array as the code wants it, or room for what a load step computes."""
    if name in plan.weights:
        return np.require(plan.weights[name], requirements=["C", "A"])
    buffer = plan.buffers[name]
    return np.empty([int(d) for d in buffer.shape], buffer.dtype.numpy)


def _text(size: Size) -> Text:
    return size if isinstance(size, int) else dim.show(size)


# ---- symbols ---------------------------------------------------------------------------------


def _symbols(plan: Plan) -> dict[str, Symbol]:
    """The symbols by atom, each after those that are needed to learn it from an input's dim.

    Raises:
        ValueError: one does not follow from the shapes of the inputs.
    """
    kernels = [step.program.kernel for step in (*plan.load, *plan.steps)]
    sizes = [size for buffer in plan.buffers.values() for size in buffer.shape]
    missing = {s for size in sizes for s in symbols_in(size)}.union(*map(kernel_symbols, kernels))
    dims = {
        (i, j): size
        for i, name in enumerate(plan.inputs)
        for j, size in enumerate(plan.buffers[name].shape)
    }
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
    return {atom: _symbol(atom, at) for atom, at in sources.items()}


def _given(size: Size, unknown: set[str]) -> str | None:
    """The unknown symbol that the size gives: it is c · symbol + what is known."""

    def new(atom: Atom) -> bool:
        names = [atom.args] if atom.kind == "symbol" else map(symbols_in, atom.args)
        return not unknown.isdisjoint(frozenset[str]().union(*names))

    match [product for _, product in dim.terms_of(size) if any(new(atom) for atom, _ in product)]:
        case [((Atom("symbol", (str(name),)), 1),)]:
            return name
    return None


def _symbol(atom: str, source: tuple[int, int]) -> Symbol:
    name, _, multiple = atom.partition("/")
    factor = int(multiple or 1)
    return Symbol(name, *dim.symbol_range(name), factor, dim.symbol_hint(atom) * factor, source)
