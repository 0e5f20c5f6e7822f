"""What axes are to a kernel, for whoever makes schedules, and how an index moves along one.

A role says what an axis does in the kernel's structure, whatever the kernel computes:

    free    rows, columns   own axes of the first and the second group of a contraction's factors
            batch           shared by all factors of a contraction
            row             kept by a reduction that is no contraction
            lane, outer     elementwise; lane is contiguous in an output or an input
    bound   contracted      summed by a contraction
            streamed        summed by a contraction that takes what another reduction gives
            reduced         summed or maximised otherwise
    either  wide            own axis of one group of factors whose other group holds reductions:
                            cutting it computes those again
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from lambent.algebra.term import REDUCTIONS, Term, walk
from lambent.graph import dim
from lambent.graph.dim import Atom, Size, axes_in, axis, representative
from lambent.graph.prove import substitute
from lambent.kernel.kernel import Kernel
from lambent.kernel.rewrite import bound, factors, free_axes, split, steps, two_groups
from lambent.kernel.tile import Schedule, index_axes

ROLES: tuple[tuple[str, set[str]], ...] = (
    ("wide", {"wide"}),
    ("batch", {"bound", "contracted", "batch"}),
    ("streamed", {"bound", "streamed"}),
    ("streamed", {"bound", "contracted", "rows"}),
    ("streamed", {"bound", "contracted", "columns"}),
    ("reduced", {"bound", "reduced"}),
    ("contracted", {"bound"}),
    ("columns", {"columns"}),
    ("rows", {"rows"}),
    ("batch", {"batch"}),
    ("batch", {"beside"}),
    ("lane", {"near"}),
    ("row", {"row"}),
    ("outer", set()),
)
"""An axis has the first role all of whose marks it has. Marks say what the axis is to a reduction;
bound: no output has it; near: it is contiguous; beside: the kernel has a contraction."""


FEW = 4  # rows for which the other operand of a product is read but once


class Structure:
    """Roles, sizes and the axes in the order of the outputs."""

    def __init__(self, kernel: Kernel) -> None:
        parts = split(kernel)
        self.kernel, self.twins = parts.kernel, parts.twins
        self.sizes = {i: max(1, representative(n)) for i, n in self.kernel.extents.items()}
        self.most = {i: max(1, bound(n)) for i, n in self.kernel.extents.items()}
        outputs = self.kernel.outputs
        order = [i for o in outputs for e in o.index for i in outermost_first(e)]
        self.order = tuple(i for i in dict.fromkeys(order) if self.most[i] > 1)
        every = dict.fromkeys([*self.order, *sorted(self.kernel.extents)])
        self.rank = {i: n for n, i in enumerate(every)}
        self.terms = list(walk(*(o.term for o in outputs)))
        self.near = self.contiguous()
        marks = [mark for t in self.terms if t.op in REDUCTIONS for mark in self.marks(t)]
        self.contracts = any(mark == "contracted" for mark, _ in marks)
        self.bound = frozenset(every).difference(*map(free_axes, outputs))
        marks += [("near", self.near), ("bound", self.bound)]
        marks += [("beside", frozenset(every))] if self.contracts else []
        self.roles = {}
        for i in sorted(i for i in every if self.most[i] > 1):
            own = {mark for mark, axes in marks if i in axes}
            self.roles[i] = next(role for role, needed in ROLES if needed <= own)
        self.apart = self.shorter()

    def shorter(self) -> list[int]:
        """Axes of a sum over results' axes that is short beside other sums: what each task may do
        anew, where results are not cut for its sake else."""
        twins = [i for i in self.of("reduced") if i in self.twins]
        others = math.prod(self.sizes[i] for i in self.of("reduced") if i not in twins)
        return twins if others > math.prod(self.sizes[i] for i in twins) else []

    def contiguous(self) -> frozenset[int]:
        """Axes along which an output or an input lies contiguously, small buffers aside."""
        found = [o.index for o in self.kernel.outputs]
        found += [t.args[1] for t in self.terms if t.op == "in"]
        axes = [frozenset[int]().union(*map(axes_in, index)) for index in found]
        volumes = [math.prod(self.sizes[i] for i in own) for own in axes]
        large = [index for v, index in zip(volumes, found, strict=True) if 2 * v >= max(volumes)]
        units = [i for index in large for e in index[-1:] for i, c in steps(e).items() if c == 1]
        return frozenset(i for i in units if self.most[i] > 1)

    def marks(self, t: Term) -> list[tuple[str, frozenset[int]]]:
        """What a reduction makes of the axes: (mark, axes)."""
        if t.op != "max":
            parts = [*t.kids[:-1], *factors(t.kids[-1])]
            axes = [frozenset(i for i in p.free - t.axes if self.most[i] > 1) for p in parts]
            found = two_groups(axes, lambda i: self.rank[i])
            if found is not None:
                first, second, batch = found
                rows, columns = (
                    frozenset[int]().union(*(axes[n] for n in group)) - batch
                    for group in (first, second)
                )
                busy = any(u.op in REDUCTIONS for u in walk(*(parts[n] for n in first)))
                marks = [("rows", rows), ("columns", columns), ("batch", batch)]
                marks += [("wide", columns)] if busy else []
                marks += [("streamed", t.axes)] if t.op != "sum" else []
                return [*marks, ("contracted", t.axes)]
        return [("reduced", t.axes), ("row", t.free)]

    @property
    def narrow(self) -> bool:
        """The kernel is a product with few rows, or few columns."""
        both = (math.prod(self.sizes[i] for i in self.of(role)) for role in ("rows", "columns"))
        return any(1 < size < FEW for size in both)

    def of(self, *roles: str) -> list[int]:
        """Axes of these roles, innermost in the outputs first."""
        found = [i for i, r in self.roles.items() if r in roles]
        return sorted(found, key=lambda i: -self.rank[i])


def one_whole(kernel: Kernel, first: Schedule, tile: int, most: int) -> list[Schedule]:
    """Guesses where results differ in their axes: one such axis, of at most so many places, is not
    cut, so that what is summed over another is summed in the loop that stores the other results.

    tile: of the other such axes.
    """
    own, tiles = [free_axes(o) for o in kernel.outputs], dict(first.tiles)
    some = frozenset[int]().union(*own) - frozenset.intersection(*own)
    sizes = {i: bound(kernel.extents[i]) for i in sorted(some)}
    cut = {i: n for i, n in sizes.items() if tiles.get(i, n) < n}
    new = (tiles | dict.fromkeys(cut, tile) | {i: n} for i, n in cut.items() if n <= most)
    return [replace(first, tiles=tuple(sorted(each.items()))) for each in new]


@lru_cache(1 << 14)
def slope(size: Size, i: int) -> Size | None:
    """The coefficient of axis i in an expression that is linear in it, else None."""
    step, rest = dim.split(size, *dim.atoms_of(axis(i)))
    return None if i in index_axes(step) | index_axes(rest) else step


def later(index: Size, loops: Iterable[int], run: int, most: int) -> int:
    """How far on an index is when `most` more places are read, `run` of them in a row and then by
    a step of the first of the loops (innermost first) that moves it."""
    steps = (s for i in loops if isinstance(s := slope(index, i), int) and s > 0)
    return most // run * max(run, next(steps, 0)) or most


def outermost_first(index: Size) -> list[int]:
    """The axes of an output's dim; the one of the largest step is the outermost."""
    step = steps(index)
    return sorted(axes_in(index), key=lambda i: (-abs(step.get(i, 0)), i))


@lru_cache(1 << 14)
def within(e: Size, i: int, count: int) -> Size:
    """The expression while axis i passes `count` indices, the first of which is a multiple of it.

    What it is divided by stands still, if that is a multiple of the count.
    """
    if i not in axes_in(e):
        return e

    def still(a: Atom) -> Size | None:
        by = a.args[-1] if a.kind == "div" and a.args[0] == axis(i) else None
        return 0 if isinstance(by, int) and by % count == 0 else None

    return substitute(e, still)
