"""The canonical form of a kernel: equal kernels of different places share measurements.

Axes, buffers and terms are renumbered in the order in which the outputs reach them. The text says
everything that lowering and rendering look at, so that equal texts mean equal code.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lambent.algebra.term import Term, Terms, walk
from lambent.graph.dim import Atom, Size, axes_in, axis, symbol_range, symbols_in, terms_of, value
from lambent.graph.prove import substitute
from lambent.kernel.kernel import Buffer, Kernel, Output


@dataclass(slots=True)
class Canonical:
    """`text` is the identity; `buffers` the place's own, outputs then inputs, as in the kernel."""

    given: Kernel
    text: str
    buffers: tuple[Buffer, ...]
    _axes: dict[int, int]
    _names: dict[str, str]
    _kernel: Kernel | None = None

    @property
    def kernel(self) -> Kernel:
        """The kernel over axes 0, 1, … and buffers o0, …, i0, … (made on first use)."""
        if self._kernel is None:
            self._kernel = _rebuilt(self)
        return self._kernel


def canonical(kernel: Kernel) -> Canonical:
    """Number the axes and name the buffers of a kernel in order of appearance."""
    order = list(walk(*(o.term for o in kernel.outputs)))
    axes = _axes(kernel, order)
    given = {b.name: b for b in kernel.inputs}
    names: dict[str, str] = {}
    for t in order:
        if t.op == "in":
            names.setdefault(t.args[0], f"i{len(names)}")
    buffers = (*(o.buffer for o in kernel.outputs), *(given[n] for n in names))
    return Canonical(kernel, _text(kernel, order, axes, names, buffers), buffers, axes, names)


def _rebuilt(form: Canonical) -> Kernel:
    kernel = form.given
    built = _Rebuilt(form._axes, form._names)
    memo = {t: built.term(t) for t in walk(*(o.term for o in kernel.outputs))}
    outputs = tuple(
        Output(_named(o.buffer, f"o{i}"), tuple(built.index(e) for e in o.index), memo[o.term])
        for i, o in enumerate(kernel.outputs)
    )
    inputs = form.buffers[len(kernel.outputs) :]
    renamed = tuple(_named(b, form._names[b.name]) for b in inputs)
    return Kernel(outputs, renamed, {new: kernel.extents[old] for old, new in form._axes.items()})


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


def _text(
    kernel: Kernel,
    order: list[Term],
    axes: dict[int, int],
    names: dict[str, str],
    buffers: tuple[Buffer, ...],
) -> str:
    """Everything that lowering and rendering look at, one fact a line."""
    number = {t: i for i, t in enumerate(order)}
    sizes: set[Size] = {*kernel.extents.values()}

    def size(e: Size) -> str:
        if isinstance(e, int):
            return str(e)
        sizes.add(e)
        return "+".join(sorted(f"{c}{''.join(f'*{atom(a)}^{p}' for a, p in m)}"
                               for c, m in terms_of(e)))  # fmt: skip

    def atom(a: Atom) -> str:
        if a.kind == "axis":
            return f"a{axes[a.args[0]]}"
        if a.kind == "value":
            return f"v{number[a.args[0]]}"
        return a.args[0] if a.kind == "symbol" else f"{a.kind}({','.join(map(size, a.args))})"

    def argument(t: Term) -> str:
        if t.op == "in":
            return f"{names[t.args[0]]}[{','.join(map(size, t.args[1]))}]"
        if t.axes:
            return "{" + ",".join(f"a{axes[i]}" for i in sorted(t.axes, key=axes.__getitem__)) + "}"
        return size(t.args[0]) if t.op == "val" else " ".join(map(str, t.args))

    lines = [
        f"{b.dtype.name}[{','.join(map(size, b.shape))}]{' weight' if b.weight else ''}"
        for b in buffers
    ]
    lines += [f"a{new}<{size(kernel.extents[old])}" for old, new in axes.items()]
    for t in order:
        kids = " ".join(f"v{number[k]}" for k in t.kids)
        lines.append(f"v{number[t]}={t.op} {t.dtype.name} {argument(t)} {kids}")
    lines += [f"[{','.join(map(size, o.index))}]=v{number[o.term]}" for o in kernel.outputs]
    symbols = frozenset[str]().union(*map(symbols_in, sizes))
    lines += ["{} in {}..{}".format(s, *symbol_range(s)) for s in sorted(symbols)]
    return "\n".join(lines)
