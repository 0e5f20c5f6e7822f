"""The canonical form of a kernel: equal kernels of different places share measurements.

Axes, buffers and terms are renumbered in the order in which the outputs reach them. The text says
everything that lowering and rendering look at, so that equal texts mean equal code.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lambent.algebra.term import Term, Terms, walk
from lambent.graph.dim import (
    Atom,
    Size,
    axes_in,
    axis,
    substitute,
    symbol_range,
    symbols_in,
    terms_of,
    value,
)  # fmt: skip
from lambent.kernel.kernel import Buffer, Kernel, Output


@dataclass(frozen=True, slots=True)
class Canonical:
    """`buffers`: the place's own buffers, outputs then inputs, in the order of the kernel's."""

    kernel: Kernel
    text: str
    buffers: tuple[Buffer, ...]


def canonical(kernel: Kernel) -> Canonical:
    """The kernel over axes 0, 1, … and buffers o0, …, i0, … in order of appearance."""
    order = list(walk(*(o.term for o in kernel.outputs)))
    axes = _axes(kernel, order)
    extents = {new: kernel.extents[old] for old, new in axes.items()}
    given = {b.name: b for b in kernel.inputs}
    names: dict[str, str] = {}
    for t in order:
        if t.op == "in":
            names.setdefault(t.args[0], f"i{len(names)}")
    inputs = tuple(given[n] for n in names)
    built = _Rebuilt(axes, names)
    terms = [built.term(t) for t in order]
    memo = dict(zip(order, terms, strict=True))
    outputs = tuple(
        Output(
            _named(o.buffer, f"o{i}"), tuple(built.index(e) for e in o.index), memo[o.term]
        )
        for i, o in enumerate(kernel.outputs)
    )  # fmt: skip
    renamed = tuple(_named(b, names[b.name]) for b in inputs)
    found = Kernel(outputs, renamed, extents)
    return Canonical(found, _text(found, terms), (*(o.buffer for o in kernel.outputs), *inputs))


def _named(b: Buffer, name: str) -> Buffer:
    return Buffer(name, b.dtype, b.shape, b.weight)


def _axes(kernel: Kernel, order: list[Term]) -> dict[int, int]:
    """Old axis → new: free axes as the outputs index them, then as terms bind or read them."""
    found: dict[int, None] = {}
    for o in kernel.outputs:
        for e in o.index:
            found.update(dict.fromkeys(_in_order(e)))
    for t in order:
        for e in t.indices:
            found.update(dict.fromkeys(_in_order(e)))
        found.update(dict.fromkeys(sorted(t.axes)))
    found.update(dict.fromkeys(sorted(kernel.extents)))
    return {old: new for new, old in enumerate(found)}


def _in_order(e: Size) -> Iterable[int]:
    flat = [a.args[0] for _, m in terms_of(e) for a, _ in m if a.kind == "axis"]
    return [*flat, *sorted(axes_in(e))]


@dataclass(slots=True)
class _Rebuilt:
    axes: dict[int, int]
    names: dict[str, str]
    terms: Terms
    done: dict[Term, Term]

    def __init__(self, axes: dict[int, int], names: dict[str, str]) -> None:
        self.axes, self.names = axes, names
        self.terms, self.done = Terms(), {}

    def term(self, t: Term) -> Term:
        """Operands come before users, so they are there."""
        args = t.args
        if t.op == "in":
            args = (self.names[args[0]], tuple(self.index(e) for e in args[1]))
        elif t.op == "val":
            args = (self.index(args[0]),)
        elif t.axes:
            args = (frozenset(self.axes[a] for a in t.axes),)
        self.done[t] = self.terms.make(t.op, args, [self.done[k] for k in t.kids], t.dtype)
        return self.done[t]

    def index(self, e: Size) -> Size:
        return substitute(e, self._atom)

    def _atom(self, atom: Atom) -> Size | None:
        if atom.kind == "axis":
            return axis(self.axes[atom.args[0]])
        if atom.kind == "value":
            return value(self.done[atom.args[0]])
        return None


def _text(kernel: Kernel, terms: list[Term]) -> str:
    lines = []
    sizes: list[Size] = list(kernel.extents.values())
    for b in (*(o.buffer for o in kernel.outputs), *kernel.inputs):
        sizes += b.shape
        kind = " weight" if b.weight else ""
        lines.append(f"{b.name}: {b.dtype.name}[{', '.join(map(str, b.shape))}]{kind}")
    lines += [f"a{a} < {e}" for a, e in kernel.extents.items()]
    number = {t: i for i, t in enumerate(dict.fromkeys(terms))}
    for t, i in number.items():
        args = ", ".join(_argument(a) for a in t.args)
        kids = " ".join(f"v{number[k]}" for k in t.kids)
        lines.append(f"v{i} = {t.op} {t.dtype.name} ({args}) {kids}")
        sizes += t.indices
    for o in kernel.outputs:
        lines.append(f"{o.buffer.name}[{', '.join(map(str, o.index))}] = v{number[o.term]}")
        sizes += o.index
    for s in sorted(frozenset[str]().union(*map(symbols_in, sizes))):
        lines.append("{} in {}..{}".format(s, *symbol_range(s)))
    return "\n".join(lines)


def _argument(a: object) -> str:
    if isinstance(a, frozenset):
        return "{" + ",".join(f"a{i}" for i in sorted(a)) + "}"
    if isinstance(a, tuple):
        return "[" + ", ".join(map(str, a)) + "]"
    return str(a)
