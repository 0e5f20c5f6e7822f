"""Values of terms in a block of a tile program: what is nested, what is named, what is a Dot."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce

from lambent.algebra.term import REDUCTIONS, Term, literal, walk
from lambent.graph.dim import Size, axis, values_in
from lambent.graph.dtypes import DType
from lambent.kernel import tile as ir
from lambent.kernel.rewrite import reindexed, two_groups

COST = {"log2": 12, "exp2": 12, "sin": 16, "sqrt": 6, "recip": 6, "mod": 6} | dict.fromkeys(
    ("add", "sub", "mul", "cast", "mask", "select", "less", "eq", "not"), 1
)
MINUS_INF = -math.inf


@dataclass(slots=True)
class Scope:
    """A block being filled: the loops around it, the values at hand, its statements so far."""

    open: frozenset[int]
    env: dict[Term, ir.Value]
    out: list[ir.Stmt] = field(default_factory=list)
    uses: Counter[Term] = field(default_factory=Counter)
    named: set[Term] = field(default_factory=set)  # terms that must become Lets

    def child(self, i: int) -> Scope:
        return Scope(self.open | {i}, dict(self.env))


class Values:
    """Builds values. `axes` are the program's, `looped` those that some loop runs over, `rank`
    orders axes as the outputs have them, outermost first."""

    def __init__(
        self, axes: dict[int, ir.Axis], looped: frozenset[int], rank: dict[int, int]
    ) -> None:
        self.axes, self.looped, self.rank = axes, looped, rank
        self.numbers: Counter[str] = Counter()
        self.costs: dict[Term, int] = {}

    def let(self, scope: Scope, v: ir.Value) -> ir.Ref:
        return self.put(scope, ir.Let(self.fresh("t"), v))

    def var(
        self, scope: Scope, prefix: str, axes: frozenset[int], dtype: DType, init: float | int
    ) -> ir.Ref:
        order = tuple(sorted(axes, key=self.rank.__getitem__))
        return self.put(scope, ir.Var(self.fresh(prefix), order, dtype.compute, init))

    def put(self, scope: Scope, stmt: ir.Let | ir.Var) -> ir.Ref:
        scope.out.append(stmt)
        return stmt.ref

    def fresh(self, prefix: str) -> str:
        self.numbers[prefix] += 1
        return f"{prefix}{self.numbers[prefix]}"

    def count(self, scope: Scope, roots: Sequence[Term]) -> None:
        """Uses of each term; one that costs and has fewer dims than its user gets a name."""
        scope.uses.update(roots)
        for t in walk(*roots, known=scope.env):
            dims = self.dims(t.free | t.axes)
            for k in t.below:
                scope.uses[k] += 1
                if self.dims(k.free) < dims and self.cost(k) > 1:
                    scope.named.add(k)
            scope.named.update(v for i in t.indices for v in values_in(i))

    # ---- values ------------------------------------------------------------------------------

    def value(self, t: Term, scope: Scope) -> ir.Value:
        """The value of a term in this block; a name where it is shared, else nested."""
        found = scope.env.get(t)
        if found is None:
            found = self.build(t, scope)
            shared = scope.uses[t] > 1 and self.cost(t) > 0
            if isinstance(found, (ir.Reduce, ir.Dot)) or shared or t in scope.named:
                found = scope.env[t] = self.let(scope, found)
        return found

    def build(self, t: Term, scope: Scope) -> ir.Value:
        match t.op:
            case "in":
                index = tuple(self.index(i, scope) for i in t.args[1])
                return ir.Load(t.args[0], index, t.dtype)
            case "val":
                return ir.Index(self.index(t.args[0], scope))
            case "const" | "inf" | "nan":
                return ir.Lit(literal(t), t.dtype)
            case "sum" | "max":
                return self.reduction(t.op, t.axes, t.kids[0], scope)
        return ir.Map(t.op, tuple(self.value(k, scope) for k in t.kids), t.dtype)

    def reduction(self, op: str, axes: frozenset[int], t: Term, scope: Scope) -> ir.Value:
        if op == "sum":
            return self.summed(scope, axes, self.factors(scope, t), t.dtype)
        return self.reduce(op, axes, self.value(t, scope))

    def index(self, index: Size, scope: Scope) -> Size:
        """The index expression with its terms computed, and named."""
        scope.named.update(values_in(index))
        return reindexed(index, lambda t: self.value(t, scope))

    def factors(self, scope: Scope, t: Term) -> list[ir.Value]:
        """The factors of a product that nothing else uses, and no factor for a constant 1."""
        if t.op == "const" and t.args == (1, 0):
            return []
        if t.op != "mul" or t in scope.env or scope.uses[t] > 1:
            return [self.value(t, scope)]
        return [f for k in t.kids for f in self.factors(scope, k)]

    def cast(self, v: ir.Value, dtype: DType) -> ir.Value:
        return v if v.dtype.compute == dtype.compute else ir.Map("cast", (v,), dtype)

    def reduce(self, op: str, axes: frozenset[int], v: ir.Value) -> ir.Value:
        """A reduction, also of a value that lacks some of the axes: a sum counts them."""
        if op == "sum":
            return ir.Reduce(op, axes, self.spread(v, axes))
        own = axes & ir.axes_of(v)
        return ir.Reduce(op, own, v) if own else v

    def spread(self, v: ir.Value, axes: frozenset[int]) -> ir.Value:
        """The same value, with all of the axes among its own."""
        for i in sorted(axes - ir.axes_of(v)):
            inside = ir.mapped("less", ir.Index(axis(i)), ir.Index(self.axes[i].extent))
            v = ir.mapped("mask", inside, v)
        return v

    def summed(
        self, scope: Scope, axes: frozenset[int], parts: list[ir.Value], dtype: DType
    ) -> ir.Value:
        """Σ over axes of a product: a Dot where the factors split into two groups, which share no
        tile dim but the summed and the batch ones."""
        dims = [self.dims(ir.axes_of(v)) - axes for v in parts]
        found = two_groups(dims, self.rank.__getitem__)
        if found is None:
            return self.reduce("sum", axes, product(parts or [ir.Lit(1, dtype)], dtype))
        sides = [self.spread(product([parts[n] for n in g], dtype), axes) for g in found[:2]]
        a, b = (v if isinstance(v, (ir.Load, ir.Ref)) else self.let(scope, v) for v in sides)
        return ir.Dot(axes, a, b)

    # ---- facts -------------------------------------------------------------------------------

    def dims(self, axes: frozenset[int]) -> frozenset[int]:
        return frozenset(i for i in axes if self.axes[i].tile > 1)

    def size(self, axes: frozenset[int]) -> int:
        return math.prod(self.axes[i].tile for i in axes)

    def cost(self, t: Term) -> int:
        """Work for one element; 0 for what is only read, and for reductions, which have names."""
        if t not in self.costs:
            kids = () if t.op in REDUCTIONS else t.below
            self.costs[t] = min(1000, COST.get(t.op, 0) + sum(self.cost(k) for k in kids))
        return self.costs[t]


def finite(most: ir.Value) -> ir.Value:
    """The shift of a maximum: 0 where it is −inf, so that nothing becomes (−inf) − (−inf)."""
    return ir.mapped("select", empty(most), ir.Lit(0.0, most.dtype), most)


def empty(most: ir.Value) -> ir.Value:
    """True where a maximum is −inf: of nothing, or of nothing else."""
    return ir.mapped("eq", most, ir.Lit(MINUS_INF, most.dtype))


def product(parts: Sequence[ir.Value], dtype: DType) -> ir.Value:
    return reduce(lambda x, y: ir.Map("mul", (x, y), dtype), parts)


def identity(op: str, dtype: DType) -> float | int | bool:
    """What an accumulator starts from."""
    if op == "max" and dtype.kind in "if":
        return MINUS_INF if dtype.is_float else -(1 << (8 * dtype.itemsize - 1))
    return {"f": 0.0, "b": False}.get(dtype.kind, 0)
