"""Kernels of several results: what each of them reads or computes for itself is done once.

Two candidates over as many and as long axes whose values do not need each other become one kernel,
which may take in a third. It is kept where its bound is well below the sum of theirs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache

from lambent.algebra.term import Term, Terms, walk
from lambent.backends.base import Calibration
from lambent.backends.roles import outermost_first
from lambent.graph.dim import Size, axis
from lambent.kernel.kernel import Kernel, Output
from lambent.kernel.rewrite import reindexed, renaming
from lambent.search.bound import Bounder
from lambent.search.enumerate import Candidate, Candidates

GAIN = 0.9  # the share of the sum that a bound must be below
RESULTS = 4  # values that a kernel makes at the most
KEPT = 2  # such kernels for the same values
MOST = 16  # such kernels of as many results

Priced = tuple[Candidate, float]


def siblings(found: Candidates, rates: Calibration, extents: Mapping[int, Size]) -> list[Candidate]:
    """All candidates, those of several results last."""
    far = replace(rates, levels=rates.levels[-1:])  # else half as much in a nearer cache is better
    bound = Bounder(far, extents).bound
    join, alone = _Join(found.terms, bound), [(c, bound(c.kernel)) for c in found.candidates]
    every, latest = list(found.candidates), alone
    for _ in range(2, RESULTS + 1):
        joined = join.pairs(latest, alone)
        latest, alike = list[Priced](), Counter[tuple[int, ...]]()
        for _, new in sorted(joined, key=lambda pair: -pair[0]):
            alike[new[0].roots] += 1
            if alike[new[0].roots] <= KEPT and len(latest) < MOST:
                latest.append(new)
        every += [c for c, _ in latest]
    return every


class _Join:
    def __init__(self, terms: Terms, bound: Callable[[Kernel], float]) -> None:
        self.renamed, self.bound, self.order = renaming(terms), bound, cache(_order)

    def pairs(
        self, some: Sequence[Priced], others: Sequence[Priced]
    ) -> Iterator[tuple[float, Priced]]:
        """Pairs in one kernel, where that may pay; and the seconds that it saves."""
        for a, least in some:
            for b, more in others:
                kernel = self.both(a.kernel, b.kernel) if _fit(a, b) else None
                both = self.bound(kernel) if kernel else least + more
                if kernel and both < GAIN * (least + more):
                    leaves = tuple(sorted({*a.leaves, *b.leaves}))
                    new = replace(
                        a, leaves=leaves, more=(*a.more, b.root), kernel=kernel,
                        reductions=a.reductions + b.reductions, basic=False,
                    )  # fmt: skip
                    yield least + more - both, (new, both)

    def both(self, a: Kernel, b: Kernel) -> Kernel | None:
        """One kernel: the free axes of the second have the names of the first's, in their order.

        None where they are not as many and as long, or where a reduction has such a name already.
        """
        names, others = self.order(a.outputs[0]), self.order(b.outputs[0])
        if [a.extents[i] for i in names] != [b.extents[i] for i in others]:
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
