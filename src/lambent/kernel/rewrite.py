"""Terms made ready for lowering: binders told apart, factors out of sums, folds written out.

One axis number may be free in an output and bound in a reduction, or bound at two nested places.
Looped, the two need names of their own; whole, one name and one load serve both. `split` gives
every such binder a fresh axis (a twin); `lower` joins a twin to its original again where both
are whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lambent.algebra.term import REDUCTIONS, Term, Terms, walk
from lambent.graph.dim import Atom, Size, axes_in, axis, value, values_in
from lambent.graph.dtypes import bool_
from lambent.graph.prove import bounds, substitute
from lambent.kernel.kernel import Kernel, Output

Rewrite = Callable[[Term], Term]


def rebuilt(terms: Terms, t: Term, f: Rewrite, axes: Mapping[int, int] | None = None) -> Term:
    """t with f applied to its operands (also inside its indices), and its own axes renamed."""
    axes = axes or {}
    kids = tuple(f(k) for k in t.kids)
    args: tuple[Any, ...] = t.args
    if t.op == "in":
        args = (t.args[0], tuple(reindexed(i, f, axes) for i in t.args[1]))
    elif t.op == "val":
        args = (reindexed(t.args[0], f, axes),)
    elif t.op in REDUCTIONS:
        args = (frozenset(axes.get(a, a) for a in t.axes),)
    return simplified(terms, t, args, kids)


def reindexed(index: Size, f: Rewrite, axes: Mapping[int, int]) -> Size:
    """The index expression with f applied to the terms in it, and axes renamed."""
    if not values_in(index) and not axes_in(index) & axes.keys():
        return index

    def atom(a: Atom) -> Size | None:
        if a.kind == "value":
            return value(f(a.args[0]))
        return axis(axes[a.args[0]]) if a.kind == "axis" and a.args[0] in axes else None

    return substitute(index, atom)


def simplified(terms: Terms, t: Term, args: tuple[Any, ...], kids: tuple[Term, ...]) -> Term:
    """The term made of new operands; constant conditions and sums with 0 vanish."""
    new = terms.make(t.op, args, kids, t.dtype)
    match t.op:
        case "not" if kids[0].op == "const":
            return terms.const(1 - kids[0].args[0], bool_)
        case "mask" if kids[0].op == "const":
            return kids[1] if kids[0].args[0] else terms.const(0, t.dtype)
        case "mask" if is_zero(kids[1]):
            return kids[1]
        case "select" if kids[0].op == "const":
            return kids[1] if kids[0].args[0] else kids[2]
        case "add" if is_zero(kids[0]):
            return kids[1]
        case "add" if is_zero(kids[1]):
            return kids[0]
    return new


def is_zero(t: Term) -> bool:
    return t.op == "const" and t.args[0] == 0


def renamed(terms: Terms, t: Term, axes: Mapping[int, int], memo: dict[Any, Term]) -> Term:
    """t with its free axes renamed."""
    here = {a: b for a, b in axes.items() if a in t.free}
    if not here:
        return t
    key = (t, tuple(sorted(here.items())))
    if key not in memo:
        memo[key] = rebuilt(terms, t, lambda k: renamed(terms, k, here, memo), here)
    return memo[key]


def relabelled(terms: Terms, t: Term, axes: Mapping[int, int], memo: dict[Term, Term]) -> Term:
    """t with axes renamed everywhere, free or bound."""
    if t not in memo:
        memo[t] = rebuilt(terms, t, lambda k: relabelled(terms, k, axes, memo), axes)
    return memo[t]


def assuming(terms: Terms, t: Term, known: Mapping[Term, bool], memo: dict[Term, Term]) -> Term:
    """t where the conditions have the given values."""
    if t in known:
        return terms.const(known[t], bool_)
    if t not in memo:
        memo[t] = rebuilt(terms, t, lambda k: assuming(terms, k, known, memo))
    return memo[t]


def factors(t: Term) -> list[Term]:
    """The factors of a product, flat."""
    return [f for k in t.kids for f in factors(k)] if t.op == "mul" else [t]


@dataclass(frozen=True, slots=True)
class Split:
    """A kernel without clashes of axes; `twins` maps each fresh axis to the one that it was."""

    kernel: Kernel
    twins: dict[int, int]
    terms: Terms


class _Splitter:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.terms = Terms()
        self.free = frozenset[int]().union(*(free_axes(o) for o in kernel.outputs))
        terms = walk(*(o.term for o in kernel.outputs))
        used = self.free.union(*(t.free | t.axes for t in terms))
        self.extents = {i: n for i, n in kernel.extents.items() if i in used}
        self.names: dict[int, list[int]] = {}
        self.memo: dict[Term, Term] = {}
        self.renamings: dict[Any, Term] = {}

    def term(self, t: Term) -> Term:
        if t not in self.memo:
            new = rebuilt(self.terms, t, self.term)
            self.memo[t] = self.reduction(new) if new.op in REDUCTIONS else new
        return self.memo[t]

    def reduction(self, t: Term) -> Term:
        taken = self.free.union(*(_nested(k, t.axes) for k in t.kids))
        names = {a: self.name(a, taken) for a in sorted(t.axes)}
        kids = [renamed(self.terms, k, names, self.renamings) for k in t.kids]
        axes = frozenset(names.values())
        if t.op == "sum":
            return self.sum(axes, kids[0])
        if t.op == "max":
            axes &= kids[0].free
            return self.terms.reduce("max", axes, kids[0]) if axes else kids[0]
        return self.terms.reduce(t.op, axes, *kids)

    def sum(self, axes: frozenset[int], t: Term) -> Term:
        """Factors without the axes stand outside; an axis that nothing depends on is a count."""
        terms = self.terms
        inside = [f for f in factors(t) if f.free & axes]
        outside = [f for f in factors(t) if not f.free & axes]
        bound = axes & frozenset[int]().union(*(f.free for f in inside))
        if bound < axes:
            count = math.prod((self.extents[a] for a in sorted(axes - bound)), start=1)
            outside.append(terms.cast(terms.val(count), t.dtype))
        if inside:
            product = inside[0]
            for f in inside[1:]:
                product = terms.binary("mul", product, f)
            outside.insert(0, terms.reduce("sum", bound, product))
        out = outside[0]
        for f in outside[1:]:
            out = terms.binary("mul", out, f)
        return out

    def name(self, a: int, taken: frozenset[int]) -> int:
        names = self.names.setdefault(a, [a])
        for name in names:
            if name not in taken:
                return name
        fresh = max(self.extents) + 1
        self.extents[fresh] = self.extents[a]
        names.append(fresh)
        return fresh


def _nested(t: Term, bound: frozenset[int]) -> frozenset[int]:
    """Axes of the reductions below t that cannot leave the loops over `bound`."""
    found: frozenset[int] = frozenset()
    seen: set[tuple[Term, frozenset[int]]] = set()
    stack = [(t, bound)]
    while stack:
        term, outer = stack.pop()
        if (term, outer) in seen or not term.free & outer:
            continue
        seen.add((term, outer))
        if term.op in REDUCTIONS:
            found |= term.axes
        stack.extend((k, outer | term.axes) for k in below(term))
    return found


def below(t: Term) -> tuple[Term, ...]:
    """The operands of a term, and the terms in its index expressions."""
    return (*t.kids, *(v for i in t.indices for v in values_in(i)))


def free_axes(output: Output) -> frozenset[int]:
    """The axes that an output ranges over."""
    return frozenset[int]().union(*(axes_in(i) for i in output.index))


def split(kernel: Kernel) -> Split:
    """The kernel with a fresh axis for every binder whose axis is also free, or bound around it."""
    splitter = _Splitter(kernel)
    outputs = tuple(Output(o.buffer, o.index, splitter.term(o.term)) for o in kernel.outputs)
    twins = {n: a for a, names in splitter.names.items() for n in names[1:]}
    return Split(Kernel(outputs, kernel.inputs, splitter.extents), twins, splitter.terms)


def joined(parts: Split, whole: Callable[[int], bool]) -> Kernel:
    """The kernel with twins renamed to their originals where both are whole."""
    names = {t: a for t, a in parts.twins.items() if whole(t) and whole(a)}
    if not names:
        return parts.kernel
    memo: dict[Term, Term] = {}
    outputs = tuple(
        Output(o.buffer, o.index, relabelled(parts.terms, o.term, names, memo))
        for o in parts.kernel.outputs
    )
    extents = {a: n for a, n in parts.kernel.extents.items() if a not in names}
    return Kernel(outputs, parts.kernel.inputs, extents)


def readied(terms: Terms, t: Term, looped: frozenset[int], memo: dict[Term, Term]) -> Term:
    """t in the words of the tile program: folds over whole axes written out, select and sub."""
    if t not in memo:
        new = rebuilt(terms, t, lambda k: readied(terms, k, looped, memo))
        if new.op in ("fold", "part") and not new.axes & looped:
            new = _written_out(terms, new)
        memo[t] = _choice(terms, new) if new.op == "add" else new
    return memo[t]


def _written_out(terms: Terms, t: Term) -> Term:
    """fold(k; a, v) → sum(k; exp2(a − max(k; a)) · v); a part is 0 where the maximum is −inf."""
    a, v = t.kids
    most = terms.reduce("max", t.axes & a.free, a) if t.axes & a.free else a
    some = terms.unary("not", terms.binary("eq", most, terms.inf(-1, a.dtype)))
    shift = most if t.op == "fold" else terms.binary("mask", some, most)
    p = terms.cast(terms.unary("exp2", terms.binary("sub", a, shift)), v.dtype)
    weighted = p if v.op == "const" and v.args == (1, 0) else terms.binary("mul", p, v)
    total = terms.reduce("sum", t.axes, weighted)
    return total if t.op == "fold" else terms.binary("mask", some, total)


def _choice(terms: Terms, t: Term) -> Term:
    """mask(c, x) + mask(not c, y) → select(c, x, y);  x + (−1)·y → x − y"""
    for x, y in (t.kids, t.kids[::-1]):
        if x.op == y.op == "mask" and y.kids[0].op == "not" and y.kids[0].kids[0] is x.kids[0]:
            return terms.make("select", (), (*x.kids, y.kids[1]), t.dtype)
        if y.op == "mul":
            for c, z in (y.kids, y.kids[::-1]):
                if c.op == "const" and c.args == (-1, 0):
                    return terms.binary("sub", x, z)
    return t


def two_groups(
    parts: Sequence[frozenset[int]], rank: Callable[[int], int]
) -> tuple[list[int], list[int], frozenset[int]] | None:
    """Factors (by number) in two groups that share no axis but the batch axes, which are given too.

    `parts` holds the axes of each factor, without the summed ones; the group of the axis of least
    rank comes first. None where the factors do not split in two.
    """
    wide = [p for p in parts if p]
    batch = wide[0].intersection(*wide[1:]) if wide else frozenset[int]()
    found: list[tuple[frozenset[int], list[int]]] = []
    rest: list[int] = []
    for n, p in enumerate(parts):
        own = p - batch
        if not own:
            rest.append(n)
            continue
        touching = [g for g in found if g[0] & own]
        found = [g for g in found if not g[0] & own]
        members = [*(m for g in touching for m in g[1]), n]
        found.append((own.union(*(g[0] for g in touching)), sorted(members)))
    if len(found) != 2:
        return None
    (_, a), (_, b) = sorted(found, key=lambda g: min(map(rank, g[0])))
    (b if len(b) > 1 and len(a) == 1 else a).extend(rest)
    return a, b, batch


def bound(extent: Size) -> int:
    """The greatest value that an extent can take."""
    return bounds(extent)[1]
