"""Sums over short axes as the sums of their cases: what is compared with the axis is known in each.

The fields of a packed byte are such an axis. A kernel is rewritten before it is lowered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial, reduce

from lambent.algebra.term import Term, Terms, walk
from lambent.graph.dim import Size, atoms_of, axis
from lambent.graph.dtypes import bool_
from lambent.graph.prove import substitute
from lambent.kernel.kernel import Kernel
from lambent.kernel.rewrite import bound, everywhere, factors, two_groups

SHORT = 8  # indices of an axis whose cases are written out


def cases(kernel: Kernel) -> Kernel:
    """The kernel without conditions on short axes of sums, but for contractions: their operands
    are tiles."""
    terms = Terms()
    term = everywhere(terms, partial(_cases, terms, kernel.extents))
    outputs = tuple(replace(o, term=term(o.term)) for o in kernel.outputs)
    return Kernel(outputs, kernel.inputs, kernel.extents)


def _cases(terms: Terms, extents: Mapping[int, Size], t: Term) -> Term:
    inside = list(walk(*t.kids))
    compared = frozenset[int]().union(*(u.free for u in inside if u.op in ("eq", "less")))
    alone = t.axes & compared.difference(*(u.axes for u in inside))
    i = next((i for i in sorted(alone) if bound(extents[i]) == extents[i] <= SHORT), None)
    if i is None or t.op != "sum" or any(u.axes for u in inside):  # those would be repeated
        return t
    if two_groups([u.free - t.axes for u in factors(t.kids[0])], int):
        return t
    rules = [partial(_at, terms, i, n) for n in range(bound(extents[i]))]
    every = [everywhere(terms, rule)(*t.kids) for rule in rules]
    total = reduce(partial(terms.binary, "add"), every)
    return _cases(terms, extents, terms.reduce("sum", t.axes - {i}, total))


def _at(terms: Terms, i: int, n: int, t: Term) -> Term:
    """The term at index n of axis i, its operands being so already."""
    if t.op in ("in", "val"):
        [atom] = atoms_of(axis(i))
        index = [substitute(e, {atom: n}.get) for e in t.indices]
        if t.op == "in":
            return terms.load(t.args[0], index, t.dtype)
        return terms.const(index[0], t.dtype) if isinstance(index[0], int) else terms.val(*index)
    if t.op in ("eq", "less") and all(k.op == "const" and k.dtype.is_integer for k in t.kids):
        x, y = (k.args[0] for k in t.kids)
        return terms.const(x == y if t.op == "eq" else x < y, bool_)
    if t.op == "mul":  # 0 times what may be infinite stays
        for zero, other in (t.kids, t.kids[::-1]):
            whole = other.op == "cast" and other.kids[0].dtype.is_integer
            if zero.op == "const" and zero.args[0] == 0 and whole:
                return zero
    return t
