"""Matrix products as libraries take them: sizes and distances, read off a kernel's strides.

A kernel whose term is a constant times Σ a·b over one stored index each is a `gemm`, if every
operand has an axis along which its elements lie side by side; for a library that can add it, also
if a stored value is added.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from lambent.algebra.term import Term, literal
from lambent.graph.dim import Size, axes_in, intern, representative, split
from lambent.graph.prove import Prover
from lambent.kernel.kernel import Kernel
from lambent.kernel.rewrite import free_axes

_MOST = (1 << 31) - 1  # the common interfaces have 32-bit integers


@dataclass(frozen=True, slots=True)
class Run:
    """Axes that lie behind one another in every operand: their extent and the steps along them."""

    extent: Size
    a: Size = 0
    b: Size = 0
    out: Size = 0
    plus: Size = 0


@dataclass(frozen=True, slots=True)
class Product:
    """out[m, n] = alpha · Σ a[m, k] · b[k, n] + plus[m, n], once for every index of `loops`.

    buffers: the numbers of a and b among the kernel's inputs, and of what is added, if anything is.
    start:   the elements of a, b, the output and what is added at which they begin.
    given:   per factor (b first, as `gemm` has columns first): is it transposed, and the distance
             of its columns.
    """

    buffers: tuple[int, ...]
    start: tuple[Size, ...]
    alpha: float
    m: Run
    n: Run
    k: Run
    loops: tuple[Run, ...]
    given: tuple[tuple[bool, Size], tuple[bool, Size]]
    dtype: str


def product(kernel: Kernel, dtypes: Collection[str], plus: bool = False) -> Product | None:
    """The `gemm` that computes the kernel; None where none does. `plus`: it may add a value."""
    output = kernel.outputs[0]
    term, added = output.term, list[Term]()
    if plus and term.op == "add":
        added = [t for t in term.kids if t.op == "in"][:1]
        term = next((t for t in term.kids if t.op != "in"), term)
    alpha = 1.0
    if term.op == "mul" and term.kids[0].op == "const":
        alpha, term = float(literal(term.kids[0])), term.kids[1]
    if len(kernel.outputs) > 1 or term.op != "sum" or term.kids[0].op != "mul":
        return None
    a, b = term.kids[0].kids
    names = {t.dtype.name for t in (a, b, term, output.term, *added)} | {output.buffer.dtype.name}
    if (a.op, b.op) != ("in", "in") or len(names) > 1 or not names <= set(dtypes):
        return None
    ways = ((a, b), (b, a))
    found = (_product(kernel, [*pair, *added], term.axes, alpha) for pair in ways)
    return next((p for p in found if p is not None), None)


def _product(
    kernel: Kernel, operands: Sequence[Term], summed: frozenset[int], alpha: float
) -> Product | None:
    """Of a, b and maybe a value that is added, with the output's innermost axis on b's side."""
    prover, output = Prover(kernel.extents), kernel.outputs[0]
    (a, b), own = operands[:2], free_axes(output)
    numbers = {buffer.name: i for i, buffer in enumerate(kernel.inputs)}
    buffers = tuple(numbers[t.args[0]] for t in operands)
    places = [(kernel.inputs[n], t.args[1]) for n, t in zip(buffers, operands, strict=True)]
    places.insert(2, (output.buffer, output.index))
    flats = [_flat(buffer.shape, index, prover) for buffer, index in places]
    if a.free | b.free != own | summed or not summed <= a.free & b.free or None in flats:
        return None
    tables = [_steps(flat, own | summed) for flat in flats if flat is not None]
    if any(axes_in(e) for start, steps in tables for e in (start, *steps.values())):
        return None

    def runs(axes: frozenset[int]) -> list[Run]:
        each = [Run(kernel.extents[i], *(steps[i] for _, steps in tables)) for i in sorted(axes)]
        return _joined(each)

    rows, columns = runs((a.free - b.free) & own), runs((b.free - a.free) & own)
    inner, loops = runs(summed), runs(a.free & b.free & own)
    m, n = (rows or [Run(1)])[-1], (columns or [Run(1)])[-1]
    if len(inner) != 1 or (n.out != 1 and columns) or not _small((m, n, inner[0]), prover):
        return None
    k = inner[0]
    given = (
        _given(n.b, k.b, n.extent, k.extent, prover),
        _given(k.a, m.a, k.extent, m.extent, prover),
    )
    if given[0] is None or given[1] is None or not (prover.ge0(m.out - n.extent) or not rows):
        return None
    return Product(
        buffers,
        tuple(start for start, _ in tables), alpha, m, n, k,
        (*loops, *rows[:-1], *columns[:-1]), (given[0], given[1]), output.buffer.dtype.name,
    )  # fmt: skip


def _flat(shape: Sequence[Size], index: Sequence[Size], prover: Prover) -> Size | None:
    """The number of an element; None where the index may leave the buffer."""
    flat: Size = 0
    for e, extent in zip(index, shape, strict=True):
        if not (prover.ge0(e) and prover.ge0(extent - 1 - e)):
            return None
        flat = flat * extent + e
    return flat


def _steps(flat: Size, axes: Iterable[int]) -> tuple[Size, dict[int, Size]]:
    """What is left of a place where every axis is 0, and the step of each axis."""
    steps: dict[int, Size] = {}
    for i in axes:
        steps[i], flat = split(flat, intern("axis", i))
    return flat, steps


def _joined(runs: list[Run]) -> list[Run]:
    """The outermost first; neighbours that lie behind one another in every operand are one."""
    found: list[Run] = []
    for run in sorted(runs, key=lambda r: [-representative(s) for s in (r.out, r.a, r.b)]):
        steps = (run.a, run.b, run.out, run.plus)
        last = found[-1] if found else None
        if last and (last.a, last.b, last.out, last.plus) == tuple(s * run.extent for s in steps):
            run = Run(last.extent * run.extent, *steps)
            found.pop()
        found.append(run)
    return found


def _small(runs: Iterable[Run], prover: Prover) -> bool:
    sizes = [size for r in runs for size in (r.extent, r.a, r.b, r.out, r.plus)]
    return all(prover.ge0(size) and prover.ge0(_MOST - size) for size in sizes)


def _given(
    down: Size, across: Size, height: Size, width: Size, prover: Prover
) -> tuple[bool, Size] | None:
    """How a factor of `height` rows lies in memory: (transposed, distance of its columns)."""
    ways = ((False, down, across, height), (True, across, down, width))
    for transposed, near, far, length in ways:
        far = length if far == 0 else far  # there is but one
        if near in (0, 1) and prover.ge0(far - length):
            return transposed, far
    return None
