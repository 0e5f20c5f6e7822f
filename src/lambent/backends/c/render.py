"""Tile program → C text of one kernel, as the CPU backend's ABI asks for it.

`K_tasks(size)` counts the independent tasks of the grid; `K_run(task, buf, size)` runs one. `buf`
holds the outputs, then the inputs, in kernel order; `size` the values of `base.kernel_symbols`.
Outputs must not overlap inputs. Tiles live on the stack: `scratch_bytes` says how much of it a task
needs. Of a schedule it reads `block` and the options pack_a, pack_b and rows_first (see `dot`).
"""

from __future__ import annotations

import math

from lambent.backends.base import kernel_symbols
from lambent.backends.c import dot
from lambent.backends.c.expr import identity, literal
from lambent.backends.c.layout import SLOW, Array, Layout, elementwise, storage
from lambent.backends.c.prelude import CODES, FLOATS, STORAGE, prelude
from lambent.backends.c.target import Target
from lambent.backends.c.values import Emitter, symbol_name
from lambent.backends.c.write import Spot, write
from lambent.graph.dim import axes_in
from lambent.graph.prove import bounds
from lambent.kernel.kernel import Buffer
from lambent.kernel.tile import (
    Accumulate,
    Dot,
    For,
    Let,
    Load,
    Map,
    Ref,
    Stmt,
    Store,
    TileProgram,
    Value,
    Var,
    values,
)  # fmt: skip

PRELUDE = prelude
_BYTES = {"f64": 8, "i64": 8, "f32": 4, "i32": 4, "i16": 2, "h": 2, "bf": 2}


def render(program: TileProgram, name: str, target: Target) -> str:
    """The C text of `{name}_tasks` and `{name}_run`; it needs `PRELUDE(target)` before it.

    Raises:
        TypeError: a Dot stands elsewhere than under a Let or an Accumulate.
    """
    return Renderer(program, name, target).text()


def scratch_bytes(program: TileProgram, target: Target) -> int:
    """An upper bound of the stack that one task needs for its tiles."""
    renderer = Renderer(program, "k", target)
    renderer.text()
    return renderer.scratch


class Renderer:
    """Writes one program: the grid and the statements. `scratch` counts the bytes of its tiles."""

    def __init__(self, program: TileProgram, name: str, target: Target) -> None:
        self.program, self.name, self.target = program, name, target
        kernel = program.kernel
        outputs = [o.buffer for o in kernel.outputs]
        self.buffers: dict[str, Buffer] = {b.name: b for b in (*outputs, *kernel.inputs)}
        self.outputs = frozenset(b.name for b in outputs)
        pointers = {b: f"b{i}" for i, b in enumerate(self.buffers)}
        self.layout = Layout(program, target, self.buffers)
        self.out = Emitter(self.layout, pointers)
        self.options = dict(program.schedule.options)
        self.scratch = 0
        for i, a in program.axes.items():
            if i not in self.layout.looped:
                self.out.origin[i] = "0"
                self.out.length[i] = self.out.size(a.extent, {})

    # ---- the two functions ----

    def text(self) -> str:
        grid, body = self._grid()
        names = kernel_symbols(self.program.kernel)
        symbols = "".join(f" const i64 {symbol_name(s)} = size[{i}];" for i, s in enumerate(names))
        counts = [self._count(f) for f in grid]
        self._bind_grid(grid)
        self.body(body)
        params = [f"i64 o{f.axis}" for f in grid]
        args, decode = self._decode(grid, counts)
        for i, (b, buffer) in enumerate(self.buffers.items()):
            const = "" if b in self.outputs else "const "
            memory = STORAGE[CODES[buffer.dtype.name]][0]
            params.append(f"{const}{memory} *restrict b{i}")
            args.append(f"({const}{memory} *)buf[{i}]")
        lines = "\n".join(f" {line}" for line in self.out.scope.lines)
        signature = ", ".join([*params, "const i64 *size"])
        return (
            f"static __attribute__((noinline)) void {self.name}_body({signature}) {{\n"
            f"{symbols}\n{lines}\n}}\n"
            f"static i64 {self.name}_tasks(const i64 *size) {{\n{symbols}\n"
            f" return {' * '.join(counts) or '1'};\n}}\n"
            f"static void {self.name}_run(i64 task, void *const *buf, const i64 *size) {{\n"
            f"{symbols}\n{decode} {self.name}_body({', '.join([*args, 'size'])});\n}}\n"
        )

    def _grid(self) -> tuple[list[For], tuple[Stmt, ...]]:
        """The directly nested outermost parallel loops whose ranges do not depend on each other."""
        grid: list[For] = []
        body = self.program.body
        while len(body) == 1 and isinstance(s := body[0], For) and s.parallel:
            if grid and (axes_in(s.start) | axes_in(s.stop)):
                break
            grid.append(s)
            body = s.body
        return grid, body

    def _count(self, f: For) -> str:
        tile = self.program.axes[f.axis].tile
        span = self.out.size(f.stop - f.start + (tile - 1), {})
        return f"lt_max(0, {span} / {tile})"

    def _bind_grid(self, grid: list[For]) -> None:
        for f in grid:
            self._bind(f)

    def _decode(self, grid: list[For], counts: list[str]) -> tuple[list[str], str]:
        """Arguments and lines that turn a task number into the origins of the grid's axes."""
        args: list[str] = []
        lines = ""
        for f, count in reversed(list(zip(grid, counts, strict=True))):
            tile, start = self.program.axes[f.axis].tile, self.out.size(f.start, {})
            part = "task" if f is grid[0] else f"task % ({count})"
            lines += f" const i64 o{f.axis} = {start} + ({part}) * {tile};"
            if f is not grid[0]:
                lines += f" task /= {count};"
            args.insert(0, f"o{f.axis}")
        return args, f"{lines}\n" if lines else ""

    def _bind(self, f: For) -> None:
        """Inside the loop: the origin and the length of the axis."""
        i, a = f.axis, self.program.axes[f.axis]
        self.out.origin[i] = f"o{i}"
        if a.tile == 1 or (isinstance(a.extent, int) and a.extent % a.tile == 0):
            self.out.length[i] = str(a.tile)
            return
        if isinstance(a.extent, int) and a.extent < a.tile:
            self.out.length[i] = str(a.extent)
            return
        self.out.length[i] = f"n{i}"
        extent = self.out.size(a.extent, {})
        self.out.line(f"const i64 n{i} = lt_min({a.tile}, {extent} - o{i});")

    # ---- statements ----

    def body(self, body: tuple[Stmt, ...]) -> None:
        arrays = dict(self.out.arrays)
        fused = self._fused(body)
        for i, s in enumerate(body):
            match s:
                case _ if i in fused.values():
                    pass  # a Dot that a later statement computes
                case Let() | Store() if i in fused:
                    dot_ = body[fused[i]]
                    assert isinstance(dot_, Let)
                    self._with_dot(s, dot_)
                case For():
                    self._for(s)
                case Let(name=name, value=value):
                    self._let(name, value)
                case Var():
                    self._var(s)
                case Accumulate():
                    self._accumulate(s)
                case Store():
                    self._store(s)
        self.out.arrays = arrays

    def _fused(self, body: tuple[Stmt, ...]) -> dict[int, int]:
        """Statements that finish a Dot in registers: their index → that of the Let of the Dot.

        The Dot must have no other use, and the statement must be a short expression at its axes.
        """
        found: dict[int, int] = {}
        for i, s in enumerate(body):
            if (
                not (isinstance(s, Let) and isinstance(s.value, Dot))
                or self.layout.uses[s.name] != 1
            ):
                continue
            if not isinstance(dot.plain(self, s.value), Dot):
                continue
            for j in range(i + 1, len(body)):
                t = body[j]
                if isinstance(t, (Let, Store)) and self._finishes(t, s):
                    found[j] = i
                if not isinstance(t, Let) or j in found:
                    break
        return found

    def _finishes(self, s: Let | Store, let: Let) -> bool:
        axes = self.layout.axes(let.value)
        parts = list(elementwise(s.value))
        here = any(isinstance(v, Ref) and v.name == let.name for v in parts)
        maps = [v for v in parts if isinstance(v, Map)]
        short = len(maps) <= 6 and not any(v.op in SLOW for v in maps)
        if not here or not short or len(parts) != len(list(values(s.value))):
            return False
        if isinstance(s, Let):
            return self.layout.axes(s.value) == axes
        place = self.layout.place(s.buffer, s.index, True)
        reached = self.layout.axes(Load(s.buffer, s.index, let.value.dtype))
        assert isinstance(let.value, Dot)
        own = [i for _, side in self.layout.sides(let.value) for i in side]
        return reached == axes and any(place.slope(i) == 1 for i in own)

    def _with_dot(self, s: Let | Store, let: Let) -> None:
        """`let` then `s`, which alone uses it, in one pass."""
        product = let.value
        assert isinstance(product, Dot)

        def finished(v: Value) -> Value:
            if isinstance(v, Ref) and v.name == let.name:
                return product
            return Map(v.op, tuple(map(finished, v.args)), v.dtype) if isinstance(v, Map) else v

        value, axes = finished(s.value), self.layout.axes(product)
        if isinstance(s, Let):
            array = self.tile(s.name, axes, storage(value.dtype), self.layout.inner[s.name])
            dot.into_tile(self, array, product, value)
            self.out.arrays[s.name] = array
            return
        place = self.layout.place(s.buffer, s.index, True)
        own = [i for _, side in self.layout.sides(product) for i in side]
        lane = next(i for i in sorted(own) if place.slope(i) == 1)
        spot = self.buffer_spot(Store(s.buffer, s.index, value), axes)
        dot.into_spot(self, spot, product, lane, value)

    def _for(self, f: For) -> None:
        i, tile = f.axis, self.program.axes[f.axis].tile
        origins = dict.fromkeys(self.program.axes, "0")  # an axis in a range means its origin
        start, stop = (self.out.size(e, origins) for e in (f.start, f.stop))
        if f.stop != self.program.axes[i].extent:
            stop = f"lt_min({stop}, {self.out.size(self.program.axes[i].extent, {})})"
        saved = self.out.origin.get(i), self.out.length.get(i)
        with self.out.block(f"for (i64 o{i} = {start}; o{i} < {stop}; o{i} += {tile})"):
            self._bind(f)
            self.body(f.body)
        for table, old in zip((self.out.origin, self.out.length), saved, strict=True):
            if old is not None:
                table[i] = old

    def _let(self, name: str, value: Value) -> None:
        if isinstance(value, Dot):
            value = dot.plain(self, value)
        array = self.tile(
            name, self.layout.axes(value), storage(value.dtype), self.layout.inner[name]
        )
        if isinstance(value, Dot):
            dot.into_tile(self, array, value)
        else:
            self.fill(array, value)
        self.out.arrays[name] = array

    def _var(self, s: Var) -> None:
        axes = frozenset(s.axes) - self.layout.unit
        array = self.tile(s.name, axes, storage(s.dtype), self.layout.inner[s.name])
        t = STORAGE[array.code][1]
        known = math.isfinite(s.init) or t in FLOATS
        init = literal(s.init, s.dtype) if known else identity("max", t)
        z, where = self.out.fresh("z"), array.name
        fill = f"put_{array.code}({where} + {z}, {init.text});"
        self.out.line(f"for (i64 {z} = 0; {z} < {array.size}; {z}++) {fill}")
        self.out.arrays[s.name] = array

    def _accumulate(self, s: Accumulate) -> None:
        array = self.out.arrays[s.name]
        value, scale = s.value, s.scale
        if isinstance(value, Dot):
            value = dot.plain(self, value) if s.op == "sum" else dot.summed(value)
        old: Value = Ref(s.name, frozenset(array.strides), value.dtype)
        if scale is not None:
            old = Map("mul", (old, scale), value.dtype)
        if isinstance(value, Dot):
            dot.into_tile(self, array, value, old=old)
        else:
            self.fill(array, Map("add" if s.op == "sum" else s.op, (old, value), value.dtype))

    def _store(self, s: Store) -> None:
        write(self, self.buffer_spot(s, self.layout.axes(s.value)), s.value)

    def buffer_spot(self, s: Store, axes: frozenset[int]) -> Spot:
        """The elements that a Store writes, over the axes of its index and those given."""
        place = self.layout.place(s.buffer, s.index, True)
        every = axes | self.layout.axes(Load(s.buffer, s.index, s.value.dtype))
        steps = {i: place.slope(i) for i in every}
        pointer = self.out.pointers[s.buffer]

        def by_stride(i: int) -> tuple[int, int]:
            step = steps[i]
            return (-abs(bounds(step)[1]) if step is not None else 0, i)

        return Spot(
            CODES[self.buffers[s.buffer].dtype.name],
            lambda idx: f"{pointer} + {self.out.size(place.flat, idx)}",
            tuple(sorted(every, key=by_stride)),
            frozenset(i for i in every if steps[i] == 1),
        )

    # ---- tiles ----

    def tile(
        self, name: str, axes: frozenset[int], code: str, inner: int | None,
        panel: tuple[int, int] | None = None, order: tuple[int, ...] = (),
    ) -> Array:  # fmt: skip
        """A declared array over the axes. A panel makes its axis the innermost, cut to a width."""
        rest = [i for i in (*order, *sorted(axes - set(order))) if i != inner and i in axes]
        strides: dict[int, int] = {}
        size = 1
        if panel:
            size = panel[1]
            inner = panel[0] if size % self.target.lanes == 0 else None
        elif inner is not None:
            strides[inner], size = 1, self.padded(inner)
        for i in reversed([i for i in rest if not (panel and panel[0] == i)]):
            strides[i], size = size, size * self.upper(i)
        if panel:
            strides[panel[0]] = size
            size *= -(-self.upper(panel[0]) // panel[1])
        memory = STORAGE[code][0]
        label = self.out.fresh("T")
        size = -(-size // self.target.lanes) * self.target.lanes
        self.scratch += size * _BYTES.get(code, 1)
        self.out.line(f"{memory} {label}[{size}] __attribute__((aligned(64))); // {name}")
        return Array(label, code, strides, inner, size, panel)

    def padded(self, i: int) -> int:
        """The stride that holds a tile of an axis in whole register blocks of a Dot."""
        width, lanes = self.program.schedule.block[1], self.target.lanes
        step = lanes * math.lcm(width, max(1, width // 2)) if self.upper(i) > lanes else lanes
        return -(-self.upper(i) // step) * step

    def upper(self, i: int) -> int:
        """The most indices that a tile of an axis has."""
        a = self.program.axes[i]
        return min(a.tile, bounds(a.extent)[1])

    def tile_spot(self, array: Array) -> Spot:
        """All elements of a tile."""
        axes = sorted(array.strides, key=lambda i: (array.strides[i] == 1, -array.strides[i], i))
        if array.panel and array.inner is not None:
            axes.sort(key=lambda i: i != array.inner)
        return Spot(
            array.code,
            lambda idx: f"{array.name} + {self.out.offset(array, idx)}",
            tuple(axes),
            frozenset() if array.inner is None else frozenset({array.inner}),
        )

    def fill(self, array: Array, value: Value) -> None:
        """array := value, at every index of the array's axes."""
        write(self, self.tile_spot(array), value)
