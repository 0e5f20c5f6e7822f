"""Kernels of several results: what each of them reads or computes for itself is done once.

Two candidates over as many and as long axes whose values do not need each other become one kernel,
which may take in a third. It is kept where its bound is well below the sum of theirs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache

from lambent.algebra.term import Term, Terms, walk
from lambent.backends.base import Calibration
from lambent.backends.roles import outermost_first
from lambent.graph.dim import Size, axis
from lambent.kernel.kernel import Kernel, Output
from lambent.kernel.rewrite import bound, reindexed, renaming
from lambent.search.bound import Bounder
from lambent.search.cover import Problem, diverse
from lambent.search.enumerate import Candidate, Candidates

GAIN = 0.9  # the share of the sum that a bound must be below
COVERS = 8  # cheap ways to make everything that are looked at
SMALL = 0.05  # the share of the largest value that is next to nothing
TILE = 256  # indices of axes that only one result has
MOST = (64, 16, 8)  # kernels of two, three and four results that are kept

Priced = tuple[Candidate, float]


def siblings(found: Candidates, rates: Calibration, extents: Mapping[int, Size]) -> list[Candidate]:
    """All candidates, those of several results last."""
    far = replace(rates, levels=rates.levels[-1:])  # else half as much in a nearer cache is better
    weigh = Bounder(far, extents).bound
    alone = [(c, weigh(c.kernel)) for c in found.candidates]
    stored = _worth_storing(found, [cost for _, cost in alone])
    latest = alone = [(c, cost) for c, cost in alone if stored >= {c.root, *c.leaves}]
    join, every = _Join(found.terms, weigh), list(found.candidates)
    for most in MOST:
        ranked, read = list[tuple[int, Priced]](), defaultdict[tuple[int, ...], list[int]](list)
        for _, new in sorted(join.pairs(latest, alone), key=lambda pair: pair[0]):
            size = sum(found.stored[leaf].buffer.bytes for leaf in new[0].leaves)
            better = read[new[0].roots]
            if all(size < other for other in better):
                ranked.append((len(better), new))
                better.append(size)
        latest = [new for _, new in sorted(ranked, key=lambda pair: pair[0])[:most]]
        every += [c for c, _ in latest]
    return every


def _worth_storing(found: Candidates, costs: Sequence[float]) -> set[int]:
    """The values that cheap covers make, and those of next to no size: rows of statistics."""
    outputs = tuple(i for i, stored in enumerate(found.stored) if stored.output)
    covers = diverse(Problem(found.candidates, outputs), costs, range(len(costs)), COVERS)
    sizes = [stored.buffer.bytes for stored in found.stored]
    small = {i for i, size in enumerate(sizes) if size < SMALL * max(sizes)}
    return small | {found.candidates[k].root for cover in covers for k in cover.kernels}


class _Join:
    def __init__(self, terms: Terms, weigh: Callable[[Kernel], float]) -> None:
        self.renamed, self.weigh, self.order = renaming(terms), weigh, cache(_order)

    def pairs(
        self, some: Sequence[Priced], others: Sequence[Priced]
    ) -> Iterator[tuple[float, Priced]]:
        """Pairs in one kernel, where that may pay; before it the share of their times it takes."""
        for a, least in some:
            for b, more in others:
                kernel = self.both(a.kernel, b.kernel) if _fit(a, b) else None
                both = self.weigh(kernel) if kernel else least + more
                if kernel and both < GAIN * (least + more):
                    leaves = tuple(sorted({*a.leaves, *b.leaves}))
                    new = replace(
                        a, leaves=leaves, more=(*a.more, b.root), kernel=kernel,
                        reductions=a.reductions + b.reductions, basic=False,
                    )  # fmt: skip
                    yield both / (least + more), (new, both)

    def both(self, a: Kernel, b: Kernel) -> Kernel | None:
        """One kernel: the free axes of the second have the names of the first's, in their order.

        None where they are neither as many and as long nor the same but for what a tile holds, as
        no task can have a part of what another result lacks; or where a reduction has such a name.
        """
        names, others = self.order(a.outputs[0]), self.order(b.outputs[0])
        alone, extents = {*names} ^ {*others}, a.extents | b.extents
        if len(names) != len(others) and math.prod(bound(extents[i]) for i in alone) <= TILE:
            names = others
        if [a.extents.get(i) for i in names] != [b.extents[i] for i in others]:
            return None
        new = {old: n for old, n in zip(others, names, strict=True) if old != n}
        bind = [(t.axes, k.free) for t in walk(b.outputs[0].term) for k in t.kids if t.axes]
        clash = any(old in free and n in axes for axes, free in bind for old, n in new.items())
        extents = {i: n for i, n in b.extents.items() if i not in new} | a.extents
        if clash or any(extents[i] != n for i, n in b.extents.items() if i not in new):
            return None
        places = {old: axis(n) for old, n in new.items()}

        def again(t: Term) -> Term:
            return self.renamed(t, frozenset(new.items()))

        [o] = b.outputs
        index = tuple(reindexed(i, again, places) for i in o.index)
        output = replace(o, index=index, term=again(o.term))
        inputs = tuple(dict.fromkeys((*a.inputs, *b.inputs)))
        return Kernel((*a.outputs, output), inputs, extents)


def _fit(a: Candidate, b: Candidate) -> bool:
    """Values in order, none of which another needs; one reads no stored value that the other does
    not; and they read something together."""
    one, two = {*a.leaves}, {*b.leaves}
    return (
        max(a.roots) < b.root < min(one | two, default=b.root + 1)
        and (one <= two or two <= one)
        and not (a.kernel.weights_only or b.kernel.weights_only)
        and not {*a.kernel.inputs}.isdisjoint(b.kernel.inputs)
    )


def _order(o: Output) -> list[int]:
    """The axes of an output, outermost first."""
    return [i for e in o.index for i in outermost_first(e)]
