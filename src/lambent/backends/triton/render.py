"""Tile program → Triton source of one kernel.

The kernel is a function of pointers to its outputs and inputs, in kernel order, and the values of
`base.kernel_symbols`; one program of the launch's grid is one task. Of a schedule it reads these
options: `group` (rows of tasks that share columns in the second-level cache), `backwards` (the last
tasks come first), `descriptors` (the copy engine moves tiles), `specialize` (of the warps of a loop
of products some only copy) and `persistent` (so many programs, each of which does several tasks).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from keyword import iskeyword

from lambent.backends.base import kernel_symbols
from lambent.backends.products import apart, multiplies, narrowed, plain
from lambent.backends.triton.blocks import LARGEST, SMALL, Blocks, symbol_name
from lambent.backends.triton.grid import grid, grouped, products_first, trips
from lambent.backends.triton.maps import (
    as_index,
    chosen,
    limiting,
    mapped,
    regrouped,
    scaled,
)
from lambent.backends.triton.text import (
    NAMES,
    POINTERS,
    PRELUDE,
    Tile,
    call,
    cast,
    infix,
    literal,
    needed,
    number,
)
from lambent.backends.triton.windows import Window, window
from lambent.graph.dim import Size, axes_in, axis, symbol_range, values_in
from lambent.graph.prove import maximum, minimum
from lambent.kernel.kernel import Buffer
from lambent.kernel.tile import (
    Accumulate,
    Dot,
    For,
    Index,
    Let,
    Lit,
    Load,
    Map,
    Reduce,
    Ref,
    Stmt,
    Store,
    TileProgram,
    Value,
    Var,
    index_axes,
)  # fmt: skip

LOCALS = ("pid", "task", "first", "high", "none", "floor_div", "floor_mod", "nan_max", "range")
MATRIX = ("bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2")
"""Operands of tl.dot; others are multiplied and summed."""
IEEE, TF32 = ', input_precision="ieee"', ', input_precision="tf32"'
EIGHT = ("float8e4nv", "float8e5")  # which go together
PARTS = 128  # products of floats of 8 bits that are summed in the bits of the matrix units, at most


@dataclass(frozen=True, slots=True)
class Rendered:
    """A kernel's text. `tasks` counts the programs of its grid; `signature` gives the types of its
    parameters by name, as `triton.compile` wants them; `largest`: elements of its largest tile."""

    source: str
    signature: dict[str, str]
    tasks: Size
    largest: int


@dataclass(slots=True)
class _Scope:
    """A block being written: its loop's axis, its lines, the loads and names made in it."""

    axes: frozenset[int]
    lines: list[tuple[str, str]] = field(default_factory=list)  # (what the line defines, text)
    loads: dict[tuple[str, tuple[Size, ...]], Tile] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)


def render(program: TileProgram, name: str = "kernel", exact: bool = True) -> Rendered:
    """The source of a program.

    Args:
        exact: float32 operands of products stay float32; else matrix units may take them as TF32.

    Raises:
        ValueError: a tile of more elements than a processor holds.
    """
    return _Renderer(program, name, exact).rendered()


class _Renderer:
    def __init__(self, program: TileProgram, name: str, exact: bool) -> None:
        self.program, self.name, self.exact = program, name, exact
        self.blocks = Blocks(program)
        kernel = program.kernel
        self.outputs = [o.buffer for o in kernel.outputs]
        self.buffers: dict[str, Buffer] = {b.name: b for b in (*self.outputs, *kernel.inputs)}
        self.symbols = kernel_symbols(kernel)
        self.taken = {"tl", "triton", "float", name, *map(symbol_name, self.symbols), *LOCALS}
        self.taken |= {f"{letter}{i}" for i in program.axes for letter in ("i", "o", "v", "pid_")}
        self.params = {b: self.fresh(re.sub(r"\W", "_", b), "ptr") for b in self.buffers}
        self.scopes = [_Scope(frozenset())]
        self.options = dict(program.schedule.options)
        self.descriptors: dict[tuple[str, Window], str] = {}
        self.fixed: frozenset[int] = frozenset()
        self.rows: frozenset[int] = frozenset()
        self.lets: dict[str, Value] = {}
        self.largest = 1
        self.never, self.pairs = apart(program)

    def fresh(self, name: str, suffix: str = "") -> str:
        """The name, or one like it that nothing else has."""
        name = name if name.isidentifier() and not iskeyword(name) else f"b_{name}"
        found, n = name, 0
        while found in self.taken:
            found, n = f"{name}_{suffix}{n or ''}" if suffix else f"{name}_{n + 1}", n + 1
        self.taken.add(found)
        return found

    def line(self, text: str, name: str = "") -> None:
        self.scopes[-1].lines.append((name, text))

    def rendered(self) -> Rendered:
        signature = {self.params[n]: f"*{POINTERS[b.dtype.name]}" for n, b in self.buffers.items()}
        for s in self.symbols:
            signature[symbol_name(s)] = "i32" if symbol_range(s)[1] < SMALL else "i64"
        for i in self.program.axes:
            if i not in self.blocks.looped:
                self.bind(i, "")
        self.line("none = tl.num_programs(1) - 1", "none")
        tasks = self.tasks()
        lines = needed(self.scopes[0].lines)
        head = f"@triton.jit\ndef {self.name}({', '.join(signature)}):\n"
        text = PRELUDE + head + "".join(f"    {t}\n" for t in lines)
        return Rendered(text, signature, tasks, self.largest)

    # ---- the grid and loops ------------------------------------------------------------------

    def tasks(self) -> Size:
        """All tasks, one a program, or each program's in a loop. Returns the count of programs."""
        loops, body = grid(self.program)
        count = math.prod(trips(self.program, f) for f in loops)
        whole = self.blocks.total(count, self.blocks.origin).at(3)
        programs = self.options.get("persistent", 0) if loops else 0
        if not programs:
            self.task(loops, "tl.program_id(0)", "tl.num_programs(0)")
            self.body(body)
            return count
        self.scopes.append(_Scope(frozenset(f.axis for f in loops)))
        self.task(loops, "task", whole)
        self.body(body)
        inner = self.scopes.pop()
        one = sum(text.startswith("for ") for _, text in inner.lines) == 1
        one = one and not any("make_tensor_descriptor" in text for _, text in inner.lines)
        how = "warp_specialize" if self.options.get("specialize") else "flatten"
        more = f", {how}=True" if one and (how != "flatten" or plain(body)) else ""
        self.line(f"for task in tl.range(tl.program_id(0), {whole}, tl.num_programs(0){more}):")
        for name, text in inner.lines:
            self.line(f"    {text}", name)
        return minimum(count, programs)

    def task(self, loops: list[For], number: str, count: str) -> None:
        """Decode the task's number into origins."""
        texts = [self.blocks.total(trips(self.program, f), self.blocks.origin).at(3) for f in loops]
        last = f"{count} - 1 - " if self.options.get("backwards") else ""
        self.line(f"pid = {last}{number}", "pid")
        group = self.options.get("group", 1)
        numbers = [f"pid_{f.axis}" for f in loops]
        for n in range(len(loops) - 1, 0, -1):
            self.line(f"{numbers[n]} = pid % {texts[n]}", numbers[n])
            self.line(f"pid = pid // {texts[n]}")
        if loops:
            self.line(f"{numbers[0]} = pid", numbers[0])
        if group > 1 and len(loops) > 1:
            for text in grouped(numbers[-2:], texts[-2:], group):
                self.line(text)
        for f, number_ in zip(loops, numbers, strict=True):
            tile = self.program.axes[f.axis].tile
            start = self.blocks.total(f.start, self.blocks.origin)
            plus = "" if start.text == "0" else f"{start.text} + "
            self.line(
                f"o{f.axis} = {plus}{number_}{f' * {tile}' if tile > 1 else ''}", f"o{f.axis}"
            )
            self.bind(f.axis, f"o{f.axis}")
        self.rows = frozenset(f.axis for f in loops)
        self.fixed = frozenset(i for i in self.rows if self.blocks.size[i] == 1)

    def bind(self, i: int, origin: str, whole: bool = False) -> None:
        """The indices of an axis whose tile starts at the origin, and which of them are valid."""
        self.blocks.inside.pop(i, None)
        a, size = self.program.axes[i], self.blocks.size[i]
        if size == 1:
            self.blocks.index[i] = Tile(origin or "0")
            return
        plus = f"{origin} + " if origin else ""
        name = f"i{i}"
        self.line(f"{name} = {plus}tl.arange(0, {size})", name)
        self.blocks.index[i] = Tile(name, (i,))
        if whole or not self.blocks.ragged(i):
            return
        stop = self.blocks.total(a.extent, self.blocks.atom).text
        if origin and a.tile != size:
            stop = f"tl.minimum({origin} + {a.tile}, {stop})"
        self.line(f"v{i} = {name} < {stop}", f"v{i}")
        self.blocks.inside[i] = Tile(f"v{i}", (i,), "int1")

    def loop(self, f: For) -> None:
        """A loop; where its last tile is ragged, without that, which comes after it."""
        i, a = f.axis, self.program.axes[f.axis]
        inner = axes_in(f.start) or any(isinstance(s, For) for s in f.body)
        if not self.blocks.ragged(i) or self.blocks.whole(i, f.stop):
            self.piece(f, f.start, f.stop, True)
        elif inner or self.options.get("single"):
            self.piece(f, f.start, f.stop, False)
        else:
            end = a.extent // a.tile * a.tile
            self.piece(f, f.start, minimum(end, f.stop), True)
            self.piece(f, maximum(end, f.start), f.stop, False)

    def piece(self, f: For, first: Size, last: Size, whole: bool) -> None:
        """A part of a loop. `whole`: all indices of its tiles are valid."""
        i, tile = f.axis, self.program.axes[f.axis].tile
        extent = self.program.axes[i].extent
        start, stop = (self.blocks.total(e, self.blocks.origin).text for e in (first, last))
        if not whole and last != extent:
            stop = f"tl.minimum({stop}, {self.blocks.total(extent, self.blocks.origin).text})"
        self.scopes.append(_Scope(frozenset({i})))
        self.bind(i, f"o{i}", whole)
        self.body(f.body)
        inner = self.scopes.pop()
        steps = f"range({start}, {stop}, {tile})"
        special = self.options.get("specialize") and not self.options.get("persistent")
        if special and any(map(multiplies, f.body)):
            steps = f"tl.{steps[:-1]}, warp_specialize=True)"
        self.line(f"for o{i} in {steps}:")
        for name, text in inner.lines:
            self.line(f"    {text}", name)

    # ---- statements --------------------------------------------------------------------------

    def body(self, body: tuple[Stmt, ...]) -> None:
        special = self.options.get("specialize")  # where it helps
        for s in products_first(body) if special else body:
            match s:
                case For():
                    self.loop(s)
                case Let(name=name, value=value):
                    self.lets[name] = value
                    self.let(name, self.value(value))
                case Var():
                    self.var(s)
                case Accumulate():
                    self.accumulate(s)
                case Store():
                    self.store(s)

    def let(self, name: str, tile: Tile) -> None:
        found = self.fresh(name)
        self.line(f"{found} = {tile.text}", found)
        self.scopes[-1].names.add(name)
        self.blocks.names[name] = replace(tile, text=found, level=3)

    def var(self, s: Var) -> None:
        dims, dtype = self.blocks.dims(s.axes), NAMES[s.dtype.name]
        self.bounded(dims)
        shape = self.blocks.shape(dims)
        self.let(
            s.name, Tile(f"tl.full({shape}, {number(s.init, s.dtype)}, tl.{dtype})", dims, dtype)
        )

    def accumulate(self, s: Accumulate) -> None:
        acc = self.blocks.names[s.name]
        old = acc
        if s.scale is not None:
            old = infix("*", acc, self.value(s.scale).to(acc.dtype), acc.dims, acc.dtype)
        if isinstance(s.value, Dot) and s.op == "sum":
            new = self.dot(s.value, old)
        else:
            op = "add" if s.op == "sum" else s.op
            new = self.combined(op, [old, self.value(s.value)], acc.dtype)
        assert new.dims == acc.dims, f"{s.name}: the value has axes that the Var lacks"
        self.line(f"{acc.text} = {new.text}", "")

    def combined(self, op: str, args: list[Tile], dtype: str) -> Tile:
        return mapped(op, [a.to(dtype) for a in args], self.joint(args), dtype)

    def store(self, s: Store) -> None:
        buffer, value = self.buffers[s.buffer], self.value(s.value)
        dtype = "uint8" if buffer.dtype.kind == "b" else NAMES[buffer.dtype.name]
        w = self.window(buffer, s.index)
        if w is not None and set(value.dims) == set(w.axes):
            given = self.arranged(value.to(dtype), tuple((i,) for i in w.axes))
            self.line(f"{self.descriptor(s.buffer, w)}.store({self.corner(w)}, {given})")
            return
        offset, _ = self.blocks.place(buffer, s.index, True)
        dims = self.joint([offset, value])
        place = infix("+", Tile(self.params[s.buffer]), offset.over(dims), dims, "int32")
        mask = self.blocks.mask(dims, [])
        self.line(f"tl.store({place.text}, {value.to(dtype).over(dims).text}{mask})")

    # ---- values ------------------------------------------------------------------------------

    def joint(self, tiles: Iterable[Tile]) -> tuple[int, ...]:
        return self.blocks.dims(i for t in tiles for i in t.dims)

    def bounded(self, dims: tuple[int, ...]) -> None:
        count = math.prod(self.blocks.size[i] for i in dims)
        self.largest = max(self.largest, count)
        if count > LARGEST:
            raise ValueError(f"a tile of {count} elements, more than a processor holds: {LARGEST}")

    def value(self, v: Value, typed: bool = True) -> Tile:
        """The text of a value; a constant is a tensor if `typed`, else it may be a number."""
        match v:
            case Load():
                return self.load(v)
            case Lit(value=x, dtype=dtype):
                return literal(x, dtype, typed)
            case Index(index=e):
                found = self.blocks.index_of(e)
                scalar = f"tl.cast({found.text}, tl.{found.dtype})"  # it may be a plain number
                return found if found.dims else Tile(scalar, (), found.dtype)
            case Ref(name=name):
                return self.blocks.names[name]
            case Reduce():
                return self.reduce(v)
            case Dot():
                return self.dot(v, None)
            case Map():
                return self.map(v)

    def map(self, given: Map) -> Tile:
        named = {n: self.lets[n] for s in self.scopes for n in s.names if n in self.lets}
        v = regrouped(chosen(given), named)
        assert isinstance(v, Map)
        index = as_index(v)
        if index is not None:
            return self.value(Index(index))
        constants = [isinstance(a, Lit) for a in v.args]
        typed = all(constants) or len(v.args) == 1 or (v.op == "mask" and constants[1])
        typed = typed or (v.op == "select" and all(constants[1:]))
        args = [self.value(a, typed) for a in v.args]
        dims, dtype = self.joint(args), NAMES[v.dtype.compute.name]
        self.bounded(dims)
        if v.op == "cast":
            return cast(args[0], v.args[0].dtype, v.dtype)
        if v.op in ("less", "eq"):
            inner = NAMES[v.args[0].dtype.compute.name]
            short = (
                a.dtype == "int32" or (isinstance(x, Lit) and abs(x.value) < SMALL)
                for a, x in zip(args, v.args, strict=True)
            )  # fmt: skip
            small = inner == "int64" and all(short)
            return mapped(v.op, [a if small else a.to(inner) for a in args], dims, dtype)
        if v.op == "select" and (function := limiting(v)):
            exact = ", propagate_nan=tl.PropagateNan.ALL"
            return call(function, [a.to(dtype) for a in args[1:]], dims, dtype, exact)
        first = 1 if v.op in ("mask", "select") else 0
        return mapped(v.op, args[:first] + [a.to(dtype) for a in args[first:]], dims, dtype)

    def load(self, v: Load) -> Tile:
        """A name for what is loaded, in the outermost block in which it can be."""
        axes = frozenset[int]().union(*map(index_axes, v.index))
        names = {ref.name for e in v.index for ref in values_in(e)}
        at = max(
            (n for n, s in enumerate(self.scopes) if s.axes & axes or s.names & names), default=0
        )
        key = (v.buffer, v.index)
        for scope in self.scopes:
            if key in scope.loads:
                return scope.loads[key]
        scope, buffer = self.scopes[at], self.buffers[v.buffer]
        pair = self.pairs.get(v, v)
        other = self.window(self.buffers[pair.buffer], pair.index)
        w = self.window(buffer, v.index) if other and v not in self.never else None
        if w is not None:
            return self.copied(v, w, scope)
        offset, needed = self.blocks.place(buffer, v.index, False)
        self.bounded(offset.dims)
        name, dtype = self.fresh(f"{self.params[v.buffer]}_tile"), NAMES[buffer.dtype.name]
        if 0 in buffer.shape:
            text = f"tl.zeros({self.blocks.shape(offset.dims)}, tl.{dtype})"
        else:
            mask = self.blocks.mask(offset.dims, needed)
            place = infix("+", Tile(self.params[v.buffer]), offset, offset.dims, "")
            none = ", other=0.0" if dtype.startswith("float8") else ", other=0"
            text = f"tl.load({place.text}{mask}{none if mask else ''})"
            text += " != 0" if dtype == "int1" else ""
        scope.lines.append((name, f"{name} = {text}"))
        scope.loads[key] = Tile(name, offset.dims, dtype)
        return scope.loads[key]

    def window(self, buffer: Buffer, index: tuple[Size, ...]) -> Window | None:
        """What a descriptor covers, if the schedule wants descriptors and the engine can do it."""
        wanted = self.options.get("descriptors")
        return window(self.blocks, buffer, index, self.fixed) if wanted else None

    def descriptor(self, buffer: str, w: Window) -> str:
        """The name of the window's descriptor, made before the first loop of the task."""
        key = buffer, replace(w, starts=())
        if key not in self.descriptors:
            name = self.descriptors[key] = self.fresh(f"{self.params[buffer]}_window")
            base = self.blocks.total(w.base, self.blocks.atom, wide=True)
            place = infix("+", Tile(self.params[buffer]), base, (), "")
            shape, strides = (
                ", ".join(self.blocks.total(n, self.blocks.atom).text for n in sizes)
                for sizes in (w.shape, w.strides)
            )
            block = ", ".join(str(self.blocks.size[i]) for i in w.axes)
            text = f"tl.make_tensor_descriptor({place.text}, [{shape}], [{strides}], [{block}])"
            own = bool(self.options.get("persistent") and axes_in(w.base))
            self.scopes[own].lines.append((name, f"{name} = {text}"))
        return self.descriptors[key]

    def corner(self, w: Window) -> str:
        """Where in the window's dims the block starts.

        Where the compiler gives half of a tile's rows to other warps it moves the corner, and with
        it whatever else is made of the same value, as the rows' indices, which it then moves twice:
        so the corner is made of another one, by adding 0 that it cannot know to be 0.
        """
        texts = []
        for i, start in zip(w.axes, w.starts, strict=True):
            e = start + (axis(i) if i in self.blocks.looped else 0)
            apart = i in self.rows and self.options.get("specialize")
            texts.append(self.blocks.total(e, self.blocks.origin).text + " + none" * bool(apart))
        return f"[{', '.join(texts)}]"

    def copied(self, v: Load, w: Window, scope: _Scope) -> Tile:
        """The tile that the copy engine brings."""
        descriptor = self.descriptor(v.buffer, w)
        tile = Tile(f"{descriptor}.load({self.corner(w)})", w.axes)
        dims = self.blocks.dims(w.axes)
        self.bounded(dims)
        name = self.fresh(f"{self.params[v.buffer]}_tile")
        text = self.arranged(tile, tuple((i,) for i in dims))
        scope.lines.append((name, f"{name} = {text}"))
        scope.loads[v.buffer, v.index] = Tile(name, dims, NAMES[v.dtype.name])
        return scope.loads[v.buffer, v.index]

    # ---- reductions and products -------------------------------------------------------------

    def reduce(self, v: Reduce) -> Tile:
        scale, x = scaled(v.arg, self.lets)
        if v.op != "sum" and scale is not None:
            greatest = self.reduce(replace(v, arg=x))
            factor = literal(scale, v.dtype, False)
            return infix("*", factor, greatest, greatest.dims, greatest.dtype)
        t = self.value(v.arg).to(NAMES[v.dtype.compute.name])
        zero = v.op == "sum" and isinstance(v.arg, Load)
        fill = number(0 if v.op == "sum" else -math.inf, v.dtype)
        return self.reduced(v.op, v.axes, t if zero else self.blocks.cut(t, v.axes, fill))

    def reduced(self, op: str, axes: frozenset[int], t: Tile) -> Tile:
        dims, text, kept = list(t.dims), t.text, t.dtype
        inside = [i for i in dims if i in axes]
        if not inside:
            return t
        function = "tl.sum" if op == "sum" else "tl.max"
        if kept == "int1":
            function, text = "tl.max", t.to("int32").text
        for i in reversed(inside):
            n = dims.index(i)
            exact = op == "max" and kept.startswith("float")
            text = f"tl.reduce({text}, {n}, nan_max)" if exact else f"{function}({text}, {n})"
            dims.remove(i)
        wide = "int32" if kept in ("int1", "int8", "int16", "uint8") else kept
        return Tile(text, tuple(dims), wide).to(kept)

    def dot(self, v: Dot, acc: Tile | None) -> Tile:
        """A product: on the matrix units where they can do it, else multiplied and summed."""
        v = narrowed(v, self.lets)
        a, b = self.value(v.a), self.value(v.b)
        inner = self.blocks.dims(i for i in {*a.dims, *b.dims} if i in v.axes)
        batch = tuple(i for i in a.dims if i in b.dims and i not in inner)
        rows, columns = (
            tuple(i for i in t.dims if i not in inner and i not in batch) for t in (a, b)
        )
        dtype = min(v.a.dtype, v.b.dtype, key=lambda kind: kind.itemsize)  # a part is held wider
        depth = math.prod(self.blocks.size[i] for i in inner)
        compute = NAMES[dtype.compute.name]
        if dtype.name not in MATRIX or depth < 16 or not (rows and columns):
            product = self.combined("mul", [self.operand(t, v, compute) for t in (a, b)], compute)
            self.bounded(product.dims)
            total = self.reduced("sum", v.axes, product)
            return total if acc is None else self.combined("add", [acc, total], acc.dtype)
        if self.blocks.rank[rows[0]] > self.blocks.rank[columns[0]]:
            a, b, rows, columns = b, a, columns, rows
        name = NAMES[dtype.name]
        left, right = (t.dtype if t.dtype in EIGHT and name in EIGHT else name for t in (a, b))
        left = self.arranged(self.operand(a, v, left), (batch, rows, inner))
        right = self.arranged(self.operand(b, v, right), (batch, inner, columns))
        order = (*batch, *rows, *columns)
        plain = len(batch) <= 1 and len(rows) == len(columns) == 1
        more = (IEEE if self.exact else TF32) if name == "float32" else ""
        more += f", max_num_imprecise_acc={min(PARTS, depth)}" if name in EIGHT else ""
        fused = acc is not None and plain and acc.dims == order
        self.bounded(order)
        plus = f", {acc.text}" if acc is not None and fused else ""
        text = f"tl.dot({left}, {right}{plus}{more})"
        if not plain:
            text = f"tl.reshape({text}, {self.blocks.shape(order)})"
        dims = self.blocks.dims(order)
        if dims != order:
            text = f"tl.permute({text}, {tuple(order.index(i) for i in dims)})"
        out = Tile(text, dims, compute)
        return out if acc is None or fused else self.combined("add", [acc, out], acc.dtype)

    def operand(self, t: Tile, v: Dot, dtype: str) -> Tile:
        """An operand of a product: 0 where a contracted index is not valid."""
        loaded = any(t == x for scope in self.scopes for x in scope.loads.values())
        return (t if loaded else self.blocks.cut(t, v.axes, "0.0")).to(dtype)

    def arranged(self, t: Tile, groups: tuple[tuple[int, ...], ...]) -> str:
        """The tile with its dims in groups: one dim each, and none for an empty first one."""
        order = tuple(i for group in groups for i in group)
        text = t.text
        if order != t.dims:
            places = tuple(t.dims.index(i) for i in order)
            text = f"tl.trans({text})" if len(order) == 2 else f"tl.permute({text}, {places})"
        if any(len(g) > 1 for g in groups):
            sizes = [math.prod(self.blocks.size[i] for i in g) for g in groups if g]
            text = f"tl.reshape({text}, ({', '.join(map(str, sizes))}))"
        return text
