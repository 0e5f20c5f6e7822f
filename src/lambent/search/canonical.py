"""The canonical form of a kernel: equal kernels of different places share measurements.

Axes, buffers and terms are numbered in the order in which the outputs reach them. The text says
everything that lowering and rendering look at, so that equal texts mean equal code.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from lambent.algebra.term import Term, Terms, walk
from lambent.graph.dim import Atom, Size, axes_in, axis, show, symbol_range
from lambent.kernel.kernel import Buffer, Kernel
from lambent.kernel.rewrite import outputs_of


@dataclass(frozen=True, eq=False)
class Canonical:
    """`text` is the identity; `buffers` the place's own, outputs then inputs, as in `kernel`.

    Kernels of one `kind` compute the same, in the same order, at other sizes and constants.
    """

    text: str
    kind: str
    buffers: tuple[Buffer, ...]
    given: Kernel
    axes: dict[int, int]
    names: dict[str, str]

    @cached_property
    def kernel(self) -> Kernel:
        """The kernel over axes 0, 1, … and buffers o0, …, i0, …: made for what is measured."""
        terms, names, axes = Terms(), self.names, {old: axis(n) for old, n in self.axes.items()}

        def renamed(t: Term) -> Term:
            return terms.load(names[t.args[0]], t.args[1], t.dtype) if t.op == "in" else t

        outputs = outputs_of(self.given, terms, renamed, axes)
        called = [replace(b, name=names[b.name]) for b in self.buffers]
        extents = {n: self.given.extents[old] for old, n in self.axes.items()}
        made = tuple(replace(o, buffer=b) for o, b in zip(outputs, called, strict=False))
        return Kernel(made, tuple(called[len(made) :]), extents)


def canonical(kernel: Kernel) -> Canonical:
    """Number the axes and name the buffers of a kernel in order of appearance."""
    order = tuple(walk(*(o.term for o in kernel.outputs)))
    number = {t: n for n, t in enumerate(order)}
    axes = {old: new for new, old in enumerate(dict.fromkeys(_axes(kernel, order)))}
    given = {b.name: b for b in kernel.inputs}
    read = dict.fromkeys(t.args[0] for t in order if t.op == "in")
    buffers = (*(o.buffer for o in kernel.outputs), *(given[name] for name in read))
    names = {o.buffer.name: f"o{n}" for n, o in enumerate(kernel.outputs)}
    names.update((name, f"i{n}") for n, name in enumerate(read))

    def name(a: Atom) -> str:
        if a.kind == "symbol":
            return "{} in {}..{}".format(a.args[0], *symbol_range(a.args[0]))
        return f"a{axes[a.args[0]]}" if a.kind == "axis" else f"v{number[a.args[0]]}"

    def sizes(several: Iterable[Size]) -> str:
        return f"[{', '.join(show(e, name) for e in several)}]"

    def numbers(some: Iterable[int]) -> list[int]:
        return sorted(axes[a] for a in some)

    lines = [sizes(kernel.extents[a] for a in axes)]
    lines += [f"{b.dtype.name}{sizes(b.shape)} {b.weight} {b.finite}" for b in buffers]
    for t in order:
        args = names[t.args[0]] if t.op == "in" else numbers(t.axes) or t.args
        kids = [number[k] for k in t.kids]
        lines.append(
            f"{t.op} {t.dtype.name} {'' if t.op == 'val' else args}{sizes(t.indices)} {kids}"
        )
    lines += [f"{sizes(o.index)} = v{number[o.term]}" for o in kernel.outputs]
    kind = [b.dtype.name for b in buffers]
    kind += [
        f"{t.op} {t.dtype.name} {numbers(t.free)} {numbers(t.axes)} {[number[k] for k in t.kids]}"
        for t in order
    ]
    return Canonical("\n".join(lines), "\n".join(kind), buffers, kernel, axes, names)


def _axes(kernel: Kernel, order: Iterable[Term]) -> Iterator[int]:
    """Free axes as the outputs index them, then the others as terms read or bind them."""
    indexed = (axes_in(e) for o in kernel.outputs for e in o.index)
    inside = ([*map(axes_in, t.indices), t.axes] for t in order)
    for axes in (*indexed, *itertools.chain(*inside), kernel.extents):
        yield from sorted(axes)
