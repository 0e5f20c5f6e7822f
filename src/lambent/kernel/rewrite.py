"""Terms made ready for lowering: binders told apart, factors out of sums, folds written out.

One axis number may be free in an output and bound in a reduction, or bound at two nested places.
Looped, the two need names of their own; whole, one name and one load serve both. `split` gives
every such binder a fresh axis (a twin); `readied` joins a twin to its original again where both
are whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial, reduce
from typing import Any

from lambent.algebra.term import REDUCTIONS, Term, Terms, walk
from lambent.graph.dim import Atom, Size, axes_in, axis, terms_of, value, values_in
from lambent.graph.dtypes import bool_
from lambent.graph.orders import postorder
from lambent.graph.prove import bounds, substitute
from lambent.kernel.kernel import Kernel, Output

Rewrite = Callable[[Term], Term]
PLAIN = ("in", "const", "val", "cast", "add", "sub", "mul", "mask", "select", "not")
"""Operations whose results are finite where their operands are."""


def rebuilt(terms: Terms, t: Term, f: Rewrite, axes: Mapping[int, Size] = {}) -> Term:
    """t with f applied to its operands (also inside its indices), and its own axes replaced.

    A reduction is then over the axes that its own became. What is known of indices is a constant;
    constant conditions vanish, sums with 0, and products of 0 and what is seen to be finite.
    """
    kids = tuple(map(f, t.kids))
    args: tuple[Any, ...] = t.args
    match t.op:
        case "in":
            args = t.args[0], tuple(reindexed(i, f, axes) for i in t.args[1])
        case "val":
            args = (reindexed(t.args[0], f, axes),)
            if isinstance(args[0], int):
                return terms.const(args[0], t.dtype)
        case "eq" | "less" if all(k.op == "const" and k.dtype.is_integer for k in kids):
            x, y = (k.args[0] for k in kids)
            return terms.const(x == y if t.op == "eq" else x < y, bool_)
        case "sum" | "max" | "fold" | "part":
            args = (frozenset[int]().union(*(axes_in(axes.get(a, axis(a))) for a in t.axes)),)
        case "not" if kids[0].op == "const":
            return terms.const(1 - kids[0].args[0], bool_)
        case "mask" | "select" if kids[0].op == "const":
            yes, no = (*kids[1:], terms.const(0, t.dtype))[:2]
            return yes if kids[0].args[0] else no
        case "mask" if is_zero(kids[1]):
            return kids[1]
        case "add" if is_zero(kids[0]) or is_zero(kids[1]):
            return kids[1] if is_zero(kids[0]) else kids[0]
        case "mul" if any(is_zero(x) and finite(y) for x, y in (kids, kids[::-1])):
            return terms.const(0, t.dtype)
    return terms.make(t.op, args, kids, t.dtype)


def everywhere(terms: Terms, rule: Rewrite = lambda t: t, axes: Mapping[int, Size] = {}) -> Rewrite:
    """Terms rebuilt from the operands up, the rule applied once to each: not again to an operand
    that is all that is left of a term."""
    new: dict[Term, Term] = {}

    def rewritten(t: Term) -> Term:
        for u in walk(t, known=new):
            built = rebuilt(terms, u, new.__getitem__, axes)
            new[u] = built if built in map(new.get, u.kids) else rule(built)
        return new[t]

    return rewritten


def outputs_of(
    kernel: Kernel, terms: Terms, rule: Rewrite = lambda t: t, axes: Mapping[int, Size] = {}
) -> tuple[Output, ...]:
    """The outputs of a kernel with axes replaced, the rule applied to each of their terms."""
    new = everywhere(terms, rule, axes)
    return tuple(
        replace(o, index=tuple(reindexed(i, new, axes) for i in o.index), term=new(o.term))
        for o in kernel.outputs
    )


def reindexed(index: Size, f: Callable[[Any], Any], axes: Mapping[int, Size] = {}) -> Size:
    """The index expression with f applied to the values in it, and axes replaced."""
    if not values_in(index) and not axes_in(index) & axes.keys():
        return index

    def atom(a: Atom) -> Size | None:
        if a.kind == "value":
            return value(f(a.args[0]))
        return axes.get(a.args[0]) if a.kind == "axis" else None

    return substitute(index, atom)


def is_zero(t: Term) -> bool:
    return t.op == "const" and t.args[0] == 0


def finite(t: Term, known: frozenset[str] = frozenset()) -> bool:
    """True if it is seen to be no infinity and no NaN; `known` are buffers that have none."""
    floats = [u for u in walk(t) if u.dtype.is_float]
    return all(u.op in PLAIN and (u.op != "in" or u.args[0] in known) for u in floats)


def assuming(terms: Terms, known: Mapping[Term, bool]) -> Rewrite:
    """Terms where the conditions have the given values.

    A reduction over an axis of a condition stays as it is: in it the axis means another index.
    """
    if not known:
        return lambda t: t
    axes = frozenset[int]().union(*(c.free for c in known))

    @cache
    def assumed(t: Term) -> Term:
        if t in known:
            return terms.const(known[t], bool_)
        return t if t.axes & axes else rebuilt(terms, t, assumed)

    return assumed


def free_axes(output: Output) -> frozenset[int]:
    """The axes that an output ranges over."""
    return frozenset[int]().union(*map(axes_in, output.index))


def steps(index: Size) -> dict[int, int]:
    """How far the index moves along each axis that one term of it has, alone."""
    every = ((c, m, *atom) for c, m in terms_of(index) for atom in m)
    alone = {a.args[0]: c for c, m, a, n in every if a.kind == "axis" and len(m) == n == 1}
    others = axes_in(index - sum(c * axis(i) for i, c in alone.items()))
    return {i: c for i, c in alone.items() if i not in others}


def bound(extent: Size) -> int:
    """The greatest value that an extent can take."""
    return bounds(extent)[1]


def merged(kernel: Kernel) -> Kernel:
    """The kernel with one axis for two that it only knows as one number, n·a + b with b < n."""
    terms = list(walk(*(o.term for o in kernel.outputs)))
    every = itertools.chain(*(o.index for o in kernel.outputs), *(t.indices for t in terms))
    moves = [(axes_in(i), steps(i)) for i in dict.fromkeys(every) if axes_in(i)]
    for a, b in dict.fromkeys(p for _, step in moves for p in itertools.permutations(step, 2)):
        n, own = kernel.extents[b], {a, b}
        used = [own <= step.keys() and step[a] == n * step[b] for axes, step in moves if own & axes]
        if all(used) and all(len(own & t.axes) != 1 for t in terms):
            outputs = outputs_of(kernel, Terms(), axes={a: 0})
            kept = {i: e for i, e in kernel.extents.items() if i != a}
            return merged(Kernel(outputs, kernel.inputs, kept | {b: n * kernel.extents[a]}))
    return kernel


# ---- binders -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Split:
    """A kernel without clashes of axes; `twins` maps each fresh axis to the one that it was."""

    kernel: Kernel
    twins: dict[int, int]
    terms: Terms


def split(kernel: Kernel) -> Split:
    """The kernel with a fresh axis for every binder whose axis is bound around it, or free in an
    output that it is used for."""
    terms = Terms()
    free: dict[Term, frozenset[int]] = {}  # in the outputs that a term is used for
    for o in kernel.outputs:
        free |= {t: free.get(t, frozenset()) | free_axes(o) for t in walk(o.term)}
    used = frozenset[int]().union(*(t.free | t.axes for t in free), *free.values())
    extents = {i: n for i, n in kernel.extents.items() if i in used}
    twins: dict[int, int] = {}

    def name(a: int, taken: frozenset[int]) -> int:
        for b in (a, *(twin for twin, was in twins.items() if was == a)):
            if b not in taken:
                return b
        fresh = max(extents) + 1
        extents[fresh], twins[fresh] = extents[a], a
        return fresh

    @cache
    def renamed(t: Term, names: frozenset[tuple[int, int]]) -> Term:
        here = frozenset(n for n in names if n[0] in t.free)
        new = {a: axis(b) for a, b in here}
        return rebuilt(terms, t, lambda k: renamed(k, here), new) if here else t

    def apart(t: Term, free: frozenset[int]) -> Term:
        if t.op not in REDUCTIONS:
            return t
        taken = free.union(*(_nested(k, t.axes) for k in t.kids))
        names = {a: name(a, taken) for a in sorted(t.axes)}
        kids = [renamed(k, frozenset(names.items())) for k in t.kids]
        return terms.reduce(t.op, names.values(), *kids)

    new: dict[Term, Term] = {}
    for t in walk(*(o.term for o in kernel.outputs)):
        new[t] = apart(rebuilt(terms, t, new.__getitem__), free[t])
    outputs = tuple(replace(o, term=new[o.term]) for o in kernel.outputs)
    return Split(Kernel(outputs, kernel.inputs, extents), twins, terms)


def _nested(t: Term, bound: frozenset[int]) -> frozenset[int]:
    """Axes of the reductions below t that cannot leave the loops over `bound`."""

    def inside(at: tuple[Term, frozenset[int]]) -> list[tuple[Term, frozenset[int]]]:
        outer = at[1] | at[0].axes
        return [(k, outer) for k in at[0].below if k.free & outer]

    start = [(t, bound)] if t.free & bound else []
    return frozenset[int]().union(*(u.axes for u, _ in postorder(start, inside)))


# ---- folds and sums ----------------------------------------------------------------------------


def readied(parts: Split, looped: frozenset[int]) -> Kernel:
    """The kernel in the words of the tile program: folds over whole axes written out, select and
    sub, sums of matrix products apart; twins renamed to their originals where both are whole."""
    names = {t: axis(a) for t, a in parts.twins.items() if looped.isdisjoint((t, a))}

    def ready(t: Term) -> Term:
        if t.op == "sum":
            return _apart(parts.terms, t)
        if t.op in ("fold", "part") and not t.axes & looped:
            return _written_out(parts.terms, t)
        return _choice(parts.terms, t) if t.op == "add" else t

    extents = {a: n for a, n in parts.kernel.extents.items() if a not in names}
    outputs = outputs_of(parts.kernel, parts.terms, ready, names)
    return Kernel(outputs, parts.kernel.inputs, extents)


def _apart(terms: Terms, t: Term) -> Term:
    """sum(k; a·b + c·d) → sum(k; a·b) + sum(k; c·d) where one of them is a product of matrices"""
    parts = factors(t.kids[0], "add")
    if not any(two_groups([u.free - t.axes for u in factors(p)], int) for p in parts):
        return t
    return reduce(partial(terms.apply, "add"), [terms.reduce("sum", t.axes, p) for p in parts])


def _written_out(terms: Terms, t: Term) -> Term:
    """fold(k; a, v) → sum(k; exp2(a − max(k; a)) · v); a part is 0 where the maximum is −inf."""
    a, v = t.kids
    most = terms.reduce("max", t.axes & a.free, a) if t.axes & a.free else a
    some = terms.apply("not", terms.apply("eq", most, terms.inf(-1, a.dtype)))
    shift = most if t.op == "fold" else terms.apply("mask", some, most)
    p = terms.cast(terms.apply("exp2", terms.apply("sub", a, shift)), v.dtype)
    weighted = p if v.op == "const" and v.args == (1, 0) else terms.apply("mul", p, v)
    total = terms.reduce("sum", t.axes, weighted)
    return total if t.op == "fold" else terms.apply("mask", some, total)


def _choice(terms: Terms, t: Term) -> Term:
    """mask(c, x) + mask(not c, y) → select(c, x, y), also in a longer sum;  x + (−1)·y → x − y"""
    left, right = (factors(k, "add") for k in t.kids)
    for x, y in (*itertools.product(left, right), *itertools.product(right, left)):
        if x.op == y.op == "mask" and y.kids[0].op == "not" and y.kids[0].kids[0] is x.kids[0]:
            rest = [*left, *right]
            rest.remove(x)
            rest.remove(y)
            chosen = terms.make("select", (), (*x.kids, y.kids[1]), t.dtype)
            return reduce(partial(terms.apply, "add"), [*rest, chosen])
    for x, y in (t.kids, t.kids[::-1]):
        for c, z in (y.kids, y.kids[::-1]) if y.op == "mul" else ():
            if c.op == "const" and c.args == (-1, 0):
                return terms.apply("sub", x, z)
    return t


def factors(t: Term, op: str = "mul") -> list[Term]:
    """The factors of a product, or what a sum adds, flat."""
    return [f for k in t.kids for f in factors(k, op)] if t.op == op else [t]


def two_groups(
    parts: Sequence[frozenset[int]], rank: Callable[[int], int]
) -> tuple[list[int], list[int], frozenset[int]] | None:
    """Factors (by number) in two groups that share no axis but the batch axes, which are given too.

    `parts` holds the axes of each factor, without the summed ones; the group of the axis of least
    rank comes first. None where the factors do not split in two.
    """
    wide = [p for p in parts if p]
    batch = wide[0].intersection(*wide[1:]) if wide else frozenset[int]()
    own = [p - batch for p in parts]
    groups: list[frozenset[int]] = []
    for p in filter(None, own):
        touching = [g for g in groups if g & p]
        groups = [*(g for g in groups if not g & p), p.union(*touching)]
    if len(groups) != 2:
        return None
    first, second = sorted(groups, key=lambda g: min(map(rank, g)))
    a = [n for n, p in enumerate(own) if p & first]
    b = [n for n, p in enumerate(own) if p & second]
    alone = [n for n, p in enumerate(own) if not p]
    return (a, b + alone, batch) if len(a) == 1 < len(b) else (a + alone, b, batch)
