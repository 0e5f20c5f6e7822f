"""A kernel: one or more output terms, and the buffers they read and write.

A kernel says what is computed, not how: `kernel.lower` turns it, under a `Schedule`, into a tile
program.
"""

from __future__ import annotations

from dataclasses import dataclass

from lambent.algebra.term import Buffer, Term, walk
from lambent.graph.dim import Size, axes_in

__all__ = ["Buffer", "Kernel", "Output"]


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
    def overwritable(self) -> frozenset[str]:
        """The inputs whose memory may be the output's: each element is read where it is written.

        Every load is at the output's own index, which nothing rebinds: whoever computes an element
        has read it before, and nobody else does.
        """
        if len(self.outputs) > 1:
            return frozenset()
        output = self.outputs[0]
        own = frozenset[int]().union(*map(axes_in, output.index))
        terms = list(walk(output.term))
        if any(t.axes & own for t in terms):
            return frozenset()
        loads = {(t.args[0], t.args[1] == output.index) for t in terms if t.op == "in"}
        like = (output.buffer.shape, output.buffer.dtype)
        names = {b.name for b in self.inputs if (b.shape, b.dtype) == like}
        return frozenset(n for n in names if (n, True) in loads and (n, False) not in loads)
