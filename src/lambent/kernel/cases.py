"""Sums over short axes as the sums of their cases: what is compared with the axis is known in each.

The fields of a packed byte are such an axis. A kernel is rewritten before it is lowered.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial, reduce

from lambent.algebra.term import Term, Terms, walk
from lambent.graph.dim import Size
from lambent.kernel.kernel import Kernel
from lambent.kernel.rewrite import bound, factors, outputs_of, rebuilt, two_groups

SHORT = 8  # indices of an axis whose cases are written out


def cases(kernel: Kernel) -> Kernel:
    """The kernel without conditions on short axes of sums, but for contractions: their operands
    are tiles."""
    terms = Terms()
    outputs = outputs_of(kernel, terms, partial(_cases, terms, kernel.extents))
    return Kernel(outputs, kernel.inputs, kernel.extents)


def _cases(terms: Terms, extents: Mapping[int, Size], t: Term) -> Term:
    if t.op != "sum" or two_groups([u.free - t.axes for u in factors(t.kids[0])], int):
        return t
    for i in (i for i in sorted(t.axes) if bound(extents[i]) == extents[i] <= SHORT):
        same = {u: u for u in walk(*t.kids) if i not in u.free}
        inside = list(walk(*t.kids, known=same))
        # sums inside would be repeated
        if any(u.op in ("eq", "less") for u in inside) and not any(u.axes for u in inside):
            every = [dict(same) for _ in range(bound(extents[i]))]
            for u in inside:
                for n, new in enumerate(every):
                    new[u] = rebuilt(terms, u, new.__getitem__, {i: n})
            total = reduce(partial(terms.apply, "add"), [new[t.kids[0]] for new in every])
            return _cases(terms, extents, terms.reduce("sum", t.axes - {i}, total))
    return t
