"""Terms → tile program, under a schedule: generic, it knows no op but the term language.

A block is filled in the order: looped reductions whose free axes are all open here (those that
share loop axes at one level of dependency share the loop); values that deeper loops use and do
not change; the deeper loops; what is stored or accumulated here. What is needed in several
blocks is computed in the outermost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile

from lambent.algebra.term import REDUCTIONS, Term, Terms, walk
from lambent.graph.dim import axes_in
from lambent.graph.dtypes import bool_
from lambent.graph.orders import postorder
from lambent.kernel import tile as ir
from lambent.kernel.kernel import Kernel, Output
from lambent.kernel.panels import dims, panelled
from lambent.kernel.ranges import Literal, least, needed, ranges, updates, zero
from lambent.kernel.rewrite import assuming, bound, free_axes, readied, split
from lambent.kernel.values import MINUS_INF, Scope, Values, empty, finite, identity

FOLDS = ("fold", "part")
HOIST_LIMIT = 1 << 16  # elements of a tile that may be computed ahead of a loop


@dataclass(frozen=True, slots=True)
class Goal:
    """What a block is filled for: a store, or the accumulators of reductions with one body.

    kind: store, sum, max, fold or part. terms: the stored value; the body; or a, and each v.
    loops: the axes to open before it. accs: the accumulators, for a fold the maximum first.
    """

    kind: str
    loops: tuple[int, ...]
    terms: tuple[Term, ...]
    accs: tuple[ir.Ref, ...] = ()
    axes: frozenset[int] = frozenset()
    output: Output | None = None
    exact: bool = False  # NaN wins the maximum of a fold or part

    def needs(self, terms: Terms, finite: frozenset[str]) -> frozenset[Literal]:
        """Conditions without any of which nothing is contributed; `finite` are buffers."""
        if self.output is not None:
            return updates(terms, replace(self.output, term=self.terms[0]))
        exact = self.kind == "max" or (self.kind == "fold" and self.exact)
        added = partial(zero, known=finite)
        void = added if self.kind == "sum" else partial(least, exact=exact)
        return needed(terms, self.terms[0], void)


Loops = dict[int, list[Goal]]


def _terms(loops: Loops) -> list[Term]:
    return [t for inside in loops.values() for g in inside for t in g.terms]


class _Lowering:
    def __init__(
        self, kernel: Kernel, terms: Terms, axes: dict[int, ir.Axis], looped: tuple[int, ...],
        single: bool,
    ) -> None:  # fmt: skip
        self.terms, self.axes, self.looped, self.single = terms, axes, looped, single
        order = [a for o in kernel.outputs for i in o.index for a in sorted(axes_in(i))]
        rank = {a: n for n, a in enumerate(dict.fromkeys([*order, *sorted(axes)]))}
        self.values = Values(axes, frozenset(looped), rank)
        self.finite = frozenset(b.name for b in kernel.inputs if b.finite)

    # ---- blocks ------------------------------------------------------------------------------

    def fill(self, scope: Scope, goals: Sequence[Goal], grid: int = 0) -> None:
        """Statements for the goals; the outermost `grid` loops hold nothing but each other."""
        here: list[Goal] = []
        deeper: Loops = {}
        for goal in goals:
            i = next((i for i in goal.loops if i not in scope.open), None)
            (here if i is None else deeper.setdefault(i, [])).append(goal)
        if not grid:
            self.reductions(scope, [t for g in goals for t in g.terms], deeper)
            self.name_shared(scope, here, _terms(deeper))
        for i, inside in deeper.items():
            needs = frozenset.intersection(*(g.needs(self.terms, self.finite) for g in inside))
            for piece in ranges(i, needs, self.axes, scope.open, inside[-1].output, self.single):
                child = scope.child(i)
                assumed = assuming(self.terms, piece.known)
                known = [replace(g, terms=tuple(map(assumed, g.terms))) for g in inside]
                self.fill(child, known, max(grid - 1, 0))
                start, stop = (self.values.index(e, scope) for e in (piece.start, piece.stop))
                scope.out.append(ir.For(i, start, stop, tuple(child.out), grid > 0))
        for goal in here:
            self.emit(scope, goal)

    def reductions(self, scope: Scope, roots: Sequence[Term], deeper: Loops) -> None:
        """The loops of all looped reductions below the roots that can be computed here.

        Those that nothing but a result is made of join a deeper loop over their axis, if any.
        """
        every, looped = walk(*roots, known=scope.env), self.values.looped
        pending = [t for t in every if t.axes & looped and t.free & looped <= scope.open]
        level: dict[Term, int] = {}
        groups: dict[tuple[int, tuple[int, ...]], list[Term]] = {}
        for t in pending:  # operands before users
            inner = [level[u] for u in walk(*t.kids, known=scope.env) if u in level]
            level[t] = 1 + max(inner, default=0)
            loops = tuple(i for i in self.looped if i in t.axes)
            groups.setdefault((level[t], loops), []).append(t)
        needed = {*walk(*(k for t in pending for k in t.kids), *_terms(deeper))}
        for (_, loops), group in sorted(groups.items(), key=lambda item: item[0][0]):
            goals = self.accumulators(scope, loops, group)
            if loops[0] in deeper and needed.isdisjoint(group):
                deeper[loops[0]] += goals
            else:
                self.fill(scope, goals)

    def accumulators(self, scope: Scope, loops: tuple[int, ...], group: list[Term]) -> list[Goal]:
        """Vars for the reductions, which are put at hand as what they are after the loop.

        The running maximum of a fold is also the maximum that something else asks for."""
        goals = []
        shared: dict[tuple[str, frozenset[int], Term], list[Term]] = {}
        for t in group:
            shared.setdefault(("fold" if t.op == "max" else t.op, t.axes, t.kids[0]), []).append(t)
        for (op, axes, body), same in shared.items():
            maxima = [t for t in same if t.op == "max"]
            sums = [t for t in same if t.op != "max"]
            if not sums:
                op, sums, maxima = "max", maxima, []
            accs: list[ir.Ref] = []
            if op in FOLDS:
                accs.append(self.values.var(scope, "m", body.free - axes, body.dtype, MINUS_INF))
                scope.env.update((t, accs[0]) for t in maxima)
            for t in sums:
                acc = self.values.var(scope, "acc", t.free, t.dtype, identity(op, t.dtype))
                accs.append(acc)
                scope.env[t] = acc
                if op in FOLDS:
                    none = ir.Lit(math.nan if op == "fold" else 0.0, acc.dtype)
                    scope.env[t] = ir.Map("select", (empty(accs[0]), none, acc), t.dtype)
            terms = (body, *(v for t in sums for v in t.kids[1:]))
            exact = op == "part" or bool(maxima)
            goals.append(Goal(op, loops, terms, tuple(accs), axes, exact=exact))
        return goals

    def name_shared(self, scope: Scope, here: Sequence[Goal], deeper: Sequence[Term]) -> None:
        """Count uses, and compute ahead what deeper loops use and do not change."""
        ahead = self.invariant(scope, deeper)
        scope.named.update(ahead)
        twice = [g.terms[0] for g in here if g.kind in FOLDS]
        self.values.count(scope, [*(t for g in here for t in g.terms), *twice, *ahead])
        for t in ahead:
            self.values.value(t, scope)

    def invariant(self, scope: Scope, roots: Sequence[Term]) -> list[Term]:
        """The largest terms below the roots that cost something and need no further loop."""

        def able(t: Term) -> bool:
            costs = t.op in REDUCTIONS or self.values.cost(t) > (8 if t.dtype == bool_ else 0)
            small = self.values.size(t.free) <= HOIST_LIMIT
            return costs and small and t.free & self.values.looped <= scope.open

        inside = postorder(roots, lambda t: () if able(t) else t.below, scope.env)
        return [t for t in inside if able(t)]

    # ---- statements --------------------------------------------------------------------------

    def emit(self, scope: Scope, goal: Goal) -> None:
        if goal.output is not None:
            stored = self.values.value(goal.terms[0], scope)
            scope.out.append(ir.Store(goal.output.buffer.name, goal.output.index, stored))
        elif goal.kind in FOLDS:
            self.emit_fold(scope, goal)
        else:
            total = self.values.reduction(goal.kind, goal.axes, goal.terms[0], scope)
            scope.out.append(ir.Accumulate(goal.accs[0].name, goal.kind, total))

    def emit_fold(self, scope: Scope, goal: Goal) -> None:
        """One tile of a running maximum and of sums that are rescaled whenever it grows."""
        a = self.values.value(goal.terms[0], scope)
        op, old = "max" if goal.exact else "fmax", goal.accs[0]
        best = self.values.let(scope, self.values.reduce(op, goal.axes, a))
        new = self.values.let(scope, ir.mapped(op, old, best))
        shift = self.values.let(scope, finite(new))
        scale = self.values.let(scope, ir.mapped("exp2", ir.mapped("sub", old, shift)))
        p: ir.Value = ir.mapped("exp2", ir.mapped("sub", a, shift))
        if len(goal.accs) > 2:
            p = self.values.let(scope, p)
        scope.out.append(ir.Accumulate(old.name, op, new))
        for acc, v in zip(goal.accs[1:], goal.terms[1:], strict=True):
            parts = [self.values.cast(p, v.dtype), *self.values.factors(scope, v)]
            total = self.values.summed(scope, goal.axes, parts, v.dtype)
            scope.out.append(ir.Accumulate(acc.name, "sum", total, scale))


def lower(kernel: Kernel, schedule: ir.Schedule) -> ir.TileProgram:
    """The kernel cut as the schedule says, on weights in panels if it has that option.

    With the option `single` a masked loop is one, else tiles without a mask have their own.

    Tiles of free axes count where `schedule.order` loops them; a tile that covers its axis leaves
    it whole. Grid axes that some output lacks are looped serially.

    Raises:
        ValueError: an axis of unbounded extent that is not looped, or a tile below 1.
    """
    wished = {name: n for name, n in schedule.options if n}
    width = wished.get("panel", 0)
    panels = dims(kernel, width) if width else {}
    kernel = panelled(kernel, panels, width) if panels else kernel
    parts = split(kernel)
    extents, tiles = parts.kernel.extents, dict(schedule.tiles)
    free = [free_axes(o) for o in kernel.outputs]
    every = frozenset[int]().union(*free)
    axes: dict[int, ir.Axis] = {}
    for i, extent in sorted(extents.items()):
        most = max(bound(extent), 1)
        tile = most if i in every - {*schedule.order} else tiles.get(i, 1 if i in every else most)
        if tile < 1:
            raise ValueError(f"axis a{i}: tile {tile}, must be at least 1")
        axes[i] = ir.Axis(extent, min(tile, most))
        if axes[i].tile > 1 << 40:
            raise ValueError(f"axis a{i}: extent {extent} has no bound; give it a tile")
    cut = frozenset(i for i, a in axes.items() if a.tile < bound(a.extent))
    looped = tuple(i for i in dict.fromkeys((*schedule.order, *tiles, *axes)) if i in cut)
    asked = [i for i in schedule.order[: schedule.grid] if i in cut]
    grid = len(list(takewhile(lambda i: all(i in own for own in free), asked)))
    whole = readied(parts, cut)
    axes = {i: a for i, a in axes.items() if i in whole.extents}
    goals = [
        Goal("store", tuple(i for i in looped if i in own), (o.term,), output=o)
        for o, own in zip(whole.outputs, free, strict=True)
    ]
    scope = Scope(frozenset(), {})
    _Lowering(whole, parts.terms, axes, looped, "single" in wished).fill(scope, goals, grid)
    return ir.TileProgram(kernel, axes, tuple(scope.out), schedule, panels)
