"""A kernel: one or more output terms, and the buffers they read and write.

A kernel says what is computed, not how: `kernel.lower` turns it, under a `Schedule`, into a tile
program; `show.show_kernel` prints it.
"""

from __future__ import annotations

from dataclasses import dataclass

from lambent.algebra.term import Buffer, Term
from lambent.graph.dim import Size

__all__ = ["Buffer", "Kernel", "Output"]


@dataclass(frozen=True, slots=True)
class Output:
    """`buffer[index] = term` for all values of the term's axes.

    The index expressions, over axes of the kernel, cover every element of the buffer exactly once
    (each dim is a mixed-radix number of its own axes).
    """

    buffer: Buffer
    index: tuple[Size, ...]
    term: Term


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
