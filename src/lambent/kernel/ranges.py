"""Where a masked loop has work, and on which tiles a mask is known to hold.

A summand that is 0, or a maximum's candidate that is −inf, wherever `less(e, f)` fails need not
be visited there. With e and f affine in the loop's axis, interval reasoning over the tiles of
the other axes gives

    [start … clean)   the mask decides, element by element
    [clean … edge)    the mask holds everywhere: it is replaced by true
    [edge … stop)     the mask decides

Whatever is not understood gives the full range: never wrong. A fold drops masked positions
without reading them, as every one-pass kernel does: a NaN or an inf there does not reach the
result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import reduce as fold_left
from typing import NamedTuple

import numpy as np

from lambent.algebra.term import Term
from lambent.graph.dim import Size, axes_in, axis, terms_of, values_in
from lambent.graph.prove import Prover, bounds, maximum, minimum
from lambent.kernel.rewrite import is_zero
from lambent.kernel.tile import Axis

Literal = tuple[Term, bool]
"""A condition, and the value that it must have."""


class Range(NamedTuple):
    """A piece of a loop, and the conditions known on it."""

    start: Size
    stop: Size
    known: Mapping[Term, bool]


def holding(cond: Term, wanted: bool) -> frozenset[Literal]:
    """The comparisons that must hold for the condition to be `wanted`."""
    if cond.op == "not":
        return holding(cond.kids[0], not wanted)
    if cond.op == "mask" and wanted:
        return holding(cond.kids[0], True) | holding(cond.kids[1], True)
    return frozenset({(cond, wanted)}) if cond.op == "less" else frozenset()


def needs_zero(t: Term) -> frozenset[Literal]:
    """Literals without any of which t is 0."""
    match t.op:
        case "mask":
            return holding(t.kids[0], True) | needs_zero(t.kids[1])
        case "cast":
            return needs_zero(t.kids[0])
        case "add":
            return needs_zero(t.kids[0]) & needs_zero(t.kids[1])
        case "select":
            c, x, y = t.kids
            return _chosen(c, x, y, needs_zero, is_zero)
        case "sum":
            return frozenset(n for n in needs_zero(t.kids[0]) if not n[0].free & t.axes)
        case "mul" if t.kids[0].op == "const":
            return needs_zero(t.kids[1])
        case "mul" if t.kids[1].op == "const":
            return needs_zero(t.kids[0])
    return frozenset()


def needs_least(t: Term, exact: bool) -> frozenset[Literal]:
    """Literals without any of which t is −inf; unless `exact`, x − inf is −inf for every x."""
    match t.op:
        case "add":
            x, y = t.kids
            a, b = needs_least(x, exact), needs_least(y, exact)
            return (a & needs_zero(y)) | (b & needs_zero(x)) if exact else a | b
        case "mask" if _is_least(t.kids[1]):
            return holding(t.kids[0], False)
        case "select":
            c, x, y = t.kids
            return _chosen(c, x, y, lambda u: needs_least(u, exact), _is_least)
        case "cast":
            return needs_least(t.kids[0], exact)
        case "mul":
            for x, y in (t.kids, t.kids[::-1]):
                if x.op == "const" and x.args[0] > 0:
                    return needs_least(y, exact)
    return frozenset()


def _chosen(
    c: Term,
    x: Term,
    y: Term,
    needs: Callable[[Term], frozenset[Literal]],
    void: Callable[[Term], bool],
) -> frozenset[Literal]:
    """What x or y needs, whichever c selects; one that is void needs c to select the other."""
    if void(y):
        return holding(c, True) | needs(x)
    if void(x):
        return holding(c, False) | needs(y)
    return needs(x) & needs(y)


def _is_least(t: Term) -> bool:
    return t.op == "inf" and t.args[0] < 0


def as_index(t: Term) -> Size | None:
    """The index expression that an integer term is, exactly, or None."""
    if t.op == "val":
        index: Size = t.args[0]
        return None if values_in(index) else index
    if t.op == "const" and t.dtype.kind != "b" and t.args[1] == 0 and t.args[0].denominator == 1:
        return int(t.args[0])
    if t.op == "cast":
        return as_index(t.kids[0])
    return None


def _fits(t: Term, index: Size, extents: Mapping[int, Size]) -> bool:
    """True if no value of the index is changed by the term's dtype, nor by a cast below it."""
    low, high = bounds(index, extents)
    while True:
        if t.dtype.is_float:
            least, most = -(2**24), 2**24
            if t.dtype.itemsize < 4:
                return False
        else:
            info = np.iinfo(t.dtype.numpy)
            least, most = int(info.min), int(info.max)
        if low < least or high > most:
            return False
        if t.op != "cast":
            return True
        t = t.kids[0]


class _Slack(NamedTuple):
    """step · k + rest >= 0, k the loop's axis; rest lies in [low, high] over the tiles around."""

    step: int
    low: Size
    high: Size


def _slack(
    literal: Literal, k: int, axes: Mapping[int, Axis], opened: frozenset[int]
) -> _Slack | None:
    cond, wanted = literal
    left, right = (as_index(t) for t in cond.kids)
    if left is None or right is None:
        return None
    extents = {i: a.extent for i, a in axes.items()}
    if not all(_fits(t, i, extents) for t, i in zip(cond.kids, (left, right), strict=True)):
        return None
    gap = right - left - 1 if wanted else left - right
    step = _coefficient(gap, k)
    rest = gap - step * axis(k)
    if not step or k in axes_in(rest):
        return None
    low = high = rest
    for j in sorted(axes_in(rest)):
        c = _coefficient(rest, j)
        if j in axes_in(rest - c * axis(j)):
            return None
        first: Size = 0
        last = axes[j].extent - 1
        if j in opened:
            first, last = axis(j), axis(j) + (axes[j].tile - 1)
        low = low + c * ((first if c > 0 else last) - axis(j))
        high = high + c * ((last if c > 0 else first) - axis(j))
    return _Slack(step, low, high)


def _coefficient(size: Size, i: int) -> int:
    for c, monomial in terms_of(size):
        if len(monomial) == 1 and monomial[0][0].kind == "axis":
            atom, power = monomial[0]
            if atom.args[0] == i and power == 1:
                return c
    return 0


def ranges(
    k: int, needs: Iterable[Literal], axes: Mapping[int, Axis], opened: frozenset[int]
) -> list[Range]:
    """The pieces of the loop over axis k, inside the loops over `opened`.

    Args:
        needs: literals without any of which no goal of the loop has a contribution.
    """
    extent, tile = axes[k].extent, axes[k].tile
    known: dict[Term, bool] = {}
    lower: list[tuple[Size, Size]] = []  # (first index of any work, first from where all hold)
    upper: list[tuple[Size, Size]] = []  # (end of any work, end of where all hold)
    for literal in sorted(needs, key=lambda n: (n[0].id, n[1])):
        slack = _slack(literal, k, axes, opened)
        if slack is None:
            continue
        known[literal[0]] = literal[1]
        step, low, high = slack
        if step > 0:
            lower.append((-(high // step), -(low // step)))
        else:
            upper.append((high // -step + 1, low // -step + 1))
    start = _least_of(maximum, [0, *(a for a, _ in lower)]) // tile * tile
    stop = _least_of(minimum, [extent, *(a for a, _ in upper)])
    if not known:
        return [Range(start, stop, {})]
    clean, pieces = start, list[Range]()
    if lower:
        first = _least_of(maximum, [b for _, b in lower])
        clean = maximum(start, -(-first // tile) * tile)
        pieces.append(Range(start, minimum(clean, stop), {}))
    if not upper:
        return _possible([*pieces, Range(clean, stop, known)])
    last = _least_of(minimum, [b for _, b in upper])
    edge = maximum(clean, last // tile * tile)
    middle = Range(clean, minimum(edge, stop), known)
    return _possible([*pieces, middle, Range(edge, stop, {})])


def _possible(pieces: list[Range]) -> list[Range]:
    """Those that are not proved empty."""
    return [p for p in pieces if not Prover().ge0(p.start - p.stop)]


def _least_of(pick: Callable[[Size, Size], Size], sizes: list[Size]) -> Size:
    return fold_left(pick, sizes)
