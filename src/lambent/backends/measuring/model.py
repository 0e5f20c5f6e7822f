"""What a rendered tile program is likely to take: the work its loops do, at the rates of one core.

A bound counts every term once, at peak. The model sees what a schedule adds to that: values
computed anew in every tile of an outer loop, operands packed again, loads that no vector can do at
once, register blocks that are too small or too large, tasks too few for the cores. It orders what
is measured; it never certifies.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from lambent.backends.base import Calibration
from lambent.backends.products import narrowed
from lambent.backends.roles import within
from lambent.graph.dim import Atom, Size, axes_in, representative
from lambent.graph.dtypes import DType
from lambent.graph.prove import substitute
from lambent.kernel.rewrite import steps
from lambent.kernel.tile import (
    Accumulate,
    Dot,
    For,
    Let,
    Load,
    Map,
    Reduce,
    Ref,
    Stmt,
    Store,
    TileProgram,
    Value,
    Var,
    axes_of,
    index_axes,
    operands,
    statements,
    values,
)  # fmt: skip

# Vector operations of an elementwise op, where an add takes one; and of moving an element.
OPS = {"exp2": 12.0, "log2": 18.0, "sin": 22.0, "recip": 6.0, "sqrt": 6.0, "mod": 12.0}
MOVED, STRIDED, PACKED = 1.0, 10.0, 4.0  # contiguous; one lane at a time; into a product's panels
PRODUCT = 0.85  # of the peak, that a product reaches in full register blocks
REGISTERS = 16  # of vectors; a block with more accumulators and operands spills
UNIT = 2048.0  # places of a tile that a matrix unit takes twice as long for as for its products
BESIDE = 0.3  # of the shorter of two times, where matrix units, others and memory work side by side
WARPS = 32  # of a processor with matrix units that keep its other units busy
UNITS_OPS = {"exp2": 4.0, "log2": 4.0, "sin": 12.0, "recip": 6.0, "sqrt": 6.0, "mod": 12.0}
"""`OPS` where matrix units are: such devices have units for these functions, too."""
TASK = 2e-7  # seconds to hand a task to a core
STEP = 2e-8  # seconds of a statement, however small its tile


def likely(program: TileProgram, rates: Calibration) -> float:
    """Seconds of a run of the program at the representative sizes."""
    return _Model(program, rates).time()


class _Model:
    """`sizes`: of the axes' tiles; `shapes`: of the buffers."""

    def __init__(self, program: TileProgram, calibration: Calibration) -> None:
        self.program, self.calibration = program, calibration
        self.units = calibration.held > 0  # matrix units, and registers that hold tiles
        self.sizes = {
            i: min(a.tile, max(1, representative(a.extent))) for i, a in program.axes.items()
        }
        self.buffers = [*program.kernel.inputs, *(o.buffer for o in program.kernel.outputs)]
        self.shapes = {b.name: [representative(d) for d in b.shape] for b in self.buffers}
        self.axes: dict[int, frozenset[int]] = {}  # of values by their identity
        self.lets = {s.name: s.value for s in statements(program.body) if isinstance(s, Let)}

    def time(self) -> float:
        moved = self.calibration.byte_time(sum(b.bytes for b in self.buffers if not b.weight))
        tasks, body = 1, self.program.body
        while len(body) == 1 and isinstance(body[0], For) and body[0].parallel:
            tasks, body = tasks * self.trips(body[0].axis), body[0].body
        threads = self.calibration.threads
        rounds = -(-tasks // threads)
        moved /= self.share(min(tasks, threads))
        plain, products = self.body(body)
        work = rounds * (self.beside(plain * self.waiting(tasks), products) + TASK)
        return self.beside(work, moved) + self.calibration.launch

    def waiting(self, tasks: int) -> float:
        """How much longer plain work takes where too few warps are there to hide its latency."""
        if not self.units:
            return 1.0
        warps = dict(self.program.schedule.options).get("num_warps", 4)
        beside = min(-(-tasks // self.calibration.threads), 2 * WARPS // warps)
        return max(1.0, WARPS / (warps * max(1, beside)))

    def beside(self, a: float, b: float) -> float:
        """The time of two kinds of work."""
        return max(a, b) + min(a, b) * (BESIDE if self.units else 1.0)

    def share(self, busy: int) -> float:
        """Of the memory's bandwidth what so many cores reach, the others idle."""
        alone = self.calibration.one.get("read", math.inf)
        return min(1.0, busy * alone / self.calibration.levels[-1][1])

    def trips(self, i: int) -> int:
        a = self.program.axes[i]
        return -(-max(1, representative(a.extent)) // a.tile)

    def steps(self, f: For) -> int:
        """Of a loop, in the middle of the others: it may start or end where a mask does."""
        if not axes_in(f.start) | axes_in(f.stop):
            return self.trips(f.axis)
        axes = self.program.axes

        def middle(a: Atom) -> Size | None:
            return representative(axes[a.args[0]].extent) // 2 if a.kind == "axis" else None

        start, stop = (representative(substitute(e, middle)) for e in (f.start, f.stop))
        return max(0, -(-(stop - start) // axes[f.axis].tile))

    def body(self, stmts: Iterable[Stmt]) -> tuple[float, float]:
        """Seconds of one core: of all but products, and of products."""
        plain, products = 0.0, 0.0
        for s in stmts:
            match s:
                case For():
                    count, inner = self.steps(s), self.body(s.body)
                    plain, products = plain + count * inner[0], products + count * inner[1]
                case Var(axes=axes, dtype=dtype):
                    plain += STEP + self.volume(axes) / self.lanes(dtype)
                case _:
                    plain += STEP + self.statement(s)
                    products += self.product(s.value) if isinstance(s.value, Dot) else 0.0
        return plain, products

    def statement(self, s: Let | Accumulate | Store) -> float:
        """The loops of one statement, vectorised along the axis that suits it best."""
        v, each = s.value, self.volume(axes_of(s.value)) / self.lanes(s.value.dtype)
        scaled = each if isinstance(s, Accumulate) and s.scale is not None else 0.0
        if isinstance(v, Dot):
            return scaled

        def along(lane: int) -> float:
            stored = self.move(lane, s) if isinstance(s, Store) else 0.0
            n, width = self.sizes.get(lane, 1), 8  # lanes that a short axis leaves empty
            empty = -(-n // width) * width / n if lane >= 0 else 1.0
            return (self.value(lane, v) + each * stored) * empty

        return scaled + min(map(along, [i for i in self.space(v) if self.sizes[i] > 1] or [-1]))

    def value(self, lane: int, v: Value) -> float:
        match v:
            case Map(op=op):
                own = (UNITS_OPS if self.units else OPS).get(op, 1.0)
            case Reduce():
                own = 1.0
            case Load():
                own = self.move(lane, v)
            case Ref():
                own = 0.0 if self.units else 0.5 * MOVED
            case _:
                own = 0.0
        below = sum(self.value(lane, x) for x in operands(v))
        return own * self.volume(self.space(v)) / self.lanes(v.dtype) + below

    def space(self, v: Value) -> list[int]:
        """The axes over which a value is computed."""
        for x in values(v) if id(v) not in self.axes else ():
            below = (self.axes[id(k)] for k in operands(x))
            self.axes[id(x)] = axes_of(x, below)
        return sorted(self.axes[id(v)] | (v.axes if isinstance(v, Reduce) else frozenset()))

    def move(self, lane: int, at: Load | Store) -> float:
        """Vector operations an element of a load or store with lanes along an axis."""
        stride = self.stride(lane, at)
        return STRIDED if stride is None or stride > 1 else MOVED if stride else 0.1

    def stride(self, lane: int, at: Load | Store) -> int | None:
        """Elements between neighbours along an axis; None where it is not constant."""
        total = 0
        for size, index in zip(self.shapes[at.buffer], at.index, strict=True):
            index = within(index, lane, 8)
            step = steps(index)
            if lane in index_axes(index) and lane not in step:
                return None
            total = total * size + step.get(lane, 0)
        return abs(total)

    def product(self, v: Dot) -> float:
        a, b = axes_of(v.a), axes_of(v.b)
        v = narrowed(v, self.lets) if self.units else v
        rows, columns = self.volume(a - b), self.volume(b - a)
        depth, batch = self.volume(v.axes), self.volume((a & b) - v.axes)
        last = max((i for i in b - a if self.sizes[i] > 1), default=-1)
        padded = -(-columns // 8) * 8
        work = batch * rows * padded * depth * 2 / PRODUCT
        seconds = work / self.rate(v.dtype) * self.block(rows, columns)
        if not self.units and isinstance(v.b, Load) and self.stride(last, v.b) != 1:
            seconds += batch * columns * depth * PACKED / self.lanes(v.dtype)
        return seconds

    def block(self, rows: float, columns: float) -> float:
        """How much slower than the peak the register block is: it loads more than it multiplies,
        has too few sums to hide the latency of one, or does not fit the registers. A matrix unit
        multiplies whole tiles, and waits for the operands of small ones."""
        if self.units:
            return 1 + UNIT / (rows * columns)
        r, n = self.program.schedule.block
        r = max(1, min(r, int(rows)))
        spills = 2.0 if r * n + n + 1 >= REGISTERS else 1.0
        return max(1.0, (r + n) / (r * n), 8 / (r * n)) * spills

    def volume(self, axes: Iterable[int]) -> float:
        return float(math.prod(self.sizes[i] for i in axes))

    def rate(self, dtype: DType) -> float:
        """Operations a second of one core, an FMA being two."""
        known = self.calibration.one.get(dtype.name)
        return known or self.calibration.rate(dtype) / self.calibration.threads

    def lanes(self, dtype: DType) -> float:
        """Elements a second of one core in simple vector operations: matrix units do none."""
        return self.rate(dtype.compute) / 2
