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
from dataclasses import dataclass
from typing import Any

from lambent.algebra.readout import Ref, Row, rank, read_rows
from lambent.algebra.rules import MOST_AXES
from lambent.algebra.saturate import PART, Session
from lambent.algebra.term import REDUCTIONS, Buffer, indices_of
from lambent.algebra.translate import translate
from lambent.graph.dim import Size, value, values_in
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
    """The classes below the roots, by number. `buffers`: everything that an `in` may name.

    cuts: of an axis that is also counted in parts its number, and those of the part and the place.
    """

    classes: dict[int, EClass]
    extents: dict[int, Size]
    roots: tuple[Root, ...]
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


def read(session: Session, start: float = 0.0) -> Saturated:
    """The plain data of an e-graph; `start`: when its seconds began."""
    translation, bits = session.translation, session.bits
    found = read_rows(session)
    members = rank(found.rows)
    build: dict[str, Callable[..., Any]] = _SIZES | {"IDiv": Prover(bits.extents).div}
    number = itertools.count()
    meaning: dict[Ref, Any] = {}  # numbers of classes, sizes of index expressions
    needed = _needed(found.roots, members)
    for c, (first, *_) in members.items():
        if c in needed and c in found.dtype:
            meaning[c] = ClassRef(next(number))
        elif c in needed:
            meaning[c] = build[first.op](*first.args, *(meaning[k] for k in first.kids))
    classes: dict[int, EClass] = {}
    for c, ref in meaning.items():
        if isinstance(ref, ClassRef):
            nodes = tuple(dict.fromkeys(_node(n, meaning) for n in members[c]))
            classes[ref.id] = EClass(nodes, found.free[c], found.dtype[c], c in found.fixed)

    roots = []
    for root, c in zip(translation.roots, found.roots, strict=True):
        b, index = root.buffer, tuple(map(session.bits.index, root.index))
        roots.append(Root(b.name, meaning[c].id, index, b.shape, b.dtype, root.output))
    loaded = {n.args[0] for c in classes.values() for n in c.nodes if n.op == "in"}
    buffers = {name: b for name, b in translation.buffers.items() if name in loaded}
    e_nodes = sum(len(c.nodes) for c in classes.values())
    seconds = time.monotonic() - start
    stats = Stats(e_nodes, len(classes), session.rounds, session.saturated, seconds, found.applied)
    sizes = dict(enumerate(bits.extents))
    return Saturated(classes, sizes, tuple(roots), buffers, stats, bits.cuts)


def _needed(roots: Sequence[Ref], members: dict[Ref, list[Row]]) -> set[Ref]:
    needed: set[Ref] = set()
    stack = list(roots)
    while stack:
        c = stack.pop()
        if c not in needed:
            needed.add(c)
            stack += [k for n in members[c] for k in n.kids]
    return needed


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
    return ENode(n.op, args, tuple(x.id for x in below if isinstance(x, ClassRef)))
