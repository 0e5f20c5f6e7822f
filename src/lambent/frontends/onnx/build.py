"""from_onnx: a model's inputs, with their sizes, and its outputs; the nodes are in `walk`."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

import lambent as lt
from lambent.frontends.onnx.errors import OnnxError
from lambent.frontends.onnx.host import Call
from lambent.frontends.onnx.known import Known, Value, as_tensor
from lambent.frontends.onnx.read import dtype_of, load_model
from lambent.frontends.onnx.walk import Build, Scope, domain_of
from lambent.graph.dim import Dim, Size, symbol_range, symbols_in
from lambent.graph.dim import evaluate as size_at
from lambent.graph.tensor import Tensor

if TYPE_CHECKING:
    import onnx

DimLike = int | tuple[int, ...] | Dim

DEFAULT = (1, 4096)
"""The range of a dim that nothing is said of."""

BYTES = 1 << 40
"""What an input or output may not exceed at its smallest sizes."""


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
        dims: of the model's named dims, a fixed size, a range (least, greatest), the same with a
            number that sizes are a multiple of, or a Dim. A named dim that is not among them is
            `Dim(name, 1, 4096)`; one without a name is called `input_0` by input and axis. A name
            that has another range already gets a number.
        shapes: of inputs, where the model has none or another is wanted: numbers and names of dims.
        values: of inputs that are to be constants: what shapes and conditions depend on.

    Raises:
        OnnxError: a ValueError; the model is broken, or has an operator, an opset, a dtype or a
            size that is not supported. The message names the node.
        OSError: no such file.
        ModuleNotFoundError: the package onnx is not installed.
    """
    return imported(source, dims, shapes, values)[0]


def imported(
    source: Any,
    dims: Mapping[str, DimLike] | None,
    shapes: Mapping[str, Sequence[int | str | Dim]] | None,
    values: Mapping[str, Any] | None,
    host: bool = False,
) -> tuple[dict[str, Tensor], list[Call]]:
    """The outputs of a model by name and, where the host may run nodes, its calls in order."""
    model, folder = load_model(source)
    calls: list[Call] = []
    build = Build(
        {domain_of(entry): entry.version for entry in model.opset_import},
        {(f.domain, f.name): f for f in model.functions},
        folder,
        calls=calls if host else None,
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
    named = zip(model.graph.output, outputs, strict=True)
    return {entry.name: as_tensor(value) for entry, value in named}, calls


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


def _symbol(name: str, low: int, high: int, multiple: int = 1) -> Dim:
    """The symbol of this name and range; numbered where another model has it with another."""
    if low < 0 or multiple < 1 or -(-low // multiple) > high // multiple:
        raise ValueError(f"no size of {name!r} in {low} … {high} is a multiple of {multiple}")
    i = 1
    while True:
        try:
            return Dim(name if i == 1 else f"{name}_{i}", low, high, multiple=multiple)
        except ValueError:  # it has another range already
            i += 1


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
