"""Where a masked loop has work, and on which tiles a mask is known to hold.

A summand that is 0, a maximum's candidate that is −inf, or an element that keeps its value
wherever `less(e, f)` or `eq(e, f)` fails need not be visited there. With e and f affine in the
loop's axis, interval reasoning over the tiles of the other axes gives

    [start … clean)   the mask decides, element by element
    [clean … edge)    the mask holds everywhere: it is replaced by true
    [edge … stop)     the mask decides

Whatever is not understood gives the full range: never wrong. A fold drops masked positions
without reading them, as every one-pass kernel does: a NaN or an inf there does not reach the
result.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import NamedTuple

import numpy as np

from lambent.algebra.term import REDUCTIONS, Term, Terms, walk
from lambent.graph.dim import Size, axes_in, axis, value, values_in
from lambent.graph.dtypes import DType
from lambent.graph.prove import Prover, bounds, maximum, minimum
from lambent.kernel.kernel import Output
from lambent.kernel.rewrite import assuming, finite, steps
from lambent.kernel.tile import Axis

FAR = 1 << 40
Literal = tuple[Term, bool]
"""A condition, and the value that it must have."""
OPEN = ("cast", "sum", "add", "mul", "select", "mask", "not", "less", "eq")
"""A void operand may make these void; of all others none does."""


class Range(NamedTuple):
    """A piece of a loop, and the conditions known on it."""

    start: Size
    stop: Size
    known: Mapping[Term, bool]


def needed(terms: Terms, t: Term, void: Callable[[Term], bool]) -> frozenset[Literal]:
    """Literals without any of which the term is void: it is where their opposite is assumed."""
    some = walk(t, known={u for u in walk(t) if u.op not in OPEN})
    literals = [(c, w) for c in some if c.op in ("less", "eq") for w in (False, True)]
    return frozenset((c, w) for c, w in literals if void(assuming(terms, {c: not w})(t)))


def updates(terms: Terms, output: Output) -> frozenset[Literal]:
    """Literals without any of which an element of the output keeps its value."""
    if output.over is None:  # it has none
        return frozenset()
    return needed(terms, output.term, lambda t: t.args == (output.over, output.index))


def zero(t: Term, known: frozenset[str] = frozenset()) -> bool:
    """True if a simplified term is 0 everywhere; not where 0 may meet an infinity.

    known: buffers that have none.
    """
    match t.op:
        case "const":
            return bool(t.args[0] == 0)
        case "cast" | "sum":
            return zero(t.kids[0], known)
        case "add" | "select":
            return all(zero(k, known) for k in t.kids[-2:])
        case "mul":
            return any(zero(x, known) and finite(y, known) for x, y in (t.kids, t.kids[::-1]))
    return False


def least(t: Term, exact: bool) -> bool:
    """True if a simplified term is −inf everywhere; unless `exact`, x − inf is for every x."""
    pairs = (t.kids, t.kids[::-1])
    match t.op:
        case "inf":
            return bool(t.args[0] < 0)
        case "cast" | "select":
            return all(least(k, exact) for k in t.kids[-2:])
        case "add":
            return any(least(x, exact) and (not exact or zero(y)) for x, y in pairs)
        case "mul":
            return any(least(x, exact) and y.op == "const" and y.args[0] > 0 for x, y in pairs)
    return False


_EXACT: dict[str, Callable[[Size, Size], Size]] = {
    "cast": operator.add, "add": operator.add, "sub": operator.sub, "mul": operator.mul
}  # fmt: skip
"""How an integer's operands make it, where its dtype holds every value."""


def as_index(t: Term, extents: Mapping[int, Size]) -> Size | None:
    """The index expression that an integer term is, exactly, for all indices; or None."""
    index: Size | None = None
    if t.op == "val" and not values_in(t.args[0]):
        index = t.args[0]
    elif t.op == "const" and t.args[1] == 0 and t.args[0].denominator == 1:
        index = int(t.args[0])
    elif t.op in _EXACT:
        parts = [as_index(k, extents) for k in t.kids]
        known = [p for p in parts if p is not None]
        index = reduce(_EXACT[t.op], known) if len(known) == len(parts) else None
    if index is None:
        return None
    (low, high), (least, most) = bounds(index, extents), _integers(t.dtype)
    return index if least <= low and high <= most else None


def _integers(dtype: DType) -> tuple[int, int]:
    """The range in which the dtype holds every integer."""
    if dtype.is_integer:
        info = np.iinfo(dtype.numpy)
        return int(info.min), int(info.max)
    return (-(2**24), 2**24) if dtype.itemsize >= 4 else (0, -1)


def known_ahead(t: Term) -> Size | None:
    """The value of an integer that no axis changes, kept far beyond all indices; or None."""
    plain = t.dtype.is_integer and not t.free and not any(u.op in REDUCTIONS for u in walk(t))
    return maximum(minimum(value(t), FAR), -FAR) if plain else None


def _gaps(cond: Term, wanted: bool, extents: Mapping[int, Size], ahead: bool) -> tuple[Size, ...]:
    """What must not be negative for cond to be `wanted`; nothing where this is not known."""
    sides = [as_index(t, extents) for t in cond.kids]
    if ahead:
        sides = [known_ahead(t) if e is None else e for e, t in zip(sides, cond.kids, strict=True)]
    left, right = sides
    if left is None or right is None or (cond.op == "eq" and not wanted):
        return ()
    if cond.op == "eq":
        return left - right, right - left
    return (right - left - 1 if wanted else left - right,)


def _slack(
    gap: Size, k: int, axes: Mapping[int, Axis], opened: frozenset[int]
) -> tuple[int, Size, Size] | None:
    """(step, low, high): the gap is step · k + rest for the index k of the loop, and rest lies
    between low and high over the tiles around. None where this is not known."""
    linear = steps(gap)
    low = high = gap - sum(c * axis(i) for i, c in linear.items())
    step = linear.pop(k, 0)
    if not step or axes_in(low):
        return None
    for j, c in linear.items():
        first: Size = axis(j) if j in opened else 0
        last = first + (axes[j].tile if j in opened else axes[j].extent) - 1
        low = low + c * (first if c > 0 else last)
        high = high + c * (last if c > 0 else first)
    return step, low, high


def ranges(
    k: int, needs: Iterable[Literal], axes: Mapping[int, Axis], opened: frozenset[int],
    output: Output | None = None, single: bool = False,
) -> list[Range]:  # fmt: skip
    """The pieces of the loop over axis k, inside the loops over `opened`.

    Args:
        needs: literals without any of which no goal of the loop has a contribution.
        output: what the loop stores. Values that are known before it may then bound it:
            `value(term)` in the pieces.
        single: one piece, in all of which the mask decides.
    """
    extent, tile = axes[k].extent, axes[k].tile
    extents = {i: a.extent for i, a in axes.items()}
    known: dict[Term, bool] = {}
    starts, stops = list[Size]([0]), list[Size]([extent])  # where work begins and ends
    cleans, edges = list[Size](), list[Size]()  # where all hold from, and where no longer
    for cond, wanted in sorted(needs, key=lambda n: (n[0].id, n[1])):
        gaps = _gaps(cond, wanted, extents, output is not None)
        for step, low, high in filter(None, (_slack(gap, k, axes, opened) for gap in gaps)):
            known[cond] = wanted
            if step > 0:
                starts.append(-(high // step))
                cleans.append(-(low // step))
            else:
                stops.append(high // -step + 1)
                edges.append(low // -step + 1)
    start, stop = reduce(maximum, starts) // tile * tile, reduce(minimum, stops)
    exact = tile == 1 and (starts[1:], stops[1:]) == (cleans, edges)
    if exact or single:
        return [Range(start, stop, known if exact else {})]
    clean = maximum(start, -(-reduce(maximum, cleans) // tile) * tile) if cleans else start
    edge = maximum(clean, reduce(minimum, edges) // tile * tile) if edges else stop
    ends = (start, minimum(clean, stop)), (clean, minimum(edge, stop)), (edge, stop)
    pieces = [Range(*end, known) for end, known in zip(ends, ({}, known, {}), strict=True)]
    return [p for p in pieces if not Prover().ge0(p.start - p.stop)]
