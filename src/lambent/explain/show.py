"""Tile programs as text, one fact or statement a line, in the manner of Triton."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lambent.graph.dim import Size
from lambent.graph.dim import show as show_size
from lambent.kernel import tile as ir
from lambent.kernel.kernel import Kernel

INFIX = {"add": "+", "sub": "-", "mul": "*", "mod": "%", "less": "<", "eq": "=="}


def show(program: ir.TileProgram) -> str:
    """The program's text: outputs and inputs, axes with their tiles, then the statements."""
    lines = [f"kernel({', '.join(_buffers(program.kernel))}):"]
    looped = {s.axis for s in ir.statements(program.body) if isinstance(s, ir.For)}
    for i, a in program.axes.items():
        cut = f"tiles of {a.tile}" if i in looped else "whole"
        lines.append(f"  axis a{i}: {show_size(a.extent)}, {cut}")
    lines.extend(_lines(program, program.body, "  "))
    return "\n".join(lines) + "\n"


def _buffers(kernel: Kernel) -> list[str]:
    every = (*(o.buffer for o in kernel.outputs), *kernel.inputs)
    return [f"{b.name}: {b.dtype.name}[{_sizes(b.shape)}]" for b in every]


def _lines(program: ir.TileProgram, body: tuple[ir.Stmt, ...], pad: str) -> Iterator[str]:
    for stmt in body:
        yield pad + _line(program, stmt)
        if isinstance(stmt, ir.For):
            yield from _lines(program, stmt.body, pad + "  ")


def _line(program: ir.TileProgram, stmt: ir.Stmt) -> str:
    match stmt:
        case ir.For(axis=i):
            word = "parallel for" if stmt.parallel else "for"
            return f"{word} a{i} in range({_sizes((stmt.start, stmt.stop, program.axes[i].tile))}):"
        case ir.Let(name=name, value=value):
            own = ir.axes_of(value)
            dims = f"[{_axes(sorted(own), ', ')}]" if own else ""
            return f"{name}{dims} = {text(value)}"
        case ir.Var():
            return f"{stmt.name}[{_axes(stmt.axes, ', ')}] = full({stmt.init}, {stmt.dtype.name})"
        case ir.Accumulate():
            old = stmt.name if stmt.scale is None else f"{stmt.name} * {text(stmt.scale, True)}"
            if stmt.op == "sum":
                return f"{stmt.name} = {old} + {text(stmt.value)}"
            return f"{stmt.name} = {stmt.op}({old}, {text(stmt.value)})"
        case ir.Store():
            return f"{stmt.buffer}[{_sizes(stmt.index)}] = {text(stmt.value)}"


def text(value: ir.Value, nested: bool = False) -> str:
    """One value as an expression; in brackets where it is nested and infix."""
    match value:
        case ir.Load():
            return f"{value.buffer}[{_sizes(value.index)}]"
        case ir.Lit(value=x):
            return f"{x:.7g}" if isinstance(x, float) else str(x)
        case ir.Index(index=index):
            return f"({show_size(index)})" if nested else show_size(index)
        case ir.Ref(name=name):
            return name
        case ir.Reduce(op=op, axes=axes, arg=arg):
            return f"{op}(over {_axes(sorted(axes), ' ')}: {text(arg)})"
        case ir.Dot(axes=axes, a=a, b=b):
            return f"dot(over {_axes(sorted(axes), ' ')}: {text(a)}, {text(b)})"
        case ir.Map(op=op, args=args) if op in INFIX:
            out = f"{text(args[0], True)} {INFIX[op]} {text(args[1], True)}"
            return f"({out})" if nested else out
        case ir.Map(op=op, args=args):
            name = value.dtype.name if op == "cast" else op
            return f"{name}({', '.join(map(text, args))})"


def _axes(axes: Iterable[int], between: str) -> str:
    return between.join(f"a{i}" for i in axes)


def _sizes(sizes: Iterable[Size]) -> str:
    return ", ".join(map(show_size, sizes))
