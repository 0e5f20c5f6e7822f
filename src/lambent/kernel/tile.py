"""The tile program: the one kernel IR, in the manner of Triton and Pallas.

    program := TileProgram(kernel, axes, body, schedule)
    stmt    := For(axis, start, stop, parallel, body)  tiles at start, start + tile, … < stop
             | Let(name, value)                        a tile computed here once, for the body
             | Var(name, axes, dtype, init)            an accumulator tile, filled with init
             | Accumulate(name, op, value, scale)      name := op(name · scale, value)
             | Store(buffer, index, value)             buffer[index] = value, rounded to its dtype
    value   := Load(buffer, index, dtype)              the index is clamped into the buffer
             | Lit(value, dtype) | Index(index)        a scalar; an index expression, as int64
             | Map(op, args, dtype)                    elementwise, broadcasting over named axes
             | Reduce(op, axes, arg)                   sum, max (NaN wins) or fmax (NaN loses)
             | Dot(axes, a, b)                         Σ of a·b; other shared axes are batch axes
             | Ref(name)                               a Let or a Var

Meaning. A value is an array with named dims: the axes that it depends on. `axes[i]` has an
extent and a tile. Inside `For(i)` axis i stands for the indices origin … min(origin + tile,
extent) − 1; an axis that no enclosing For loops is *whole*: it stands for all indices, and its
tile is at least its extent's upper bound. Every axis that a value mentions is looped by an
enclosing For or is whole, everywhere in the program. In `start` and `stop` an `axis(j)` means
the current origin of the enclosing loop j, and a `value(v)` is a scalar, in loops that are not
parallel; start is a multiple of the tile; `stop` only ends the loop, it never cuts a tile.

Index expressions are `Size`s over axes, symbols and `value(v)` atoms, where v is a `Ref` (a
gathered index: an integer tile named by a Let). A Load outside of its buffer is legal and reads
the clamped element: whoever needs another value masks it (that is what `mask` is for, it is
exact). A Store is never out of bounds.

Arithmetic is done in `dtype.compute`. Integer arithmetic wraps at the value's dtype. `cast`
converts and rounds to its dtype. `mask(b, x)` is x or 0, `select(b, x, y)` is x or y, `max` is a
maximum in which NaN wins, in `fmax` it loses, `mod` is floored, `not` is logical.

A Let keeps its value as computed (in `dtype.compute`, unrounded); it is rounded by `cast` and
Store alone. A value broadcasts where it lacks an axis that its use has: in a Map, in an
Accumulate, in a Store. A Reduce or a Dot is over axes that its argument (both operands) has. Var
and Let tiles live to the end of their body; a Var is filled anew each time its statement runs. A
Load from a buffer without elements is 0.

Normal form, which `lower` gives and renderers rely on: a Reduce or a Dot stands directly under
a Let or an Accumulate; an operand of a Dot is a Load or a Ref; in an index expression the atom
`value(v)` holds a Ref.

Outermost Fors with parallel=True, directly nested, are the grid: their iterations are
independent tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from lambent.graph.dim import Size, axes_in, values_in
from lambent.graph.dtypes import DType, bool_, int64
from lambent.kernel.kernel import Kernel


@dataclass(frozen=True, slots=True)
class Axis:
    """`extent` indices, of which a tile covers `tile` (or fewer at the end)."""

    extent: Size
    tile: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """How a kernel is cut: what `lower` needs, and hints for renderers.

    tiles:  (axis, tile) pairs; an axis not named is whole when reduced, 1 when free.
    order:  the free axes that are looped, outermost first; the first `grid` of them are parallel.
    block:  (rows, vectors) of the register block of a Dot.
    """

    tiles: tuple[tuple[int, int], ...] = ()
    order: tuple[int, ...] = ()
    grid: int = 0
    block: tuple[int, int] = (6, 2)
    options: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Ref:
    name: str
    axes: frozenset[int]
    dtype: DType

    @property
    def id(self) -> str:
        """The sort key of a `value(ref)` atom."""
        return self.name


@dataclass(frozen=True, slots=True)
class Load:
    buffer: str
    index: tuple[Size, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class Lit:
    value: float | int | bool
    dtype: DType


@dataclass(frozen=True, slots=True)
class Index:
    index: Size
    dtype: DType = int64


@dataclass(frozen=True, slots=True)
class Map:
    op: str
    args: tuple[Value, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class Reduce:
    op: str
    axes: frozenset[int]
    arg: Value

    @property
    def dtype(self) -> DType:
        return self.arg.dtype


@dataclass(frozen=True, slots=True)
class Dot:
    axes: frozenset[int]
    a: Value
    b: Value

    @property
    def dtype(self) -> DType:
        return self.a.dtype


Value = Load | Lit | Index | Map | Reduce | Dot | Ref


def mapped(op: str, *args: Value) -> Map:
    """The Map of an op that converts nothing: its dtype follows from its operands'."""
    return Map(op, args, bool_ if op in ("less", "eq", "not") else args[-1].dtype)


@dataclass(frozen=True, slots=True)
class For:
    axis: int
    start: Size
    stop: Size
    body: tuple[Stmt, ...]
    parallel: bool = False


@dataclass(frozen=True, slots=True)
class Let:
    name: str
    value: Value

    @property
    def ref(self) -> Ref:
        return Ref(self.name, axes_of(self.value), self.value.dtype)


@dataclass(frozen=True, slots=True)
class Var:
    name: str
    axes: tuple[int, ...]
    dtype: DType
    init: float | int | bool

    @property
    def ref(self) -> Ref:
        return Ref(self.name, frozenset(self.axes), self.dtype)


@dataclass(frozen=True, slots=True)
class Accumulate:
    name: str
    op: str
    value: Value
    scale: Value | None = None


@dataclass(frozen=True, slots=True)
class Store:
    buffer: str
    index: tuple[Size, ...]
    value: Value


Stmt = For | Let | Var | Accumulate | Store


@dataclass(frozen=True, slots=True, eq=False)
class TileProgram:
    """A kernel under a schedule. Programs are told apart by identity."""

    kernel: Kernel
    axes: dict[int, Axis]
    body: tuple[Stmt, ...]
    schedule: Schedule = field(default_factory=Schedule)
    panels: dict[str, int] = field(default_factory=dict)  # weights in panels → the dim that is cut


def operands(node: Value | Stmt) -> tuple[Value, ...]:
    """The direct operands of a value, or the values of a statement (not those in indices)."""
    match node:
        case Map(args=args):
            return args
        case Reduce(arg=arg):
            return (arg,)
        case Dot(a=a, b=b):
            return (a, b)
        case Let(value=value) | Store(value=value) | Accumulate(value=value, scale=None):
            return (value,)
        case Accumulate(value=value, scale=scale) if scale is not None:
            return (value, scale)
    return ()


def indices(node: Value | Stmt) -> tuple[Size, ...]:
    """The index expressions that stand directly in a value or a statement."""
    match node:
        case Load(index=index) | Store(index=index):
            return index
        case Index(index=one):
            return (one,)
    return ()


def values(value: Value) -> Iterator[Value]:
    """The value and everything below it, operands first (shared parts repeat)."""
    found, todo = list[Value](), [value]
    while todo:
        found.append(v := todo.pop())
        todo += operands(v)
    return reversed(found)


def statements(body: Iterable[Stmt]) -> Iterator[Stmt]:
    """All statements, also those in loops, in order."""
    for s in body:
        yield s
        if isinstance(s, For):
            yield from statements(s.body)


def axes_of(value: Value, below: Iterable[frozenset[int]] | None = None) -> frozenset[int]:
    """The axes that a value depends on; below: those of its operands, if known."""
    if isinstance(value, Ref):
        return value.axes
    below = map(axes_of, operands(value)) if below is None else below
    own = frozenset[int]().union(*map(index_axes, indices(value)), *below)
    return own - value.axes if isinstance(value, (Reduce, Dot)) else own


def index_axes(index: Size) -> frozenset[int]:
    """The axes of an index expression, also those of the values in it."""
    return axes_in(index).union(*(ref.axes for ref in values_in(index)))
