"""The rows of an egglog e-graph, and an order of its classes that does not depend on egglog's ids.

Every class is ranked by its smallest member: fewest operations, then by operation, arguments and
operands. A term is in one class only, so no two classes tie. Unfinished substitutions (At) are no
members; a class of nothing else is dropped, with what needs it.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from lambent.algebra.rules import CODE
from lambent.algebra.saturate import HEAD, Bits, Session
from lambent.graph.dim import Dim, Size, axis, symbol_range
from lambent.graph.dtypes import DType, int64

Ref = Any
"""egglog's id of a class: hashable, and without a meaning outside its e-graph."""

_OP = {head: op for op, head in HEAD.items()}
_DTYPE = {code: dtype for dtype, code in CODE.items()}
COMMUTATIVE = ("add", "mul", "eq")
_INDEX = ("Ax", "IC", "IS", "IAdd", "IMul", "IMulI", "IDiv", "IMin", "IMax", "IOf", "Nil", "Cons")
_LEAVES = ("C", "Inf", "Nan", "Val", "Next", "Scale", "Cast", "In")


@dataclass(slots=True, eq=False)
class Row:
    """One e-node of any sort. `key` orders the arguments; `rank` is set by `rank`: the ranks of
    the operands and a last 0, or nothing for a row that needs a class without members."""

    op: str
    args: tuple[Any, ...]
    key: tuple[Any, ...]
    kids: tuple[Ref, ...]
    of: Ref
    rank: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RawGraph:
    """Rows by class; free axes and dtype of the classes of terms; the roots in order."""

    nodes: dict[Ref, list[Row]]
    free: dict[Ref, frozenset[int]]
    dtype: dict[Ref, DType]
    roots: list[Ref]


def read_rows(session: Session) -> RawGraph:
    """Everything in the e-graph but At, AtL and AtI."""
    egraph, bits = session.egraph, session.bits
    frozen = egraph.freeze().functions
    nodes: dict[Ref, list[Row]] = {}
    free: dict[Ref, frozenset[int]] = {}
    dtype: dict[Ref, DType] = {}
    pairs: set[tuple[str, Ref, frozenset[Ref]]] = set()
    for head in (*_OP, *_INDEX, *_LEAVES):
        function = frozen[head]
        readers = [_reader(session, sort) for sort in function.input_sorts]
        for row in function.rows:
            if row.subsumed:
                continue
            given = [(r(v) if r else v) for r, v in zip(readers, row.inputs, strict=True)]
            plain = [v for r, v in zip(readers, given, strict=True) if r]
            kids = tuple(v for r, v in zip(readers, given, strict=True) if not r)
            if head in ("Add", "Mul", "Eq"):  # a pair in both orders is one node
                pair = (head, row.output, frozenset(kids))
                if pair in pairs:
                    continue
                pairs.add(pair)
            op, args = _read(head, plain, bits)
            if op == "count" and plain[1] != CODE[int64]:  # a symbolic number, as a float
                kids = (("count", plain[0]),)
                nodes[kids[0]] = [Row(op, args, tuple(plain), (), kids[0])]
                free[kids[0]], dtype[kids[0]] = frozenset(), int64
                op, args = "cast", ()
            nodes.setdefault(row.output, []).append(Row(op, args, tuple(plain), kids, row.output))
    for row in frozen["free"].rows:
        free[row.inputs[0]] = _axes(egraph.value_to_i64(row.output))
    for row in frozen["dt"].rows:
        dtype[row.inputs[0]] = _DTYPE[egraph.value_to_i64(row.output)]
    roots: list[Ref] = []
    while f"$root{len(roots)}" in frozen:
        roots.append(frozen[f"$root{len(roots)}"].rows[0].output)
    return RawGraph(nodes, free, dtype, roots)


def _reader(session: Session, sort: str) -> Callable[[Any], Any] | None:
    """From egglog's value to ours, None where it is a class."""
    egraph, strings = session.egraph, session.strings
    if sort == "BigRat":
        return lambda v: Fraction(egraph.value_to_bigrat(v))
    readers: dict[str, Callable[[Any], Any]] = {
        "i64": egraph.value_to_i64,
        "String": lambda v: strings[int(egraph.value_to_string(v))],
    }
    return readers.get(sort)


def _axes(mask: int) -> frozenset[int]:
    return frozenset(b for b in range(mask.bit_length()) if mask >> b & 1)


def _read(head: str, plain: list[Any], bits: Bits) -> tuple[str, tuple[Any, ...]]:
    """(op, args) of an e-node, as of a Term."""
    if head in ("Sum", "Max", "Fold", "Part"):
        return _OP[head], (_axes(plain[0]),)
    if head in _OP:
        return _OP[head], ()
    if head == "C":
        return "const", (plain[0], plain[1])
    if head == "Inf":
        return "inf", (plain[0],)
    if head == "Next":
        return _count(plain[0], bits)
    if head == "Ax":
        e: Size = 0
        for b in sorted(_axes(plain[0])):
            e = e * bits.extents[b] + axis(b)
        return "Ax", (e,)
    if head == "IS":
        return "IS", (_symbol(plain[0]),)
    simple = {"In": "in", "Val": "val", "Nan": "nan", "Cast": "cast", "Scale": "scale"}
    return simple.get(head, head), () if head in ("Nan", "Cast") else tuple(plain)


def _count(mask: int, bits: Bits) -> tuple[str, tuple[Any, ...]]:
    """The number of points of axes: a constant, or a size."""
    size = math.prod((bits.extents[b] for b in sorted(_axes(mask))), start=1)
    return ("const", (Fraction(size), 0)) if isinstance(size, int) else ("count", (size,))


def _symbol(name: str) -> Size:
    base, _, multiple = name.partition("/")
    m = int(multiple or 1)
    low, high = symbol_range(name)
    return Dim(base, low * m, high * m, multiple=m) // m


@dataclass(frozen=True, slots=True)
class Ranked:
    """The rank and the smallest member of each class that has a member."""

    rank: dict[Ref, int]
    best: dict[Ref, Row]
    raw: RawGraph

    def terms_below(self, c: Ref) -> Iterator[Ref]:
        """c if it is a class of terms, else the terms in its smallest index expression."""
        if c in self.raw.dtype:
            yield c
            return
        for k in self.best[c].kids:
            yield from self.terms_below(k)


def rank(raw: RawGraph) -> Ranked:
    """Order all classes by their smallest members (Knuth's generalisation of Dijkstra)."""
    users: dict[Ref, list[Row]] = {}
    missing: dict[Row, int] = {}
    cost: dict[Ref, int] = {}
    ready: list[tuple[int, int, Row]] = []
    serial = itertools.count()
    for rows in raw.nodes.values():
        for row in rows:
            distinct = dict.fromkeys(row.kids)
            missing[row] = len(distinct)
            for k in distinct:
                users.setdefault(k, []).append(row)
            if not distinct:
                heapq.heappush(ready, (1, next(serial), row))
    out = Ranked({}, {}, raw)
    while ready:
        level = ready[0][0]
        best: dict[Ref, tuple[tuple[Any, ...], Row]] = {}
        while ready and ready[0][0] == level:
            row = heapq.heappop(ready)[2]
            if row.op in COMMUTATIVE:
                row.kids = tuple(sorted(row.kids, key=out.rank.__getitem__))
            row.rank = (*(out.rank[k] for k in row.kids), 0)
            key = (row.op, row.key, row.rank)
            if row.of not in cost and (row.of not in best or key < best[row.of][0]):
                best[row.of] = (key, row)
        for c, (_, row) in sorted(best.items(), key=lambda item: item[1][0]):
            cost[c], out.rank[c], out.best[c] = level, len(out.rank), row
            for user in users.get(c, ()):
                missing[user] -= 1
                if not missing[user]:
                    total = 1 + sum(cost[k] for k in user.kids)
                    heapq.heappush(ready, (total, next(serial), user))
    return out
