"""The saturated e-graph as plain data: what the search reads, numbered alike wherever it is made.

`saturate` is the one function of this stage that later stages call: translate, apply the rules,
read out. A class is numbered by its smallest member, a term that no other class has: the numbers
depend on the graph alone, and the operands of `nodes[0]` have smaller numbers than its class.
"""

from __future__ import annotations

import itertools
import math
import operator
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lambent.algebra.readout import Ref, Row, Rows, rank, read_rows
from lambent.algebra.saturate import MOST_AXES, Session
from lambent.algebra.term import REDUCTIONS, Buffer, indices_of
from lambent.algebra.translate import translate
from lambent.graph.dim import Dim, Size, axes_in, symbols_in, value, values_in
from lambent.graph.dtypes import DType
from lambent.graph.node import Node
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
    """Equal values: `nodes[0]` is the smallest. `weights_only`: known once the weights are."""

    nodes: tuple[ENode, ...]
    free: frozenset[int]
    dtype: DType
    weights_only: bool


@dataclass(frozen=True, slots=True)
class Root:
    """`name[index] = class`: a graph output, or a stored value that some node loads."""

    name: str
    cls: int
    index: tuple[Size, ...]
    shape: tuple[Size, ...]
    dtype: DType
    output: bool


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
    """The classes below the roots, by number. `buffers`: everything that an `in` may name."""

    classes: dict[int, EClass]
    extents: dict[int, Size]
    roots: tuple[Root, ...]
    buffers: dict[str, Buffer]
    stats: Stats


def saturate(
    outputs: Sequence[Node], *, limit: int = 60_000, seconds: float = 20.0, split: int = 0
) -> Saturated:
    """All programs that the rules find for these outputs, as an e-graph.

    Args:
        outputs: nodes of one graph; one that is there twice is one root.
        limit: e-nodes after which no further round starts; what was found by then is used.
        seconds: likewise.
        split: reduced axes are also offered in up to this many parts; 0 for none.

    Raises:
        ValueError: the graph has more axes than fit: cut it in segments.
    """
    start = time.monotonic()
    translation = translate(outputs)
    if len(translation.extents) > MOST_AXES // 2:  # some may be cut in two
        translation = translate(outputs, reuse=True)
    session = Session(translation, split)
    session.saturate(limit, seconds)
    found = read(session)
    return replace(found, stats=replace(found.stats, seconds=time.monotonic() - start))


def count_programs(saturated: Saturated) -> int:
    """How many ways there are to compute the roots: choices of a node for every use of a class.

    A lower bound: choices that go through a class twice are left out, and so is what to store.
    """
    ways: dict[int, int] = {}
    for c, eclass in saturated.classes.items():
        smaller = [n for n in eclass.nodes if all(k < c for k in n.below)]
        ways[c] = sum(math.prod(ways[k] for k in n.below) for n in smaller)
    return math.prod(ways[root.cls] for root in saturated.roots if root.output)


# ---- read-out --------------------------------------------------------------------------------


def read(session: Session) -> Saturated:
    """The plain data of an e-graph. The seconds are for the caller to tell."""
    translation, extents = session.translation, session.bits.extents
    rows = read_rows(session)
    best = rank(rows)
    meaning = _meaning(rows, best, Prover(extents))
    classes: dict[int, EClass] = {}
    for c, ref in meaning.items():
        if isinstance(ref, ClassRef):
            members = _members(rows.nodes[c], best[c])
            nodes = tuple(dict.fromkeys(_node(n, meaning) for n in members))
            classes[ref.id] = EClass(nodes, rows.free[c], rows.dtype[c], False)
    classes = _mark_weights(classes, translation.buffers, extents)

    roots = []
    for root, c in zip(translation.roots, rows.roots, strict=True):
        b, index = root.buffer, tuple(map(session.bits.index, root.index))
        roots.append(Root(b.name, meaning[c].id, index, b.shape, b.dtype, root.output))
    loaded = {n.args[0] for c in classes.values() for n in c.nodes if n.op == "in"}
    buffers = {name: b for name, b in translation.buffers.items() if name in loaded}
    e_nodes = sum(len(c.nodes) for c in classes.values())
    stats = Stats(e_nodes, len(classes), session.rounds, session.saturated, 0.0, rows.applied)
    return Saturated(classes, dict(enumerate(extents)), tuple(roots), buffers, stats)


def _members(nodes: list[Row], first: Row) -> list[Row]:
    """Those whose operands all have members, the smallest first."""
    found = [n for n in nodes if n.rank is not None]
    return sorted(found, key=lambda n: (n is not first, n.op, n.key, n.rank))


def _meaning(rows: Rows, best: dict[Ref, Row], prover: Prover) -> dict[Ref, Any]:
    """Of all that the roots need, in order: numbers of classes, sizes of index expressions."""
    needed: set[Ref] = set()
    stack = list(rows.roots)
    while stack:
        c = stack.pop()
        if c not in needed:
            needed.add(c)
            members = _members(rows.nodes[c], best[c]) if c in rows.dtype else [best[c]]
            stack += [k for n in members for k in n.kids]
    build: dict[str, Callable[..., Any]] = _SIZES | {"IDiv": prover.div}
    out: dict[Ref, Any] = {}
    number = itertools.count()
    for c, n in best.items():
        if c in needed and c in rows.dtype:
            out[c] = ClassRef(next(number))
        elif c in needed:
            out[c] = build[n.op](*n.args, *(out[k] for k in n.kids))
    return out


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


def _node(n: Row, meaning: dict[Ref, Any]) -> ENode:
    """An index is an argument, a class an operand."""
    below = [meaning[k] for k in n.kids]
    args = (*n.args, *(x for x in below if not isinstance(x, ClassRef)))
    kids = tuple(x.id for x in below if isinstance(x, ClassRef))
    return ENode("val" if n.op == "count" else n.op, args, kids)


def _mark_weights(
    classes: dict[int, EClass], buffers: dict[str, Buffer], extents: Sequence[Size]
) -> dict[int, EClass]:
    """Set `weights_only`: some member reads nothing but weights, and no symbol is in it."""
    symbolic = frozenset(i for i, n in enumerate(extents) if isinstance(n, Dim))

    def fixed(n: ENode) -> bool:
        """The node itself reads no input and no symbol."""
        if n.op == "in" and not buffers[n.args[0]].weight:
            return False
        axes = n.axes.union(*map(axes_in, n.index))
        return axes.isdisjoint(symbolic) and not any(map(symbols_in, n.index))

    known: set[int] = set()
    while new := {
        c
        for c, e in classes.items()
        if c not in known and any(known.issuperset(n.below) and fixed(n) for n in e.nodes)
    }:
        known |= new
    return {c: replace(e, weights_only=c in known) for c, e in classes.items()}
