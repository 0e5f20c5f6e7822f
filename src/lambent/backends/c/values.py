"""Tile values → C expressions: one element, or one vector along the lane axis.

Values are virtual: each is computed in the outermost open loop that binds all of its axes, once,
into a C variable. Nothing is stored that a statement does not store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from lambent.backends.c.expr import (
    Expr,
    arithmetic,
    compared,
    convert,
    ctype,
    literal,
    selected,
    truth,
)  # fmt: skip
from lambent.backends.c.layout import Array, Layout, slope
from lambent.backends.c.prelude import CODES, STORAGE
from lambent.backends.c.reduce import columns, reduced
from lambent.graph.dim import Atom, Size, terms_of
from lambent.graph.dtypes import DType
from lambent.kernel.tile import Index, Lit, Load, Map, Reduce, Ref, Value, index_axes


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
    """Writes C for the values of one program. `arrays` maps the names of Lets and Vars to tiles."""

    def __init__(self, layout: Layout, pointers: Mapping[str, str]) -> None:
        self.layout, self.lanes, self.pointers = layout, layout.lanes, pointers
        self.arrays: dict[str, Array] = {}
        self.origin: dict[int, str] = {}
        self.length: dict[int, str] = {}
        self.stack = [Scope(dict.fromkeys(layout.unit, "0"), [], barrier=True)]
        self.blocks: dict[str, tuple[str, int]] = {}  # index text → (first of its block, plus)
        self._serial = 0

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

    def plain(self, axes: list[int], body: Callable[[], None]) -> None:
        """Scalar loops over the axes inside the current scope, whose lane axis stays."""
        if not axes:
            with self.block(""):
                body()
            return
        with self.loop(axes[0]):
            if axes[1:]:
                self.plain(axes[1:], body)
            else:
                body()

    # ---- sizes ----

    def size(self, e: Size, idx: Mapping[int, str]) -> str:
        """C text of a size, as an i64; `idx` gives the local indices of its axes."""
        if isinstance(e, int) and 0 <= e < 2**31:
            return str(e)
        parts = []
        for c, monomial in terms_of(e):
            factors = [self._atom(a, idx) for a, power in monomial for _ in range(power)]
            number = [] if c == 1 and factors else [str(c) if abs(c) < 2**31 else f"{c}LL"]
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
        lane = self.scope.lane
        vector = lane is not None and lane in self.layout.axes(v)
        match v:
            case Lit(value=x, dtype=dtype):
                return literal(x, dtype)
            case Load():
                return self._load(v, vector)
            case Ref():
                return self._ref(v, vector)
            case Index(index=e):
                return self._index(e, vector, "i32" if self.layout.small(v) else "i64")
            case Map():
                return self._map(v, vector)
            case Reduce():
                return (
                    columns(self, v, [{}], lane)[0]
                    if lane is not None and vector
                    else reduced(self, v)
                )
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
            return Expr(
                f"ld_{array.code}({array.name} + {self.offset(array, self.scope.idx)})", t, True
            )
        return self.gather(t, self.element(array, self.lane_index("z")))

    def _load(self, v: Load, vector: bool) -> Expr:
        code = CODES[v.dtype.name]
        t, pointer = STORAGE[code][1], self.pointers[v.buffer]
        place, lane, idx = self.layout.place(v.buffer, v.index), self.scope.lane, self.scope.idx
        bare = [
            n for _, clamp, n, _ in place.dims if clamp and self.layout.prover.interval(n)[0] < 1
        ]
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

    # ---- maps ----

    def _map(self, v: Map, vector: bool) -> Expr:
        args = [self.value(a) for a in v.args]
        if v.op == "cast":
            return self._cast(args[0], v.args[0], v.dtype)
        if v.op == "not":
            return Expr(f"{'~' if args[0].vector else '!'}{args[0].text}", "m", vector)
        if v.op in ("mask", "select"):
            return selected(args, self.type(v), vector)
        if v.op in ("less", "eq"):
            small = all(map(self.layout.small, v.args))
            t = "i32" if small else STORAGE[CODES[v.args[0].dtype.compute.name]][1]
            return compared(v.op, [convert(a, t) for a in args], t, vector)
        t = self.type(v)
        return arithmetic(v.op, [convert(a, t) for a in args], t, vector, v.args)

    def type(self, v: Value) -> str:
        return "i32" if self.layout.small(v) else STORAGE[CODES[v.dtype.compute.name]][1]

    def _cast(self, e: Expr, source: Value, dtype: DType) -> Expr:
        code = CODES[dtype.name]
        t = STORAGE[code][1]
        if t == "m":
            return e if e.t == "m" else truth(e)
        e = convert(e, t)
        if code in ("h", "bf") and not (isinstance(source, Load) and source.dtype == dtype):
            return Expr(f"{'v' if e.vector else ''}round_{code}({e.text})", t, e.vector)
        return e


def symbol_name(name: str) -> str:
    """The C variable that holds a symbol's value."""
    return "s_" + "".join(c if c.isalnum() and c.isascii() else f"_{ord(c):x}_" for c in name)
