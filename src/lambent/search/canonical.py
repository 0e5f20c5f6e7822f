"""The canonical form of a kernel: equal kernels of different places share measurements.

Axes, buffers and terms are numbered in the order in which the outputs reach them. The text says
everything that lowering and rendering look at, so that equal texts mean equal code.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

from lambent.algebra.egraph import ClassRef
from lambent.algebra.term import Term, Terms, walk
from lambent.graph.dim import Atom, Size, axes_in, axis, symbol_range, symbols_in, terms_of, value
from lambent.graph.prove import substitute
from lambent.kernel.kernel import Buffer, Kernel, Output


@dataclass(frozen=True)
class Canonical:
    """`text` is the identity; `buffers` the place's own, outputs then inputs, as in the kernel."""

    text: str
    buffers: tuple[Buffer, ...]
    _make: Callable[[], Kernel]

    @cached_property
    def kernel(self) -> Kernel:
        """The kernel over axes 0, 1, … and buffers o0, …, i0, … (made on first use)."""
        return self._make()


def canonical(kernel: Kernel) -> Canonical:
    """Number the axes and name the buffers of a kernel in order of appearance."""
    order = tuple(walk(*(o.term for o in kernel.outputs)))
    axes = {old: new for new, old in enumerate(dict.fromkeys(_axes(kernel, order)))}
    given = {b.name: b for b in kernel.inputs}
    inputs = [given[n] for n in dict.fromkeys(t.args[0] for t in order if t.op == "in")]
    names = {b.name: f"i{n}" for n, b in enumerate(inputs)}
    number = {t: ClassRef(n) for n, t in enumerate(order)}
    text = _text(kernel, inputs, number, _Renamed(axes, names, number))

    def made() -> Kernel:
        terms, new = Terms(), dict[Term, Term]()
        renamed = _Renamed(axes, names, new)
        for t in order:
            new[t] = terms.make(t.op, renamed.args(t), [new[k] for k in t.kids], t.dtype)
        outputs = tuple(
            Output(replace(o.buffer, name=f"o{n}"), renamed.sizes(o.index), new[o.term])
            for n, o in enumerate(kernel.outputs)
        )
        buffers = tuple(replace(b, name=names[b.name]) for b in inputs)
        return Kernel(outputs, buffers, {n: kernel.extents[old] for old, n in axes.items()})

    return Canonical(text, (*(o.buffer for o in kernel.outputs), *inputs), made)


def _axes(kernel: Kernel, order: Iterable[Term]) -> Iterator[int]:
    """Free axes as the outputs index them, then the others as terms read or bind them."""

    def inside(indices: Iterable[Size]) -> Iterator[int]:
        for e in indices:
            yield from (a.args[0] for _, m in terms_of(e) for a, _ in m if a.kind == "axis")
            yield from sorted(axes_in(e))

    for o in kernel.outputs:
        yield from inside(o.index)
    for t in order:
        yield from inside(t.indices)
        yield from sorted(t.axes)
    yield from sorted(kernel.extents)


class _Renamed:
    """Sizes and arguments over new axes and names; `values` stand for terms in an index."""

    def __init__(
        self, axes: dict[int, int], names: dict[str, str], values: dict[Term, Any]
    ) -> None:
        def atom(a: Atom) -> Size | None:
            if a.kind == "axis":
                return axis(axes[a.args[0]])
            return value(values[a.args[0]]) if a.kind == "value" else None

        self.axes, self.names = axes, names
        self.size: Callable[[Size], Size] = cache(lambda e: substitute(e, atom))

    def sizes(self, given: Iterable[Size]) -> tuple[Size, ...]:
        return tuple(map(self.size, given))

    def args(self, t: Term) -> tuple[Hashable, ...]:
        if t.op == "in":
            return self.names[t.args[0]], self.sizes(t.args[1])
        if t.op == "val":
            return self.sizes(t.args)
        return (frozenset(self.axes[a] for a in t.axes),) if t.axes else t.args


def _text(
    kernel: Kernel, inputs: Iterable[Buffer], number: dict[Term, ClassRef], renamed: _Renamed
) -> str:
    """One fact a line."""
    lines = [f"a{new}<{kernel.extents[old]}" for old, new in renamed.axes.items()]
    buffers = (*(o.buffer for o in kernel.outputs), *inputs)
    lines += [f"{b.dtype.name} {b.shape}{' weight' if b.weight else ''}" for b in buffers]
    for t, n in number.items():
        args = sorted(renamed.axes[a] for a in t.axes) or " ".join(map(str, renamed.args(t)))
        kids = " ".join(f"v{number[k].id}" for k in t.kids)
        lines.append(f"v{n.id}={t.op} {t.dtype.name} {args} {kids}")
    lines += [f"{renamed.sizes(o.index)}=v{number[o.term].id}" for o in kernel.outputs]
    sizes = {*kernel.extents.values(), *(e for b in buffers for e in b.shape)}
    sizes.update(e for t in number for e in t.indices)
    symbols = frozenset[str]().union(*map(symbols_in, sizes))
    lines += ["{} in {}..{}".format(s, *symbol_range(s)) for s in sorted(symbols)]
    return "\n".join(lines)
