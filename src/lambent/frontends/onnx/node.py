"""What a row of the operator table is, and how it sees one node: attributes, operands, errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from lambent.frontends.onnx.errors import OnnxError
from lambent.frontends.onnx.known import Known, Value
from lambent.frontends.onnx.read import ELEMENTS, array_of
from lambent.graph.dtypes import DTYPES, DType

if TYPE_CHECKING:
    import onnx

Built: TypeAlias = Value | Sequence[Value]

OLDEST, NEWEST = 11, 23
"""Opsets of the main domain. Others are taken where their operators are the same as in these."""


@dataclass(frozen=True, slots=True)
class Row:
    """How an operator is built of lambent's.

    build:  (at, *operands) → result or results. Operands are tensors, None where left out.
    static: operands that are known when the graph is built: given as plain numbers and sizes, in
            nested lists.
    fold:   the same for operands that are all `Known` and have symbolic sizes among them; None
            where the answer depends on them.
    since:  the oldest version of the operator that means the same, until: the newest.
    values: operands stay `Known` where they are: what subgraphs take.
    note:   what it costs, or does not do.
    """

    build: Callable[..., Built]
    static: tuple[int, ...] = ()
    fold: Callable[..., Known | None] | None = None
    since: int = OLDEST
    until: int = NEWEST
    values: bool = False
    note: str = ""


def one(value: Any) -> Any:
    """A static operand that is one number, given as it is or as a vector."""
    return value[0] if isinstance(value, list) else value


def of(f: Callable[..., Built], **more: Any) -> Row:
    """A row for a function of the operands alone."""
    return Row(lambda at, *xs: f(*xs), **more)


@dataclass(frozen=True, slots=True)
class At:
    """One node, as its row sees it.

    attributes: by name, with the defaults of the operator's schema; `at["axis"]` reads one.
    version:    of the operator: the opset that it came with.
    outputs:    how many results the node names (those left out at the end are not counted).
    result:     dtype of the first result, if the schema ties it to an operand.
    run:        builds a subgraph: (graph, operands) → results.
    """

    attributes: Mapping[str, Any]
    version: int
    outputs: int
    result: DType | None
    run: Callable[[Any, Sequence[Value]], list[Value]]

    def __getitem__(self, name: str) -> Any:
        if name not in self.attributes:
            raise OnnxError(f"it needs the attribute {name!r}")
        return self.attributes[name]

    def get(self, name: str, default: Any = None) -> Any:
        return self.attributes.get(name, default)

    def numbers(self, name: str, operand: Any) -> list[Any] | None:
        """What older opsets have as an attribute and newer ones as a static operand."""
        given = self.get(name) if operand is None else operand
        return given if given is None or isinstance(given, list) else [given]

    def need(self, condition: bool, otherwise: str) -> None:
        """Refuse the node unless the condition holds."""
        if not condition:
            raise OnnxError(otherwise)


# ---- attributes ------------------------------------------------------------------------------


def attributes_of(
    node: onnx.NodeProto, schema: Any, given: Mapping[str, Any], folder: Path | None
) -> dict[str, Any]:
    """The node's attributes as Python values, over the schema's defaults.

    Args:
        given: attributes of the function call that the node is inside of, for references to them.

    Raises:
        OnnxError: an attribute that is unknown, of another type, or missing.
    """
    known = {} if schema is None else dict(schema.attributes)
    found = {
        name: python_value(rule.default_value, folder)
        for name, rule in known.items()
        if rule.default_value.type != 0
    }
    for attribute in node.attribute:
        name, kind = attribute.name, int(attribute.type)
        if attribute.ref_attr_name:
            if attribute.ref_attr_name in given:
                found[name] = given[attribute.ref_attr_name]
            continue
        if schema is not None and name not in known:
            raise OnnxError(f"it has no attribute {name!r} in this opset")
        if schema is not None and int(known[name].type) != kind:
            raise OnnxError(f"its attribute {name!r} has the wrong type {kind}")
        found[name] = python_value(attribute, folder)
    missing = [n for n, rule in known.items() if rule.required and n not in found]
    if missing:
        raise OnnxError(f"it lacks the attribute {missing[0]!r}")
    return found


def python_value(attribute: onnx.AttributeProto, folder: Path | None) -> Any:
    """An attribute as a number, text, list, array (of a tensor) or GraphProto.

    Raises:
        OnnxError: a type of attribute that is not supported.
    """
    kind = int(attribute.type)
    if kind in (1, 2):
        return attribute.f if kind == 1 else attribute.i
    if kind == 3:
        return attribute.s.decode(errors="replace")
    if kind == 4:
        return array_of(attribute.t, folder)
    if kind == 5:
        return attribute.g
    if kind in (6, 7):
        return list(attribute.floats if kind == 6 else attribute.ints)
    if kind == 8:
        return [text.decode(errors="replace") for text in attribute.strings]
    raise OnnxError(f"its attribute {attribute.name!r} has the type {kind}: not supported")


# ---- operands and results --------------------------------------------------------------------


def bind_types(schema: Any, operands: Sequence[Value | None]) -> dict[str, DType]:
    """The dtype of every type variable of the schema, from the operands.

    Raises:
        OnnxError: the wrong number of operands, one left out that is needed, dtypes that the
            operator does not take or that differ where they must not.
    """
    if not schema.min_input <= len(operands) <= schema.max_input:
        raise OnnxError(
            f"it takes {schema.min_input} to {schema.max_input} operands, not {len(operands)}"
        )
    allowed = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    bound: dict[str, DType] = {}
    for i, operand in enumerate(operands):
        formal = schema.inputs[min(i, len(schema.inputs) - 1)]
        if operand is None:
            if formal.option.name == "Single":
                raise OnnxError(f"its operand {formal.name!r} is left out")
            continue
        kind, said = formal.type_str, f"tensor({onnx_name(operand.dtype)})"
        if said not in allowed.get(kind, [kind]):
            raise OnnxError(f"its operand {formal.name!r} must not be {operand.dtype}")
        if formal.is_homogeneous and bound.setdefault(kind, operand.dtype) != operand.dtype:
            raise OnnxError(
                f"its operand {formal.name!r} is {operand.dtype}, but must be {bound[kind]} as "
                "others are"
            )
    return bound


def onnx_name(dtype: DType) -> str:
    """What ONNX calls one of our dtypes."""
    return next(name for name, ours in ELEMENTS.values() if ours == dtype.name)


def result_types(schema: Any, bound: Mapping[str, DType], count: int) -> list[DType | None]:
    """The dtype of every result that the schema determines."""
    fixed = {f"tensor({name})": DTYPES[ours] for name, ours in ELEMENTS.values() if ours}
    formals = [schema.outputs[min(i, len(schema.outputs) - 1)] for i in range(count)]
    return [
        (bound.get(f.type_str) or fixed.get(f.type_str)) if f.is_homogeneous else None
        for f in formals
    ]
