"""Blocks of axes, indices and places in memory: what Triton's powers of two make of tiles."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from lambent.backends.roles import outermost_first
from lambent.backends.triton.text import PRODUCT, SUM, Tile, infix
from lambent.graph.dim import Atom, Size, exact, terms_of
from lambent.graph.prove import Prover
from lambent.kernel.kernel import Buffer
from lambent.kernel.tile import Dot, For, TileProgram, axes_of, operands, statements, values

LARGEST = 1 << 17  # elements of a tile: more than the registers of a processor hold
DOT_DEPTH = 16  # the least that the matrix units contract at once
SMALL = 1 << 31


def pow2(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << max(0, n - 1).bit_length()


class Blocks:
    """For each axis the size of its block; and the texts of index expressions.

    `index` holds the indices of each axis that is open, `inside` says which of them are valid
    where not all are. `names` holds the tiles of Lets and Vars.
    """

    def __init__(self, program: TileProgram) -> None:
        self.program = program
        self.prover = Prover({i: a.extent for i, a in program.axes.items()})
        self.looped = {s.axis for s in statements(program.body) if isinstance(s, For)}
        first = [i for o in program.kernel.outputs for e in o.index for i in outermost_first(e)]
        if dict(program.schedule.options).get("turned"):
            first[-2:] = first[:-3:-1]
        self.rank = {i: n for n, i in enumerate(dict.fromkeys([*first, *sorted(program.axes)]))}
        self.size = {i: self._block(i) for i in program.axes}
        for i in self._shallow():
            self.size[i] = DOT_DEPTH
        self.index: dict[int, Tile] = {}
        self.inside: dict[int, Tile] = {}
        self.names: dict[str, Tile] = {}

    def _block(self, i: int) -> int:
        a = self.program.axes[i]
        if i not in self.looped and a.tile == 1 and a.extent != 1:
            return 2  # it may be empty
        return pow2(a.tile)

    def _shallow(self) -> Iterable[int]:
        """Contracted axes that would be too short for the matrix units."""
        for s in statements(self.program.body):
            for v in (x for top in operands(s) for x in values(top)):
                if isinstance(v, Dot):
                    axes = [i for i in v.axes if self.size[i] > 1]
                    sides = [self.dims(axes_of(x) - v.axes) for x in (v.a, v.b)]
                    if len(axes) == 1 and all(sides) and v.dtype.is_float:
                        yield from (i for i in axes if self.size[i] < DOT_DEPTH)

    def dims(self, axes: Iterable[int]) -> tuple[int, ...]:
        """The axes of more than one index, in order."""
        return tuple(sorted({i for i in axes if self.size[i] > 1}, key=self.rank.__getitem__))

    def shape(self, dims: Iterable[int]) -> str:
        sizes = [str(self.size[i]) for i in dims]
        return f"({', '.join(sizes)}{',' * (len(sizes) == 1)})"

    def ragged(self, i: int) -> bool:
        """True if some index of a block may be no index of its tile."""
        a = self.program.axes[i]
        if i not in self.looped:
            return a.extent != self.size[i]
        return self.size[i] > 1 and (a.tile != self.size[i] or exact(a.extent, a.tile) is None)

    def whole(self, i: int, stop: Size) -> bool:
        """True if tiles that start below `stop` have valid indices only."""
        a = self.program.axes[i]
        if exact(stop, a.tile) is not None and self.prover.ge0(a.extent - stop):
            return self.size[i] == a.tile
        match terms_of(stop):
            case [(1, (((atom, 1)),))] if atom.kind == "min":
                return any(self.whole(i, e) for e in atom.args)
        return False

    # ---- index expressions -------------------------------------------------------------------

    def total(self, e: Size, atom: Callable[[Atom], Tile], wide: bool = False) -> Tile:
        """The text of an expression, given its atoms; `wide` in 64 bits."""
        parts = []
        for c, monomial in sorted(terms_of(e), key=lambda term: not term[1]):
            tiles = [atom(a) for a, power in monomial for _ in range(power)]
            parts.append((c, [t.to("int64") if wide else t for t in tiles]))
        dims = tuple(
            sorted({i for _, ts in parts for t in ts for i in t.dims}, key=self.rank.__getitem__)
        )
        dtype = "int64" if wide else "int32"
        dtype = "int64" if any(t.dtype == "int64" for _, ts in parts for t in ts) else dtype
        out: Tile | None = None
        for c, tiles in parts:
            sign = "-" if c < 0 and out is not None else "+"
            c = abs(c) if out is not None else c
            factors = [t for t in tiles if t.text != "0"]
            if len(factors) < len(tiles):
                continue
            if c != 1 or not factors:
                factors.append(Tile(str(c), level=SUM if c < 0 else PRODUCT + 1))
            term = factors[0].over(dims)
            for t in factors[1:]:
                term = infix("*", term, t, dims, dtype)
            out = term if out is None else infix(sign, out, term, dims, dtype)
        return (
            Tile("0") if out is None else Tile(out.text, dims if out.dims else (), dtype, out.level)
        )

    def atom(self, a: Atom) -> Tile:
        """The indices that an atom stands for."""
        return self._atom(a, self.atom, self.index)

    def origin(self, a: Atom) -> Tile:
        """An atom of the bounds of a loop: an axis means its origin."""
        origins = {i: Tile(f"o{i}") for i in self.looped}
        return self._atom(a, self.origin, origins)

    def _atom(self, a: Atom, f: Callable[[Atom], Tile], axes: dict[int, Tile]) -> Tile:
        if a.kind == "axis":
            return axes[a.args[0]]
        if a.kind == "symbol":
            return Tile(symbol_name(a.args[0]))
        if a.kind == "value":
            return self.names[a.args[0].name].to("int64")
        x, y = (self.total(arg, f) for arg in a.args)
        dims = self.dims((*x.dims, *y.dims))
        dtype = "int64" if "int64" in (x.dtype, y.dtype) else "int32"
        if a.kind == "div" and self.prover.ge0(a.args[0]):
            return infix("//", x, y, dims, dtype)
        function = {"div": "floor_div", "min": "tl.minimum", "max": "tl.maximum"}[a.kind]
        parts = ", ".join(t.over(dims).text for t in (x, y))
        return Tile(f"{function}({parts})", dims, dtype)

    def index_of(self, e: Size) -> Tile:
        """An index expression, in 32 bits where it fits."""
        low, high = self.prover.interval(e)
        return self.total(e, self.atom, wide=not -SMALL <= low <= high < SMALL)

    # ---- which indices are valid --------------------------------------------------------------

    def mask(self, dims: tuple[int, ...], needed: list[Tile]) -> str:
        """The argument `mask` of a load or store over the dims, or nothing."""
        whole = self.valid(dims, dims, needed)
        return "" if whole is None else f", mask={whole.text}"

    def valid(
        self, axes: Iterable[int], dims: tuple[int, ...], needed: Iterable[Tile] = ()
    ) -> Tile | None:
        """Where all of the axes have valid indices, over the dims."""
        found = [*needed, *(self.inside[i] for i in axes if i in self.inside)]
        out: Tile | None = None
        for t in found:
            out = t.over(dims) if out is None else infix("&", out, t, dims, "int1")
        return out

    def cut(self, t: Tile, axes: Iterable[int], fill: str) -> Tile:
        """The tile with `fill` where an index of the axes is not valid."""
        valid = self.valid([i for i in t.dims if i in axes], t.dims)
        if valid is None:
            return t
        text = f"tl.where({valid.text}, {t.text}, {fill})"
        if t.dtype == "int1":
            return infix("&", valid, t, t.dims, "int1")
        return Tile(text, t.dims, t.dtype)

    # ---- places in memory --------------------------------------------------------------------

    def place(
        self, buffer: Buffer, index: tuple[Size, ...], exactly: bool
    ) -> tuple[Tile, list[Tile]]:
        """The offset of an index (clamped into the buffer, unless it is `exactly` inside), and
        conditions without which nothing may be read there."""
        stride: Size = 1
        flat: Size = 0
        clamped: list[Tile] = []
        needed: list[Tile] = []
        count: Size = 1
        for n in buffer.shape:
            count = count * n
        wide = self.prover.interval(count)[1] >= SMALL
        for e, extent in zip(reversed(index), reversed(buffer.shape), strict=True):
            if exactly or (self.prover.ge0(e) and self.prover.ge0(extent - 1 - e)):
                flat = flat + e * stride
            else:
                at = self.index_of(e)
                last = self.total(extent - 1, self.atom).text
                text = f"tl.minimum(tl.maximum({at.text}, 0), {last})"
                step = self.total(stride, self.atom, wide)
                at = Tile(text, at.dims, at.dtype).to("int64" if wide else at.dtype)
                clamped.append(at if stride == 1 else infix("*", at, step, at.dims, at.dtype))
            if self.prover.interval(extent)[0] <= 0:
                needed.append(Tile(f"{self.total(extent, self.atom).at(SUM)} > 0", (), "int1", 0))
            stride = stride * extent
        offset = self.total(flat, self.atom, wide)
        for part in clamped:
            dims = self.dims((*offset.dims, *part.dims))
            dtype = "int64" if "int64" in (offset.dtype, part.dtype) else "int32"
            offset = part if offset.text == "0" else infix("+", offset, part, dims, dtype)
        return offset, needed


def symbol_name(name: str) -> str:
    """The parameter that holds a symbol (or `name/multiple`, which is what is passed)."""
    return name.replace("/", "_")
