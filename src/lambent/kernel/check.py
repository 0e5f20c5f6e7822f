"""Is a tile program legal? An executable table of checks, run on every lowered program.

Each check looks at one statement in its context and yields what is wrong with it, in words.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from lambent.graph.dim import Size, axes_in, axis, terms_of, values_in
from lambent.graph.dtypes import DType, bool_, int64
from lambent.graph.prove import substitute
from lambent.kernel.rewrite import bound
from lambent.kernel.tile import (
    MAP_ARITY,
    Accumulate,
    Dot,
    For,
    Index,
    Let,
    Load,
    Map,
    Reduce,
    Ref,
    Stmt,
    Store,
    TileProgram,
    Value,
    Var,
    axes_of,
    operands,
    values,
)

SCRATCH_LIMIT = 8 << 20
"""Bytes of Lets and Vars that may be alive at once: they live on a thread's stack."""
REDUCE = ("sum", "max", "fmax")
FLOAT_ONLY = ("log2", "exp2", "sin", "sqrt", "recip")


@dataclass(frozen=True, slots=True)
class Context:
    """Where a statement stands: the loops around it, the names in scope, its body."""

    program: TileProgram
    looped: frozenset[int]  # axes that some loop of the program runs over
    loops: tuple[For, ...] = ()
    names: Mapping[str, Ref] = field(default_factory=dict)
    variables: Mapping[str, Var] = field(default_factory=dict)
    body: tuple[Stmt, ...] = ()

    @property
    def open(self) -> frozenset[int]:
        return frozenset(loop.axis for loop in self.loops)


Check = Callable[[Stmt, Context], Iterator[str]]


def statement_values(stmt: Stmt) -> tuple[Value, ...]:
    """The values that a statement computes."""
    match stmt:
        case Let(value=value) | Store(value=value):
            return (value,)
        case Accumulate(value=value, scale=scale):
            return (value,) if scale is None else (value, scale)
    return ()


def _every(stmt: Stmt) -> Iterator[Value]:
    for top in statement_values(stmt):
        yield from values(top)


def _indices(stmt: Stmt) -> Iterator[Size]:
    for v in (*_every(stmt), stmt):
        if isinstance(v, (Load, Store)):
            yield from v.index
        elif isinstance(v, Index):
            yield v.index


def refs_are_named(stmt: Stmt, at: Context) -> Iterator[str]:
    inside = [v for i in _indices(stmt) for v in values_in(i)]
    for ref in (*(v for v in _every(stmt) if isinstance(v, Ref)), *inside):
        if not isinstance(ref, Ref):
            yield f"an index holds {ref!r}, not a Ref"
        elif ref.name not in at.names:
            yield f"{ref.name} is not in scope"
        elif ref.axes != at.names[ref.name].axes:
            yield f"{ref.name} has axes {sorted(at.names[ref.name].axes)}, not {sorted(ref.axes)}"
        elif ref.dtype.compute != at.names[ref.name].dtype.compute:
            yield f"{ref.name} is {at.names[ref.name].dtype}, not {ref.dtype}"
    for ref in inside:
        if isinstance(ref, Ref) and not ref.dtype.is_integer:
            yield f"the index {ref.name} is {ref.dtype}, not an integer"


def axes_are_open_or_whole(stmt: Stmt, at: Context) -> Iterator[str]:
    used = frozenset[int]().union(
        *(axes_of(v) for v in _every(stmt)),
        *(axes_of(Index(i)) for i in _indices(stmt)),
        stmt.axes if isinstance(stmt, Var) else (),
    )
    for i in sorted(used - at.open):
        axis_ = at.program.axes.get(i)
        if axis_ is None:
            yield f"axis a{i} is unknown"
        elif i in at.looped:
            yield f"axis a{i} is looped, but not here"
        elif axis_.tile < bound(axis_.extent):
            yield f"axis a{i} is whole, but its tile {axis_.tile} does not cover {axis_.extent}"


def loops_are_sound(stmt: Stmt, at: Context) -> Iterator[str]:
    if not isinstance(stmt, For):
        return
    i, axes = stmt.axis, at.program.axes
    if i not in axes:
        yield f"loop over the unknown axis a{i}"
        return
    if i in at.open:
        yield f"axis a{i} is looped inside of its own loop"
    for e in (stmt.start, stmt.stop):
        if values_in(e) or not axes_in(e) <= at.open:
            yield f"loop a{i}: {e} must depend on open loops alone"
    tiles = {j: axes[j].tile for j in axes_in(stmt.start) & at.open}
    if not _multiple(
        substitute(stmt.start, lambda a: _origin(a.kind, a.args, tiles)), axes[i].tile
    ):
        yield f"loop a{i}: start {stmt.start} is not a multiple of the tile {axes[i].tile}"
    if stmt.parallel and not (all(f.parallel for f in at.loops) and len(at.body) == 1):
        yield f"parallel loop a{i}: must stand alone, directly in parallel loops"


def _origin(kind: str, args: tuple[object, ...], tiles: Mapping[int, int]) -> Size | None:
    i = args[0]
    return axis(i) * tiles[i] if kind == "axis" and isinstance(i, int) and i in tiles else None


def _multiple(e: Size, n: int) -> bool:
    """True if e is known to be a multiple of n."""
    for c, monomial in terms_of(e):
        extremes = (a for a, _ in monomial if a.kind in ("min", "max"))
        if c % n and not any(all(_multiple(x, n) for x in a.args) for a in extremes):
            return False
    return True


def accumulators_are_outside(stmt: Stmt, at: Context) -> Iterator[str]:
    if not isinstance(stmt, Accumulate):
        return
    var = at.variables.get(stmt.name)
    if var is None:
        yield f"{stmt.name} is not a Var in scope"
        return
    for v in statement_values(stmt):
        if not axes_of(v) <= set(var.axes):
            yield f"{var.name} over {sorted(var.axes)} gets a value over {sorted(axes_of(v))}"
        if v.dtype.compute != var.dtype.compute:
            yield f"{var.name} is {var.dtype} and gets {v.dtype}"
    if stmt.op not in REDUCE:
        yield f"{var.name}: no accumulation is called {stmt.op}"
    if var.dtype.is_float and var.dtype.itemsize < 4:
        yield f"{var.name} is {var.dtype}: an accumulator is never narrower than float32"


def names_are_new(stmt: Stmt, at: Context) -> Iterator[str]:
    if isinstance(stmt, (Let, Var)) and stmt.name in at.names:
        yield f"{stmt.name} is named twice"


def loads_fit(stmt: Stmt, at: Context) -> Iterator[str]:
    buffers = {b.name: b for b in at.program.kernel.inputs}
    for v in _every(stmt):
        if isinstance(v, Load):
            buffer = buffers.get(v.buffer)
            if buffer is None:
                yield f"{v.buffer} is not an input of the kernel"
            elif (len(v.index), v.dtype) != (len(buffer.shape), buffer.dtype):
                yield f"{v.buffer} is {buffer.dtype} of rank {len(buffer.shape)}, not {v}"


def stores_cover_once(stmt: Stmt, at: Context) -> Iterator[str]:
    if not isinstance(stmt, Store):
        return
    output = next((o for o in at.program.kernel.outputs if o.buffer.name == stmt.buffer), None)
    if output is None or stmt.index != output.index:
        yield f"{stmt.buffer}: the kernel has no such output, or stores it elsewhere"
        return
    own = frozenset[int]().union(*(axes_in(i) for i in stmt.index))
    for loop in at.loops:
        extent = at.program.axes[loop.axis].extent
        if loop.axis not in own or loop.start != 0 or loop.stop != extent:
            yield f"{stmt.buffer}: stored in a loop over a{loop.axis}, not once for each element"
    if not axes_of(stmt.value) <= own:
        yield f"{stmt.buffer}: the value has axes that the index lacks"
    if stmt.value.dtype.compute != output.buffer.dtype.compute:
        yield f"{stmt.buffer} is {output.buffer.dtype} and gets {stmt.value.dtype}; cast it"


def maps_agree(stmt: Stmt, at: Context) -> Iterator[str]:
    for v in _every(stmt):
        if isinstance(v, Map) and not _well_typed(v):
            yield f"{v.op} of {', '.join(a.dtype.name for a in v.args)} cannot be {v.dtype}"
        if isinstance(v, Index) and v.dtype != int64:
            yield f"an index is int64, not {v.dtype}"


def _well_typed(v: Map) -> bool:
    if len(v.args) != MAP_ARITY.get(v.op):
        return False
    if v.op == "cast":
        return True
    kinds: list[DType] = [a.dtype.compute for a in v.args]
    if v.op in ("mask", "select"):
        return kinds[0] == bool_ and all(k == v.dtype.compute for k in kinds[1:])
    if v.op in ("less", "eq"):
        return v.dtype == bool_ and kinds[0] == kinds[1]
    if v.op in FLOAT_ONLY and not v.dtype.is_float:
        return False
    return all(k == v.dtype.compute for k in kinds) and (v.op == "not") == (v.dtype == bool_)


def form_is_normal(stmt: Stmt, at: Context) -> Iterator[str]:
    heads = statement_values(stmt)[:1] if isinstance(stmt, (Let, Accumulate)) else ()
    for v in _every(stmt):
        if not isinstance(v, (Reduce, Dot)):
            continue
        kind, parts = type(v).__name__, operands(v)
        if not any(v is head for head in heads):
            yield f"a {kind} must stand directly under a Let or an Accumulate"
        if not v.axes or any(not v.axes <= axes_of(x) for x in parts):
            yield f"a {kind} over {sorted(v.axes)}, which an operand lacks"
        if isinstance(v, Reduce) and v.op not in REDUCE:
            yield f"no reduction is called {v.op}"
        if isinstance(v, Dot) and not all(isinstance(x, (Load, Ref)) for x in parts):
            yield "an operand of a Dot must be a Load or a Ref"
        if len({x.dtype.compute for x in parts}) > 1:
            yield f"a Dot of {' and '.join(x.dtype.name for x in parts)}"


CHECKS: tuple[Check, ...] = (
    refs_are_named,
    axes_are_open_or_whole,
    loops_are_sound,
    accumulators_are_outside,
    names_are_new,
    loads_fit,
    stores_cover_once,
    maps_agree,
    form_is_normal,
)


def problems(program: TileProgram) -> list[str]:
    """Everything that is wrong with the program; empty if it is legal."""
    looped: set[int] = set()
    stores: Counter[str] = Counter()

    def survey(body: tuple[Stmt, ...]) -> None:
        for stmt in body:
            if isinstance(stmt, For):
                looped.add(stmt.axis)
                survey(stmt.body)
            elif isinstance(stmt, Store):
                stores[stmt.buffer] += 1

    survey(program.body)
    found = list(_problems(program.body, Context(program, frozenset(looped))))
    for output in program.kernel.outputs:
        if stores[output.buffer.name] != 1:
            found.append(f"{output.buffer.name} is stored {stores[output.buffer.name]} times")
    if not found and scratch(program) > SCRATCH_LIMIT:
        found.append(f"scratch tiles of {scratch(program)} bytes, limit {SCRATCH_LIMIT}")
    return found


def _problems(body: tuple[Stmt, ...], outer: Context) -> Iterator[str]:
    names, variables = dict(outer.names), dict(outer.variables)
    for stmt in body:
        at = Context(outer.program, outer.looped, outer.loops, names, variables, body)
        for check_ in CHECKS:
            yield from check_(stmt, at)
        match stmt:
            case For() if stmt.axis in outer.program.axes:
                inside = Context(
                    outer.program, outer.looped, (*outer.loops, stmt), dict(names), dict(variables)
                )
                yield from _problems(stmt.body, inside)
            case Let(name=name, value=value):
                names[name] = Ref(name, axes_of(value), value.dtype)
            case Var(name=name):
                names[name] = Ref(name, frozenset(stmt.axes), stmt.dtype)
                variables[name] = stmt


def scratch(program: TileProgram) -> int:
    """Bytes of all Lets and Vars that are alive at once."""

    def peak(body: tuple[Stmt, ...]) -> int:
        own, inner = 0, 0
        for stmt in body:
            if isinstance(stmt, For):
                inner = max(inner, peak(stmt.body))
            elif isinstance(stmt, (Let, Var)):
                dtype = stmt.dtype if isinstance(stmt, Var) else stmt.value.dtype
                axes = stmt.axes if isinstance(stmt, Var) else sorted(axes_of(stmt.value))
                tile = math.prod(program.axes[i].tile for i in axes)
                own += tile * dtype.compute.itemsize
        return own + inner

    return peak(program.body)


def check(program: TileProgram) -> None:
    """Accept a legal program.

    Raises:
        ValueError: what is wrong, one line each.
    """
    found = problems(program)
    if found:
        raise ValueError("illegal tile program: " + "; ".join(found))
