"""lambent graph → ONNX model: one row per primitive and view, opset 18.

Sizes that are symbols become named dims, and are read from the shapes of inputs where a node needs
them. A product whose only use is a sum becomes one Einsum, so that a matrix product is never
stored before it is summed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from lambent.frontends.onnx.errors import OnnxError
from lambent.frontends.onnx.read import element_of
from lambent.graph.dim import Atom, Dim, Size, show, terms_of
from lambent.graph.dtypes import DTYPES, DType, bool_
from lambent.graph.node import Node, topo
from lambent.graph.tensor import Tensor

if TYPE_CHECKING:
    import onnx

OPSET = 18
NARROW = ("bool", "int8", "int16", "uint8")
"""What runtimes seldom have reductions and pads for."""


def to_onnx(
    outputs: Tensor | Sequence[Tensor] | Mapping[str, Tensor],
    path: str | os.PathLike[str] | None = None,
) -> onnx.ModelProto:
    """The graph of these outputs as an ONNX model, also written to a file where a path is given.

    Args:
        outputs: several are called `output_0`, … unless they are given by name.

    Raises:
        OnnxError: a model beyond the 2 GiB that one ONNX file holds; a symbol that is no dim of an
            input; two arrays of one name.
        ModuleNotFoundError: the package onnx is not installed.
    """
    try:
        import onnx
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "lambent.to_onnx needs the package 'onnx': pip install 'lambent[onnx]'", name="onnx"
        ) from None
    from onnx import helper

    if isinstance(outputs, Tensor):
        outputs = [outputs]
    if not isinstance(outputs, Mapping):
        outputs = {f"output_{i}": x for i, x in enumerate(outputs)}
    order = topo(x.node for x in outputs.values())
    held = sum(n.attr.array.nbytes for n in order if n.op == "weight")
    if held >= 1 << 31:
        raise OnnxError(f"the weights have {held} bytes; one ONNX file holds less than 2 GiB")
    write = _Writer(order, {x.node for x in outputs.values()})
    for node in order:
        write.names[node] = write.node(node)
    for name, x in outputs.items():
        write.add("Identity", write.names[x.node], out=name)
    inputs = [_info(n.attr, n) for n in order if n.op == "input"]
    results = [_info(name, x.node) for name, x in outputs.items()]
    nodes, arrays = write.needed(list(outputs))
    graph = helper.make_graph(nodes, "lambent", inputs, results, arrays)
    model: onnx.ModelProto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8, producer_name="lambent"
    )
    if path is not None:
        onnx.save(model, path)
    return model


def _info(name: str, node: Node) -> onnx.ValueInfoProto:
    from onnx import helper

    shape = [n if isinstance(n, int) else show(n) for n in node.shape]
    return helper.make_tensor_value_info(name, element_of(node.dtype), shape)


@dataclass(slots=True)
class _Writer:
    """The model so far: nodes, initialisers, and the ONNX name of every node of the graph.

    lazy: products, and sums of them, that the sum which reads them computes.
    """

    order: Sequence[Node]
    roots: set[Node]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    arrays: dict[str, onnx.TensorProto] = field(default_factory=dict)
    names: dict[Node, str] = field(default_factory=dict)
    sizes: dict[Size, str] = field(default_factory=dict)
    lazy: set[Node] = field(default_factory=set)

    def __post_init__(self) -> None:
        users: dict[Node, list[Node]] = {n: [] for n in self.order}
        for n in self.order:
            for source in n.srcs:
                users[source].append(n)
        for n in self.order:
            only = [user.op for user in users[n]] == ["sum_reduce"] and n not in self.roots
            inner = n.op == "sum_reduce" and n.srcs[0] in self.lazy
            if only and (inner or (n.op == "mul" and _is_einsum(n))):
                self.lazy.add(n)

    def add(self, op: str, *operands: str, out: str = "", **attributes: Any) -> str:
        """One more ONNX node; the name of its result."""
        from onnx import helper

        out = out or f"v{len(self.nodes)}_{op}"
        self.nodes.append(helper.make_node(op, operands, [out], name=out, **attributes))
        return out

    def needed(self, outputs: Sequence[str]) -> tuple[list[Any], list[Any]]:
        """The nodes and initialisers that the outputs need: an Einsum reads past some."""
        used, kept = set(outputs), []
        for node in reversed(self.nodes):
            if node.output[0] in used:
                kept.append(node)
                used |= set(node.input)
        return kept[::-1], [array for name, array in self.arrays.items() if name in used]

    def array(self, value: Any, dtype: Any = np.int64, name: str = "") -> str:
        """An initialiser; equal ones without a name are one."""
        from onnx import numpy_helper

        array = np.asarray(value, dtype)
        name = name or f"{array.dtype}{list(array.shape)}{array.tobytes().hex()}"
        made = numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
        if self.arrays.setdefault(name, made) != made:
            raise OnnxError(f"two arrays have the name {name!r}")
        return name

    def cast(self, x: str, dtype: DType) -> str:
        return self.add("Cast", x, to=element_of(dtype))

    # ---- sizes -------------------------------------------------------------------------------

    def shape(self, sizes: Sequence[Size]) -> str:
        """A vector of sizes, int64."""
        if all(isinstance(n, int) for n in sizes):
            return self.array(list(sizes))
        parts = [self.add("Reshape", self.size(n), self.array([1])) for n in sizes]
        return self.add("Concat", *parts, axis=0)

    def size(self, size: Size) -> str:
        """A size as an int64 scalar: a polynomial over the dims of inputs."""
        if isinstance(size, int):
            return self.array(size)
        if size not in self.sizes:
            terms = []
            for coefficient, monomial in terms_of(size):
                term = self.array(coefficient)
                for atom, power in monomial:
                    for _ in range(power):
                        term = self.add("Mul", term, self.atom(atom))
                terms.append(term)
            total = terms[0]
            for term in terms[1:]:
                total = self.add("Add", total, term)
            self.sizes[size] = total
        return self.sizes[size]

    def atom(self, atom: Atom) -> str:
        if atom.kind == "symbol":
            for n in self.order:
                if n.op == "input" and atom.dim() in n.shape:
                    dims = self.add("Shape", n.attr)
                    return self.add("Gather", dims, self.array(n.shape.index(atom.dim())))
            raise OnnxError(f"the symbol {atom.args[0]} is no dim of an input by itself")
        op = {"div": "Div", "min": "Min", "max": "Max"}[atom.kind]
        return self.add(op, *map(self.size, atom.args))

    # ---- nodes -------------------------------------------------------------------------------

    def node(self, n: Node) -> str:
        """The name of the node's value; "" for a product that its sum computes."""
        if n in self.lazy:
            return ""
        if n.op == "sum_reduce" and n.srcs[0] in self.lazy:
            return self.einsum(n)
        return _ROWS[n.op](self, n, *(self.names[s] for s in n.srcs))

    def einsum(self, n: Node) -> str:
        """Sums over a product as one Einsum; dims that an operand repeats are left out of it."""
        axes, product = [], n
        while product.op == "sum_reduce":
            axes.append(product.attr)
            product = product.srcs[0]
        left = list(range(len(product.shape)))
        for axis in reversed(axes):
            del left[axis]
        letters = [chr(ord("a") + i) for i in range(len(product.shape))]
        names, labels, times = [], [], []
        seen: set[int] = set()
        for source in product.srcs:
            name, dims = self.unrepeated(source)
            names.append(name if source.dtype == n.dtype else self.cast(name, n.dtype))
            labels.append("".join(letters[i] for i in dims))
            seen |= set(dims)
        kept = [i for i in left if i in seen]
        out = self.add(
            "Einsum", *names, equation=f"{','.join(labels)}->{''.join(letters[i] for i in kept)}"
        )
        times = [product.shape[i] for i in range(len(product.shape)) if i not in (*left, *seen)]
        for size in times:  # summed, but nothing depends on it
            out = self.add("Mul", out, self.cast(self.size(size), n.dtype))
        if kept != left:
            ones = [product.shape[i] if i in seen else 1 for i in left]
            out = self.add("Reshape", out, self.shape(ones))
            out = self.add("Expand", out, self.shape(n.shape))
        return out

    def unrepeated(self, source: Node) -> tuple[str, list[int]]:
        """An operand without the dims that a view repeats, and the dims that are left."""
        dims = list(range(len(source.shape)))
        if source.op != "expand":
            return self.names[source], dims
        inner = source.srcs[0]
        kept = [i for i in dims if inner.shape[i] == source.shape[i]]
        if len(kept) == len(dims):
            return self.names[inner], kept
        shape = self.shape([source.shape[i] for i in kept])
        return self.add("Reshape", self.names[inner], shape), kept


def _is_einsum(n: Node) -> bool:
    """True for products that a runtime may sum in one go: no mask may meet an infinity."""
    if n.dtype.name not in ("float32", "float64", "int32", "int64") or len(n.shape) > 26:
        return False
    return all(s.dtype == n.dtype or _finite_weight(o) for s, o in (n.srcs, n.srcs[::-1]))


def _finite_weight(n: Node) -> bool:
    while n.op in ("permute", "reshape", "expand"):
        n = n.srcs[0]
    return n.op == "weight" and bool(np.isfinite(n.attr.array).all())


# ---- the rows ----------------------------------------------------------------------------------

_RowOf = Callable[..., str]


def _plain(op: str, narrow: Sequence[str] = ("int8", "int16", "uint8")) -> _RowOf:
    """A node of one operator, by way of int32 where runtimes seldom have it for a dtype.

    What it gives there wraps when it is cast back, as it must.
    """

    def row(w: _Writer, n: Node, *xs: str, more: Sequence[str] = (), **attributes: Any) -> str:
        if n.srcs[0].dtype.name not in narrow:
            return w.add(op, *xs, *more, **attributes)
        wide = w.add(op, *(w.cast(x, DTYPES["int32"]) for x in xs), *more, **attributes)
        return wide if op == "Less" else w.cast(wide, n.dtype)

    return row


def _scalar(w: _Writer, value: Any, dtype: DType) -> str:
    return w.array(value, dtype.numpy)


def _mul(w: _Writer, n: Node, x: str, y: str) -> str:
    kinds = [s.dtype == bool_ for s in n.srcs]
    if all(kinds):
        return w.add("And", x, y)
    if not any(kinds):
        return _plain("Mul")(w, n, x, y)
    mask, value = (x, y) if kinds[0] else (y, x)
    return w.add("Where", mask, value, _scalar(w, 0, n.dtype))


def _mod(w: _Writer, n: Node, x: str, y: str) -> str:
    """Floored, where ONNX has floats only with the sign of x."""
    if not n.dtype.is_float:
        return _plain("Mod")(w, n, x, y)
    zero = _scalar(w, 0, n.dtype)
    rest = w.add("Mod", x, y, fmod=1)
    opposite = w.add("Xor", w.add("Less", rest, zero), w.add("Less", y, zero))
    whole = w.add("Equal", rest, zero)
    fixed = w.add("Where", opposite, w.add("Add", rest, y), rest)
    return w.add("Where", whole, rest, fixed)


def _less(w: _Writer, n: Node, x: str, y: str) -> str:
    if n.srcs[0].dtype == bool_:
        return w.add("And", w.add("Not", x), y)
    return _plain("Less")(w, n, x, y)


def _reduce(w: _Writer, n: Node, x: str) -> str:
    op = {"sum_reduce": "ReduceSum", "max_reduce": "ReduceMax"}[n.op]
    return _plain(op, NARROW)(w, n, x, more=[w.array([n.attr])], keepdims=0)


def _contiguous(w: _Writer, n: Node, x: str) -> str:
    """Floats become narrow integers by way of int64, so that they wrap everywhere."""
    if n.dtype == n.srcs[0].dtype:
        return x
    if n.srcs[0].dtype.is_float and n.dtype.name in NARROW:
        x = w.cast(x, DTYPES["int64"])
    return w.cast(x, n.dtype)


def _slice(w: _Writer, n: Node, x: str) -> str:
    starts, steps = [p[0] for p in n.attr], [p[1] for p in n.attr]
    before = -(1 << 62)  # an end before the first element
    ends: list[Size] = []
    for start, step, count in n.attr:
        end = start + step * count
        ends.append(end if step > 0 or not isinstance(end, int) or end >= 0 else before)
        if step < 0 and isinstance(end, Dim):
            raise OnnxError(f"a backward slice that ends at the symbolic place {end}")
    axes = w.array(list(range(len(starts))))
    return w.add("Slice", x, w.shape(starts), w.shape(ends), axes, w.array(steps))


def _pad(w: _Writer, n: Node, x: str) -> str:
    pads = w.shape([low for low, _ in n.attr] + [high for _, high in n.attr])
    return _plain("Pad", NARROW)(w, n, x, more=[pads])


def _window(w: _Writer, n: Node, x: str) -> str:
    """Gather by position and place in the window, the place then moved to the end."""
    dim, size, stride, dilation = n.attr
    zero, one = w.array(0), w.array(1)
    places = w.add("Range", zero, w.size(n.shape[dim]), one)
    places = w.add("Mul", places, w.size(stride))
    inner = w.add("Mul", w.add("Range", zero, w.size(size), one), w.size(dilation))
    index = w.add("Add", w.add("Unsqueeze", places, w.array([1])), inner)
    rank = len(n.shape)
    perm = [*range(dim + 1), *range(dim + 2, rank), dim + 1]
    return w.add("Transpose", w.add("Gather", x, index, axis=dim), perm=perm)


def _iota(w: _Writer, n: Node) -> str:
    return w.add("Range", w.array(0), w.size(n.shape[0]), w.array(1))


def _log2(w: _Writer, n: Node, x: str) -> str:
    return w.add("Mul", w.add("Log", x), _scalar(w, 1.4426950408889634, n.dtype))


_ROWS: dict[str, _RowOf] = {
    "input": lambda w, n: str(n.attr),
    "weight": lambda w, n: w.array(n.attr.array, n.dtype.numpy, n.attr.name),
    "constant": lambda w, n: _scalar(w, n.attr, n.dtype),
    "iota": _iota,
    "log2": _log2,
    "exp2": lambda w, n, x: w.add("Pow", _scalar(w, 2, n.dtype), x),
    "sin": _plain("Sin"),
    "sqrt": _plain("Sqrt"),
    "recip": _plain("Reciprocal"),
    "add": _plain("Add"),
    "mul": _mul,
    "mod": _mod,
    "less_than": _less,
    "sum_reduce": _reduce,
    "max_reduce": _reduce,
    "contiguous": _contiguous,
    "permute": lambda w, n, x: w.add("Transpose", x, perm=n.attr),
    "expand": lambda w, n, x: w.add("Expand", x, w.shape(n.shape)),
    "reshape": lambda w, n, x: w.add("Reshape", x, w.shape(n.shape), allowzero=1),
    "slice": _slice,
    "pad": _pad,
    "window": _window,
}
"""op → the ONNX nodes that compute it, given (writer, node, *operand names)."""
