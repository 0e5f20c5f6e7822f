"""Size buckets: the same graph for a part of the sizes, so that each part is tuned for itself.

A bucket stands other symbols for those of the graph, with its own range and size to tune for, or
the number itself where there is but one. Each is compiled like any graph; the narrowest that takes
the sizes of a call runs it, and the last one takes all.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import ceil, isqrt, log
from typing import Any, Protocol, TypeVar

from lambent.graph.dim import Atom, Dim, Size, Symbol, declared, evaluate, intern, symbols_in
from lambent.graph.node import Node, make, topo
from lambent.graph.prove import assume, facts, substitute

SPAN, MOST = 64, 3  # sizes of a bucket differ by that factor; buckets chosen at the most
Bucket = Mapping[str, Symbol]
"""For each name of a symbol its range in the bucket."""


def symbols(nodes: Sequence[Node]) -> list[Symbol]:
    """Those in the sizes of a graph, by name."""
    atoms = {atom for n in topo(nodes) for d in n.shape for atom in symbols_in(d)}
    return [declared(atom) for atom in sorted(atoms)]


def buckets(
    symbols: Sequence[Symbol], given: Mapping[str, Sequence[int]] | None = None
) -> list[Bucket]:
    """The buckets of a graph's symbols, narrowest first; the last one has the whole ranges.

    Args:
        given: the largest sizes of all buckets but the last, by name of the symbol. By default the
            symbol of the widest range that comes without a hint has as many as SPAN asks for.

    Raises:
        ValueError: no such symbol, or a size out of its range.
    """
    ranges = {s.name: s for s in symbols}
    if given is None:
        plain = [s for s in symbols if not s.typical]
        widest = max(plain, key=_ratio, default=None)
        given = {widest.name: _borders(widest)} if widest else {}
    for name, ends in given.items():
        s = ranges.get(name)
        if s is None or any(not s.low <= end < s.high for end in ends):
            known = ", ".join(f"{s.name} in {s.low} … {s.high}" for s in symbols) or "none"
            raise ValueError(f"compile: buckets: {name}={list(ends)} ends none; symbols: {known}")
    parts = [_parts(s, sorted({*given.get(s.name, ())})) for s in symbols]
    *narrower, last = ({s.name: s for s in chosen} for chosen in itertools.product(*parts))
    return [*filter(_holds, narrower), last]


def _holds(bucket: Bucket) -> bool:
    """The sizes to tune for agree with what is assumed."""
    hints = {_atom(s): s.hint // s.multiple for s in bucket.values()}
    return all(evaluate(f, hints) >= 0 for f in facts() if symbols_in(f) <= hints.keys())


def _atom(s: Symbol) -> str:
    return s.name + (f"/{s.multiple}" if s.multiple > 1 else "")


def _ratio(s: Symbol) -> float:
    return s.high / max(s.low, 1)


def _borders(s: Symbol) -> list[int]:
    """Sizes at equal ratios."""
    count = min(MOST, ceil(log(_ratio(s), SPAN) - 1e-9))
    ends = (int(max(s.low, 1) * _ratio(s) ** (i / count) + 0.5) for i in range(1, count))
    return [end for end in ends if s.low <= end < s.high]


def _parts(s: Symbol, ends: Sequence[int]) -> list[Symbol]:
    """Ranges from the least size to each end; each is tuned for what the one before lacks."""
    found, low = list[Symbol](), s.low
    for end in (*(end // s.multiple * s.multiple for end in ends), s.high):
        middle = isqrt(max(low, 1) * end) // s.multiple * s.multiple
        hint = s.hint if low <= s.hint <= end else max(low, middle)
        found.append(replace(s, high=end, hint=hint))
        low = end + s.multiple
    return found


# ---- the graph in a bucket -------------------------------------------------------------------


def stand_ins(bucket: Bucket) -> dict[str, Size]:
    """The size that stands for the atom of each symbol that the bucket narrows."""
    sizes: dict[str, Size] = {}
    for own in bucket.values():
        s, low, high, hint = declared(own.name), own.low, own.high, own.hint
        if own != s:
            name = f"{s.name}_{low}_{high}_{hint}"
            new = low if low == high else Dim(name, low, high, multiple=s.multiple, hint=hint)
            sizes[_atom(s)] = new // s.multiple
    return sizes


def resized(roots: Sequence[Node], sizes: Mapping[str, Size]) -> list[Node]:
    """The graph with other sizes for some symbols' atoms; what was assumed of those is assumed."""

    def put(part: Any) -> Any:
        if isinstance(part, tuple):
            return tuple(map(put, part))
        return substituted(part, sizes) if isinstance(part, Dim) else part

    for fact in facts():
        if not symbols_in(fact).isdisjoint(sizes):
            assume(put(fact))
    new: dict[Node, Node] = {}
    for n in topo(roots) if sizes else ():
        new[n] = make(n.op, [new[s] for s in n.srcs], put(n.shape), n.dtype, put(n.attr))
    return [new.get(n, n) for n in roots]


def substituted(size: Size, sizes: Mapping[str, Size]) -> Size:
    """A size with others for some symbols' atoms."""

    def known(atom: Atom) -> Size | None:
        return sizes.get(atom.args[0]) if atom.kind == "symbol" else None

    return substitute(size, known)


def symbol(atom: str, sizes: Mapping[str, Size]) -> Symbol:
    """The symbol of an atom under the name of the atom that is there for it."""
    (name,) = symbols_in(sizes[atom]) if atom in sizes else (atom,)
    return replace(declared(atom), name=declared(name).name)


def restored(sizes: Mapping[str, Size]) -> dict[str, Size]:
    """From the atoms of what stands in to what it stands for."""
    pairs = ((symbols_in(new), old) for old, new in sizes.items())
    return {atom: intern("symbol", old).dim() for atoms, old in pairs for atom in atoms}


class Parted(Protocol):
    narrower: Sequence[Any]


P = TypeVar("P", bound=Parted)


def joined(programs: Sequence[P]) -> P:
    """The program of the last bucket, which leaves to the narrower ones what they take."""
    *narrower, last = programs
    last.narrower = narrower
    return last


def parted(
    nodes: Sequence[Node], given: Mapping[str, Sequence[int]] | None, make: Callable[..., P],
    *how: Any, budget: float,
) -> P:  # fmt: skip
    """The programs of all buckets, joined.

    Args:
        make: from the nodes, a bucket's stand-ins, `how`, and the bucket's share of the budget.
    """
    parts = buckets(symbols(nodes), given)
    share = budget / len(parts)
    return joined([make(nodes, stand_ins(part), *how, budget=share) for part in parts])
