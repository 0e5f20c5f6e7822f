"""Tile program → C text of one kernel, as the CPU backend's ABI asks for it.

`K_tasks(size)` counts the independent tasks of the grid; `K_run(task, buf, size)` runs one. `buf`
holds the outputs, then the inputs, in kernel order; `size` the values of `base.kernel_symbols`. An
output may lie over an input that is `overwritable`, and over no other. Tiles live on the stack:
`Renderer.scratch` says how much of it a task needs. Of a schedule it reads `block` and the options
pack_a, pack_b (see `dot`), stream (write outputs past the caches) and ahead (fetch what is read
next: the last statement that reads a buffer again the next task's part of it).
"""

from __future__ import annotations

from dataclasses import replace

from lambent.backends.base import kernel_symbols
from lambent.backends.c.dot import multiply, pays, replaced, summed
from lambent.backends.c.emit import Emitter, symbol_name
from lambent.backends.c.expr import storage
from lambent.backends.c.layout import SLOW, Layout, elementwise, loads, reads, refs
from lambent.backends.c.prelude import CODES, STORAGE
from lambent.backends.c.target import Target
from lambent.backends.c.write import Spot, buffer_spot, chosen, reduced, tile_spot, write
from lambent.graph.dim import axes_in
from lambent.kernel import tile as ir


def render(program: ir.TileProgram, name: str, target: Target) -> str:
    """The C text of `{name}_tasks` and `{name}_run`; it needs `prelude(target)` before it.

    Raises:
        TypeError: a Dot stands elsewhere than under a Let or an Accumulate.
    """
    return Renderer(program, name, target).text()


class Renderer:
    """Writes one program: the grid and the statements. Then `scratch` is what its tiles need."""

    def __init__(self, program: ir.TileProgram, name: str, target: Target) -> None:
        self.program, self.name = program, name
        self.layout = Layout(program, target)
        self.out = Emitter(self.layout, reduced)
        for i, a in program.axes.items():
            if i not in self.layout.looped:
                self.out.origin[i], self.out.length[i] = "0", self.out.size(a.extent)

    # ---- the functions ----

    def text(self) -> str:
        out, k, counts = self.out, self.name, []
        names = kernel_symbols(self.program.kernel)
        symbols = "".join(f" const i64 {symbol_name(s)} = size[{i}];" for i, s in enumerate(names))
        grid, body = self._grid()
        for f in reversed(grid):
            tile = self.program.axes[f.axis].tile
            counts.append(f"lt_max(0, {out.size(f.stop - f.start + (tile - 1))} / {tile})")
            out.line(f"const i64 o{f.axis} = {out.size(f.start)} + task % {counts[-1]} * {tile};")
            out.line(f"task /= {counts[-1]};")
        for f in grid:
            self._bind(f)
        out.step = grid[-1].axis if grid and out.options.get("ahead") else None
        self.body(body)
        self.scratch = out.scratch
        memory = [STORAGE[CODES[b.dtype.name]][0] for b in self.layout.buffers.values()]
        alone = "" if self.program.kernel.overwritable else "restrict "
        params = ", ".join(f"{m} *{alone}b{i}" for i, m in enumerate(memory))
        args = ", ".join(f"buf[{i}]" for i in range(len(memory)))
        lines = "\n".join([symbols, *(f" {line}" for line in out.scope.lines)])
        return (
            f"CALL void {k}_body(i64 task, {params}, const i64 *size) {{\n{lines}\n}}\n"
            f"static i64 {k}_tasks(const i64 *size) {{\n{symbols}\n"
            f" return {' * '.join(counts) or '1'};\n}}\n"
            f"static void {k}_run(i64 task, void *const *buf, const i64 *size) {{\n"
            f" {k}_body(task, {args}, size);\n}}\n"
        )

    def _grid(self) -> tuple[list[ir.For], tuple[ir.Stmt, ...]]:
        """The directly nested outermost parallel loops whose ranges do not depend on each other."""
        grid: list[ir.For] = []
        body = self.program.body
        while len(body) == 1 and isinstance(s := body[0], ir.For) and s.parallel:
            if grid and (axes_in(s.start) | axes_in(s.stop)):
                break
            grid.append(s)
            body = s.body
        return grid, body

    def _bind(self, f: ir.For) -> None:
        """Inside the loop: the origin and the length of the axis."""
        i, a, out = f.axis, self.program.axes[f.axis], self.out
        lengths = self.layout.lengths(i)
        out.origin[i], out.length[i] = f"o{i}", str(max(lengths))
        if len(lengths) > 1:
            out.length[i] = f"n{i}"
            out.line(f"const i64 n{i} = lt_min({a.tile}, {out.size(a.extent)} - o{i});")

    # ---- statements ----

    def body(self, body: tuple[ir.Stmt, ...]) -> None:
        arrays, todo = dict(self.out.arrays), self._fused(body)
        read = [loads([s]) for s in todo]
        for n, s in enumerate(todo):
            before, later = (frozenset[str]().union(*some) for some in (read[:n], read[n + 1 :]))
            self.out.again = before & read[n] - later
            self._statement(s)
        self.out.arrays = arrays

    def _fused(self, body: tuple[ir.Stmt, ...]) -> list[ir.Stmt]:
        """The statements, in which a Let that one of the next alone reads has become part of it."""
        out = list(body)
        for let in reversed([s for s in body if isinstance(s, ir.Let)]):
            rest = [s for s in out if s is not let]
            for n, s in enumerate(rest[out.index(let) :], out.index(let)):
                if not isinstance(s, ir.For | ir.Var) and self._takes(s, let):
                    rest[n] = replace(s, value=replaced(s.value, let.name, let.value))
                    out = out if let.name in reads(rest) else rest
                    break
                if not isinstance(s, ir.Let):
                    break
        return out

    def _takes(self, s: ir.Let | ir.Store | ir.Accumulate, let: ir.Let) -> bool:
        """True if a statement can compute what it reads of a Let: each element once, or twice where
        that is quick."""
        axes, parts = self.layout.axes, list(elementwise(s.value))
        whole = [s.value, *(v.arg for v in parts if isinstance(v, ir.Reduce))]
        reading = [w for w in whole if let.name in {r.name for r in refs(w)}]
        if isinstance(let.value, ir.Dot):
            return s.value in reading and pays(self.out, let.value) and self._finishes(s, let.value)
        inner = list(ir.values(let.value)) if reading else []
        # mod takes a field of packed bits
        quick = (SLOW.keys() - {"mod"}).isdisjoint(v.op for v in inner if isinstance(v, ir.Map))
        more = self.layout.indices({i for w in reading for i in axes(w) - axes(let.value)})
        return 0 < len(inner) < 64 and more <= 1 + quick and not isinstance(let.value, ir.Reduce)

    def _statement(self, s: ir.Stmt) -> None:
        out, layout = self.out, self.layout
        match s:
            case ir.For():
                self._for(s)
            case ir.Let(name=name, value=value):
                spot = self._tile(name, layout.axes(value), storage(value.dtype))
                if chosen(value, spot.axes):
                    self._write(spot, ir.Lit(0, value.dtype))
                    value = ir.Map("add", (s.ref, value), value.dtype)
                self._write(spot, value)
            case ir.Var(name=name, dtype=dtype, init=init):
                spot = self._tile(name, s.ref.axes - layout.unit, storage(dtype))
                self._write(spot, ir.Lit(init, dtype))
            case ir.Accumulate(name=name, op=op, value=value, scale=scale):
                array = out.arrays[name]
                if isinstance(value, ir.Dot) and op != "sum":
                    value = summed(value)
                old: ir.Value = ir.Ref(name, frozenset(array.strides), value.dtype)
                old = ir.Map("mul", (old, scale), value.dtype) if scale is not None else old
                new = ir.Map("add" if op == "sum" else op, (old, value), value.dtype)
                self._write(tile_spot(out, array), new)
            case ir.Store(value=value):
                self._write(buffer_spot(out, s), value)

    def _write(self, spot: Spot, value: ir.Value) -> None:
        for dot in [v for v in elementwise(value) if isinstance(v, ir.Dot)]:
            if pays(self.out, dot):
                return multiply(self.out, spot, value, dot)
            value = replaced(value, dot, summed(dot))
        write(self.out, spot, value)

    def _finishes(self, s: ir.Let | ir.Store | ir.Accumulate, dot: ir.Dot) -> bool:
        """True if a statement is a short expression of a Dot, at its axes."""
        layout, parts = self.layout, list(elementwise(s.value))
        ops = [v.op for v in parts if isinstance(v, ir.Map)]
        fits = isinstance(s, ir.Let) and layout.axes(s.value) == layout.axes(dot)
        if isinstance(s, ir.Store):
            spot, (_, a), (_, b) = buffer_spot(self.out, s), *layout.sides(dot)
            fits = layout.axes(dot) == set(spot.axes) and not spot.near.isdisjoint(a | b)
        alone = not any(isinstance(v, ir.Dot) for v in parts)
        return fits and alone and len(ops) <= 6 and SLOW.keys().isdisjoint(ops)

    def _for(self, f: ir.For) -> None:
        i, out, extent = f.axis, self.out, self.program.axes[f.axis].extent
        stop = out.size(f.stop)
        if f.stop != extent:
            stop = f"lt_min({stop}, {out.size(extent)})"
        step = f"o{i} += {self.program.axes[i].tile}"
        with out.block(f"for (i64 o{i} = {out.size(f.start)}; o{i} < {stop}; {step})"):
            self._bind(f)
            self.body(f.body)

    def _tile(self, name: str, axes: frozenset[int], code: str) -> Spot:
        array = self.out.tile(name, sorted(axes), code, self.layout.inner[name])
        self.out.arrays[name] = array
        return tile_spot(self.out, array)
