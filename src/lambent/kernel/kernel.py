"""A kernel: one or more output terms, and the buffers they read and write.

A kernel says what is computed, not how: `kernel.lower` turns it, under a `Schedule`, into a tile
program.
"""

from __future__ import annotations

from dataclasses import dataclass

from lambent.algebra.term import Buffer as Buffer
from lambent.algebra.term import Term, walk
from lambent.graph.dim import Size, axes_in


@dataclass(frozen=True, slots=True)
class Output:
    """`buffer[index] = term` for all values of the term's axes.

    The index expressions, over axes of the kernel, cover every element of the buffer exactly once
    (each dim is a mixed-radix number of its own axes). `over` names the input whose memory this is,
    if any: elements that keep its value need not be visited.
    """

    buffer: Buffer
    index: tuple[Size, ...]
    term: Term
    over: str | None = None


@dataclass(frozen=True, slots=True)
class Kernel:
    """`extents` gives the extent of every axis, free or bound, that occurs."""

    outputs: tuple[Output, ...]
    inputs: tuple[Buffer, ...]
    extents: dict[int, Size]

    @property
    def weights_only(self) -> bool:
        """True if nothing but weights is read: such a kernel runs once, at load."""
        return all(b.weight for b in self.inputs)

    @property
    def overwritable(self) -> frozenset[tuple[str, str]]:
        """(output, input) that may be one memory: each element is read where it is written.

        Every load is at the output's own index, which nothing rebinds: whoever computes an element
        has read it before, and nobody else does. Of several outputs see `inplace.overwritable`.
        """
        terms = list(walk(*(o.term for o in self.outputs)))
        return frozenset(
            (o.buffer.name, b.name)
            for o in self.outputs
            for b in self.inputs
            if (b.shape, b.dtype) == (o.buffer.shape, o.buffer.dtype)
            if {t.args[1] for t in terms if t.op == "in" and t.args[0] == b.name} == {o.index}
            if not any(t.axes & axes_in(i) for t in terms for i in o.index)
        )
