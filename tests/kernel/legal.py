"""Is a tile program legal? What lowering promises to renderers: a table of small checks, one walk.

Lowering gives legal programs whatever the schedule; the tests hold it to that for random kernels.

A check looks at one node where it stands, and says what is wrong with it. A node is a statement, a
value in it, a Ref in one of its index expressions, or the number of an axis that it mentions.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lambent.graph.dim import Size, axes_in, terms_of, values_in
from lambent.graph.dtypes import DType, bool_, int64
from lambent.kernel import tile as ir
from lambent.kernel.rewrite import bound, free_axes

SCRATCH_LIMIT = 8 << 20
"""Bytes of Lets and Vars that may be alive at once: they live on a thread's stack."""
REDUCE = ("sum", "max", "fmax")
FLOAT_ONLY = ("log2", "exp2", "sin", "sqrt", "recip")

MAP_ARITY: dict[str, int] = {
    "log2": 1, "exp2": 1, "sin": 1, "sqrt": 1, "recip": 1, "not": 1, "cast": 1,
    "add": 2, "sub": 2, "mul": 2, "mod": 2, "less": 2, "eq": 2, "mask": 2, "max": 2, "fmax": 2,
    "select": 3,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class At:
    """Where a node stands: the body of its statement, the loops around, the names in scope."""

    program: ir.TileProgram
    looped: frozenset[int]  # axes that some loop of the program runs over
    stmt: ir.Stmt | None = None
    body: tuple[ir.Stmt, ...] = ()
    loops: tuple[ir.For, ...] = ()
    names: Mapping[str, ir.Let | ir.Var] = field(default_factory=dict)

    @property
    def open(self) -> frozenset[int]:
        return frozenset(loop.axis for loop in self.loops)


def names(s: ir.Let | ir.Var, at: At) -> Iterator[str]:
    if s.name in at.names:
        yield f"{s.name} is named twice"
    if isinstance(s, ir.Var) and s.dtype.is_float and s.dtype.itemsize < 4:
        yield f"{s.name} is {s.dtype}: an accumulator is never narrower than float32"


def refs(r: ir.Ref, at: At) -> Iterator[str]:
    if r.name not in at.names:
        yield f"{r.name} is not in scope"
    elif form(r) != form(at.names[r.name].ref):
        yield f"{r.name} is {shown(at.names[r.name].ref)}, not {shown(r)}"


def form(v: ir.Value) -> tuple[frozenset[int], DType]:
    """What must agree: the axes, and the dtype that is computed in."""
    return ir.axes_of(v), v.dtype.compute


def shown(v: ir.Value) -> str:
    return f"{v.dtype} and has axes {sorted(ir.axes_of(v))}"


def axes(i: int, at: At) -> Iterator[str]:
    axis = at.program.axes.get(i)
    if axis is None:
        yield f"axis a{i} is unknown"
    elif i in at.looped - at.open:
        yield f"axis a{i} is looped, but not here"
    elif i not in at.open and axis.tile < bound(axis.extent):
        yield f"axis a{i} is whole, but its tile {axis.tile} does not cover {axis.extent}"


def loops(s: ir.For, at: At) -> Iterator[str]:
    if s.axis not in at.program.axes:
        yield f"loop over the unknown axis a{s.axis}"
        return
    if s.axis in at.open:
        yield f"axis a{s.axis} is looped inside of its own loop"
    ends = s.start, s.stop
    if any(ir.axes_of(v) or s.parallel for e in ends for v in values_in(e)) or not all(
        axes_in(e) <= at.open for e in ends
    ):
        yield f"loop a{s.axis}: {s.start} and {s.stop} must depend on open loops and scalars alone"
    elif not multiple(s.start, at.program.axes[s.axis].tile, at.program):
        yield f"loop a{s.axis}: start {s.start} is not a multiple of the tile"
    if s.parallel and not (all(f.parallel for f in at.loops) and len(at.body) == 1):
        yield f"parallel loop a{s.axis}: must stand alone, directly in parallel loops"


def multiple(e: Size, n: int, program: ir.TileProgram) -> bool:
    """True if e is known to be a multiple of n, at the origins of tiles."""
    for c, monomial in terms_of(e):
        for a, power in monomial:
            if a.kind == "axis":
                c *= program.axes[a.args[0]].tile ** power
            elif a.kind in ("min", "max") and all(multiple(x, n, program) for x in a.args):
                c *= n
        if c % n:
            return False
    return True


def accumulators(s: ir.Accumulate, at: At) -> Iterator[str]:
    var = at.names.get(s.name)
    if s.op not in REDUCE:
        yield f"{s.name}: no accumulation is called {s.op}"
    if isinstance(var, ir.Var):
        for v in ir.operands(s):
            yield from fits(v, f"{s.name} over {sorted(var.axes)}", frozenset(var.axes), var.dtype)
    else:
        yield f"{s.name} is not a Var in scope"


def fits(v: ir.Value, where: str, axes: frozenset[int], dtype: DType) -> Iterator[str]:
    """A value broadcasts to what it is put in, and is computed in its dtype."""
    if not ir.axes_of(v) <= axes or v.dtype.compute != dtype.compute:
        yield f"{where}, {dtype}, gets a value over {sorted(ir.axes_of(v))}, {v.dtype}"


def loads(v: ir.Load, at: At) -> Iterator[str]:
    buffer = next((b for b in at.program.kernel.inputs if b.name == v.buffer), None)
    if buffer is None:
        yield f"{v.buffer} is not an input of the kernel"
    elif (len(v.index), v.dtype) != (len(buffer.shape), buffer.dtype):
        yield f"{v.buffer} is {buffer.dtype} of rank {len(buffer.shape)}, not {v}"


def stores(s: ir.Store, at: At) -> Iterator[str]:
    output = next((o for o in at.program.kernel.outputs if o.buffer.name == s.buffer), None)
    if output is None or s.index != output.index:
        yield f"{s.buffer}: the kernel has no such output, or stores it elsewhere"
        return
    own = free_axes(output)
    for f in at.loops:
        all_of_it = output.over or (f.start, f.stop) == (0, at.program.axes[f.axis].extent)
        if f.axis not in own or not all_of_it:
            yield f"{s.buffer}: stored in a loop over a{f.axis}, not once for each element"
    yield from fits(s.value, f"{s.buffer} over {sorted(own)}", own, output.buffer.dtype)


def index_values(v: ir.Load | ir.Store | ir.Index, at: At) -> Iterator[str]:
    for ref in (r for i in ir.indices(v) for r in values_in(i)):
        if not (isinstance(ref, ir.Ref) and ref.dtype.is_integer):
            yield f"an index holds {ref!r}, not a Ref of integers"
    if isinstance(v, ir.Index) and v.dtype != int64:
        yield f"an index is int64, not {v.dtype}"


def maps(v: ir.Map, at: At) -> Iterator[str]:
    if not well_typed(v):
        yield f"{v.op} of {', '.join(a.dtype.name for a in v.args)} cannot be {v.dtype}"


def well_typed(v: ir.Map) -> bool:
    kinds, own = [a.dtype.compute for a in v.args], v.dtype.compute
    if len(kinds) != MAP_ARITY.get(v.op) or v.op == "cast":
        return v.op == "cast" and len(kinds) == 1
    if v.op in ("mask", "select"):
        return kinds[0] == bool_ and all(k == own for k in kinds[1:])
    if v.op in ("less", "eq"):
        return own == bool_ and kinds[0] == kinds[1]
    if v.op in FLOAT_ONLY and not own.is_float:
        return False
    return all(k == own for k in kinds) and (v.op == "not") == (own == bool_)


def contractions(v: ir.Reduce | ir.Dot, at: At) -> Iterator[str]:
    kind, parts = type(v).__name__, ir.operands(v)
    if not (isinstance(at.stmt, (ir.Let, ir.Accumulate)) and v is at.stmt.value):
        yield f"a {kind} must stand directly under a Let or an Accumulate"
    if not v.axes or any(not v.axes <= ir.axes_of(x) for x in parts):
        yield f"a {kind} over {sorted(v.axes)}, which an operand lacks"
    if isinstance(v, ir.Reduce) and v.op not in REDUCE:
        yield f"no reduction is called {v.op}"
    if isinstance(v, ir.Dot) and not all(isinstance(x, (ir.Load, ir.Ref)) for x in parts):
        yield "an operand of a Dot must be a Load or a Ref"
    if len({x.dtype.compute for x in parts}) > 1:
        yield f"a Dot of {' and '.join(x.dtype.name for x in parts)}"


CHECKS: tuple[tuple[Any, Callable[[Any, At], Iterator[str]]], ...] = (
    (ir.Let | ir.Var, names),
    (ir.Ref, refs),
    (int, axes),
    (ir.For, loops),
    (ir.Accumulate, accumulators),
    (ir.Load, loads),
    (ir.Store, stores),
    (ir.Load | ir.Store | ir.Index, index_values),
    (ir.Map, maps),
    (ir.Reduce | ir.Dot, contractions),
)


def nodes(stmt: ir.Stmt) -> Iterator[Any]:
    """What the table speaks of: the statement and what it holds."""
    below = [v for top in ir.operands(stmt) for v in ir.values(top)]
    index = [i for v in (stmt, *below) for i in ir.indices(v)]
    inside = [v for i in index for v in values_in(i)]
    used = [axes_in(i) for i in index]
    used += [frozenset(v.axes) for v in (stmt, *below, *inside) if isinstance(v, ir.Ref | ir.Var)]
    return iter((stmt, *below, *inside, *sorted(frozenset[int]().union(*used))))


def _problems(body: tuple[ir.Stmt, ...], outer: At) -> Iterator[str]:
    known = dict(outer.names)
    for stmt in body:
        at = replace(outer, stmt=stmt, body=body, names=known)
        for node in nodes(stmt):
            for kinds, check_ in CHECKS:
                if isinstance(node, kinds):
                    yield from check_(node, at)
        if isinstance(stmt, ir.For) and stmt.axis in at.program.axes:
            yield from _problems(stmt.body, replace(at, loops=(*at.loops, stmt)))
        elif isinstance(stmt, (ir.Let, ir.Var)):
            known[stmt.name] = stmt


def problems(program: ir.TileProgram) -> list[str]:
    """Everything that is wrong with the program; empty if it is legal."""
    every = list(ir.statements(program.body))
    looped = frozenset(s.axis for s in every if isinstance(s, ir.For))
    found = list(_problems(program.body, At(program, looped)))
    stored = Counter(s.buffer for s in every if isinstance(s, ir.Store))
    for o in program.kernel.outputs:
        if (count := stored[o.buffer.name]) != 1 and not o.over:
            found.append(f"{o.buffer.name} is stored {count} times")
    if not found and scratch(program) > SCRATCH_LIMIT:
        found.append(f"scratch tiles of {scratch(program)} bytes, limit {SCRATCH_LIMIT}")
    return found


def scratch(program: ir.TileProgram) -> int:
    """Bytes of all Lets and Vars that are alive at once."""

    def peak(body: tuple[ir.Stmt, ...]) -> int:
        tiles = [s.ref for s in body if isinstance(s, (ir.Let, ir.Var))]
        counts = [math.prod(program.axes[i].tile for i in t.axes) for t in tiles]
        own = sum(n * t.dtype.compute.itemsize for n, t in zip(counts, tiles, strict=True))
        return own + max((peak(s.body) for s in body if isinstance(s, ir.For)), default=0)

    return peak(program.body)


def check(program: ir.TileProgram) -> None:
    """Accept a legal program.

    Raises:
        ValueError: what is wrong, one line each.
    """
    found = problems(program)
    if found:
        raise ValueError("illegal tile program: " + "; ".join(found))
