"""The canonical text of a kernel: equal kernels of different places share measurements.

Buffers, axes and symbols are renamed in the order in which the terms mention them. Schedules are
stored in canonical axes (`Canonical.axes`), so that they fit every kernel of the same key.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lambent.algebra.term import REDUCTIONS, Term, walk
from lambent.graph.dim import Atom, Size, representative, symbol_range, symbols_in, terms_of
from lambent.kernel.kernel import Kernel, Output
from lambent.kernel.rewrite import split
from lambent.kernel.schedule import outermost_first
from lambent.kernel.tile import Schedule


@dataclass(frozen=True, slots=True)
class Canonical:
    """`text` is the key; axis n of the canonical kernel is axis `axes[n]` of `split(kernel)`."""

    text: str
    axes: tuple[int, ...]

    def stored(self, schedule: Schedule) -> Schedule:
        """The schedule in canonical axes."""
        return _renamed(schedule, {a: n for n, a in enumerate(self.axes)})

    def restored(self, schedule: Schedule) -> Schedule:
        """A stored schedule in this kernel's axes."""
        return _renamed(schedule, dict(enumerate(self.axes)))


def _renamed(schedule: Schedule, names: dict[int, int]) -> Schedule:
    tiles = tuple(sorted((names[i], t) for i, t in schedule.tiles if i in names))
    return replace(schedule, tiles=tiles, order=tuple(names[i] for i in schedule.order))


class _Writer:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = split(kernel).kernel
        self.dtypes = {b.name: b for b in self.kernel.inputs}
        self.buffers: dict[str, str] = {}
        self.axes: dict[int, int] = {}
        self.symbols: dict[str, int] = {}
        self.terms: dict[Term, int] = {}
        self.lines: list[str] = []

    def write(self) -> Canonical:
        for t in walk(*(o.term for o in self.kernel.outputs)):
            self.lines.append(self.term(t))
            self.terms[t] = len(self.terms)
        for o in self.kernel.outputs:
            self.lines.append(self.output(o))
        for i, n in list(self.axes.items()):
            self.lines.append(f"axis {n} {self.size(self.kernel.extents[i])}")
        for name, n in list(self.symbols.items()):
            low, high = symbol_range(name)
            hint = representative(self.symbol_size(name))
            self.lines.append(f"symbol {n} {low} {high} {hint}")
        return Canonical("\n".join(self.lines), tuple(self.axes))

    def term(self, t: Term) -> str:
        kids = " ".join(f"t{self.terms[k]}" for k in t.kids)
        if t.op == "in":
            args = f"{self.buffer(t.args[0])}[{', '.join(map(self.size, t.args[1]))}]"
        elif t.op == "val":
            args = self.size(t.args[0])
        elif t.op in REDUCTIONS:
            args = " ".join(f"a{n}" for n in sorted(self.axis(i) for i in sorted(t.axes)))
        else:
            args = " ".join(map(str, t.args))
        return f"{t.op} {args} {kids} {t.dtype.name}"

    def output(self, o: Output) -> str:
        shape = ", ".join(map(self.size, o.buffer.shape))
        index = ", ".join(map(self.size, o.index))
        return f"out {o.buffer.dtype.name}[{shape}] [{index}] t{self.terms[o.term]}"

    def buffer(self, name: str) -> str:
        if name not in self.buffers:
            b = self.dtypes[name]
            self.buffers[name] = f"b{len(self.buffers)}"
            shape = ", ".join(map(self.size, b.shape))
            self.lines.append(f"buffer {self.buffers[name]} {b.dtype.name}[{shape}]")
        return self.buffers[name]

    def axis(self, i: int) -> int:
        return self.axes.setdefault(i, len(self.axes))

    def size(self, size: Size) -> str:
        for i in outermost_first(size):
            self.axis(i)
        parts = sorted(
            "*".join([str(c), *sorted(self.atom(a, p) for a, p in monomial)])
            for c, monomial in terms_of(size)
        )
        return "+".join(parts) or "0"

    def atom(self, a: Atom, power: int) -> str:
        if a.kind == "axis":
            text = f"a{self.axis(a.args[0])}"
        elif a.kind == "symbol":
            text = f"s{self.symbols.setdefault(a.args[0], len(self.symbols))}"
        elif a.kind == "value":
            text = f"t{self.terms[a.args[0]]}"
        else:
            args = [self.size(x) for x in a.args]
            text = f"{a.kind}({', '.join(args if a.kind == 'div' else sorted(args))})"
        return text if power == 1 else f"{text}^{power}"

    def symbol_size(self, name: str) -> Size:
        """An extent or a dim in which the symbol stands: its hint tells kernels apart."""
        sizes = [*self.kernel.extents.values()]
        sizes += [n for b in self.kernel.inputs for n in b.shape]
        return next((n for n in sizes if name in symbols_in(n)), 0)


def canonical(kernel: Kernel) -> Canonical:
    """The kernel's key, and its axes in canonical order."""
    return _Writer(kernel).write()


def key(kernel: Kernel) -> str:
    """The canonical text of the kernel: the same in every process."""
    return canonical(kernel).text
