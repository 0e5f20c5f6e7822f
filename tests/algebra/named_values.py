"""NumPy meaning of terms and e-nodes on arrays with named dims: the yardstick of these tests.

A value is (axes in ascending order, array). Floats are float64, integers wrap in their own dtype.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from lambent.algebra.term import LOG2E, fresh
from lambent.graph.dim import Dim, axes_in, evaluate, values_in

UNARY = {
    "exp2": np.exp2,
    "log2": np.log2,
    "sin": np.sin,
    "sqrt": np.sqrt,
    "recip": lambda x: 1.0 / x,
    "not": np.logical_not,
}
BINARY = {
    "add": np.add,
    "mul": np.multiply,
    "mod": np.mod,
    "less": np.less,
    "eq": np.equal,
    "mask": lambda b, x: np.where(b, x, np.zeros((), x.dtype)),
}


def numpy_dtype(dtype):
    return np.dtype(np.float64) if dtype.is_float else dtype.numpy


def align(*values):
    """The union of the axes, and the arrays with a dim for each."""
    axes = tuple(sorted(set().union(*(v[0] for v in values))))
    arrays = [x.reshape([x.shape[a.index(k)] if k in a else 1 for k in axes]) for a, x in values]
    return axes, arrays


def apply(f, *values):
    axes, arrays = align(*values)
    return axes, np.asarray(f(*arrays))


def reduce(op, bound, v, extents):
    axes, x = v
    missing = [b for b in bound if b not in axes]
    x = x.reshape(x.shape + (1,) * len(missing))
    x = np.broadcast_to(x, x.shape[: len(axes)] + tuple(extents[b] for b in missing))
    names = axes + tuple(missing)
    dims = tuple(i for i, a in enumerate(names) if a in bound)
    if op == "sum":
        out = x.sum(dims, dtype=x.dtype)
    else:
        out = x.max(dims)
    return tuple(a for a in axes if a not in bound), np.asarray(out)


def fold(bound, a, v, extents, part=False):
    m = reduce("max", bound, a, extents)
    if part:  # nothing seen contributes 0
        m = m[0], np.where(np.isneginf(m[1]), 0.0, m[1])
    e = apply(lambda x, y: np.exp2(x - y), a, m)
    return reduce("sum", bound, apply(np.multiply, e, v), extents)


def gather(buffer, index):
    if not index:
        return (), np.asarray(buffer)
    axes, arrays = align(*index)
    arrays = [
        np.clip(np.asarray(x).astype(np.int64), 0, n - 1)
        for x, n in zip(arrays, buffer.shape, strict=True)
    ]
    return axes, buffer[tuple(np.broadcast_arrays(*arrays))]


def index_value(e, extents, symbols, value_of):
    """The named value of an index expression."""
    if not isinstance(e, Dim):
        return (), np.asarray(e, np.int64)
    refs = {r: value_of(r) for r in values_in(e)}
    axes = sorted(axes_in(e).union(*(v[0] for v in refs.values())))
    shape = [extents[a] for a in axes]

    def place(a):
        return np.arange(extents[a]).reshape([-1 if b == a else 1 for b in axes])

    values = {
        r: x.reshape([x.shape[a.index(k)] if k in a else 1 for k in axes]).astype(np.int64)
        for r, (a, x) in refs.items()
    }
    out = evaluate(e, symbols, {a: place(a) for a in axes}, values)
    return tuple(axes), np.broadcast_to(np.asarray(out, np.int64), shape)


def constant(value, k):
    return float(value) * LOG2E**k


def compute(op, args, kids, dtype, extents, buffers, symbols, value_of):
    """One term or e-node, given its operands' values."""
    kind = numpy_dtype(dtype)
    if op == "in":
        index = [index_value(e, extents, symbols, value_of) for e in args[1]]
        return gather(buffers[args[0]], index)
    if op == "const":
        value, k = args
        x = int(value) if not dtype.is_float else constant(Fraction(value), k)
        return (), np.asarray(x, kind)
    if op in ("inf", "nan"):
        return (), np.asarray(np.inf * args[0] if op == "inf" else np.nan, kind)
    if op == "val":
        return index_value(args[0], extents, symbols, value_of)
    if op == "scale":
        return kids[0][0], kids[0][1] * constant(*args)
    if op == "cast":
        return kids[0][0], np.asarray(kids[0][1]).astype(kind)
    if op in ("sum", "max"):
        return reduce(op, args[0], kids[0], extents)
    if op in ("fold", "part"):
        return fold(args[0], kids[0], kids[1], extents, op == "part")
    if op in UNARY:
        return apply(UNARY[op], kids[0])
    return apply(BINARY[op], *kids)


def same(v, w, rtol=1e-9):
    """Equal values, NaN where NaN; an axis that one side lacks must not matter."""
    _, (x, y) = align(v, w)
    return close(x, y, rtol)


def close(x, y, rtol=1e-9):
    x, y = np.broadcast_arrays(x, y)
    if x.dtype.kind != "f" or y.dtype.kind != "f":
        return x.dtype == y.dtype and bool((x == y).all())
    scale = max(1.0, np.abs(np.where(np.isfinite(x), x, 0)).max(initial=0))
    with np.errstate(all="ignore"):
        return bool(np.isclose(x, y, rtol=rtol, atol=rtol * scale, equal_nan=True).all())


class TermValues:
    """Values of Terms at concrete symbols and buffers."""

    def __init__(self, extents, buffers, symbols=None):
        self.symbols = symbols or {}
        self.extents = [evaluate(n, self.symbols) for n in extents]
        self.buffers, self.memo = buffers, {}

    def __call__(self, term):
        if term not in self.memo:
            kids = [self(k) for k in term.kids]
            self.memo[term] = compute(
                term.op, term.args, kids, term.dtype, self.extents, self.buffers, self.symbols, self
            )
        return self.memo[term]


def to_array(v, index, extents, symbols, shape):
    """The array `a` with a[index] = v, for an index that covers it."""
    points = [index_value(e, extents, symbols, None) for e in index]
    axes, (*where, x) = align(*points, v) if points else (v[0], [v[1]])
    if not points:
        assert axes == ()
        return v[1].reshape(())
    where = np.broadcast_arrays(*where, x)
    out = np.zeros(shape, x.dtype)
    out[tuple(where[:-1])] = where[-1]
    return out


def check_translation(tr, inputs, values, symbols=None):
    """Faults of a translation: roots that differ from the graph's values, unequal alternatives."""
    symbols = symbols or {}
    buffers = buffers_of(tr, inputs, values)
    faults = []
    with np.errstate(all="ignore"):
        terms = TermValues(tr.extents, buffers, symbols)
        for root in tr.roots:
            want = values[root.node]
            v = terms(root.term)
            allowed = frozenset().union(*(axes_in(e) for e in root.index))
            got = to_array(v, root.index, terms.extents, symbols, want.shape)
            if not set(v[0]) <= allowed or not close(got, want):
                faults.append((root, got, want))
        faults += [pair for pair in tr.alternatives if not same(terms(pair[0]), terms(pair[1]))]
    return faults


def buffers_of(tr, inputs, values):
    buffers = {b.buffer.name: values[b.node] for b in tr.roots}
    sources = {}
    for n in (n for op in ("input", "weight") for n in values if n.op == op):
        sources[fresh(n.name, sources)] = values[n]
    return buffers | sources


class ClassValues:
    """Checks a saturated e-graph: every member of every class has the class's value."""

    def __init__(self, saturated, buffers, symbols=None):
        self.s, self.buffers, self.symbols = saturated, buffers, symbols or {}
        self.extents = {a: evaluate(n, self.symbols) for a, n in saturated.extents.items()}
        self.values = {}

    def node(self, node, dtype):
        kids = [self.values[k] for k in node.kids]
        return compute(
            node.op, node.args, kids, dtype, self.extents, self.buffers, self.symbols,
            lambda ref: self.values[ref.id],
        )  # fmt: skip

    def faults(self):
        """(class, node) of each member that differs, and roots against their stored values."""
        out = []
        with np.errstate(all="ignore"):
            for c, eclass in self.s.classes.items():
                assert all(k < c for k in eclass.nodes[0].below)
                v = self.node(eclass.nodes[0], eclass.dtype)
                for a in set(v[0]) - eclass.free:  # it must not depend on it
                    d = v[0].index(a)
                    if not close(v[1], np.take(v[1], [0], d)):
                        out.append((c, "free"))
                if v[1].dtype != numpy_dtype(eclass.dtype):
                    out.append((c, "dtype"))
                self.values[c] = v
            for c, eclass in self.s.classes.items():
                for node in eclass.nodes[1:]:
                    if not same(self.node(node, eclass.dtype), self.values[c]):
                        out.append((c, node))
            for root in self.s.roots:
                want = self.buffers[root.buffer.name]
                v = self.values[root.cls]
                allowed = frozenset().union(*(axes_in(e) for e in root.index))
                for a in sorted(set(v[0]) - allowed):
                    v = tuple(b for b in v[0] if b != a), np.take(v[1], 0, v[0].index(a))
                got = to_array(v, root.index, self.extents, self.symbols, want.shape)
                if not close(got, want):
                    out.append((root.cls, "root"))
        return out
