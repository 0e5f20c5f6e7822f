"""Terms over named axes: what a graph becomes, what the e-graph holds, what a kernel computes.

    term  := In(buffer, index…)                 buffer at an index: one index expression per dim
           | Const(rational, k) | Inf(±1) | Nan rational · log2(e)^k
           | Val(index)                         the integer value of an index expression (int64)
           | log2 exp2 sin sqrt recip not (t)
           | cast (t)                           to the term's dtype (rounds; wraps)
           | add mul mod less eq (t, u)
           | mask (bool t, u)                   u where t, else 0 (exact, also for inf and NaN)
           | sum max (axes; t)                  over one or more named axes
           | fold (axes; a, v)                  Σ exp2(a − max a) · v in one pass (v may be Const 1)
           | part (axes; a, v)                  the same, but 0 where the maximum is −inf

An index expression is a `Size` over axis atoms, symbols and values of terms (`graph.dim`). Axes are
integers; their extents live beside the terms. Terms are interned: equal terms are one object, so
`is` and dictionaries are cheap and a term is a DAG.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from operator import attrgetter
from typing import Any

from lambent.graph.dim import Size, axes_in, representative, values_in
from lambent.graph.dtypes import DType, bool_, int64
from lambent.graph.orders import postorder

LOG2E = 1.4426950408889634

UNARY = ("log2", "exp2", "sin", "sqrt", "recip", "not", "cast")
BINARY = ("add", "mul", "mod", "less", "eq", "mask")
REDUCTIONS = ("sum", "max", "fold", "part")


@dataclass(frozen=True, slots=True)
class Buffer:
    """A row-major array in memory. `weight` marks one whose contents are fixed at load.

    finite: no element is infinite or NaN, inputs being taken for finite.
    """

    name: str
    dtype: DType
    shape: tuple[Size, ...]
    weight: bool = False
    finite: bool = True

    @property
    def bytes(self) -> int:
        """At the representative sizes."""
        return math.prod(map(representative, self.shape)) * self.dtype.itemsize


def fresh(name: str, taken: Container[str]) -> str:
    """The name, with as many underscores as make it new."""
    return fresh(f"{name}_", taken) if name in taken else name


def indices_of(op: str, args: tuple[Any, ...]) -> tuple[Size, ...]:
    """The index expressions among the arguments of a term or an e-node."""
    return args[1] if op == "in" else args if op == "val" else ()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Term:
    """`args` holds the non-term parts (buffer, index, constant, axes), `kids` the operand terms.

    `free`: the axes that the value depends on. Made by `Terms.make` only: equal terms are one.
    """

    op: str
    args: tuple[Any, ...]
    kids: tuple[Term, ...]
    dtype: DType
    id: int
    free: frozenset[int]

    @property
    def axes(self) -> frozenset[int]:
        """The axes that a reduction binds."""
        return self.args[0] if self.op in REDUCTIONS else frozenset()

    @property
    def indices(self) -> tuple[Size, ...]:
        """The index expressions of an In or a Val."""
        return indices_of(self.op, self.args)

    @property
    def below(self) -> tuple[Term, ...]:
        """The operands, and the terms in the index expressions."""
        return (*self.kids, *(v for i in self.indices for v in values_in(i)))

    def __repr__(self) -> str:
        return f"t{self.id} = {self.op}{self.args}({', '.join(f't{k.id}' for k in self.kids)})"


class Terms:
    """The interning table of one compilation, and the constructors."""

    def __init__(self) -> None:
        self._table: dict[tuple[Any, ...], Term] = {}

    def make(self, op: str, args: tuple[Any, ...], kids: Iterable[Term], dtype: DType) -> Term:
        kids = tuple(kids)
        key = (op, args, tuple(k.id for k in kids), dtype)
        if key not in self._table:
            inner = [
                axes_in(e).union(*(v.free for v in values_in(e))) for e in indices_of(op, args)
            ]
            free = frozenset[int]().union(*inner, *(k.free for k in kids))
            free -= args[0] if op in REDUCTIONS else frozenset()
            self._table[key] = Term(op, args, kids, dtype, len(self._table), free)
        return self._table[key]

    def load(self, buffer: str, index: Iterable[Size], dtype: DType) -> Term:
        return self.make("in", (buffer, tuple(index)), (), dtype)

    def const(self, value: Fraction | int, dtype: DType, k: int = 0) -> Term:
        """value · log2(e)^k, exactly; 0 or 1 for bool."""
        return self.make("const", (Fraction(value), k), (), dtype)

    def inf(self, sign: int, dtype: DType) -> Term:
        return self.make("inf", (sign,), (), dtype)

    def nan(self, dtype: DType) -> Term:
        return self.make("nan", (), (), dtype)

    def val(self, index: Size) -> Term:
        return self.make("val", (index,), (), int64)

    def cast(self, t: Term, dtype: DType) -> Term:
        return t if t.dtype == dtype else self.make("cast", (), (t,), dtype)

    def apply(self, op: str, *kids: Term) -> Term:
        """A unary or binary operation other than a cast, or a mask."""
        return self.make(op, (), kids, bool_ if op in ("not", "less", "eq") else kids[-1].dtype)

    def reduce(self, op: str, axes: Iterable[int], *kids: Term) -> Term:
        """sum or max of one term; fold or part of (a, v)."""
        return self.make(op, (frozenset(axes),), kids, kids[-1].dtype)


def walk(*roots: Term, known: Container[Term] = ()) -> Iterator[Term]:
    """Every distinct term below the roots, operands before users; terms inside indices too.

    known: terms that are left out, and what only they need.
    """
    return postorder(roots, attrgetter("below"), known)


def literal(term: Term) -> float | int | bool:
    """The value of a const, inf or nan term, as its dtype has it."""
    if term.op == "inf":
        return math.inf * int(term.args[0])
    if term.op == "nan":
        return math.nan
    value, k = term.args
    if term.dtype == bool_:
        return bool(value)
    return float(value) * LOG2E ** int(k) if term.dtype.is_float else int(value)
