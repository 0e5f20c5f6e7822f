"""The saturated e-graph as plain data: what the search reads, numbered alike wherever it is made.

`saturate` is the one function of this stage that later stages call: translate, apply the rules,
read out. A class is numbered by its smallest member, a term that no other class has: the numbers
depend on the graph alone, and the operands of `nodes[0]` have smaller numbers than its class.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from lambent.algebra.readout import Ranked, RawGraph, Row, rank, read_rows
from lambent.algebra.saturate import MOST_AXES, Bits, Session, name_bits
from lambent.algebra.term import REDUCTIONS, Buffer
from lambent.algebra.translate import Translation, translate
from lambent.graph.dim import Dim, Size, axes_in, axis, symbols_in, value, values_in
from lambent.graph.dtypes import DType
from lambent.graph.node import Node, Weight
from lambent.graph.prove import Prover, maximum, minimum, substitute


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
    def below(self) -> tuple[int, ...]:
        """Operand classes, and those whose values are in an index."""
        if self.op not in ("in", "val"):
            return self.kids
        index = self.args[1] if self.op == "in" else self.args
        return tuple(ref.id for e in index for ref in values_in(e))


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
    """`rules`: how often each rule of the table matched; `seconds` of translating to read-out."""

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
    bits = name_bits(translation, split)
    session = Session(translation, bits, finite_buffers(translation))
    run = session.saturate(limit, seconds)
    out = read(session, translation)
    stats = replace(out.stats, rounds=run.rounds, saturated=run.saturated, rules=run.applied)
    return replace(out, stats=replace(stats, seconds=time.monotonic() - start))


def finite_buffers(translation: Translation) -> list[str]:
    """Inputs, which are taken for finite, and the weights that are."""
    return [
        name
        for name, node in translation.sources.items()
        if node.dtype.is_float and (node.op == "input" or is_finite(node.attr))
    ]


_FINITE: WeakKeyDictionary[Weight, bool] = WeakKeyDictionary()


def is_finite(weight: Weight) -> bool:
    """True if no element is infinite or NaN. Looked at once."""
    if weight not in _FINITE:
        _FINITE[weight] = bool(np.isfinite(weight.array).all())
    return _FINITE[weight]


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


def read(session: Session, translation: Translation) -> Saturated:
    """The plain data of an e-graph."""
    raw = read_rows(session)
    ranked = rank(raw)
    reached = _reachable(raw, ranked)
    number = {c: i for i, c in enumerate(sorted(reached, key=ranked.rank.__getitem__))}
    builder = _Builder(raw, ranked, number, session.bits)
    classes = {number[c]: builder.eclass(c) for c in sorted(reached, key=number.__getitem__)}
    classes = _mark_weights(classes, translation.buffers, session.bits.extents)
    roots = tuple(
        Root(
            root.buffer.name,
            number[raw.roots[i]],
            tuple(builder.rename(e) for e in root.index),
            root.buffer.shape,
            root.buffer.dtype,
            root.output,
        )
        for i, root in enumerate(translation.roots)
    )
    loaded = {n.args[0] for c in classes.values() for n in c.nodes if n.op == "in"}
    buffers = {name: b for name, b in translation.buffers.items() if name in loaded}
    e_nodes = sum(len(c.nodes) for c in classes.values())
    stats = Stats(e_nodes, len(classes), 0, False, 0.0, {})
    return Saturated(classes, dict(enumerate(session.bits.extents)), roots, buffers, stats)


def _reachable(raw: RawGraph, ranked: Ranked) -> set[Any]:
    """Classes of terms below the roots."""
    seen: set[Any] = set()
    stack = list(raw.roots)
    while stack:
        c = stack.pop()
        if c in seen:
            continue
        seen.add(c)
        for row in raw.nodes[c]:
            if row.rank:
                for k in row.kids:
                    stack.extend((k,) if k in raw.dtype else ranked.terms_below(k))
    return seen


class _Builder:
    """Rows to nodes: index classes become sizes, by their smallest members."""

    def __init__(self, raw: RawGraph, ranked: Ranked, number: dict[Any, int], bits: Bits) -> None:
        self._raw, self._ranked, self._number, self._bits = raw, ranked, number, bits
        self._prover = Prover(bits.extents)
        self._sizes: dict[Any, Size] = {}

    def eclass(self, c: Any) -> EClass:
        best = self._ranked.best[c]
        rows = [n for n in self._raw.nodes[c] if n.rank]
        rows.sort(key=lambda n: (n is not best, n.op, n.key, n.rank))
        nodes = tuple(self._node(n) for n in rows)
        return EClass(nodes, self._raw.free[c], self._raw.dtype[c], False)

    def _node(self, n: Row) -> ENode:
        if n.op == "in":
            return ENode("in", (n.args[0], self._list(n.kids[0])), ())
        if n.op == "val":
            return ENode("val", (self._size(n.kids[0]),), ())
        if n.op == "count":
            return ENode("val", n.args, ())
        number = self._number
        return ENode(n.op, n.args, tuple(number[k] for k in n.kids))

    def _list(self, c: Any) -> tuple[Size, ...]:
        out = []
        node = self._ranked.best[c]
        while node.op == "Cons":
            out.append(self._size(node.kids[0]))
            node = self._ranked.best[node.kids[1]]
        return tuple(out)

    def _size(self, c: Any) -> Size:
        if c not in self._sizes:
            self._sizes[c] = self._build_size(self._ranked.best[c])
        return self._sizes[c]

    def _build_size(self, n: Row) -> Size:
        if n.op == "IOf":
            return value(ClassRef(self._number[n.kids[0]]))
        if n.op in ("Ax", "IC", "IS"):
            size: Size = n.args[0]
            return size
        a, *rest = (self._size(k) for k in n.kids)
        if n.op == "IMul":
            return int(n.args[0]) * a
        (b,) = rest
        if n.op == "IAdd":
            return a + b
        if n.op == "IMulI":
            return a * b
        if n.op == "IDiv":
            return self._prover.div(a, b)
        return minimum(a, b) if n.op == "IMin" else maximum(a, b)

    def rename(self, e: Size) -> Size:
        """An index over axes of the translation, over bits."""
        return substitute(e, lambda a: self.bit_index(a.args[0]) if a.kind == "axis" else None)

    def bit_index(self, a: int) -> Size:
        e: Size = 0
        for b in self._bits.of[a]:
            e = e * self._bits.extents[b] + axis(b)
        return e


def _mark_weights(
    classes: dict[int, EClass], buffers: dict[str, Buffer], extents: Sequence[Size]
) -> dict[int, EClass]:
    """Set `weights_only`: some member reads nothing but weights, and no symbol is in it."""
    symbolic = frozenset(i for i, n in enumerate(extents) if isinstance(n, Dim))
    known: set[int] = set()
    before = -1
    while before < len(known):
        before = len(known)
        for c, eclass in classes.items():
            if c not in known and any(
                known.issuperset(n.below) and _fixed(n, buffers, symbolic) for n in eclass.nodes
            ):
                known.add(c)
    return {c: replace(e, weights_only=True) if c in known else e for c, e in classes.items()}


def _fixed(node: ENode, buffers: dict[str, Buffer], symbolic: frozenset[int]) -> bool:
    """True if the node itself reads no input and no symbol."""
    if node.op == "in":
        index = node.args[1]
        if not buffers[node.args[0]].weight:
            return False
    else:
        index = node.args if node.op == "val" else ()
    if node.axes & symbolic:
        return False
    return not any(symbols_in(e) or axes_in(e) & symbolic for e in index)
