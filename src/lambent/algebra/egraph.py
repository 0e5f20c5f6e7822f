"""The saturated e-graph as plain data: what the search reads, numbered alike wherever it is made.

`saturate` is the one function of this stage that later stages call: translate, apply the rules,
read out. A class is ranked and numbered by its smallest member: fewest operations, then by
operation, arguments and operands. No other class has that term, so no two classes tie: the numbers
depend on the graph alone, and the operands of `nodes[0]` have smaller numbers than its class.
Unfinished substitutions (At) are no members; a class of nothing else is dropped, with what needs
it.
"""

from __future__ import annotations

import heapq
import itertools
import math
import operator
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from lambent.algebra.rules import CODE, MOST_AXES, SUBSTITUTION, VARIES, bits
from lambent.algebra.saturate import HEAD, PART, TYPED, Session
from lambent.algebra.term import REDUCTIONS, Buffer, indices_of
from lambent.algebra.translate import translate
from lambent.graph.dim import Size, axis, intern, value, values_in
from lambent.graph.dtypes import DType, int64
from lambent.graph.node import Node
from lambent.graph.orders import postorder
from lambent.graph.prove import Prover, maximum, minimum


@dataclass(frozen=True, slots=True)
class ClassRef:
    """The class of a gathered index, inside an index expression: `value(ClassRef(id))`."""

    id: int


@dataclass(frozen=True, slots=True)
class ENode:
    """An operation on classes: `op` and `args` as of a `Term`, or `scale` with (Fraction, k)."""

    op: str
    args: tuple[Any, ...]
    kids: tuple[int, ...]

    @property
    def axes(self) -> frozenset[int]:
        """The axes that a reduction binds."""
        return self.args[0] if self.op in REDUCTIONS else frozenset()

    @property
    def index(self) -> tuple[Size, ...]:
        """The index expressions of an `in` or a `val`."""
        return indices_of(self.op, self.args)

    @property
    def below(self) -> tuple[int, ...]:
        """Operand classes, and those whose values are in an index."""
        return (*self.kids, *(ref.id for e in self.index for ref in values_in(e)))


@dataclass(frozen=True, slots=True)
class EClass:
    """Equal values: `nodes[0]` is the smallest. `weights_only`: known once the weights are;
    `finite`: nowhere infinite or NaN, inputs being taken for finite."""

    nodes: tuple[ENode, ...]
    free: frozenset[int]
    dtype: DType
    weights_only: bool
    finite: bool = False


@dataclass(frozen=True, slots=True)
class Stored:
    """`buffer[index] = class`: a graph output, or a value that some node loads or a plan may store.

    sums: of axes in the index, through which alone the class depends on them.
    """

    cls: int
    buffer: Buffer
    index: tuple[Size, ...]
    output: bool = False
    sums: Mapping[int, Size] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stats:
    """Of one e-graph; `seconds` are those of translating to read-out.

    rules: how many equalities each rule found that were not known when its round began.
    """

    e_nodes: int
    e_classes: int
    rounds: int
    saturated: bool
    seconds: float
    rules: dict[str, int]


@dataclass(frozen=True, slots=True)
class Saturated:
    """The classes below the roots, by number. `buffers`: everything that an `in` may name.

    cuts: of an axis that is also counted in parts its number, and those of the part and the place.
    """

    classes: dict[int, EClass]
    extents: dict[int, Size]
    roots: tuple[Stored, ...]
    buffers: dict[str, Buffer]
    stats: Stats
    cuts: tuple[tuple[int, int, int], ...] = ()


def saturate(
    outputs: Sequence[Node], *, limit: int = 60_000, seconds: float = 20.0, part: int = PART
) -> Saturated:
    """All programs that the rules find for these outputs, as an e-graph.

    Args:
        outputs: nodes of one graph; one that is there twice is one root.
        limit: e-nodes after which no further round starts; what was found by then is used.
        seconds: likewise.
        part: elements of the parts in which long reductions with few results are also offered.

    Raises:
        ValueError: the graph has more axes than fit: cut it in segments.
    """
    start = time.monotonic()
    translation = translate(outputs)
    if len(translation.extents) > MOST_AXES // 2:  # some may also be counted in parts
        translation = translate(outputs, reuse=True)
    session = Session(translation, part)
    session.saturate(limit, seconds)
    return read(session, start)


# ---- read-out --------------------------------------------------------------------------------

Ref = Any
"""egglog's id of a class: hashable, and without a meaning outside its e-graph."""

COMMUTATIVE = ("add", "mul", "eq")
_OP = {head: op for op, head in HEAD.items()} | {"Next": "val", "Scale": "scale"}
_DTYPE = {code: dtype for dtype, code in CODE.items()}
_SIZES: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("Ax", "IC", "IS"), lambda e: e),
    **dict.fromkeys(("IMul", "IMulI"), operator.mul),
    "IAdd": operator.add,
    "IMin": minimum,
    "IMax": maximum,
    "IOf": value,
    "Nil": lambda: (),
    "Cons": lambda e, index: (e, *index),
}
_OP |= {head: head for head in (*_SIZES, "IDiv")}


@dataclass(slots=True, eq=False)
class _Row:
    """One e-node of any sort. `key` orders the arguments; `rank` holds the operands' ranks."""

    op: str
    args: tuple[Any, ...]
    key: tuple[Any, ...]
    kids: tuple[Ref, ...]
    of: Ref
    rank: tuple[int, ...] = ()


def read(session: Session, start: float = 0.0) -> Saturated:
    """The plain data of an e-graph; `start`: when its seconds began."""
    translation, extents = session.translation, session.extents
    tables, number = session.egraph.freeze().functions, session.egraph.value_to_i64
    depends = {r.inputs[0]: number(r.output) for r in tables["free"].rows}
    dtype = {r.inputs[0]: _DTYPE[number(r.output)] for r in tables["dt"].rows}
    finite = {r.inputs[0] for r in tables["fin"].rows}
    members = _ranked(_rows(session, tables, depends, dtype))
    tops = [tables[f"$root{i}"].rows[0].output for i in range(len(translation.roots))]
    needed = set(postorder(tops, lambda c: (k for n in members[c] for k in n.kids)))
    build: dict[str, Callable[..., Any]] = _SIZES | {"IDiv": Prover(extents).div}
    meaning: dict[Ref, Any] = {}  # numbers of classes, sizes of index expressions
    serial = itertools.count()
    for c, (first, *_) in members.items():
        if c in needed and c in dtype:
            meaning[c] = ClassRef(next(serial))
        elif c in needed:
            meaning[c] = build[first.op](*first.args, *(meaning[k] for k in first.kids))
    classes: dict[int, EClass] = {}
    for c, ref in meaning.items():
        if isinstance(ref, ClassRef):
            nodes = tuple(dict.fromkeys(_node(n, meaning) for n in members[c]))
            fixed = not depends[c] & VARIES
            classes[ref.id] = EClass(nodes, _axes(depends[c]), dtype[c], fixed, c in finite)

    roots = []
    for root, c in zip(translation.roots, tops, strict=True):
        own = meaning[c].id
        weight = classes[own].weights_only and not root.output
        buffer = replace(root.buffer, weight=weight, finite=c in finite)
        roots.append(Stored(own, buffer, root.index, root.output))
    e_nodes = sum(len(c.nodes) for c in classes.values())
    found = {number(r.inputs[0]): number(r.output) for r in tables["applied"].rows}
    rules: Counter[str] = Counter()
    for i in sorted(found):
        rule = session.rules[i]
        rules["substitute" if rule in SUBSTITUTION else rule.name] += found[i]
    seconds = time.monotonic() - start
    stats = Stats(e_nodes, len(classes), session.rounds, session.saturated, seconds, dict(rules))
    sizes, cuts = dict(enumerate(extents)), session.cuts
    return Saturated(classes, sizes, tuple(roots), translation.buffers, stats, cuts)


def _rows(
    session: Session, tables: Any, depends: dict[Ref, int], dtype: dict[Ref, DType]
) -> Iterator[_Row]:
    """Everything in the e-graph but At, AtL and AtI."""
    egraph = session.egraph
    plain: dict[str, Callable[[Any], Any]] = {  # other sorts are classes
        "i64": egraph.value_to_i64,
        "BigRat": lambda v: Fraction(egraph.value_to_bigrat(v)),
        "String": lambda v: session.strings[int(egraph.value_to_string(v))],
    }
    for head, op in _OP.items():
        sorts = tables[head].input_sorts
        for row in tables[head].rows:
            if row.subsumed:
                continue
            given = list(zip(sorts, row.inputs, strict=True))
            key = tuple(plain[sort](v) for sort, v in given if sort in plain)
            kids = tuple(v for sort, v in given if sort not in plain)
            new = _Row(op, _args(op, key, session.extents), key, kids, row.output)
            if head == "Next" and isinstance(new.args[0], int):
                new.op, new.args = "const", (Fraction(new.args[0]), 0)
            elif head == "Next" and dtype[new.of] != int64:  # a symbolic number, as a float
                size = _Row(op, new.args, key, (), (head, key[0]))
                depends[size.of], dtype[size.of] = VARIES, int64
                new.op, new.args, new.kids = "cast", (), (size.of,)
                yield size
            yield new


def _axes(mask: int) -> frozenset[int]:
    return frozenset(bits(mask & ~VARIES))


def _args(op: str, key: tuple[Any, ...], extents: Sequence[Size]) -> tuple[Any, ...]:
    """Arguments as of a Term, of the plain ones of a row."""
    if op in TYPED:
        return key[:-1]
    if op in REDUCTIONS:
        return (_axes(key[0]),)
    if op == "Ax":
        return tuple(map(axis, bits(key[0])))
    if op == "val":
        return tuple(math.prod((extents[b] for b in bits(m)), start=1) for m in key[:1])
    return (intern("symbol", key[0]).dim(),) if op == "IS" else key


def _ranked(rows: Iterator[_Row]) -> dict[Ref, list[_Row]]:
    """The members of each class, smallest first, in order (Knuth's generalisation of Dijkstra)."""
    members: dict[Ref, list[_Row]] = {}
    cost: dict[Ref, int] = {}
    number: dict[Ref, int] = {}
    users: defaultdict[Ref, list[_Row]] = defaultdict(list)
    missing: dict[_Row, int] = {}
    ready: list[tuple[Any, ...]] = []
    serial = itertools.count()

    def push(row: _Row) -> None:
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


def _node(n: _Row, meaning: dict[Ref, Any]) -> ENode:
    """An index is an argument, a class an operand."""
    below = [meaning[k] for k in n.kids]
    args = (*n.args, *(x for x in below if not isinstance(x, ClassRef)))
    return ENode(n.op, args, tuple(x.id for x in below if isinstance(x, ClassRef)))
