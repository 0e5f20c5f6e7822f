"""Kernels of several results: they share a loop, and what is read or computed in it.

A result that lacks the loop's axis is summed up in it, another is stored in each turn. One kernel
reads what the other reads, and more at most.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from lambent.algebra.term import REDUCTIONS, Term, Terms, walk
from lambent.graph.dim import axes_in
from lambent.kernel.kernel import Buffer, Kernel
from lambent.kernel.ranges import updates
from lambent.search.bound import Bounder
from lambent.search.enumerate import Candidate

MOST = 3  # results of one kernel
KEPT = 3  # kernels of the same results
FIRST = 16  # kernels of as many results: those that save most
LESS = 0.9  # the share of the time of one that reads less that one may take which reads more
GAIN = 0.2  # the least that one kernel saves of what several take from the same values
SHARED = 0.4  # and that it saves of the time of each that joins it


def loops(found: Sequence[Candidate], bounder: Bounder) -> Iterator[Candidate]:
    """Candidates of several results, made of those of one."""
    return (_candidate(g, found) for g in _groups(found, bounder))


@dataclass(frozen=True, slots=True)
class _Group:
    """Kernels, by number, that may be one. `cost`: seconds of each term, of arithmetic or of
    reading it; `keeps`: the axes of each result."""

    members: tuple[int, ...]
    roots: tuple[int, ...]
    leaves: frozenset[int]
    reads: frozenset[Buffer]
    cost: dict[Term, float]
    keeps: tuple[frozenset[int], ...]

    @property
    def seconds(self) -> float:
        return sum(self.cost.values())


def _groups(found: Sequence[Candidate], bounder: Bounder) -> Iterator[_Group]:
    """What may be one kernel, smaller groups first."""
    alone = list(_apart(found, bounder))
    ways: dict[int, list[_Group]] = {}
    for one in alone:
        ways.setdefault(one.roots[0], []).append(one)
    groups = able = [one for one in alone if not _stays(found[one.members[0]].kernel)]
    for _ in range(1, MOST):
        larger: dict[tuple[int, ...], list[_Group]] = {}
        for one, g in itertools.product(able, groups):
            if _may_share(one, g, bounder.calibration.held > 0):
                new = _joined(one, g)
                if _gains(new, one, g, ways):
                    larger.setdefault(new.roots, []).append(new)
        best = [g for alike in larger.values() for g in _best(alike)]
        groups = sorted(best, key=lambda g: (g.seconds - _alone(g, ways), g.members))[:FIRST]
        yield from groups


def _apart(found: Sequence[Candidate], bounder: Bounder) -> Iterator[_Group]:
    """Each kernel that runs in every call, for itself."""
    for number, c in enumerate(found):
        terms = list(walk(c.kernel.outputs[0].term))
        size = {b.name: b.dtype.itemsize for b in c.kernel.inputs}
        cost = dict(bounder.work(terms))
        for t in (t for t in terms if t.op == "in"):
            cost[t] = bounder.calibration.byte_time(bounder.region(t) * size[t.args[0]])
        keeps = frozenset[int]().union(*map(axes_in, c.kernel.outputs[0].index))
        yield _Group(
            (number,), (c.root,), frozenset(c.leaves), frozenset(c.kernel.inputs), cost, (keeps,)
        )


def _stays(kernel: Kernel) -> bool:
    """Whether it runs at load, or writes more than it reads: such a value is better not stored; or
    changes some of an input: that is quickest in the input's place, and alone."""
    read = sum(b.bytes for b in kernel.inputs)
    return kernel.weights_only or kernel.outputs[0].buffer.bytes > read or changes(kernel)


def changes(kernel: Kernel) -> bool:
    """Whether it changes some of an input, and can do so in the input's place."""
    return any(updates(Terms(), replace(kernel.outputs[0], over=b)) for _, b in kernel.overwritable)


def _may_share(one: _Group, g: _Group, few: bool) -> bool:
    """Whether a kernel may join others, which are made of greater values alone, and share a loop:
    over an axis of what costs most of what they have in common.

    few: a task holds few sums; so none has all of a result over an axis that others lack.
    """
    if few and not all(k <= one.keeps[0] or one.keeps[0] <= k for k in g.keeps):
        return False
    if one.roots[0] <= g.roots[-1] or one.roots[0] >= min(one.leaves | g.leaves, default=math.inf):
        return False
    if not (g.reads <= one.reads or one.reads <= g.reads):
        return False
    same = one.cost.keys() & g.cost.keys()
    most = max(same, key=lambda t: (one.cost[t], t.id), default=None)
    return most is not None and bool(most.free.intersection(*g.keeps, *one.keeps))


def _joined(one: _Group, g: _Group) -> _Group:
    return _Group(
        g.members + one.members, g.roots + one.roots, one.leaves | g.leaves,
        one.reads | g.reads, one.cost | g.cost, g.keeps + one.keeps,
    )  # fmt: skip


def _gains(new: _Group, one: _Group, g: _Group, ways: Mapping[int, list[_Group]]) -> bool:
    """Whether it is quicker than kernels of one result, which may read each other's."""
    whole, own = _alone(new, ways), _least(one.roots[0], new, ways)
    return new.seconds <= (1 - GAIN) * whole and new.seconds - g.seconds <= (1 - SHARED) * own


def _alone(g: _Group, ways: Mapping[int, list[_Group]]) -> float:
    """Seconds of kernels of one result each, in place of one."""
    return sum(_least(root, g, ways) for root in g.roots)


def _least(root: int, g: _Group, ways: Mapping[int, list[_Group]]) -> float:
    """Seconds of a value by itself, from what a group reads or makes."""
    return min(w.seconds for w in ways[root] if w.leaves <= g.leaves.union(g.roots))


def _best(groups: Sequence[_Group]) -> Iterator[_Group]:
    """Those that read least, and after them what reads more and has less to do, or fewer loops."""
    least, fewest, kept = math.inf, math.inf, 0
    for g in sorted(groups, key=lambda g: (sum(b.bytes for b in g.reads), g.seconds, g.members)):
        inside = sum(t.op in REDUCTIONS for t in g.cost)
        if kept < KEPT and (g.seconds < LESS * least or inside < fewest):
            least, fewest, kept = min(g.seconds, least), min(inside, fewest), kept + 1
            yield g


def _candidate(g: _Group, found: Sequence[Candidate]) -> Candidate:
    """One kernel of the results of several."""
    members = [found[i] for i in g.members]
    outputs = tuple(o for c in members for o in c.kernel.outputs)
    inputs = dict.fromkeys(b for c in members for b in c.kernel.inputs)
    extents = {a: n for c in members for a, n in c.kernel.extents.items()}
    inside = sum(t.op in REDUCTIONS for t in walk(*(o.term for o in outputs)))
    kernel = Kernel(outputs, tuple(inputs), extents)
    root, *more = g.roots
    leaves = tuple(sorted(g.leaves))
    return Candidate(root, leaves, kernel, g.seconds, inside, False, more=tuple(more))
