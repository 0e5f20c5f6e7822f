"""A graph as terms over named axes, by substitution alone.

Correctness rests on one contract: `T(node, index)` is the value of a node at an index, one index
expression per dim. At its home index a node is one shared term. At any other index (renamed,
shifted, sliced) elementwise producers follow the index; a reduction is read as a load of its stored
value and, where that is no more work, also computed again there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from lambent.algebra.names import DimAxes, name_axes
from lambent.algebra.term import LOG2E, Buffer, Term, Terms
from lambent.graph.dim import Dim, Size, axes_in, axis, representative
from lambent.graph.dtypes import DType, bool_
from lambent.graph.node import Node, topo
from lambent.graph.ops import REDUCE, SOURCES, VIEWS
from lambent.graph.prove import Prover
from lambent.graph.views import view_index

Index = tuple[Size, ...]
_OP = {"less_than": "less", "sum_reduce": "sum", "max_reduce": "max"}


@dataclass(frozen=True, slots=True)
class RootTerm:
    """`buffer[index] = term`: an output of the graph, or a stored value that some term loads."""

    node: Node
    buffer: Buffer
    index: Index
    term: Term
    output: bool


@dataclass(frozen=True, slots=True)
class Translation:
    """`alternatives` are pairs of equal terms; `sources` the node of each input and weight."""

    terms: Terms
    roots: tuple[RootTerm, ...]
    alternatives: tuple[tuple[Term, Term], ...]
    extents: tuple[Size, ...]
    buffers: dict[str, Buffer]
    sources: dict[str, Node]


def translate(
    outputs: Sequence[Node],
    *,
    depth: int = 1,
    offer: bool = True,
    deep_first: bool = True,
    reuse: bool = False,
) -> Translation:
    """Terms for the outputs of a graph, and for every node whose stored value they load.

    Args:
        depth: how many reductions may be computed again at an index that is not their home.
        offer: where a value is computed again, also offer a load of the stored one.
        deep_first, reuse: see `names.name_axes`.
    """
    work = _Translator(outputs, depth, offer, deep_first, reuse)
    roots = work.run()
    return Translation(
        work.terms,
        roots,
        tuple(work.alternatives),
        tuple(work.extents),
        work.loaded,
        {b.name: n for n, b in work.buffer.items() if n.op in ("input", "weight")},
    )


def exact_constant(value: float) -> tuple[Fraction, int]:
    """(r, k) with value = r · log2(e)^k: a power of two times log2 e or ln 2 is taken for exact."""
    mantissa, exponent = math.frexp(value)
    for k, base in ((1, LOG2E), (-1, 1 / LOG2E)):
        unit, shift = math.frexp(base)
        if abs(mantissa) == unit:
            return Fraction(2) ** (exponent - shift) * (1 if value > 0 else -1), k
    return Fraction(value), 0


class _Translator:
    def __init__(
        self, outputs: Sequence[Node], depth: int, offer: bool, deep_first: bool, reuse: bool
    ) -> None:
        self.outputs = tuple(dict.fromkeys(outputs))
        self.nodes = topo(self.outputs)
        self.depth, self.offer = depth, offer
        self.axes, self.extents = name_axes(self.nodes, deep_first=deep_first, reuse=reuse)
        self.prover = Prover(self.extents)
        self.terms = Terms()
        self.home = {n: tuple(self._number(dim) for dim in self.axes[n]) for n in self.nodes}
        self.alternatives: list[tuple[Term, Term]] = []
        self.named: dict[str, Node] = {}
        self.buffer = self._buffers()
        self.loaded: dict[str, Buffer] = {}
        self._memo: dict[tuple[object, ...], Term] = {}
        self._spare: dict[tuple[Node, int, int], int] = {}
        self._todo: list[Node] = []
        self._position = {n: i for i, n in enumerate(self.nodes)}
        self._reducing: set[Node] = set()  # a reduction at or below
        for n in self.nodes:
            if n.op in REDUCE or any(s in self._reducing for s in n.srcs):
                self._reducing.add(n)

    def _buffers(self) -> dict[Node, Buffer]:
        """What each node is loaded from. Names are unique: inputs, weights, outputs, the others."""
        wanted = {n: n.attr for n in self.nodes if n.op == "input"}
        wanted |= {n: n.attr.name for n in self.nodes if n.op == "weight"}
        loaded = {n: self._buffer(name, n) for n, name in wanted.items()}
        self.results = {
            n: replace(self._buffer(f"out{i}", n), weight=False) for i, n in enumerate(self.outputs)
        }
        for i, n in enumerate(self.nodes):
            if n not in loaded and n.op not in SOURCES:
                loaded[n] = self.results.get(n) or self._buffer(f"t{i}", n)
        return loaded

    def _buffer(self, name: str, n: Node) -> Buffer:
        while name in self.named:
            name += "_"
        self.named[name] = n
        return Buffer(name, n.dtype, n.shape, n.op == "weight")

    def _number(self, axes: Sequence[int]) -> Size:
        """The index that a dim of these axes counts (a mixed-radix number)."""
        e: Size = 0
        for a in axes:
            e = e * self.extents[a] + axis(a)
        return e

    # ---- roots -------------------------------------------------------------------------------

    def run(self) -> tuple[RootTerm, ...]:
        self._todo = list(self.outputs)
        roots = []
        for n in self._todo:  # grows as loads are made
            self._visit_home(n)
            term = self._at(n, self.home[n], self.depth, True)
            result = self.results.get(n)
            roots.append(RootTerm(n, result or self.buffer[n], self.home[n], term, bool(result)))
        return tuple(roots)

    def _visit_home(self, root: Node) -> None:
        """Translate what the root needs at home, operands first: no deep recursion on chains."""
        seen = {root}
        stack = [root]
        while stack:
            n = stack.pop()
            for s, index in self._operands(n, self.home[n])[0]:
                if s not in seen and index == self.home[s]:
                    seen.add(s)
                    stack.append(s)
        for n in sorted(seen, key=self._position.__getitem__):
            self._at(n, self.home[n], self.depth, True)

    def _load(self, n: Node, index: Index) -> Term:
        if n.op not in SOURCES and n not in self._todo:
            self._todo.append(n)
        self.loaded[self.buffer[n].name] = self.buffer[n]
        return self.terms.load(self.buffer[n].name, index, n.dtype)

    # ---- T(node, index) ----------------------------------------------------------------------

    def _at(self, n: Node, index: Index, depth: int, fresh: bool) -> Term:
        """The value of n at index.

        depth: how many reductions an index that is not home may still cross; fresh: no operation
        was crossed since the last node at home.
        """
        at_home = index == self.home[n]
        fresh = at_home or (fresh and n.op in VIEWS)
        key = (n, index) if at_home else (n, index, depth, fresh)
        known = self._memo.get(key)
        if known is None:
            known = self._memo[key] = self._compute(n, index, depth, fresh)
        return known

    def _compute(self, n: Node, index: Index, depth: int, fresh: bool) -> Term:
        if n.op in ("input", "weight"):
            return self._load(n, index)
        if n.op == "constant":
            return self._constant(n.attr, n.dtype)
        if n.op == "iota":
            return self._integer(index[0], n.dtype)
        operands, valid, bound = self._operands(n, index)
        kids = [self._operand(s, i, depth, fresh) for s, i in operands]
        if n.op in VIEWS:
            return self._masked(self._conditions(valid), kids[0])
        if n.op in REDUCE:
            return self.terms.reduce(_OP[n.op], bound, *kids) if bound else kids[0]
        return self._elementwise(n, kids)

    def _operands(
        self, n: Node, index: Index
    ) -> tuple[list[tuple[Node, Index]], Iterable[tuple[Size, Size]], tuple[int, ...]]:
        """(operand, its index) of each operand, validity of a view, axes bound by a reduction."""
        if n.op in SOURCES:
            return [], (), ()
        if n.op in VIEWS:
            source = n.srcs[0]
            read, valid = view_index(n.op, n.attr, source.shape, n.shape, index, self.prover)
            return [(source, read)], valid, ()
        if n.op in REDUCE:
            bound = self._bound(n, index)
            read = (*index[: n.attr], self._number(bound), *index[n.attr :])
            return [(n.srcs[0], read)], (), bound
        return [(s, index) for s in n.srcs], (), ()

    def _bound(self, n: Node, index: Index) -> tuple[int, ...]:
        """Names for the bound axes: those of the source, but none that the index has (capture)."""
        taken = _axes(index)
        out: list[int] = []
        for position, a in enumerate(self.axes[n.srcs[0]][n.attr]):
            name, k = a, 0
            while name in taken or name in out:
                key = (n, position, k)
                if key not in self._spare:
                    self._spare[key] = len(self.extents)
                    self.extents.append(self.extents[a])
                name, k = self._spare[key], k + 1
            out.append(name)
        return tuple(out)

    def _elementwise(self, n: Node, kids: list[Term]) -> Term:
        make = self.terms
        if n.op == "contiguous":
            return make.cast(kids[0], n.dtype)
        if len(kids) == 1:
            return make.unary(n.op, kids[0])
        left, right = kids
        if n.op == "mul" and bool_ in (left.dtype, right.dtype):
            return make.binary("mask", *(kids if left.dtype == bool_ else kids[::-1]))
        if n.op == "less_than" and left.dtype == bool_:  # ¬left ∧ right
            no = make.unary("not", left)
            true = make.const(1, bool_)
            return no if right is true else make.binary("mask", no, right)
        return make.binary(_OP.get(n.op, n.op), left, right)

    def _operand(self, n: Node, index: Index, depth: int, fresh: bool) -> Term:
        if index == self.home[n]:
            return self._at(n, index, self.depth, True)
        if n.op in SOURCES or n.op in VIEWS:
            return self._at(n, index, depth, fresh)
        if n.op in REDUCE:
            if depth == 0 or self._points(n, index) > math.prod(map(representative, n.shape)):
                return self._load(n, index)  # a window would compute every value many times
            return self._either(self._at(n, index, depth - 1, True), n, index)
        term = self._at(n, index, depth, True)
        return self._either(term, n, index) if self._offered(n, fresh) else term

    def _offered(self, n: Node, fresh: bool) -> bool:
        return self.offer and fresh and n in self._reducing

    def _either(self, term: Term, n: Node, index: Index) -> Term:
        """The term or a load. They agree only inside the array, so outside both are masked."""
        conditions = self._conditions(zip(index, n.shape, strict=True))
        load = self._masked(conditions, self._load(n, index))
        term = self._masked(conditions, term)
        self.alternatives.append((term, load))
        return term

    def _points(self, n: Node, index: Index) -> int:
        """How many points of n the index visits, counted with repetition, at usual sizes."""
        points, seen = 1, frozenset[int]()
        for e, size in zip(index, n.shape, strict=True):
            here = axes_in(e)
            new = here - seen
            seen |= new
            steps = math.prod(representative(self.extents[a]) for a in new)
            alone = len(here) == len(new) == 1 and sum(new <= axes_in(x) for x in index) == 1
            points *= min(representative(size), steps) if alone else steps
        return points

    # ---- masks and constants -----------------------------------------------------------------

    def _conditions(self, valid: Iterable[tuple[Size, Size]]) -> list[Term]:
        """0 <= e < n for each, without what is proved."""
        make, integer = self.terms, self._integer
        out = []
        for e, n in valid:
            if not self.prover.ge0(e):
                out.append(make.binary("less", integer(-1), integer(e)))
            if not self.prover.ge0(n - 1 - e):
                out.append(make.binary("less", integer(e), integer(n)))
        return out

    def _masked(self, conditions: Sequence[Term], term: Term) -> Term:
        for condition in reversed(conditions):
            inner = term
            while inner.op == "mask" and inner.kids[0] is not condition:
                inner = inner.kids[1]
            if inner.op != "mask":
                term = self.terms.binary("mask", condition, term)
        return term

    def _integer(self, e: Size, dtype: DType | None = None) -> Term:
        """The value of an index expression, as int64 or in a given dtype."""
        if isinstance(e, Dim):
            term = self.terms.val(e)
            return term if dtype is None else self.terms.cast(term, dtype)
        return self.terms.const(e, dtype or self.terms.val(0).dtype)

    def _constant(self, value: bool | float | Dim, dtype: DType) -> Term:
        if isinstance(value, Dim):
            return self._integer(value, dtype)
        if not dtype.is_float:
            return self.terms.const(int(value), dtype)
        with np.errstate(over="ignore"):
            stored = float(np.asarray(value, np.float64).astype(dtype.numpy))
        if math.isnan(stored):
            return self.terms.nan(dtype)
        if math.isinf(stored):
            return self.terms.inf(1 if stored > 0 else -1, dtype)
        rational, k = exact_constant(float(value))
        return self.terms.const(rational, dtype, k)


def _axes(index: Index) -> frozenset[int]:
    return frozenset[int]().union(*(axes_in(e) for e in index))


__all__ = ["DimAxes", "RootTerm", "Translation", "exact_constant", "translate"]
