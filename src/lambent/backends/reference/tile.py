"""The tile program run by NumPy: the executable meaning of `kernel.tile`.

It tests lowering without a compiler. A value is an `Array`: named dims, axes ascending. Every
statement does what the page of the grammar says, one tile at a time; nothing is fused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from lambent.graph.dim import Size, axes_in, evaluate, values_in
from lambent.graph.dtypes import DType
from lambent.kernel.tile import (
    Accumulate,
    Dot,
    For,
    Index,
    Let,
    Lit,
    Load,
    Map,
    Reduce,
    Ref,
    Stmt,
    Store,
    TileProgram,
    Value,
    Var,
)

NDArray = np.ndarray[Any, Any]


class Array(NamedTuple):
    """An array with named dims: `data.ndim == len(axes)`, axes ascending."""

    axes: tuple[int, ...]
    data: NDArray


def together(arrays: tuple[Array, ...]) -> tuple[tuple[int, ...], list[NDArray]]:
    """The union of axes, and the arrays with dims of 1 for the axes that they lack."""
    axes = tuple(sorted({a for x in arrays for a in x.axes}))
    return axes, [
        x.data.reshape([x.data.shape[x.axes.index(a)] if a in x.axes else 1 for a in axes])
        for x in arrays
    ]


def _mask(b: NDArray, x: NDArray) -> NDArray:
    return np.where(b, x, np.zeros((), x.dtype))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "log2": np.log2, "exp2": np.exp2, "sin": np.sin, "sqrt": np.sqrt, "recip": lambda x: 1 / x,
    "not": np.logical_not, "add": np.add, "sub": np.subtract, "mul": np.multiply, "mod": np.mod,
    "less": np.less, "eq": np.equal, "mask": _mask, "fmax": np.fmax, "select": np.where,
    "sum": np.add, "max": np.maximum,
}  # fmt: skip


def converted(x: NDArray, dtype: DType) -> NDArray:
    """x rounded to the dtype, and held in its compute dtype."""
    if dtype.is_integer and x.dtype.kind == "f":  # NumPy leaves narrow targets to the machine
        x = np.nan_to_num(np.trunc(x), nan=0.0).astype(np.int64)
    return x.astype(dtype.numpy).astype(dtype.compute.numpy)


class Readable(Protocol):
    """An array, or what reads like one."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def size(self) -> int: ...

    def __getitem__(self, places: Any) -> Any: ...


def gather(array: Readable, index: tuple[Array, ...], dtype: DType) -> Array:
    """array[index], each index clamped into its dim; 0 where the array has no elements."""
    axes, parts = together(index)
    if not array.size:
        shape = np.broadcast_shapes(*(p.shape for p in parts))
        return Array(axes, np.zeros(shape, dtype.numpy))
    clamped = [np.clip(p, 0, n - 1) for p, n in zip(parts, array.shape, strict=True)]
    return Array(axes, np.asarray(array[tuple(clamped)]))


@dataclass(slots=True)
class _Machine:
    """`indices`: the indices of each axis, of the current tile where it is looped."""

    program: TileProgram
    buffers: dict[str, NDArray]
    symbols: Mapping[str, int]
    indices: dict[int, NDArray]
    names: dict[str, Array]

    def run(self, body: tuple[Stmt, ...]) -> None:
        for stmt in body:
            match stmt:
                case For():
                    self.loop(stmt)
                case Let(name=name, value=value):
                    self.names[name] = self.value(value)
                case Var():
                    shape = [len(self.indices[a]) for a in sorted(stmt.axes)]
                    data = np.full(shape, stmt.init, stmt.dtype.compute.numpy)
                    self.names[stmt.name] = Array(tuple(sorted(stmt.axes)), data)
                case Accumulate():
                    self.accumulate(stmt)
                case Store():
                    self.store(stmt)

    def loop(self, stmt: For) -> None:
        origins = {a: int(i[0]) for a, i in self.indices.items() if len(i)}
        ends = stmt.start, stmt.stop
        values = {v: int(self.names[v.name].data) for e in ends for v in values_in(e)}
        start, stop = (int(evaluate(e, self.symbols, origins, values)) for e in ends)
        whole = self.indices[stmt.axis]
        tile = self.program.axes[stmt.axis].tile
        for origin in range(start, stop, tile):
            self.indices[stmt.axis] = whole[origin : origin + tile]
            self.run(stmt.body)
        self.indices[stmt.axis] = whole

    def accumulate(self, stmt: Accumulate) -> None:
        old = self.names[stmt.name]
        new = old
        if stmt.scale is not None:
            new = self.combine("mul", (new, self.value(stmt.scale)))
        new = self.combine(stmt.op, (new, self.value(stmt.value)))
        assert new.axes == old.axes, f"{stmt.name}: the value has axes that the Var lacks"
        self.names[stmt.name] = Array(new.axes, new.data.astype(old.data.dtype))

    def store(self, stmt: Store) -> None:
        buffer = self.buffers[stmt.buffer]
        _, (*index, data) = together((*(self.index(i) for i in stmt.index), self.value(stmt.value)))
        shape = np.broadcast_shapes(*(i.shape for i in index), data.shape)
        if 0 not in shape:
            buffer[tuple(index)] = np.broadcast_to(data, shape).astype(buffer.dtype)

    def index(self, index: Size) -> Array:
        axes = tuple(sorted(axes_in(index)))
        named = {a: Array((a,), self.indices[a]) for a in axes}
        values: dict[Any, Array] = {v: self.names[v.name] for v in values_in(index)}
        keys = [*named, *values]
        every, parts = together((*named.values(), *values.values()))
        given = dict(zip(keys, parts, strict=True))
        data = evaluate(index, self.symbols, given, given)
        return Array(every, np.asarray(data, np.int64))

    def combine(self, op: str, args: tuple[Array, ...]) -> Array:
        axes, parts = together(args)
        return Array(axes, np.asarray(FUNCTIONS[op](*parts)))

    def value(self, value: Value) -> Array:
        match value:
            case Load(buffer=buffer, index=index, dtype=dtype):
                found = gather(self.buffers[buffer], tuple(map(self.index, index)), dtype)
                return Array(found.axes, found.data.astype(dtype.compute.numpy))
            case Lit(value=number, dtype=dtype):
                return Array((), np.asarray(number, dtype.compute.numpy))
            case Index(index=i):
                return self.index(i)
            case Ref(name=name):
                return self.names[name]
            case Map(op="cast", args=(arg,), dtype=dtype):
                x = self.value(arg)
                return Array(x.axes, converted(x.data, dtype))
            case Map(op=op, args=args, dtype=dtype):
                out = self.combine(op, tuple(self.value(a) for a in args))
                return Array(out.axes, out.data.astype(dtype.compute.numpy))
            case Reduce(op=op, axes=axes, arg=arg):
                return reduce(op, axes, self.value(arg))
            case Dot(axes=axes, a=a, b=b):
                return dot(axes, self.value(a), self.value(b))


def reduce(op: str, axes: frozenset[int], x: Array) -> Array:
    """sum, max or fmax of x over the axes, all of which x has."""
    missing = axes - set(x.axes)
    if missing:
        raise ValueError(f"{op} over axes {sorted(missing)} that its argument lacks")
    dims = tuple(i for i, a in enumerate(x.axes) if a in axes)
    rest = tuple(a for a in x.axes if a not in axes)
    if op == "sum":
        return Array(rest, np.asarray(np.add.reduce(x.data, axis=dims, dtype=x.data.dtype)))
    function = np.maximum if op == "max" else np.fmax
    return Array(rest, np.asarray(function.reduce(x.data, axis=dims, initial=least(x.data.dtype))))


def least(dtype: np.dtype[Any]) -> Any:
    """The identity of a maximum."""
    if dtype.kind == "b":
        return False
    return -math.inf if dtype.kind == "f" else int(np.iinfo(dtype).min)


def dot(axes: frozenset[int], a: Array, b: Array) -> Array:
    """The sum over axes of a·b: one product of matrices for each index of the other shared axes."""
    batch = [x for x in a.axes if x in b.axes and x not in axes]
    rows = [x for x in a.axes if x not in axes and x not in batch]
    columns = [x for x in b.axes if x not in axes and x not in batch]
    inner = sorted(axes)
    sizes = dict(zip(a.axes + b.axes, a.data.shape + b.data.shape, strict=True))
    shape = [math.prod(sizes[x] for x in part) for part in (batch, rows, inner, columns)]
    left = a.data.transpose([a.axes.index(x) for x in batch + rows + inner])
    right = b.data.transpose([b.axes.index(x) for x in batch + inner + columns])
    out = np.matmul(left.reshape(shape[:3]), right.reshape([shape[0], *shape[2:]]))
    every = batch + rows + columns
    out = out.reshape([sizes[x] for x in every])
    order = sorted(every)
    return Array(tuple(order), out.transpose([every.index(x) for x in order]))


def interpret(
    program: TileProgram, buffers: Mapping[str, NDArray], symbols: Mapping[str, int] | None = None
) -> dict[str, NDArray]:
    """The outputs by buffer name, computed in each dtype's compute dtype.

    Args:
        buffers: the kernel's inputs by name, of their buffers' shapes and dtypes.
        symbols: the value of every symbol of the shapes.

    Raises:
        KeyError: a missing input or symbol.
        ValueError: an input of the wrong shape.
    """
    symbols = symbols or {}
    kernel = program.kernel
    memory: dict[str, NDArray] = {}
    for buffer in kernel.inputs:
        shape = tuple(int(evaluate(n, symbols)) for n in buffer.shape)
        if buffers[buffer.name].shape != shape:
            raise ValueError(f"{buffer.name}: shape {buffers[buffer.name].shape}, not {shape}")
        memory[buffer.name] = buffers[buffer.name]
    for output in kernel.outputs:
        shape = tuple(int(evaluate(n, symbols)) for n in output.buffer.shape)
        memory[output.buffer.name] = np.zeros(shape, output.buffer.dtype.numpy)
    extents = {i: int(evaluate(axis.extent, symbols)) for i, axis in program.axes.items()}
    indices = {i: np.arange(n, dtype=np.int64) for i, n in extents.items()}
    with np.errstate(all="ignore"):
        _Machine(program, memory, symbols, indices, {}).run(program.body)
    return {o.buffer.name: memory[o.buffer.name] for o in kernel.outputs}
