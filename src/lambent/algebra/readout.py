"""The rows of an egglog e-graph, and an order of its classes that does not depend on egglog's ids.

Every class is ranked by its smallest member: fewest operations, then by operation, arguments and
operands. A term is in one class only, so no two classes tie. Unfinished substitutions (At) are no
members; a class of nothing else is dropped, with what needs it.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from lambent.algebra.rules import CODE, SUBSTITUTION, VARIES
from lambent.algebra.saturate import HEAD, TYPED, Session
from lambent.algebra.term import REDUCTIONS
from lambent.graph.dim import Size, axis, intern
from lambent.graph.dtypes import DType, int64

Ref = Any
"""egglog's id of a class: hashable, and without a meaning outside its e-graph."""

COMMUTATIVE = ("add", "mul", "eq")
_INDEX = ("Ax", "IC", "IS", "IAdd", "IMul", "IMulI", "IDiv", "IMin", "IMax", "IOf", "Nil", "Cons")
_OP = {head: op for op, head in HEAD.items()} | {"Next": "val", "Scale": "scale"}
_OP |= {head: head for head in _INDEX}
_DTYPE = {code: dtype for dtype, code in CODE.items()}


@dataclass(slots=True, eq=False)
class Row:
    """One e-node of any sort. `key` orders the arguments; `rank` holds the operands' ranks."""

    op: str
    args: tuple[Any, ...]
    key: tuple[Any, ...]
    kids: tuple[Ref, ...]
    of: Ref
    rank: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Rows:
    """All rows; free axes and dtype of classes of terms; those `fixed` once the weights are.

    `applied`: by rule, in the table's order, the pairs of classes that it found to be one in some
    round before which that was not known; the substitution rows together.
    """

    rows: list[Row]
    free: dict[Ref, frozenset[int]]
    dtype: dict[Ref, DType]
    fixed: set[Ref]
    roots: list[Ref]
    applied: dict[str, int]


def read_rows(session: Session) -> Rows:
    """Everything in the e-graph but At, AtL and AtI."""
    egraph = session.egraph
    tables = egraph.freeze().functions
    number = egraph.value_to_i64
    plain: dict[str, Callable[[Any], Any]] = {  # other sorts are classes
        "i64": number,
        "BigRat": lambda v: Fraction(egraph.value_to_bigrat(v)),
        "String": lambda v: session.strings[int(egraph.value_to_string(v))],
    }
    rows: list[Row] = []
    depends = {r.inputs[0]: number(r.output) for r in tables["free"].rows}
    free = {c: _axes(mask & ~VARIES) for c, mask in depends.items()}
    dtype = {r.inputs[0]: _DTYPE[number(r.output)] for r in tables["dt"].rows}
    for head, op in _OP.items():
        sorts = tables[head].input_sorts
        for row in tables[head].rows:
            if row.subsumed:
                continue
            given = list(zip(sorts, row.inputs, strict=True))
            key = tuple(plain[sort](v) for sort, v in given if sort in plain)
            kids = tuple(v for sort, v in given if sort not in plain)
            new = Row(op, _args(op, key, session.bits.extents), key, kids, row.output)
            if head == "Next" and isinstance(new.args[0], int):
                new.op, new.args = "const", (Fraction(new.args[0]), 0)
            elif head == "Next" and dtype[new.of] != int64:  # a symbolic number, as a float
                size = Row(op, new.args, key, (), (head, key[0]))
                rows.append(size)
                free[size.of], dtype[size.of] = frozenset(), int64
                new.op, new.args, new.kids = "cast", (), (size.of,)
            rows.append(new)
    tally = {number(r.inputs[0]): number(r.output) for r in tables["applied"].rows}
    applied: Counter[str] = Counter()
    for i in sorted(tally):
        rule = session.rules[i]
        applied["substitute" if rule in SUBSTITUTION else rule.name] += tally[i]
    fixed = {c for c, mask in depends.items() if not mask & VARIES}
    roots = [tables[f"$root{i}"].rows[0].output for i in range(len(session.translation.roots))]
    return Rows(rows, free, dtype, fixed, roots, dict(applied))


def _axes(mask: int) -> frozenset[int]:
    return frozenset(b for b in range(mask.bit_length()) if mask >> b & 1)


def _args(op: str, key: tuple[Any, ...], extents: Sequence[Size]) -> tuple[Any, ...]:
    """Arguments as of a Term, of the plain ones of a row."""
    if op in TYPED:
        return key[:-1]
    if op in REDUCTIONS:
        return (_axes(key[0]),)
    if op == "Ax":
        return tuple(map(axis, _axes(key[0])))
    if op == "val":
        return tuple(math.prod((extents[b] for b in sorted(_axes(m))), start=1) for m in key[:1])
    return (intern("symbol", key[0]).dim(),) if op == "IS" else key


def rank(rows: Sequence[Row]) -> dict[Ref, list[Row]]:
    """The members of each class, smallest first, in order (Knuth's generalisation of Dijkstra)."""
    members: dict[Ref, list[Row]] = {}
    cost: dict[Ref, int] = {}
    number: dict[Ref, int] = {}
    users: defaultdict[Ref, list[Row]] = defaultdict(list)
    missing: dict[Row, int] = {}
    ready: list[tuple[Any, ...]] = []
    serial = itertools.count()

    def push(row: Row) -> None:
        if row.op in COMMUTATIVE:
            row.kids = tuple(sorted(row.kids, key=number.__getitem__))
        row.rank = tuple(number[k] for k in row.kids)
        size = 1 + sum(cost[k] for k in row.kids)
        heapq.heappush(ready, (size, row.op, row.key, row.rank, next(serial), row))

    for row in rows:
        kids = dict.fromkeys(row.kids)
        missing[row] = len(kids)
        for k in kids:
            users[k].append(row)
        if not kids:
            push(row)
    while ready:
        size, *_, row = heapq.heappop(ready)
        c = row.of
        if c not in members:
            members[c], cost[c], number[c] = [], size, len(members)
            for user in users[c]:
                missing[user] -= 1
                if not missing[user]:
                    push(user)
        members[c].append(row)
    return members
