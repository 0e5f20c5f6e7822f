"""The canonical form of a kernel: equal kernels of different places share measurements.

Axes, buffers and terms are numbered in the order in which the outputs reach them. The text says
everything that lowering and rendering look at, so that equal texts mean equal code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from lambent.algebra.term import Term, Terms, walk
from lambent.graph.dim import Size, axes_in, terms_of
from lambent.kernel.kernel import Buffer, Kernel, Output
from lambent.kernel.rewrite import everywhere, reindexed
from lambent.kernel.show import show_kernel


@dataclass(frozen=True, slots=True)
class Canonical:
    """`text` is the identity; `buffers` the place's own, outputs then inputs, as in the kernel.

    `kernel` is over axes 0, 1, … and buffers o0, …, i0, …
    """

    text: str
    buffers: tuple[Buffer, ...]
    kernel: Kernel


def canonical(kernel: Kernel) -> Canonical:
    """Number the axes and name the buffers of a kernel in order of appearance."""
    order = tuple(walk(*(o.term for o in kernel.outputs)))
    axes = {old: new for new, old in enumerate(dict.fromkeys(_axes(kernel, order)))}
    read = dict.fromkeys(t.args[0] for t in order if t.op == "in")
    names = {old: f"i{n}" for n, old in enumerate(read)}
    given = {b.name: b for b in kernel.inputs}
    new = everywhere(Terms(), axes=axes, buffers=names)
    outputs = tuple(
        Output(
            replace(o.buffer, name=f"o{n}"),
            tuple(reindexed(i, new, axes) for i in o.index),
            new(o.term),
        )
        for n, o in enumerate(kernel.outputs)
    )
    inputs = tuple(replace(given[old], name=name) for old, name in names.items())
    made = Kernel(outputs, inputs, {n: kernel.extents[old] for old, n in axes.items()})
    own = (*(o.buffer for o in kernel.outputs), *(given[old] for old in names))
    return Canonical(show_kernel(made), own, made)


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
