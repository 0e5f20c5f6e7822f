"""Terms → tile program, under a schedule: generic, it knows no op but the term language.

A block is filled in the order: looped reductions whose free axes are all open here (those that
share loop axes at one level of dependency share the loop); values that deeper loops use and do
not change; the deeper loops; what is stored or accumulated here. What is needed in several
blocks is computed in the outermost.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from lambent.algebra.term import REDUCTIONS, Term, Terms, const_value
from lambent.graph.dim import Atom, Size, axis, substitute, value, values_in
from lambent.graph.dtypes import DType, bool_
from lambent.kernel.kernel import Kernel, Output
from lambent.kernel.ranges import Literal, Range, needs_least, needs_zero, ranges
from lambent.kernel.rewrite import (
    assuming,
    below,
    bound,
    free_axes,
    joined,
    readied,
    split,
    two_groups,
)
from lambent.kernel.tile import (
    Accumulate,
    Axis,
    Dot,
    For,
    Index,
    Let,
    Lit,
    Load,
    Map,
    Reduce,
    Ref,
    Schedule,
    Stmt,
    Store,
    TileProgram,
    Value,
    Var,
    axes_of,
)

COST = {"log2": 12, "exp2": 12, "sin": 16, "sqrt": 6, "recip": 6, "mod": 6} | dict.fromkeys(
    ("add", "sub", "mul", "cast", "mask", "select", "less", "eq", "not"), 1
)
HOIST_LIMIT = 1 << 16  # elements of a tile that may be computed ahead of a loop
MINUS_INF = -math.inf


@dataclass(frozen=True, slots=True)
class Goal:
    """What a block is filled for: a store, or the accumulators of reductions with one body.

    kind: store, sum, max, fold or part. terms: the stored value; the body; or a, and each v.
    loops: the axes to open before it. accs: the accumulators, for a fold the maximum first.
    """

    kind: str
    loops: tuple[int, ...]
    terms: tuple[Term, ...]
    accs: tuple[Ref, ...] = ()
    axes: frozenset[int] = frozenset()
    output: Output | None = None

    @property
    def needs(self) -> frozenset[Literal]:
        """Conditions without any of which nothing is contributed."""
        match self.kind:
            case "sum":
                return needs_zero(self.terms[0])
            case "store":
                return frozenset()
            case _:
                return needs_least(self.terms[0], exact=self.kind == "max")


@dataclass(slots=True)
class Scope:
    """A block being filled: the loops around it, the values at hand, its statements so far."""

    open: frozenset[int]
    env: dict[Term, Value]
    out: list[Stmt] = field(default_factory=list)
    uses: Counter[Term] = field(default_factory=Counter)
    named: set[Term] = field(default_factory=set)  # terms that must become Lets

    def child(self, i: int) -> Scope:
        return Scope(self.open | {i}, dict(self.env))


class _Lowering:
    def __init__(
        self, kernel: Kernel, terms: Terms, axes: dict[int, Axis], looped: tuple[int, ...]
    ) -> None:
        self.kernel, self.terms, self.axes, self.looped = kernel, terms, axes, looped
        self.loop_set = frozenset(looped)
        self.numbers: Counter[str] = Counter()
        self.costs: dict[Term, int] = {}
        order = [a for o in kernel.outputs for i in o.index for a in sorted(free_axes_of(i))]
        self.rank = {a: n for n, a in enumerate(dict.fromkeys([*order, *sorted(axes)]))}

    # ---- blocks ------------------------------------------------------------------------------

    def fill(self, scope: Scope, goals: Sequence[Goal], grid: int = 0) -> None:
        """Statements for the goals; the outermost `grid` loops hold nothing but each other."""
        here: list[Goal] = []
        deeper: dict[int, list[Goal]] = {}
        for goal in goals:
            i = next((i for i in goal.loops if i not in scope.open), None)
            (here if i is None else deeper.setdefault(i, [])).append(goal)
        if not grid:
            self.reductions(scope, [t for g in goals for t in g.terms])
            self.name_shared(
                scope, here, [t for gs in deeper.values() for g in gs for t in g.terms]
            )
        for i, inside in deeper.items():
            for piece in self.pieces(scope, i, inside):
                child = scope.child(i)
                memo: dict[Term, Term] = {}
                known = [
                    replace(g, terms=tuple(self.assuming(t, piece, memo) for t in g.terms))
                    for g in inside
                ]
                self.fill(child, known, max(grid - 1, 0))
                scope.out.append(For(i, piece.start, piece.stop, tuple(child.out), grid > 0))
        for goal in here:
            self.emit(scope, goal)

    def assuming(self, t: Term, piece: Range, memo: dict[Term, Term]) -> Term:
        return assuming(self.terms, t, piece.known, memo) if piece.known else t

    def pieces(self, scope: Scope, i: int, goals: Sequence[Goal]) -> list[Range]:
        needs = goals[0].needs.intersection(*(g.needs for g in goals[1:]))
        return ranges(i, needs, self.axes, scope.open)

    def reductions(self, scope: Scope, roots: Sequence[Term]) -> None:
        """The loops of all looped reductions below the roots that can be computed here."""
        pending = [
            t
            for t in self.walk(scope, roots)
            if t.axes & self.loop_set and self.loops(t.free) <= scope.open
        ]
        level: dict[Term, int] = {}
        groups: dict[tuple[int, tuple[int, ...]], list[Term]] = {}
        for t in pending:  # operands before users
            inner = self.walk(scope, t.kids)
            level[t] = 1 + max((level[u] for u in inner if u in level), default=0)
            loops = tuple(i for i in self.looped if i in t.axes)
            groups.setdefault((level[t], loops), []).append(t)
        for (_, loops), group in sorted(groups.items(), key=lambda item: item[0][0]):
            self.fill(scope, self.accumulators(scope, loops, group))

    def accumulators(self, scope: Scope, loops: tuple[int, ...], group: list[Term]) -> list[Goal]:
        """Vars for the reductions, which are put at hand as what they are after the loop."""
        goals = []
        shared: dict[tuple[str, frozenset[int], Term], list[Term]] = {}
        for t in group:
            key = t if t.op in ("sum", "max") else t.kids[0]
            shared.setdefault((t.op, t.axes, key), []).append(t)
        for (op, axes, key), same in shared.items():
            accs = []
            if op in ("fold", "part"):
                most = self.var(scope, "m", key.free - axes, key.dtype, MINUS_INF)
                empty = Map("eq", (most, Lit(MINUS_INF, most.dtype)), bool_)
                accs.append(most)
            for t in same:
                acc = self.var(scope, "acc", t.free, t.dtype, identity(op, t.dtype))
                accs.append(acc)
                scope.env[t] = acc
                if op in ("fold", "part"):
                    none = Lit(math.nan if op == "fold" else 0.0, acc.dtype)
                    scope.env[t] = Map("select", (empty, none, acc), t.dtype)
            terms = same[0].kids if op in ("sum", "max") else (key, *(t.kids[1] for t in same))
            goals.append(Goal(op, loops, terms, tuple(accs), axes))
        return goals

    def name_shared(self, scope: Scope, here: Sequence[Goal], deeper: Sequence[Term]) -> None:
        """Count uses, and compute ahead what deeper loops use and do not change."""
        ahead = list(dict.fromkeys(self.invariant(scope, deeper)))
        scope.named.update(ahead)
        twice = [g.terms[0] for g in here if g.kind in ("fold", "part")]
        self.count(scope, [*(t for g in here for t in g.terms), *twice, *ahead])
        for t in ahead:
            self.value(t, scope)

    def invariant(self, scope: Scope, roots: Sequence[Term]) -> Iterator[Term]:
        """The largest terms below the roots that cost something and need no further loop."""
        seen: set[Term] = set()
        stack = list(reversed(roots))
        while stack:
            t = stack.pop()
            if t in seen or t in scope.env:
                continue
            seen.add(t)
            costs = t.op in REDUCTIONS or self.cost(t) > (8 if t.dtype == bool_ else 0)
            small = self.size(t.free) <= HOIST_LIMIT
            if costs and small and self.loops(t.free) <= scope.open:
                yield t
            else:
                stack.extend(reversed(below(t)))

    def count(self, scope: Scope, roots: Sequence[Term]) -> None:
        """Uses of each term; one that costs and has fewer dims than its user gets a name."""
        scope.uses.update(roots)
        for t in self.walk(scope, roots):
            dims = self.dims(t.free | t.axes)
            for k in below(t):
                scope.uses[k] += 1
                if self.dims(k.free) < dims and self.cost(k) > 1:
                    scope.named.add(k)
            scope.named.update(v for i in t.indices for v in values_in(i))

    def walk(self, scope: Scope, roots: Iterable[Term]) -> Iterator[Term]:
        """Every term below the roots that is not at hand, operands first."""
        seen: set[Term] = set()
        stack = [(t, False) for t in reversed(list(roots))]
        while stack:
            t, done = stack.pop()
            if done:
                yield t
            elif t not in seen and t not in scope.env:
                seen.add(t)
                stack.append((t, True))
                stack.extend((k, False) for k in reversed(below(t)))

    # ---- statements --------------------------------------------------------------------------

    def emit(self, scope: Scope, goal: Goal) -> None:
        if goal.output is not None:
            stored = self.value(goal.terms[0], scope)
            scope.out.append(Store(goal.output.buffer.name, goal.output.index, stored))
        elif goal.kind in ("fold", "part"):
            self.emit_fold(scope, goal)
        else:
            t = goal.terms[0]
            if goal.kind == "sum":
                total = self.summed(scope, goal.axes, self.factors(scope, t), t.dtype)
            else:
                total = self.reduce(scope, "max", goal.axes, self.value(t, scope))
            scope.out.append(Accumulate(goal.accs[0].name, goal.kind, total))

    def emit_fold(self, scope: Scope, goal: Goal) -> None:
        """One tile of a running maximum and of sums that are rescaled whenever it grows."""
        a = self.value(goal.terms[0], scope)
        dtype = a.dtype
        op, old = "fmax" if goal.kind == "fold" else "max", goal.accs[0]
        best = self.let(scope, self.reduce(scope, op, goal.axes, a))
        new = self.let(scope, Map(op, (old, best), dtype))
        shift = self.let(scope, finite(new))
        scale = self.let(scope, Map("exp2", (Map("sub", (old, shift), dtype),), dtype))
        p: Value = Map("exp2", (Map("sub", (a, shift), dtype),), dtype)
        if len(goal.accs) > 2:
            p = self.let(scope, p)
        scope.out.append(Accumulate(old.name, op, new))
        for acc, v in zip(goal.accs[1:], goal.terms[1:], strict=True):
            parts = [self.cast(p, v.dtype), *self.factors(scope, v)]
            total = self.summed(scope, goal.axes, parts, v.dtype)
            scope.out.append(Accumulate(acc.name, "sum", total, scale))

    def let(self, scope: Scope, v: Value) -> Ref:
        name = self.fresh("t")
        scope.out.append(Let(name, v))
        return Ref(name, axes_of(v), v.dtype)

    def var(
        self, scope: Scope, prefix: str, axes: frozenset[int], dtype: DType, init: float | int
    ) -> Ref:
        name = self.fresh(prefix)
        order = tuple(sorted(axes, key=lambda i: self.rank[i]))
        scope.out.append(Var(name, order, dtype.compute, init))
        return Ref(name, axes, dtype.compute)

    def fresh(self, prefix: str) -> str:
        self.numbers[prefix] += 1
        return f"{prefix}{self.numbers[prefix]}"

    # ---- values ------------------------------------------------------------------------------

    def value(self, t: Term, scope: Scope) -> Value:
        """The value of a term in this block; a name where it is shared, else nested."""
        found = scope.env.get(t)
        if found is None:
            found = self.build(t, scope)
            shared = scope.uses[t] > 1 and self.cost(t) > 0
            if isinstance(found, (Reduce, Dot)) or shared or t in scope.named:
                found = scope.env[t] = self.let(scope, found)
        return found

    def build(self, t: Term, scope: Scope) -> Value:
        match t.op:
            case "in":
                index = tuple(self.index(i, scope) for i in t.args[1])
                return Load(t.args[0], index, t.dtype)
            case "val":
                return Index(self.index(t.args[0], scope))
            case "const" | "inf" | "nan":
                return Lit(literal(t), t.dtype)
            case "sum":
                return self.summed(scope, t.axes, self.factors(scope, t.kids[0]), t.dtype)
            case "max":
                return self.reduce(scope, "max", t.axes, self.value(t.kids[0], scope))
        return Map(t.op, tuple(self.value(k, scope) for k in t.kids), t.dtype)

    def index(self, index: Size, scope: Scope) -> Size:
        """The index expression with its terms computed, and named."""

        def atom(a: Atom) -> Size | None:
            if a.kind != "value":
                return None
            scope.named.add(a.args[0])
            return value(self.value(a.args[0], scope))

        return substitute(index, atom)

    def factors(self, scope: Scope, t: Term) -> list[Value]:
        """The factors of a product that nothing else uses, and no factor for a constant 1."""
        if t.op == "const" and t.args == (1, 0):
            return []
        if t.op != "mul" or t in scope.env or scope.uses[t] > 1:
            return [self.value(t, scope)]
        return [f for k in t.kids for f in self.factors(scope, k)]

    def cast(self, v: Value, dtype: DType) -> Value:
        return v if v.dtype.compute == dtype.compute else Map("cast", (v,), dtype)

    def reduce(self, scope: Scope, op: str, axes: frozenset[int], v: Value) -> Value:
        return Reduce(op, axes, v) if axes <= axes_of(v) else self.spread_reduce(op, axes, v)

    def spread_reduce(self, op: str, axes: frozenset[int], v: Value) -> Value:
        """A reduction of a value that lacks some of the axes: a sum counts them."""
        if op == "sum":
            return Reduce(op, axes, self.spread(v, axes))
        axes &= axes_of(v)
        return Reduce(op, axes, v) if axes else v

    def spread(self, v: Value, axes: frozenset[int]) -> Value:
        """The same value, with all of the axes among its own."""
        for i in sorted(axes - axes_of(v)):
            inside = Map("less", (Index(axis(i)), Index(self.axes[i].extent)), bool_)
            v = Map("mask", (inside, v), v.dtype)
        return v

    def summed(self, scope: Scope, axes: frozenset[int], parts: list[Value], dtype: DType) -> Value:
        """Σ over axes of a product: a Dot where the factors split into two groups."""
        groups = self.groups(axes, parts)
        if groups is None:
            return Reduce("sum", axes, self.spread(product(parts or [Lit(1, dtype)], dtype), axes))
        a, b = (self.spread(product(g, dtype), axes) for g in groups)
        return Dot(axes, self.operand(scope, a), self.operand(scope, b))

    def operand(self, scope: Scope, v: Value) -> Value:
        return v if isinstance(v, (Load, Ref)) else self.let(scope, v)

    def groups(
        self, axes: frozenset[int], parts: Sequence[Value]
    ) -> tuple[list[Value], list[Value]] | None:
        """Two groups of factors that share no tile dim but the summed and the batch ones."""
        dims = [self.dims(axes_of(v)) - axes for v in parts]
        found = two_groups(dims, lambda i: self.rank[i])
        return found and ([parts[n] for n in found[0]], [parts[n] for n in found[1]])

    # ---- facts -------------------------------------------------------------------------------

    def loops(self, axes: frozenset[int]) -> frozenset[int]:
        return axes & self.loop_set

    def dims(self, axes: frozenset[int]) -> frozenset[int]:
        return frozenset(i for i in axes if self.axes[i].tile > 1)

    def size(self, axes: frozenset[int]) -> int:
        return math.prod(self.axes[i].tile for i in axes)

    def cost(self, t: Term) -> int:
        """Work for one element; 0 for what is only read, and for reductions, which have names."""
        if t not in self.costs:
            kids = () if t.op in REDUCTIONS else below(t)
            self.costs[t] = min(1000, COST.get(t.op, 0) + sum(self.cost(k) for k in kids))
        return self.costs[t]


def free_axes_of(index: Size) -> frozenset[int]:
    return axes_of(Index(index))


def finite(most: Value) -> Value:
    """The shift of a maximum: 0 where it is −inf, so that nothing becomes (−inf) − (−inf)."""
    minus_inf = Lit(MINUS_INF, most.dtype)
    return Map(
        "select", (Map("eq", (most, minus_inf), bool_), Lit(0.0, most.dtype), most), most.dtype
    )


def product(parts: Sequence[Value], dtype: DType) -> Value:
    out = parts[0]
    for v in parts[1:]:
        out = Map("mul", (out, v), dtype)
    return out


def literal(t: Term) -> float | int | bool:
    if t.dtype == bool_:
        return bool(t.args[0])
    return const_value(t) if t.dtype.is_float else int(t.args[0])


def identity(op: str, dtype: DType) -> float | int | bool:
    """What an accumulator starts from."""
    if op != "max":
        return 0.0 if dtype.is_float else 0
    if dtype == bool_:
        return False
    if dtype.is_float:
        return MINUS_INF
    return 0 if dtype.kind == "u" else -(1 << (8 * dtype.itemsize - 1))


def lower(kernel: Kernel, schedule: Schedule) -> TileProgram:
    """The kernel cut as the schedule says.

    Tiles of free axes count where `schedule.order` loops them; a tile that covers its axis leaves
    it whole. Grid axes that some output lacks are looped serially.

    Raises:
        ValueError: an axis of unbounded extent that is not looped, or a tile below 1.
    """
    parts = split(kernel)
    extents, tiles = parts.kernel.extents, dict(schedule.tiles)
    free = [free_axes(o) for o in kernel.outputs]
    every = frozenset[int]().union(*free)
    axes: dict[int, Axis] = {}
    for i, extent in sorted(extents.items()):
        most = max(bound(extent), 1)
        looped_free = i in every and i in schedule.order
        wanted = tiles.get(i, 1) if looped_free else most if i in every else tiles.get(i, most)
        if wanted < 1:
            raise ValueError(f"axis a{i}: tile {wanted}, must be at least 1")
        axes[i] = Axis(extent, min(wanted, most))
        if axes[i].tile > 1 << 40:
            raise ValueError(f"axis a{i}: extent {extent} has no bound; give it a tile")
    looped = [i for i in axes if axes[i].tile < bound(extents[i])]
    ordered = [i for i in (*schedule.order, *tiles, *looped) if i in looped]
    kernel_ = joined(parts, lambda i: i not in looped)
    axes = {i: a for i, a in axes.items() if i in kernel_.extents}
    work = _Lowering(kernel_, parts.terms, axes, tuple(dict.fromkeys(ordered)))
    common = free[0].intersection(*free[1:])
    grid = 0
    outer = [i for i in schedule.order if i in looped]
    wanted_grid = len([i for i in schedule.order[: schedule.grid] if i in looped])
    while grid < wanted_grid and outer[grid] in common:
        grid += 1
    memo: dict[Term, Term] = {}

    def term(o: Output) -> Term:
        return readied(parts.terms, o.term, frozenset(looped), memo)

    goals = [
        Goal("store", tuple(i for i in outer if i in own), (term(o),), output=o)
        for o, own in zip(kernel_.outputs, free, strict=True)
    ]
    scope = Scope(frozenset(), {})
    work.fill(scope, goals, grid)
    return TileProgram(kernel, axes, tuple(scope.out), schedule)
