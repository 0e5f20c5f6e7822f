"""A tile program as text, one statement a line, in the manner of Triton: what `explain` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lambent.graph.dim import Size
from lambent.graph.dim import show as show_size
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
    axes_of,
)

INFIX = {"add": "+", "sub": "-", "mul": "*", "mod": "%", "less": "<", "eq": "=="}


def show(program: TileProgram) -> str:
    """The program's text: outputs and inputs, axes with their tiles, then the statements."""
    kernel = program.kernel
    buffers = [
        f"{b.name}: {b.dtype.name}[{', '.join(map(show_size, b.shape))}]"
        for b in (*(o.buffer for o in kernel.outputs), *kernel.inputs)
    ]
    lines = [f"kernel({', '.join(buffers)}):"]
    looped = _looped(program.body)
    for i, a in program.axes.items():
        cut = f"tiles of {a.tile}" if i in looped else "whole"
        lines.append(f"  axis a{i}: {show_size(a.extent)}, {cut}")
    lines.extend(_statements(program.body, 1, {i: a.tile for i, a in program.axes.items()}))
    return "\n".join(lines) + "\n"


def _looped(body: tuple[Stmt, ...]) -> frozenset[int]:
    loops = [stmt for stmt in body if isinstance(stmt, For)]
    return frozenset(s.axis for s in loops).union(*(_looped(s.body) for s in loops))


def _statements(body: tuple[Stmt, ...], depth: int, tiles: Mapping[int, int]) -> Iterator[str]:
    pad = "  " * depth
    for stmt in body:
        match stmt:
            case For():
                word = "parallel for" if stmt.parallel else "for"
                ends = f"{show_size(stmt.start)}, {show_size(stmt.stop)}, {tiles[stmt.axis]}"
                yield f"{pad}{word} a{stmt.axis} in range({ends}):"
                yield from _statements(stmt.body, depth + 1, tiles)
            case Let(name=name, value=value):
                yield f"{pad}{name}{_dims(axes_of(value))} = {text(value)}"
            case Var():
                axes = ", ".join(f"a{i}" for i in stmt.axes)
                yield f"{pad}{stmt.name}[{axes}] = full({stmt.init}, {stmt.dtype.name})"
            case Accumulate():
                old = stmt.name if stmt.scale is None else f"{stmt.name} * {text(stmt.scale, True)}"
                if stmt.op == "sum":
                    yield f"{pad}{stmt.name} = {old} + {text(stmt.value)}"
                else:
                    yield f"{pad}{stmt.name} = {stmt.op}({old}, {text(stmt.value)})"
            case Store():
                yield f"{pad}{stmt.buffer}[{_index(stmt.index)}] = {text(stmt.value)}"


def text(value: Value, nested: bool = False) -> str:
    """One value as an expression; in brackets where it is nested and infix."""
    match value:
        case Load():
            return f"{value.buffer}[{_index(value.index)}]"
        case Lit(value=x):
            return f"{x:.7g}" if isinstance(x, float) else str(x)
        case Index(index=index):
            return f"({show_size(index)})" if nested else show_size(index)
        case Ref(name=name):
            return name
        case Reduce():
            return f"{value.op}(over {_axes(value.axes)}: {text(value.arg)})"
        case Dot():
            return f"dot(over {_axes(value.axes)}: {text(value.a)}, {text(value.b)})"
        case Map(op=op, args=args) if op in INFIX:
            out = f"{text(args[0], True)} {INFIX[op]} {text(args[1], True)}"
            return f"({out})" if nested else out
        case Map(op="cast", args=(arg,), dtype=dtype):
            return f"{dtype.name}({text(arg)})"
        case Map(op=op, args=args):
            return f"{op}({', '.join(text(a) for a in args)})"


def _axes(axes: frozenset[int]) -> str:
    return " ".join(f"a{i}" for i in sorted(axes))


def _dims(axes: frozenset[int]) -> str:
    return f"[{', '.join(f'a{i}' for i in sorted(axes))}]" if axes else ""


def _index(index: tuple[Size, ...]) -> str:
    return ", ".join(map(show_size, index))
