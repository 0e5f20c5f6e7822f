"""ONNX graph → lambent graph: node after node by the table, what is known folded on the way."""

from __future__ import annotations

import itertools
import keyword
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import lambent as lt
from lambent.frontends.onnx.errors import NeedsValue, OnnxError
from lambent.frontends.onnx.known import Known, Value, as_tensor, evaluated, foldable, known
from lambent.frontends.onnx.node import (
    OLDEST,
    At,
    Row,
    attributes_of,
    bind_types,
    python_value,
    result_types,
)
from lambent.frontends.onnx.read import array_of, dtype_of, element_of, load_model
from lambent.frontends.onnx.table import ADVICE, TABLE
from lambent.graph.dim import Dim, Size, symbol_range, symbols_in
from lambent.graph.dim import evaluate as size_at
from lambent.graph.dtypes import DType, as_dtype
from lambent.graph.node import topo
from lambent.graph.tensor import Tensor

if TYPE_CHECKING:
    import onnx

Scope = dict[str, Value | None]
"""Values by name; None for an operand of a function that a call leaves out."""
DimLike = int | tuple[int, int] | Dim

VARIADIC = 100
"""Operators that take more operands than this take any number."""

DEFAULT = (1, 4096)
"""The range of a dim that nothing is said of."""

NODES = 100_000
"""Most nodes of a model, after unrolling."""

DEPTH = 32
"""Most subgraphs and functions inside of each other."""

BYTES = 1 << 40
"""What an input or output may not exceed at its smallest sizes."""

REASONS = (ValueError, TypeError, LookupError, ArithmeticError)
"""How lambent's ops refuse their operands."""


def from_onnx(
    source: Any,
    *,
    dims: Mapping[str, DimLike] | None = None,
    shapes: Mapping[str, Sequence[int | str | Dim]] | None = None,
    values: Mapping[str, Any] | None = None,
) -> dict[str, Tensor]:
    """The graph of an ONNX model: its outputs by name, for `lambent.compile` and `evaluate`.

    Args:
        source: a path, the bytes of a file, or an `onnx.ModelProto`. Large initialisers in files
            beside the model are mapped into memory, not read.
        dims: of the model's named dims, a fixed size, a range (least, greatest), or a Dim. A named
            dim that is not among them is `Dim(name, 1, 4096)`; one without a name is called
            `input_0` by input and axis. A name that has another range already gets a number.
        shapes: of inputs, where the model has none or another is wanted: numbers and names of dims.
        values: of inputs that are to be constants: what shapes and conditions depend on.

    Raises:
        OnnxError: a ValueError; the model is broken, or has an operator, an opset, a dtype or a
            size that is not supported. The message names the node.
        OSError: no such file.
        ModuleNotFoundError: the package onnx is not installed.
    """
    model, folder = load_model(source)
    build = Build(
        {_domain(entry.domain): entry.version for entry in model.opset_import},
        {(f.domain, f.name): f for f in model.functions},
        folder,
    )
    scope: Scope = {}
    given = {name: np.asarray(value) for name, value in (values or {}).items()}
    own = {t.name for t in model.graph.initializer}
    names = [entry.name for entry in model.graph.input]
    for name in (*given, *(shapes or {})):
        if name not in names:
            raise OnnxError(f"the model has no input {name!r}; it has {', '.join(names)}")
    for entry in model.graph.input:
        if entry.name in scope:
            raise OnnxError(f"two inputs have the name {entry.name!r}")
        if entry.name in given or entry.name not in own:
            scope[entry.name] = _input(entry, dims or {}, shapes or {}, given)
    outputs = build.graph(model.graph, scope)
    for entry, value in zip(model.graph.output, outputs, strict=True):
        _check_output(entry, value)
    return {
        entry.name: as_tensor(value)
        for entry, value in zip(model.graph.output, outputs, strict=True)
    }


# ---- inputs and outputs ----------------------------------------------------------------------


def _input(
    entry: onnx.ValueInfoProto,
    dims: Mapping[str, DimLike],
    shapes: Mapping[str, Sequence[int | str | Dim]],
    values: Mapping[str, Any],
) -> Value:
    """An input of the model: a tensor with its (symbolic) shape, or a value that is given."""
    name, what = entry.name, f"the input {entry.name!r}"
    if not name or not entry.type.HasField("tensor_type"):
        raise OnnxError(f"{what} is no tensor, but {entry.type.WhichOneof('value') or 'nothing'}")
    kind = entry.type.tensor_type
    dtype = dtype_of(kind.elem_type, what)
    if name in values:
        array = values[name]
        if not np.can_cast(array.dtype, dtype.numpy, "same_kind") and array.size:
            raise OnnxError(f"{what} is {dtype}; the value given for it is {array.dtype}")
        return Known(array.astype(dtype.numpy), dtype, name)
    if name in shapes:
        said: list[int | str | Dim] = list(shapes[name])
    elif kind.HasField("shape"):
        said = [d.dim_value if d.HasField("dim_value") else d.dim_param for d in kind.shape.dim]
    else:
        raise OnnxError(f"{what} has no shape; give it: shapes={{{name!r}: (1, …)}}")
    try:
        sizes = [_size(f"{name}_{i}", size, dims) for i, size in enumerate(said)]
        tensor = lt.input(name, sizes, dtype)
    except (ValueError, TypeError) as reason:
        raise OnnxError(f"{what} of shape {said}: {reason}") from None
    _check_bytes(what, tensor)
    return tensor


def _size(unnamed: str, said: int | str | Dim, dims: Mapping[str, DimLike]) -> Size:
    """A dim of an input: a number, what the user says of its name, or a new symbol."""
    if isinstance(said, Dim) or (isinstance(said, int) and said >= 0):
        return said
    name = said if isinstance(said, str) and said not in ("", "?") else unnamed
    symbol = re.sub(r"\W", "_", name, flags=re.ASCII)
    if not symbol.isidentifier() or keyword.iskeyword(symbol):
        symbol = f"_{symbol}"
    wanted = dims.get(name, dims.get(symbol, DEFAULT))
    return wanted if isinstance(wanted, int | Dim) else _symbol(symbol, *wanted)


def _symbol(name: str, low: int, high: int) -> Dim:
    """The symbol of this name and range; numbered where another model has it with another."""
    if not 0 <= low <= high:
        raise ValueError(f"the range {low} … {high} of {name!r} is empty")
    for i in itertools.count(1):
        try:
            return Dim(name if i == 1 else f"{name}_{i}", low, high)
        except ValueError:  # declared with another range
            continue
    raise AssertionError("unreachable")


def _check_bytes(what: str, x: Tensor) -> None:
    """Refuse what cannot be in memory even at the smallest sizes."""
    names = frozenset[str]().union(*map(symbols_in, x.shape)) if x.shape else frozenset()
    least = {name: symbol_range(name)[0] for name in names}
    count = prod(int(size_at(n, least)) for n in x.shape) * x.dtype.itemsize
    if count >= BYTES:
        raise OnnxError(f"{what} of shape {list(x.shape)} has {count:.1e} bytes")


def _check_output(entry: onnx.ValueInfoProto, value: Value) -> None:
    what = f"the output {entry.name!r}"
    if entry.type.HasField("tensor_type") and entry.type.tensor_type.elem_type:
        declared = dtype_of(entry.type.tensor_type.elem_type, what)
        if declared != value.dtype:
            raise OnnxError(f"{what} is declared as {declared}, but is {value.dtype}")
    if isinstance(value, Tensor):
        _check_bytes(what, value)


# ---- graphs and nodes ------------------------------------------------------------------------


@dataclass(slots=True)
class Build:
    """What the nodes of a model share.

    opsets:    version by domain; in a function, its own.
    functions: of the model, by domain and name.
    given:     attributes of the function call that is being imported.
    within:    the nodes whose subgraphs and functions we are in, for messages.
    count:     nodes so far.
    weights:   how many arrays have had a name: branches may use one twice.
    """

    opsets: Mapping[str, int]
    functions: Mapping[tuple[str, str], Any]
    folder: Path | None
    given: Mapping[str, Any] = field(default_factory=dict)
    within: tuple[str, ...] = ()
    count: list[int] = field(default_factory=lambda: [0])
    weights: dict[str, int] = field(default_factory=dict)

    def graph(self, graph: onnx.GraphProto, outer: Mapping[str, Value | None]) -> list[Value]:
        """The outputs of a graph whose inputs are in the scope.

        Raises:
            OnnxError: a node that cannot be imported; names that are written twice or never.
        """
        scope, inputs = dict(outer), [entry.name for entry in graph.input]
        _once("initialisers", [tensor.name for tensor in graph.initializer])
        _once("outputs", [entry.name for entry in graph.output])
        if graph.sparse_initializer:
            raise OnnxError("sparse initialisers are not supported; store them dense")
        for tensor in graph.initializer:
            if tensor.name not in inputs or tensor.name not in scope:  # else it is only a default
                scope[tensor.name] = self.weight(tensor)
        own = {*inputs, *(tensor.name for tensor in graph.initializer)}
        self.nodes(graph.node, scope, own)
        return [_written(scope, entry.name) for entry in graph.output]

    def nodes(self, nodes: Sequence[onnx.NodeProto], scope: Scope, written: set[str]) -> None:
        """Import nodes one after the other; what they write is added to the scope."""
        later = {name: i for i, node in enumerate(nodes) for name in node.output if name}
        for i, node in enumerate(nodes):
            where = self.describe(node, i)
            for name in filter(None, node.input):
                if name not in scope or (name not in written and later.get(name, -1) >= i):
                    raise OnnxError(f"{where}: {_unknown(name, later, nodes)}")
            self.count[0] += 1
            if self.count[0] > NODES:
                raise OnnxError(f"{where}: the model has more than {NODES} nodes, unrolled")
            results = self.node(node, where, scope)
            for name, value in zip(node.output, results, strict=False):
                if name and name in written:
                    raise OnnxError(f"{where}: it writes {name!r}, which is written before")
                if name:
                    scope[name] = value
                    written.add(name)

    def describe(self, node: onnx.NodeProto, i: int) -> str:
        """How messages call a node."""
        name = f"node {node.name!r}" if node.name else f"node {i} (writes {list(node.output)})"
        return " → ".join((*self.within, f"{name}, {node.op_type}"))

    def weight(self, tensor: onnx.TensorProto) -> Known:
        """An initialiser; large ones keep their name, made unique."""
        array = array_of(tensor, self.folder)
        count = self.weights[tensor.name] = self.weights.get(tensor.name, 0) + 1
        name = tensor.name if count == 1 else f"{tensor.name}#{count}"
        return Known(array, as_dtype(array.dtype), name)

    # ---- one node --------------------------------------------------------------------------------

    def node(self, node: onnx.NodeProto, where: str, scope: Scope) -> list[Value | None]:
        """The results of a node.

        Raises:
            OnnxError: it cannot be imported; the message begins with `where`.
        """
        try:
            operands = [scope[name] if name else None for name in node.input]
            results = self.results(node, where, operands, scope)
        except NeedsValue as reason:
            raise NeedsValue(_placed(where, reason), reason.inputs) from None
        except REASONS as reason:
            raise OnnxError(_placed(where, reason)) from reason
        for i, name in enumerate(node.output):
            if name and (i >= len(results) or results[i] is None):
                raise OnnxError(f"{where}: its result {i}, {name!r}, is not supported")
        return results

    def results(
        self, node: onnx.NodeProto, where: str, operands: Sequence[Value | None], scope: Scope
    ) -> list[Value | None]:
        domain = "" if node.domain == "ai.onnx" else node.domain
        own = self.functions.get((node.domain, node.op_type))
        if own is not None:
            attributes = attributes_of(node, None, self.given, self.folder)
            return self.body(own, where, operands, attributes)
        row = TABLE.get((domain, node.op_type))
        schema = self.schema(node, domain, row)
        attributes = attributes_of(node, schema, self.given, self.folder)
        while operands and operands[-1] is None:
            operands = operands[:-1]
        bound = bind_types(schema, operands)
        types = result_types(schema, bound, len(node.output))
        at = At(
            attributes,
            schema.since_version,
            len([*filter(None, node.output)]),
            types[0] if types else None,
            lambda graph, given: self.subgraph(graph, given, where, scope),
        )
        if row is None:
            function = _function(schema, _resolved(node, attributes), operands, self.opsets[""])
            return self.body(function, where, operands, attributes)
        if schema.max_input < VARIADIC:
            operands = [*operands, *[None] * (schema.max_input - len(operands))]
        built = _built(row, at, operands)
        return [_typed(v, types[i] if i < len(types) else None) for i, v in enumerate(built)]

    def schema(self, node: onnx.NodeProto, domain: str, row: Row | None) -> Any:
        """The schema of the node's operator, of a version that the row means.

        Raises:
            OnnxError: an unknown operator, or one of another version.
        """
        from onnx import defs

        advice = ADVICE.get(node.op_type, "docs/onnx.md lists those that are")
        if domain not in self.opsets:
            raise OnnxError(f"the model imports no opset of the domain {domain!r}")
        opset, newest = self.opsets[domain], defs.onnx_opset_version()
        if domain:
            raise OnnxError(f"operators of the domain {domain!r} are not supported")
        if not 1 <= opset <= newest:
            raise OnnxError(f"opset {opset}: the installed package onnx knows 1 to {newest}")
        try:
            schema = defs.get_schema(node.op_type, opset, domain)
        except defs.SchemaError:
            known = [s for s in defs.get_all_schemas_with_history() if s.name == node.op_type]
            why = f"not in opset {opset}" if known else "unknown to ONNX"
            raise OnnxError(f"the operator {node.op_type} is {why}") from None
        if row is None and (not _bodies(schema) or node.op_type in ADVICE):
            raise OnnxError(f"the operator {node.op_type} is not supported: {advice}")
        version = schema.since_version
        since, until = (row.since, row.until) if row else (OLDEST, version)
        same = defs.get_schema(node.op_type, max(opset, OLDEST)).since_version == version
        if not (version >= since or same) or version > until or schema.deprecated:
            raise OnnxError(f"version {version} of the operator is not supported, {until} is")
        return schema

    # ---- subgraphs and functions -----------------------------------------------------------------

    def deeper(self, where: str) -> Build:
        if len(self.within) >= DEPTH:
            raise OnnxError(f"more than {DEPTH} subgraphs or functions inside of each other")
        return replace(self, within=(*self.within, where.rpartition(" → ")[2]))

    def subgraph(
        self, graph: onnx.GraphProto, operands: Sequence[Value], where: str, scope: Scope
    ) -> list[Value]:
        """A branch or a body, which sees the names around it."""
        names = [entry.name for entry in graph.input]
        if len(names) != len(operands):
            raise OnnxError(f"its subgraph takes {len(names)} values, not {len(operands)}")
        return self.deeper(where).graph(graph, {**scope, **dict(zip(names, operands, strict=True))})

    def body(
        self,
        function: Any,
        where: str,
        operands: Sequence[Value | None],
        attributes: Mapping[str, Any],
    ) -> list[Value | None]:
        """A call of a function: its body sees its operands and attributes alone."""
        given = {a.name: python_value(a, self.folder) for a in function.attribute_proto}
        opsets = {_domain(entry.domain): entry.version for entry in function.opset_import}
        inside = replace(
            self.deeper(where), opsets=opsets or self.opsets, given={**given, **attributes}
        )
        scope: Scope = dict.fromkeys(function.input)
        scope.update(zip(function.input, operands, strict=False))
        inside.nodes(function.node, scope, set(function.input))
        return [scope.get(name) for name in function.output]


# ---- helpers ---------------------------------------------------------------------------------


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _once(what: str, names: Sequence[str]) -> None:
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise OnnxError(f"two {what} have the name {twice!r}")


def _written(scope: Scope, name: str) -> Value:
    value = scope.get(name)
    if value is None:
        raise OnnxError(f"no node writes the output {name!r}")
    return value


def _unknown(name: str, later: Mapping[str, int], nodes: Sequence[onnx.NodeProto]) -> str:
    if name not in later:
        return f"it reads {name!r}, which nothing writes"
    return (
        f"it reads {name!r}, which {nodes[later[name]].op_type} (node {later[name]}) writes only "
        "later: the graph has a cycle, or its nodes are not in order"
    )


def _placed(where: str, reason: Exception) -> str:
    """The reason with its node in front; one from inside of a subgraph has it already."""
    text = " ".join(str(reason).split()) or type(reason).__name__
    return text if text.startswith(where.partition(":")[0]) else f"{where}: {text}"


def _built(row: Row, at: At, operands: Sequence[Value | None]) -> list[Value]:
    """The row's results; folded where all is known."""
    given = [v for v in operands if isinstance(v, Known)]
    constant = foldable(operands)
    if constant and row.fold is not None and any(v.symbolic for v in given):
        found = row.fold(at, *operands)
        if found is not None:
            return [found]
    arguments: list[Any] = []
    for i, operand in enumerate(operands):
        if operand is None:
            arguments.append(None)
        elif i in row.static:
            arguments.append(_numbers(operand, i))
        else:
            arguments.append(operand if row.values else as_tensor(operand))
    built = row.build(at, *arguments)
    results = [built] if isinstance(built, Tensor | Known) else list(built)
    return evaluated(results) if constant else results


def _numbers(operand: Value, i: int) -> Any:
    """A static operand as numbers and sizes."""
    (value,) = evaluated([operand])
    if isinstance(value, Known):
        return value.array.tolist()
    inputs = [n.attr for n in topo([value.node]) if n.op == "input"]
    some = ", ".join(f"{name!r}: …" for name in inputs)
    raise NeedsValue(
        f"its operand {i} must be known when the graph is built, but depends on "
        f"{', '.join(map(repr, inputs))}; where that is a constant, give values={{{some}}}",
        inputs,
    )


def _typed(value: Value, dtype: DType | None) -> Value:
    """A result in the dtype that the schema says."""
    if dtype is None or value.dtype == dtype:
        return value
    if isinstance(value, Known):
        return known(value.array, dtype)
    if value.dtype.is_float != dtype.is_float:
        raise AssertionError(f"a row gave {value.dtype} where the operator gives {dtype}")
    return value.astype(dtype)


def _bodies(schema: Any) -> list[int]:
    """The opsets that ONNX gives the operator a body of other operators in."""
    fixed = schema.function_opset_versions
    return list(fixed or schema.context_dependent_function_opset_versions)


def _resolved(node: onnx.NodeProto, attributes: Mapping[str, Any]) -> onnx.NodeProto:
    """The node with values for the attributes that refer to those of its function."""
    from onnx import NodeProto, helper

    if not any(attribute.ref_attr_name for attribute in node.attribute):
        return node
    copy: onnx.NodeProto = NodeProto.FromString(node.SerializeToString())
    del copy.attribute[:]
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            copy.attribute.append(attribute)
        elif attribute.name in attributes:
            copy.attribute.append(helper.make_attribute(attribute.name, attributes[attribute.name]))
    return copy


def _function(
    schema: Any, node: onnx.NodeProto, operands: Sequence[Value | None], opset: int
) -> onnx.FunctionProto:
    """The body that ONNX gives an operator."""
    import onnx

    versions = _bodies(schema)
    version = max((v for v in versions if v <= opset), default=min(versions))
    if schema.function_opset_versions:
        data = schema.get_function_with_opset_version(version)
    else:
        types = [_type_of(operand).SerializeToString() for operand in operands]
        data = schema.get_context_dependent_function_with_opset_version(
            version, node.SerializeToString(), types
        )
    function: onnx.FunctionProto = onnx.FunctionProto.FromString(data)
    return function


def _type_of(value: Value | None) -> onnx.TypeProto:
    from onnx import TypeProto, helper

    if value is None:
        return TypeProto()
    shape = [n if isinstance(n, int) else None for n in _shape_of(value)]
    return helper.make_tensor_type_proto(element_of(value.dtype), shape)


def _shape_of(value: Value) -> Sequence[Size]:
    return value.shape if isinstance(value, Tensor) else value.array.shape
