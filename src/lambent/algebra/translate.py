"""A graph as terms over named axes, by substitution alone.

Correctness rests on one contract: `T(node, index)` is the value of a node at an index, one index
expression per dim. At its home index a node is one shared term. At any other index (renamed,
shifted, sliced) elementwise producers follow the index; a reduction is read as a load of its stored
value and, where that is no more work, also computed again there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from lambent.algebra.names import mixed_radix, name_axes, reducing
from lambent.algebra.term import LOG2E, Buffer, Term, Terms, fresh, walk
from lambent.graph.dim import Dim, Size, axes_in, representative
from lambent.graph.dtypes import DType, bool_, int64
from lambent.graph.node import Node, topo
from lambent.graph.ops import REDUCE, SOURCES, VIEWS
from lambent.graph.orders import postorder
from lambent.graph.prove import Prover
from lambent.graph.views import source_index

Index = tuple[Size, ...]
Conditions = Iterable[tuple[Size, Size]]
_OP = {"less_than": "less", "sum_reduce": "sum", "max_reduce": "max", "contiguous": "cast"}


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
    """`alternatives` are pairs of equal terms; `buffers` what terms load."""

    roots: tuple[RootTerm, ...]
    alternatives: tuple[tuple[Term, Term], ...]
    extents: tuple[Size, ...]
    buffers: dict[str, Buffer]

    def terms(self) -> Iterator[Term]:
        """Every term, operands before users."""
        return walk(*(root.term for root in self.roots), *itertools.chain(*self.alternatives))


def translate(outputs: Sequence[Node], reuse: bool = False) -> Translation:
    """Terms for the outputs of a graph, and for every node whose stored value they load.

    reuse: see `names.name_axes`.
    """
    work = _Translator(outputs, reuse)
    roots = work.run()
    return Translation(roots, tuple(work.alternatives), tuple(work.extents), work.loaded)


def exact_constant(value: float) -> tuple[Fraction, int]:
    """(r, k) with value = r · log2(e)^k: a power of two times log2 e or ln 2 is taken for exact."""
    mantissa, exponent = math.frexp(value)
    for k, base in ((1, LOG2E), (-1, 1 / LOG2E)):
        unit, shift = math.frexp(base)
        if abs(mantissa) == unit:
            return Fraction(2) ** (exponent - shift) * (1 if value > 0 else -1), k
    return Fraction(value), 0


class _Translator:
    def __init__(self, outputs: Sequence[Node], reuse: bool) -> None:
        self.outputs = tuple(dict.fromkeys(outputs))
        self.nodes = topo(self.outputs)
        self.axes, self.extents = name_axes(self.nodes, reuse)
        self.prover = Prover(self.extents)
        self.make = Terms()
        self.home = {
            n: tuple(mixed_radix(dim, self.extents) for dim in self.axes[n]) for n in self.nodes
        }
        self.alternatives: list[tuple[Term, Term]] = []
        self.loaded: dict[str, Buffer] = {}
        self._name_buffers()
        self._memo: dict[tuple[object, ...], Term] = {}
        self._renamed: dict[tuple[Node, int], list[int]] = {}
        self._todo: list[Node] = []
        self._reducing = reducing(self.nodes)

    def _name_buffers(self) -> None:
        """What each node is loaded from. Names are unique: inputs, weights, outputs, the others."""
        taken: set[str] = set()

        def new(name: str, n: Node) -> Buffer:
            name = fresh(name, taken)
            taken.add(name)
            finite = n.op == "input" or (n.op == "weight" and n.attr.finite)
            return Buffer(name, n.dtype, n.shape, n.op == "weight", finite)

        leaves = [n for op in ("input", "weight") for n in self.nodes if n.op == op]
        self.buffer = {n: new(n.name, n) for n in leaves}
        self.results = {n: new(f"out{i}", n) for i, n in enumerate(self.outputs)}
        for i, n in enumerate(self.nodes):
            if n.op not in SOURCES:
                self.buffer[n] = self.results.get(n) or new(f"t{i}", n)

    # ---- roots -------------------------------------------------------------------------------

    def run(self) -> tuple[RootTerm, ...]:
        self._todo = list(self.outputs)
        roots = []
        for n in self._todo:  # grows as loads are made
            result, term = self.results.get(n), self._at_home(n)
            roots.append(RootTerm(n, result or self.buffer[n], self.home[n], term, bool(result)))
        return tuple(roots)

    def _at_home(self, root: Node) -> Term:
        """The root's term, after those it needs at home: no deep recursion on chains."""

        def needed(n: Node) -> list[Node]:
            return [s for s, index in self._operands(n, self.home[n])[0] if index == self.home[s]]

        return [self._at(n, self.home[n]) for n in postorder([root], needed)][-1]

    def _load(self, n: Node, index: Index) -> Term:
        if n.op not in SOURCES and n not in self._todo:
            self._todo.append(n)
        self.loaded[self.buffer[n].name] = self.buffer[n]
        return self.make.load(self.buffer[n].name, index, n.dtype)

    # ---- T(node, index) ----------------------------------------------------------------------

    def _at(self, n: Node, index: Index, again: bool = True, fresh: bool = True) -> Term:
        """The value of n at index.

        again: at an index that is not home, a reduction may be computed again; fresh: no operation
        was crossed since the last node at home.
        """
        key: tuple[object, ...] = (n, index)
        if index != self.home[n]:
            fresh = fresh and n.op in VIEWS
            key = (n, index, again, fresh)
        if key not in self._memo:
            self._memo[key] = self._compute(n, index, again, fresh)
        return self._memo[key]

    def _compute(self, n: Node, index: Index, again: bool, fresh: bool) -> Term:
        if n.op in ("input", "weight"):
            return self._load(n, index)
        if n.op in SOURCES:
            return self._constant(index[0] if n.op == "iota" else n.attr, n.dtype)
        operands, valid, bound = self._operands(n, index)
        kids = [self._operand(s, i, again, fresh) for s, i in operands]
        if n.op in VIEWS:
            return self._masked(valid, kids[0])
        if n.op in REDUCE:
            return self.make.reduce(_OP[n.op], bound, *kids) if bound else kids[0]
        return self._elementwise(_OP.get(n.op, n.op), kids, n.dtype)

    def _operands(
        self, n: Node, index: Index
    ) -> tuple[list[tuple[Node, Index]], Conditions, tuple[int, ...]]:
        """(operand, its index) of each operand, validity of a view, axes bound by a reduction."""
        bound = self._bound(n, index) if n.op in REDUCE else ()
        read, valid = source_index(n, index, mixed_radix(bound, self.extents), self.prover)
        return [(s, read) for s in n.srcs], valid, bound

    def _bound(self, n: Node, index: Index) -> tuple[int, ...]:
        """Names for the bound axes: those of the source, but none that the index has (capture)."""
        taken = set[int]().union(*map(axes_in, index))
        out = []
        for position, a in enumerate(self.axes[n.srcs[0]][n.attr]):
            names = self._renamed.setdefault((n, position), [a])
            if taken.issuperset(names):
                names.append(len(self.extents))
                self.extents.append(self.extents[a])
            out.append(next(name for name in names if name not in taken))
            taken.add(out[-1])
        return tuple(out)

    def _elementwise(self, op: str, kids: list[Term], dtype: DType) -> Term:
        if op == "cast":
            return self.make.cast(kids[0], dtype)
        if op == "mul" and bool_ in (k.dtype for k in kids):
            return self.make.apply("mask", *(kids if kids[0].dtype == bool_ else kids[::-1]))
        if op == "less" and kids[0].dtype == bool_:  # ¬left ∧ right
            no, true = self.make.apply("not", kids[0]), self.make.const(1, bool_)
            return no if kids[1] is true else self.make.apply("mask", no, kids[1])
        return self.make.apply(op, *kids)

    def _operand(self, n: Node, index: Index, again: bool, fresh: bool) -> Term:
        if index == self.home[n]:
            return self._at(n, index)
        if n.op in SOURCES or n.op in VIEWS:
            return self._at(n, index, again, fresh)
        if n.op in REDUCE:
            if not again or self._points(n, index) > math.prod(map(representative, n.shape)):
                return self._load(n, index)  # a window would compute every value many times
            return self._either(self._at(n, index, False), n, index)
        term = self._at(n, index, again)
        return self._either(term, n, index) if fresh and n in self._reducing else term

    def _either(self, term: Term, n: Node, index: Index) -> Term:
        """The term or a load. They agree only inside the array, so outside both are masked."""
        inside = tuple(zip(index, n.shape, strict=True))
        load = self._masked(inside, self._load(n, index))
        term = self._masked(inside, term)
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

    def _masked(self, valid: Conditions, term: Term) -> Term:
        """The term where 0 <= e < n for each, without what is proved."""
        less = [pair for e, n in valid for pair in ((-1, e), (e, n))]
        unknown = [(low, high) for low, high in less if not self.prover.ge0(high - low - 1)]
        for low, high in reversed(unknown):
            condition = self.make.apply("less", self._constant(low), self._constant(high))
            inner = term
            while inner.op == "mask" and inner.kids[0] is not condition:
                inner = inner.kids[1]
            if inner.op != "mask":
                term = self.make.apply("mask", condition, term)
        return term

    def _constant(self, value: bool | float | Dim, dtype: DType = int64) -> Term:
        """A number, or the value of an index expression."""
        if isinstance(value, Dim):
            return self.make.cast(self.make.val(value), dtype)
        if not dtype.is_float:
            return self.make.const(int(value), dtype)
        with np.errstate(over="ignore"):
            stored = float(np.asarray(value, np.float64).astype(dtype.numpy))
        if math.isnan(stored):
            return self.make.nan(dtype)
        if math.isinf(stored):
            return self.make.inf(1 if stored > 0 else -1, dtype)
        rational, k = exact_constant(float(value))
        return self.make.const(rational, dtype, k)
