"""ONNX nodes → tensors: one after the other by the table, what is known folded on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lambent.frontends.onnx.errors import NeedsValue, OnnxError
from lambent.frontends.onnx.host import HOSTED, Call, call, is_left
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
from lambent.frontends.onnx.read import array_of, element_of
from lambent.frontends.onnx.table import ADVICE, TABLE
from lambent.graph.dim import Size, symbols_in
from lambent.graph.dtypes import DType, as_dtype
from lambent.graph.node import topo
from lambent.graph.tensor import Tensor

if TYPE_CHECKING:
    import onnx

Scope = dict[str, Value | None]
"""Values by name; None for an operand of a function that a call leaves out."""

VARIADIC = 100
"""Operators that take more operands than this take any number."""

NODES = 100_000
"""Most nodes of a model, after unrolling."""

DEPTH = 32
"""Most subgraphs and functions inside of each other."""

REASONS = (ValueError, TypeError, LookupError, ArithmeticError)
"""How lambent's ops refuse their operands."""


@dataclass(slots=True)
class Build:
    """What the nodes of a model share.

    opsets:    version by domain; in a function, its own.
    functions: of the model, by domain and name.
    given:     attributes of the function call that is being imported.
    within:    the nodes whose subgraphs and functions we are in, for messages.
    count:     nodes so far.
    weights:   how many arrays have had a name: branches may use one twice.
    calls:     of nodes that the host runs; None where it must not.
    """

    opsets: Mapping[str, int]
    functions: Mapping[tuple[str, str], Any]
    folder: Path | None
    given: Mapping[str, Any] = field(default_factory=dict)
    within: tuple[str, ...] = ()
    count: list[int] = field(default_factory=lambda: [0])
    weights: dict[str, int] = field(default_factory=dict)
    calls: list[Call] | None = None

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
        operands = [scope[name] if name else None for name in node.input]
        try:
            results = self.results(node, where, operands, scope)
        except NeedsValue as reason:
            raise NeedsValue(_placed(where, reason), reason.inputs) from None
        except REASONS as reason:
            raise OnnxError(_placed(where, reason) + _narrow(operands)) from reason
        for i, name in enumerate(node.output):
            if name and (i >= len(results) or results[i] is None):
                raise OnnxError(f"{where}: its result {i}, {name!r}, is not supported")
        return results

    def results(
        self, node: onnx.NodeProto, where: str, operands: Sequence[Value | None], scope: Scope
    ) -> list[Value | None]:
        domain = domain_of(node)
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
            max((i for i, name in enumerate(node.output, 1) if name), default=0),
            types[0] if types else None,
            lambda graph, given: self.subgraph(graph, given, where, scope),
        )
        if row is None and not self.hosted(node):
            function = _function(schema, _resolved(node, attributes), operands, self.opsets[""])
            return self.body(function, where, operands, attributes)
        if schema.max_input < VARIADIC:
            operands = [*operands, *[None] * (schema.max_input - len(operands))]
        try:
            if row is None or is_left(where, node.op_type, at, operands, self.hosted(node)):
                built: list[Value] = self.call(node, where, at, operands)
            else:
                built = _built(row, at, operands)
        except NeedsValue:
            if not self.hosted(node):
                raise
            built = self.call(node, where, at, operands)
        return [_typed(v, types[i] if i < len(types) else None) for i, v in enumerate(built)]

    def hosted(self, node: onnx.NodeProto) -> bool:
        """Whether the host may run the node."""
        return self.calls is not None and domain_of(node) == "" and node.op_type in HOSTED

    def call(
        self, node: onnx.NodeProto, where: str, at: At, operands: Sequence[Value | None]
    ) -> list[Value]:
        """The results of a node that the host runs: inputs of what comes after."""
        assert self.calls is not None
        made = call(where, node.op_type, at, operands, len(self.calls))
        self.calls.append(made)
        return list(made.results)

    def schema(self, node: onnx.NodeProto, domain: str, row: Row | None) -> Any:
        """The schema of the node's operator, of a version that the row means.

        Raises:
            OnnxError: an unknown operator, or one of another version.
        """
        from onnx import defs

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
        own = _bodies(schema) and node.op_type not in ADVICE
        if row is None and not (own or self.hosted(node)):
            advice = ADVICE.get(node.op_type, "replace it, or cut the model before it")
            raise OnnxError(f"the operator {node.op_type} is not supported; {advice}")
        version = schema.since_version
        since, until = (row.since, row.until) if row else (OLDEST, version)
        same = defs.get_schema(node.op_type, max(opset, OLDEST)).since_version == version
        if not (version >= since or same) or version > until or schema.deprecated:
            raise OnnxError(f"version {version} of the operator: {since} to {until} are supported")
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
        opsets = {domain_of(entry): entry.version for entry in function.opset_import}
        inside = replace(
            self.deeper(where), opsets=opsets or self.opsets, given={**given, **attributes}
        )
        scope: Scope = dict.fromkeys(function.input)
        scope.update(zip(function.input, operands, strict=False))
        inside.nodes(function.node, scope, set(function.input))
        return [scope.get(name) for name in function.output]


# ---- helpers ---------------------------------------------------------------------------------


def domain_of(entry: Any) -> str:
    """The domain of a node or an import; the main one has two names."""
    return "" if entry.domain == "ai.onnx" else str(entry.domain)


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


def _narrow(operands: Sequence[Value | None]) -> str:
    """The way out where sizes are symbols, which may be the reason."""
    shapes = [v.shape for v in operands if isinstance(v, Tensor)]
    names = sorted({name for shape in shapes for size in shape for name in symbols_in(size)})
    some = ", ".join(f"{name.partition('/')[0]!r}: …" for name in names)
    return f"; where a size is the reason, fix or narrow it: dims={{{some}}}" if names else ""


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
    if value.dtype.is_float and not dtype.is_float:
        raise OnnxError(f"it is not supported for {dtype}; cast to float32 before it")
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
