"""Tile values → C expressions: one element, or one vector along the lane axis, at a place in the loops.

Values are virtual: each is computed in the outermost open loop that binds all of its axes, once, into a C
variable. Nothing is stored that a statement does not store.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from lambent.backends.cpu.layout import Array, Layout, index_axes, slope
from lambent.backends.cpu.prelude import CODES, FLOATS, STORAGE
from lambent.graph.dim import Atom, Prover, Size, terms_of
from lambent.graph.dtypes import DType
from lambent.kernel.tile import Index, Lit, Load, Map, Reduce, Ref, Value

INT32 = 1 << 31
_BITS = {"f32": 32, "f64": 64, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "u8": 8, "m": 32}


@dataclass(frozen=True, slots=True)
class Expr:
    """C text of a value: of type `t` (of the prelude), a vector or one element."""

    text: str
    t: str
    vector: bool


@dataclass(slots=True)
class Scope:
    """An open loop: the local index of every bound axis, the lines so far, what is computed.

    binds: the axes that this loop itself binds; what depends on them cannot leave it.
    lane, tail: the lane axis, and the C name of the number of live lanes where not all are.
    """

    idx: dict[int, str]
    lines: list[str]
    lane: int | None = None
    tail: str | None = None
    binds: frozenset[int] = frozenset()
    barrier: bool = False  # the start of a statement: nothing is computed before it
    memo: dict[int, tuple[Value, Expr]] = field(default_factory=dict)


class Emitter:
    """Writes C for the values of one program. `arrays` maps names of Lets and Vars to their tiles."""

    def __init__(self, layout: Layout, pointers: Mapping[str, str]) -> None:
        self.layout, self.lanes, self.pointers = layout, layout.lanes, pointers
        self.arrays: dict[str, Array] = {}
        self.origin: dict[int, str] = {}
        self.length: dict[int, str] = {}
        self.stack = [Scope(dict.fromkeys(layout.unit, "0"), [], barrier=True)]
        self.blocks: dict[str, tuple[str, int]] = {}  # index text → (first of its block, plus)
        self._serial = 0
        self._ranges: dict[int, tuple[Value, tuple[int, int] | None]] = {}

    # ---- lines and loops ----

    @property
    def scope(self) -> Scope:
        return self.stack[-1]

    def fresh(self, prefix: str) -> str:
        self._serial += 1
        return f"{prefix}_{self._serial}"

    def line(self, text: str) -> None:
        self.scope.lines.append(text)

    @contextmanager
    def block(
        self,
        head: str,
        idx: Mapping[int, str] | None = None,
        lane: int | None = None,
        tail: str | None = None,
        barrier: bool = False,
    ) -> Iterator[None]:
        """A C block; inside, more axes are bound. Without a lane axis, the enclosing one stays."""
        outer = self.scope
        if lane is None:
            lane, tail = outer.lane, outer.tail
        bound = idx or {}
        self.stack.append(Scope({**outer.idx, **bound}, [], lane, tail, frozenset(bound), barrier))
        yield
        inner = self.stack.pop()
        outer.lines.append(f"{head} {{")
        outer.lines += [f" {line}" for line in inner.lines]
        outer.lines.append("}")

    @contextmanager
    def at(
        self, idx: Mapping[int, str], lane: int | None = None, tail: str | None = None
    ) -> Iterator[None]:
        """More axes bound, without a block."""
        outer = self.scope
        self.stack.append(Scope({**outer.idx, **idx}, outer.lines, lane, tail, frozenset(idx)))
        yield
        self.stack.pop()

    @contextmanager
    def loop(self, i: int) -> Iterator[None]:
        """All indices of an axis, one by one."""
        v = self.fresh("i")
        with self.block(f"for (i64 {v} = 0; {v} < {self.length[i]}; {v}++)", {i: v}):
            yield

    def nest(self, axes: Iterable[int], lane: int | None, body: Callable[[], None]) -> None:
        """Loops over the axes, outermost first, the lane axis innermost in vectors and a tail."""
        rest = [i for i in axes if i != lane]
        if rest:
            with self.loop(rest[0]):
                self.nest([*rest[1:], *([] if lane is None else [lane])], lane, body)
        elif lane is None:
            body()
        else:
            self.vectors(lane, body)

    def vectors(self, lane: int, body: Callable[[], None]) -> None:
        """The lane axis, LANES at a time; the last, partial vector has its own text."""
        v, n, whole = self.fresh("l"), self.length[lane], self.layout.multiple(lane, self.lanes)
        short = n.isdigit() and int(n) < self.lanes
        self.line(f"i64 {v} = 0;")
        if not short:
            step = f"for (; {v} + {self.lanes} <= {n}; {v} += {self.lanes})"
            with self.block(step, {lane: v}, lane):
                body()
        if not whole and not (n.isdigit() and int(n) % self.lanes == 0):
            t = self.fresh("t")
            with self.block(f"if ({v} < {n})", {lane: v}, lane, t):
                self.line(f"const i64 {t} = {n} - {v};")
                body()

    # ---- sizes ----

    def size(self, e: Size, idx: Mapping[int, str]) -> str:
        """C text of a size, as an i64; `idx` gives the local indices of its axes."""
        parts = []
        for c, monomial in terms_of(e):
            factors = [self._atom(a, idx) for a, power in monomial for _ in range(power)]
            number = [] if c == 1 and factors else [str(c) if abs(c) < INT32 else f"{c}LL"]
            parts.append("*".join([*number, *factors]))
        return f"({' + '.join(parts)})" if parts else "0"

    def _atom(self, atom: Atom, idx: Mapping[int, str]) -> str:
        match atom.kind:
            case "symbol":
                return symbol_name(atom.args[0])
            case "axis":
                i = atom.args[0]
                return f"({self.origin[i]} + {idx[i]})"
            case "value":
                ref = atom.args[0]
                return f"(i64){self.element(self.arrays[ref.name], idx)}"
        a, b = (self.size(arg, idx) for arg in atom.args)
        if atom.kind != "div":
            return f"lt_{atom.kind}({a}, {b})"
        if self.layout.prover.ge0(atom.args[0]):
            return f"({a} / {b})"
        return f"lt_div({a}, {b})"

    def offset(self, array: Array, idx: Mapping[int, str]) -> str:
        parts = []
        for i, stride in array.strides.items():
            if idx[i] == "0":
                continue
            if array.panel and array.panel[0] == i:
                width = array.panel[1]
                first, plus = self.blocks.get(idx[i], (idx[i], 0))
                rest = f" + {plus}" if plus else ""
                parts.append(f"({first}) / {width} * {stride} + ({first}) % {width}{rest}")
            else:
                parts.append(f"({idx[i]})" + (f"*{stride}" if stride != 1 else ""))
        return " + ".join(parts) or "0"

    def element(self, array: Array, idx: Mapping[int, str]) -> str:
        return f"get_{array.code}({array.name} + {self.offset(array, idx)})"

    # ---- values ----

    def value(self, v: Value) -> Expr:
        """The value at the current place: a vector where it depends on the lane axis."""
        axes = self.layout.axes(v)
        depth = len(self.stack) - 1
        while not (self.stack[depth].barrier or axes & self.stack[depth].binds):
            depth -= 1
        scope = self.stack[depth]
        known = scope.memo.get(id(v))
        if known is None:
            inner, self.stack[depth + 1 :] = self.stack[depth + 1 :], []
            known = scope.memo[id(v)] = (v, self._named(v))
            self.stack += inner
        return known[1]

    def _named(self, v: Value) -> Expr:
        e = self._value(v)
        if e.text.isidentifier() or isinstance(v, Lit):
            return e
        name = self.fresh("x")
        self.line(f"const {ctype(e.t, e.vector)} {name} = {e.text};")
        return Expr(name, e.t, e.vector)

    def _value(self, v: Value) -> Expr:
        vector = self.scope.lane is not None and self.scope.lane in self.layout.axes(v)
        match v:
            case Lit(value=x, dtype=dtype):
                return literal(x, dtype)
            case Load():
                return self._load(v, vector)
            case Ref():
                return self._ref(v, vector)
            case Index(index=e):
                return self._index(e, vector, "i32" if self.small(v) else "i64")
            case Map():
                return self._map(v, vector)
            case Reduce():
                return self._reduce(v, vector)
            case _:
                raise TypeError(f"{type(v).__name__} is not an elementwise value")

    def lane_index(self, z: str) -> dict[int, str]:
        """The local indices of lane number z."""
        assert self.scope.lane is not None
        idx = self.scope.idx
        return {**idx, self.scope.lane: f"({idx[self.scope.lane]} + {z})"}

    def gather(self, t: str, element: str) -> Expr:
        """A vector from C text of one element, in which the lane number is `z`."""
        name = self.fresh("g")
        live = self.scope.tail or str(self.lanes)
        one = f"-({element})" if t == "m" else element
        self.line(f"v{t} {name} = 0;")
        self.line(f"for (i64 z = 0; z < {live}; z++) {name}[z] = {one};")
        return Expr(name, t, True)

    def fetch(self, code: str, pointer: str) -> str:
        """C text that loads the current vector from a pointer."""
        tail = self.scope.tail
        return f"ldt_{code}({pointer}, {tail})" if tail else f"ld_{code}({pointer})"

    def _ref(self, v: Ref, vector: bool) -> Expr:
        array = self.arrays[v.name]
        t = STORAGE[array.code][1]
        if not vector:
            return Expr(self.element(array, self.scope.idx), t, False)
        if array.inner == self.scope.lane:  # tiles are padded to whole vectors
            return Expr(f"ld_{array.code}({array.name} + {self.offset(array, self.scope.idx)})", t, True)
        return self.gather(t, self.element(array, self.lane_index("z")))

    def _load(self, v: Load, vector: bool) -> Expr:
        code = CODES[v.dtype.name]
        t, pointer = STORAGE[code][1], self.pointers[v.buffer]
        place, lane, idx = self.layout.place(v.buffer, v.index), self.scope.lane, self.scope.idx
        bare = [n for _, clamp, n, _ in place.dims if clamp and self.layout.prover.interval(n)[0] < 1]
        some = " && ".join(f"{self.size(n, idx)} > 0" for n in bare)  # of no elements: 0
        if not vector:
            one = f"get_{code}({pointer} + {self._offset(v, idx)})"
            return Expr(f"({some} ? {one} : 0)" if some else one, t, False)
        assert lane is not None
        if place.slope(lane) == 1:
            return Expr(self.fetch(code, f"{pointer} + {self._offset(v, idx)}"), t, True)
        one = f"get_{code}({pointer} + {self._offset(v, self.lane_index('z'))})"
        one = f"({some} ? {one} : 0)" if some else one
        *outer, last = place.dims
        steady = all(lane not in index_axes(e) for e, _, _, _ in outer)
        if not (steady and last[1] and slope(last[0], lane) == 1):
            return self.gather(t, one)
        # the last dim may leave the buffer: a vector where all of its lanes are inside
        name, first = self.fresh("g"), self.fresh("e")
        live = self.scope.tail or str(self.lanes)
        rest = " + ".join(self._clamped(dim, idx) for dim in outer) or "0"
        self.line(f"v{t} {name} = 0; const i64 {first} = {self.size(last[0], idx)};")
        sign = "-" if t == "m" else ""
        self.line(
            f"if ({first} >= 0 && {first} + {live} <= {self.size(last[2], idx)}) "
            f"{name} = {self.fetch(code, f'{pointer} + {rest} + {first}')}; "
            f"else for (i64 z = 0; z < {live}; z++) {name}[z] = {sign}{one};"
        )
        return Expr(name, t, True)

    def _offset(self, v: Load, idx: Mapping[int, str]) -> str:
        place = self.layout.place(v.buffer, v.index)
        if not any(clamp for _, clamp, _, _ in place.dims):
            return self.size(place.flat, idx)
        return " + ".join(self._clamped(dim, idx) for dim in place.dims)

    def _clamped(self, dim: tuple[Size, bool, Size, Size], idx: Mapping[int, str]) -> str:
        e, clamp, extent, stride = dim
        text = self.size(e, idx)
        if clamp:
            text = f"lt_clamp({text}, {self.size(extent, idx)} - 1)"
        return text if stride == 1 else f"{text}*{self.size(stride, idx)}"

    def _index(self, e: Size, vector: bool, t: str) -> Expr:
        if not vector:
            return Expr(f"({t}){self.size(e, self.scope.idx)}", t, False)
        assert self.scope.lane is not None
        step = slope(e, self.scope.lane)
        if step is None:
            return self.gather(t, self.size(e, self.lane_index("z")))
        iota = "IOTA" if t == "i32" else "CV(IOTA, vi64)"
        first, by = (f"(v{t})(({t}){self.size(s, self.scope.idx)})" for s in (e, step))
        return Expr(f"({first} + {iota})" if step == 1 else f"({first} + {by} * {iota})", t, True)

    # ---- integers that fit 32 bits ----

    def small(self, v: Value) -> bool:
        """True if an int64 value made of indices can be computed in 32 bits."""
        return self._range(v) is not None

    def _range(self, v: Value) -> tuple[int, int] | None:
        if id(v) not in self._ranges:
            found = self._bounds(v) if v.dtype.name == "int64" else None
            if found and not (-INT32 <= found[0] and found[1] < INT32):
                found = None
            self._ranges[id(v)] = (v, found)
        return self._ranges[id(v)][1]

    def _bounds(self, v: Value) -> tuple[int, int] | None:
        match v:
            case Lit(value=x):
                return int(x), int(x)
            case Index(index=e):
                return self.layout.prover.interval(e)
            case Map(op=op, args=(x, y)) if op in ("add", "sub", "mul", "mod"):
                a, b = self._range(x), self._range(y)
                if a is None or b is None:
                    return None
                if op == "mod":
                    return (0, b[1] - 1) if b[0] > 0 else None
                f = {"add": int.__add__, "sub": int.__sub__, "mul": int.__mul__}[op]
                corners = [f(p, q) for p in a for q in b]
                return min(corners), max(corners)
        return None

    # ---- maps ----

    def _map(self, v: Map, vector: bool) -> Expr:
        args = [self.value(a) for a in v.args]
        if v.op == "cast":
            return self._cast(args[0], v.args[0], v.dtype)
        if v.op == "not":
            return Expr(f"{'~' if args[0].vector else '!'}{args[0].text}", "m", vector)
        if v.op in ("mask", "select"):
            return self._select(args, self._type(v), vector)
        if v.op in ("less", "eq"):
            return self._compare(v, args, vector)
        t = self._type(v)
        return arithmetic(v.op, [convert(a, t) for a in args], t, vector, v.args)

    def _type(self, v: Value) -> str:
        return "i32" if self.small(v) else STORAGE[CODES[v.dtype.compute.name]][1]

    def _compare(self, v: Map, args: list[Expr], vector: bool) -> Expr:
        x, y = v.args
        t = "i32" if self.small(x) and self.small(y) else STORAGE[CODES[x.dtype.compute.name]][1]
        a, b = (convert(e, t) for e in args)
        if t == "m":  # bools: false < true
            if v.op == "eq":
                text = f"~({spread(a)} ^ {spread(b)})" if vector else f"({a.text} == {b.text})"
            else:
                text = f"(~{spread(a)} & {spread(b)})" if vector else f"({a.text} < {b.text})"
            return Expr(text, "m", vector)
        sign = "==" if v.op == "eq" else "<"
        if not vector:
            return Expr(f"({a.text} {sign} {b.text})", "m", False)
        text = f"({spread(a)} {sign} {spread(b)})"
        return Expr(text if _BITS[t] == 32 else f"CV({text}, vi32)", "m", True)

    def _select(self, args: list[Expr], t: str, vector: bool) -> Expr:
        condition, x, *rest = args
        x = convert(x, t)
        y = convert(rest[0], t) if rest else Expr(f"({t})0", t, False)
        if not vector:
            return Expr(f"({condition.text} ? {x.text} : {y.text})", t, False)
        if not condition.vector:
            return Expr(f"({condition.text} ? {spread(x)} : {spread(y)})", t, True)
        c = condition.text if _BITS[t] == 32 else f"CV({condition.text}, vi{_BITS[t]})"
        return Expr(f"({c} ? {spread(x)} : {spread(y)})", t, True)

    def _cast(self, e: Expr, source: Value, dtype: DType) -> Expr:
        code = CODES[dtype.name]
        t = STORAGE[code][1]
        if t == "m":
            return e if e.t == "m" else truth(e)
        e = convert(e, t)
        if code in ("h", "bf") and not (isinstance(source, Load) and source.dtype == dtype):
            return Expr(f"{'v' if e.vector else ''}round_{code}({e.text})", t, e.vector)
        return e

    # ---- reductions ----

    def _reduce(self, v: Reduce, vector: bool) -> Expr:
        """Accumulators in the scope where the result is bound; loops over the reduced axes in it."""
        if vector:
            assert self.scope.lane is not None
            return self.columns(v, [{}], self.scope.lane)[0]
        t = self._reduced(v)
        axes = sorted(v.axes - self.layout.unit)
        zero = identity(v.op, t)
        acc = self.fresh("r")
        lane = self.layout.lane(v.arg, axes, frozenset())
        axes = sorted(axes, key=lambda i: (i == lane, self.layout.count(i)))
        if lane is None:
            self.line(f"{t} {acc} = {zero.text};")
            self.nest_plain(axes, lambda: self._combine(v, acc, t, False))
            return Expr(acc, t, False)
        self.line(f"v{t} {acc}[4] = {{{', '.join([spread(zero)] * 4)}}};")
        self.nest_plain(axes[:-1], lambda: self._along(v, acc, t, lane))
        f = f"{{0}} {'|' if t == 'm' else '+'} {{1}}" if v.op == "sum" or t == "m" else f"v{v.op}_{t}({{0}}, {{1}})"
        a, b = f.format(f"{acc}[0]", f"{acc}[1]"), f.format(f"{acc}[2]", f"{acc}[3]")
        total = f.format(f"({a})", f"({b})")
        if t == "m":
            return Expr(f"(__builtin_reduce_or({total}) != 0)", "m", False)
        return Expr(f"h{v.op}_{t}({total})", t, False)

    def _reduced(self, v: Reduce) -> str:
        return "i64" if self.small(v.arg) else self._type(v.arg)

    def columns(self, v: Reduce, parts: Sequence[Mapping[int, str]], lane: int) -> list[Expr]:
        """The reduction at several places along the lane axis, in one pass over the reduced axes."""
        t = self._reduced(v)
        acc = [self.fresh("r") for _ in parts]
        for name in acc:
            self.line(f"v{t} {name} = {spread(identity(v.op, t))};")

        def step() -> None:
            for name, part in zip(acc, parts, strict=True):
                with self.at(part, lane, self.scope.tail):
                    self._combine(v, name, t, True)

        self.nest_plain(sorted(v.axes - self.layout.unit), step)
        return [Expr(name, t, True) for name in acc]

    def nest_plain(self, axes: list[int], body: Callable[[], None]) -> None:
        """Scalar loops over the axes inside the current scope, whose lane axis stays."""
        if not axes:
            with self.block(""):
                body()
            return
        with self.loop(axes[0]):
            if axes[1:]:
                self.nest_plain(axes[1:], body)
            else:
                body()

    def _combine(self, v: Reduce, acc: str, t: str, vector: bool, live: str | None = None) -> None:
        """acc := op(acc, argument here)"""
        x = convert(self.value(v.arg), t)
        text = spread(x) if vector else x.text
        if live:
            text = f"({live} ? {text} : {spread(identity(v.op, t))})"
        p = "v" if vector else ""
        if t == "m":
            self.line(f"{acc} |= {text};")
        elif v.op == "sum":
            self.line(f"{acc} += {text};")
        elif v.op == "fmax" and t in FLOATS:  # acc is never NaN
            name = self.fresh("x")
            self.line(f"const {p}{t} {name} = {text}; {acc} = {name} > {acc} ? {name} : {acc};")
        else:
            self.line(f"{acc} = {p}max_{t}({text}, {acc});")

    def _along(self, v: Reduce, acc: str, t: str, lane: int) -> None:
        """Along the lane axis: four accumulators, then single vectors, then the live lanes of one."""
        n, w = self.length[lane], self.lanes
        k, u, left = self.fresh("k"), self.fresh("u"), self.fresh("t")
        self.line(f"i64 {k} = 0;")
        if not (n.isdigit() and int(n) < 4 * w):
            with self.block(f"for (; {k} + {4 * w} <= {n}; {k} += {4 * w})"), self.block(
                f"for (int {u} = 0; {u} < 4; {u}++)", {lane: f"({k} + {u}*{w})"}, lane
            ):
                self._combine(v, f"{acc}[{u}]", t, True)
        if not self.layout.multiple(lane, 4 * w):
            with self.block(f"for (; {k} + {w} <= {n}; {k} += {w})", {lane: k}, lane):
                self._combine(v, f"{acc}[0]", t, True)
        if not self.layout.multiple(lane, w):
            with self.block(f"if ({k} < {n})", {lane: k}, lane, left):
                self.line(f"const i64 {left} = {n} - {k};")
                bits = "i32" if t == "m" else f"i{_BITS[t]}"
                alive = f"(IOTA < (vi32)((i32){left}))"
                live = alive if bits == "i32" else f"CV({alive}, v{bits})"
                self._combine(v, f"{acc}[0]", t, True, live)


def ctype(t: str, vector: bool) -> str:
    """The C type of an expression."""
    return f"v{t}" if vector else t


def symbol_name(name: str) -> str:
    """The C variable that holds a symbol's value."""
    return "s_" + "".join(c if c.isalnum() and c.isascii() else f"_{ord(c):x}_" for c in name)


def spread(e: Expr) -> str:
    """The expression as a vector."""
    if e.vector:
        return e.text
    return f"(vi32)(-({e.text}))" if e.t == "m" else f"(v{e.t})({e.text})"


def truth(e: Expr) -> Expr:
    """x != 0, also of NaN."""
    if not e.vector:
        return Expr(f"({e.text} != 0)", "m", False)
    text = f"({e.text} != 0)"
    return Expr(text if _BITS[e.t] == 32 else f"CV({text}, vi32)", "m", True)


def convert(e: Expr, t: str) -> Expr:
    """The number in another type: as C converts, floats to narrow integers through 32 bits."""
    if e.t == t:
        return e
    if t == "m":
        return truth(e)
    text = e.text
    if e.t == "m" and e.vector:
        text = f"({text} & 1)"
    if e.t in FLOATS and t not in FLOATS:
        return _truncated(e, t)
    return Expr(f"CV({text}, v{t})" if e.vector else f"({t})({text})", t, e.vector)


def _truncated(e: Expr, t: str) -> Expr:
    """A float as an integer: truncated, wrapped; NaN is 0."""
    if not e.vector:
        return Expr(f"({t})to_int({e.text})", t, False)
    if e.t == "f64" or t == "i64":
        return Expr(f"CV(vto_int(CV({e.text}, vf64)), v{t})", t, True)
    return Expr(f"CV(vto_int_f32({e.text}), v{t})", t, True)


def literal(x: float | int | bool, dtype: DType) -> Expr:
    """C text of a constant."""
    t = STORAGE[CODES[dtype.compute.name]][1]
    if t == "m":
        return Expr(str(int(bool(x))), t, False)
    if t in FLOATS:
        return Expr(_float(float(x), t), t, False)
    return Expr(f"({t}){_integer(int(x))}", t, False)


def _integer(x: int) -> str:
    return f"({x + 1}LL - 1)" if x == -(1 << 63) else f"({x}LL)" if abs(x) >= INT32 else f"({x})"


def _float(x: float, t: str) -> str:
    if math.isnan(x):
        return f"(({t})NAN)"
    if t == "f32":
        with np.errstate(over="ignore"):
            x = float(np.float32(x))
    if math.isinf(x):
        return f"({'-' if x < 0 else ''}({t})INFINITY)"
    return f"({x!r}{'f' if t == 'f32' else ''})"


def identity(op: str, t: str) -> Expr:
    """What a reduction of nothing gives."""
    if op == "sum" or t == "m":
        return Expr("0" if t == "m" else f"({t})0", t, False)
    if t in FLOATS:
        return Expr(f"(-({t})INFINITY)", t, False)
    low = 0 if t == "u8" else -(1 << (_BITS[t] - 1))
    return Expr(f"({t}){_integer(low)}", t, False)


def arithmetic(op: str, args: list[Expr], t: str, vector: bool, sources: tuple[Value, ...] = ()) -> Expr:
    """A map of numbers of one type."""
    texts = [spread(a) if vector else a.text for a in args]
    if t == "m":
        sign = {"add": "|", "mul": "&", "sub": "^", "fmax": "|", "max": "|"}[op]
        return Expr(f"({texts[0]} {sign} {texts[1]})", t, vector)
    if op in ("add", "sub", "mul"):
        sign = {"add": "+", "sub": "-", "mul": "*"}[op]
        wrap = "" if vector else f"({t})"
        return Expr(f"{wrap}({texts[0]} {sign} {texts[1]})", t, vector)
    if op == "mod" and t in FLOATS and len(sources) == 2 and isinstance(sources[1], Lit):
        b = float(sources[1].value)
        if b > 0 and math.frexp(b)[0] == 0.5 and 2.0**-20 <= b <= 2.0**20:  # exact, b a power of two
            x = texts[0]
            floor = f"__builtin_elementwise_floor({x} * {_float(1 / b, t)})"
            return Expr(f"({x} - {floor} * {_float(b, t)})", t, vector)
    return Expr(f"{'v' if vector else ''}{op}_{t}({', '.join(texts)})", t, vector)
