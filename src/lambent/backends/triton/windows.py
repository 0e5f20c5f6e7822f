"""Windows: rectangles of a buffer that the device's copy engine moves, by tensor descriptors.

The engine fills what lies beyond the buffer with zeros when it reads, and leaves it alone when it
writes; so a ragged axis is no obstacle where it ends with the buffer's own dim.
"""

from __future__ import annotations

from dataclasses import dataclass

from lambent.backends.triton.blocks import Blocks
from lambent.graph.dim import Size, axes_in, axis, exact, values_in
from lambent.kernel.kernel import Buffer

LINE = 16  # bytes: a multiple of it are all strides but the last, and the innermost row of a block
WIDEST = 256  # indices of a block along one dim
DIMS = (2, 5)


@dataclass(frozen=True, slots=True)
class Window:
    """One dim for each axis of the block, outermost first.

    base: elements before the first; shape and strides in elements, of the buffer's dims that the
    axes run along; starts: an index in each dim where the block starts, less its axis' origin.
    """

    base: Size
    shape: tuple[Size, ...]
    strides: tuple[Size, ...]
    axes: tuple[int, ...]
    starts: tuple[Size, ...]


def window(
    blocks: Blocks, buffer: Buffer, index: tuple[Size, ...], fixed: frozenset[int]
) -> Window | None:
    """The window that an index moves over a buffer, or None where the engine cannot do it.

    Args:
        fixed: axes of one index each, known before the kernel's first loop.
    """
    bytes_ = buffer.dtype.itemsize
    base: Size = 0
    stride: Size = 1
    dims: list[tuple[Size, Size, int, Size]] = []  # extent, stride, axis, start
    for e, extent in zip(reversed(index), reversed(buffer.shape), strict=True):
        tiled = [i for i in axes_in(e) if blocks.size[i] > 1]
        aligned = stride == 1 or exact(stride * bytes_, LINE) is not None
        if len(tiled) > 1 or values_in(e) or not aligned or not blocks.prover.ge0(extent - 1):
            return None
        if tiled:
            (i,) = tiled
            start = e - axis(i)
            if i in axes_in(start) or i in (j for _, _, j, _ in dims):
                return None
            if not _fits(blocks, i, start, extent):
                return None
            dims.append((extent, stride, i, start))
        else:
            inside = blocks.prover.ge0(e) and blocks.prover.ge0(extent - 1 - e)
            if stride == 1 or not axes_in(e) <= fixed or not inside:
                return None
            base = base + e * stride
        stride = stride * extent
    if not DIMS[0] <= len(dims) <= DIMS[1] or dims[0][1] != 1 or buffer.dtype.kind == "b":
        return None
    if blocks.size[dims[0][2]] * bytes_ < LINE:
        return None
    shape, strides, axes, starts = zip(*reversed(dims), strict=True)
    return Window(base, shape, strides, axes, starts)


def _fits(blocks: Blocks, i: int, start: Size, extent: Size) -> bool:
    """Whether the engine's bounds are the axis' bounds along a dim of that extent."""
    a = blocks.program.axes[i]
    if blocks.size[i] > WIDEST:
        return False
    if blocks.ragged(i):
        whole = i not in blocks.looped or a.tile == blocks.size[i]
        return start == 0 and a.extent == extent and whole
    e = start + axis(i)
    return blocks.prover.ge0(e) and blocks.prover.ge0(extent - 1 - e)
