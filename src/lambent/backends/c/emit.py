"""Tile values → C expressions: one element, or one vector along the lane axis.

Values are virtual: each is computed in the outermost open loop that binds all of its axes, once,
into a C variable. Nothing is stored that a statement does not store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, partialmethod
from typing import NamedTuple

from lambent.backends.c.expr import Expr, literal, mapped, storage
from lambent.backends.c.layout import Layout
from lambent.backends.c.prelude import CODES, STORAGE
from lambent.backends.roles import later, slope
from lambent.graph.dim import Atom, Size, terms_of
from lambent.kernel.tile import Index, Lit, Load, Map, Reduce, Ref, Value, index_axes

NEAR, FAR = 1 << 15, 1 << 11  # bytes that a near cache may hold; how far on others are asked for


class Local(NamedTuple):
    """The index of an axis in its tile: a C variable and a constant to add."""

    first: str
    plus: int = 0

    def __str__(self) -> str:
        return f"({self.first} + {self.plus})" if self.plus else self.first


Text = Callable[[Mapping[int, Local]], str]
"""C text at local indices."""


@dataclass(frozen=True, slots=True)
class Array:
    """A tile in memory: the stride, in elements, of every axis that it has.

    Axis `inner` has stride 1 in panels of `width`, which are its `strides[inner]` apart.
    """

    name: str
    code: str
    strides: dict[int, int]
    inner: int | None
    width: int


@dataclass(slots=True)
class Scope:
    """An open loop: the local index of every bound axis, the lines so far, what is computed.

    lane, tail: the lane axis, and the C name of the number of live lanes where not all are.
    binds: the axes that this loop itself binds; what depends on them cannot leave it.
    memo: values by their identity and the indices that they are computed at.
    """

    idx: dict[int, Local]
    lines: list[str]
    memo: dict[tuple[object, ...], tuple[Value, Expr]]
    lane: int | None = None
    tail: str | None = None
    binds: frozenset[int] = frozenset()
    barrier: bool = False  # the start of a statement: nothing is computed before it


class Emitter:
    """Writes C for the values of one program. `arrays` maps the names of Lets and Vars to tiles.

    reduced: how a reduction becomes one element, or a vector, at the current place.
    """

    def __init__(self, layout: Layout, reduced: Callable[[Emitter, Reduce], Expr]) -> None:
        self.layout, self.lanes, self.reduced = layout, layout.lanes, reduced
        self.options = dict(layout.program.schedule.options)
        self.pointers = {b: f"b{i}" for i, b in enumerate(layout.buffers)}
        self.arrays: dict[str, Array] = {}
        self.origin: dict[int, str] = {}
        self.length: dict[int, str] = {}
        unit: dict[int, Local] = dict.fromkeys(layout.unit, Local("0"))
        self.stack = [Scope(unit, [], {}, barrier=True)]
        self.scratch = 0  # bytes of the tiles
        self.step: int | None = None  # the axis of the next task, if anything is fetched ahead
        self.again = frozenset[str]()  # of these buffers
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
        self, head: str | None, idx: Mapping[int, Local] | None = None,
        lane: int | None = None, tail: str | None = None, barrier: bool = False,
    ) -> Iterator[None]:  # fmt: skip
        """A C block, in which more axes are bound. Without a lane axis, the enclosing one stays."""
        outer, bound = self.scope, idx or {}
        lane, tail = (outer.lane, outer.tail) if lane is None else (lane, tail)
        lines, memo = (outer.lines, outer.memo) if head is None else ([], {})
        self.stack.append(
            Scope({**outer.idx, **bound}, lines, memo, lane, tail, frozenset(bound), barrier)
        )
        yield
        self.stack.pop()
        if head is not None:
            outer.lines += [f"{head} {{", *(f" {line}" for line in lines), "}"]

    at = partialmethod(block, None)  # more axes bound, in the same C block

    def pieces(
        self, i: int, sizes: Iterable[int], step: int,
        body: Callable[[list[Local], str | None], None],
    ) -> None:  # fmt: skip
        """An axis in pieces of the first size, the rest in pieces of the next, and so on.

        The body gets every step-th index of a piece. What then remains is less than a vector: it
        gets the first index and the number of live lanes.
        """
        n, j, left = self.length[i], self.fresh("j"), self.layout.lengths(i)
        self.line(f"i64 {j} = 0;")
        for size in sizes:
            if max(left) >= size:
                more = f"{j} < {n}" if size == 1 else f"{j} + {size} <= {n}"
                with self.block(f"LOOP (; {more}; {j} += {size})"):
                    body([Local(j, q) for q in range(0, size, step)], None)
            left = frozenset(n % size for n in left)
            if not any(left):
                return
        with self.block(f"if ({j} < {n})"):
            t = self.fresh("t")
            self.line(f"const i64 {t} = {n} - {j};")
            body([Local(j)], t)

    def nest(self, axes: Iterable[int], lane: int | None, body: Callable[[], None]) -> None:
        """Loops over the axes, outermost first, the lane axis innermost in vectors."""
        order = sorted(axes, key=lambda i: i == lane)
        if not order:
            return body()
        first, step = order[0], self.lanes if order[0] == lane else 1

        def piece(at: list[Local], tail: str | None) -> None:
            with self.at({first: at[0]}, lane if first == lane else None, tail):
                self.nest(order[1:], lane, body)

        self.pieces(first, (step,), step, piece)

    # ---- sizes and places ----

    def size(self, e: Size, idx: Mapping[int, Local] | None = None) -> str:
        """C text of a size, as an i64; its axes are at local indices, or at the tiles' origins."""
        if isinstance(e, int) and 0 <= e < 2**31:
            return str(e)
        parts = []
        for c, monomial in terms_of(e):
            factors = [self._atom(a, idx) for a, power in monomial for _ in range(power)]
            number = [] if c == 1 and factors else [str(c) if abs(c) < 2**31 else f"{c}LL"]
            parts.append("*".join([*number, *factors]))
        return f"({' + '.join(parts)})" if parts else "0"

    def _atom(self, atom: Atom, idx: Mapping[int, Local] | None) -> str:
        if atom.kind == "symbol":
            return symbol_name(atom.args[0])
        if atom.kind == "axis":
            i = atom.args[0]
            return f"({self.origin[i]} + {'0' if idx is None else idx[i]})"
        if atom.kind == "value":
            return f"(i64){self.element(self.arrays[atom.args[0].name], idx or {})}"
        a, b = (self.size(arg, idx) for arg in atom.args)
        if atom.kind == "div" and self.layout.prover.ge0(atom.args[0]):
            return f"({a} / {b})"
        return f"lt_{atom.kind}({a}, {b})"

    def tile(
        self, name: str, axes: Sequence[int], code: str, inner: int | None, width: int = 0
    ) -> Array:
        """A declared array over the axes, outermost first, its inner axis in panels of a width."""
        upper, lanes = self.layout.upper, self.lanes
        if inner is not None:
            width = width or max(1, -(-upper(inner) // lanes)) * lanes
        size, strides = max(1, width), {}
        for i in reversed([i for i in axes if i != inner]):
            strides[i], size = size, size * upper(i)
        if inner is not None:
            strides[inner], size = size, size * -(-upper(inner) // width)
        label, size = self.fresh("T"), -(-size // lanes) * lanes
        self.scratch += size * (8 if code in ("f64", "i64") else 4)
        self.line(f"{STORAGE[code][0]} {label}[{size}] __attribute__((aligned(64))); // {name}")
        return Array(label, code, strides, inner, width)

    def offset(self, array: Array, idx: Mapping[int, Local]) -> str:
        parts = [f"{idx[i]}*{stride}" for i, stride in array.strides.items() if i != array.inner]
        if (i := array.inner) is not None:
            (first, plus), w = idx[i], array.width
            panels = f"{first} / {w} * {array.strides[i]} + {first} % {w} + {plus}"
            parts.append(panels if self.layout.upper(i) > w else f"{idx[i]}")
        return " + ".join(parts) or "0"

    def element(self, array: Array, idx: Mapping[int, Local]) -> str:
        return f"get_{array.code}({array.name} + {self.offset(array, idx)})"

    # ---- values ----

    def value(self, v: Value, known: Expr | None = None) -> Expr:
        """The value at the current place: a vector where it depends on the lane axis.

        It is computed in the outermost scope where it can be, unless it is `known`."""
        axes, depth = self.layout.axes(v), len(self.stack) - 1
        while not (self.stack[depth].barrier or axes & self.stack[depth].binds):
            depth -= 1
        scope = self.stack[depth]
        lane = (scope.lane, scope.tail) if scope.lane in axes else None
        key = (id(v), lane, *(scope.idx[i] for i in sorted(axes)))
        if known or key not in scope.memo:
            inner, self.stack[depth + 1 :] = self.stack[depth + 1 :], []
            e = known or self._value(v)
            if not e.text.isidentifier() and not isinstance(v, Lit):
                name = self.fresh("x")
                self.line(f"const {'v' if e.vector else ''}{e.t} {name} = {e.text};")
                e = Expr(name, e.t, e.vector)
            scope.memo[key] = (v, e)
            self.stack += inner
        return scope.memo[key][1]

    def _value(self, v: Value) -> Expr:
        lane = self.scope.lane if self.scope.lane in self.layout.axes(v) else None
        match v:
            case Lit(value=x, dtype=dtype):
                return literal(x, dtype)
            case Load():
                return self._load(v, lane)
            case Ref():
                array = self.arrays[v.name]
                vector = f"ld_{array.code}({array.name} + {self.offset(array, self.scope.idx)})"
                vector = vector if array.inner == lane else ""  # tiles hold whole vectors
                return self._read(storage(v.dtype), lane, partial(self.element, array), vector)
            case Index(index=e):
                return self._index(e, lane)
            case Map(args=args):
                return mapped(v, [self.value(a) for a in args])
            case Reduce():
                return self.reduced(self, v)
        raise TypeError(f"{type(v).__name__} is not an elementwise value")

    def lane_index(self, lane: int) -> dict[int, Local]:
        """The local indices of lane number z."""
        first, plus = self.scope.idx[lane]
        return {**self.scope.idx, lane: Local(f"({first} + z)", plus)}

    def _read(self, code: str, lane: int | None, element: Text, vector: str) -> Expr:
        """One element; a vector, given as C text; or its elements."""
        t = STORAGE[code][1]
        if lane is None:
            return Expr(element(self.scope.idx), t, False)
        if vector:
            return Expr(vector, t, True)
        name, live = self.fresh("g"), self.scope.tail or self.lanes
        each = f"for (i64 z = 0; z < {live}; z++) {name}[z] = {element(self.lane_index(lane))};"
        self.line(f"v{t} {name} = 0; {each}")
        return Expr(name, t, True)

    def _prefetch(self, v: Load, at: str, i: int, lane: int) -> None:
        """Ask for what the next task along an axis will read in this place, in the last statement
        that reads a buffer again; else for what is read later, where no near cache holds it."""
        flat, many = self.layout.place(v).flat, FAR // v.dtype.itemsize
        if again := v.buffer in self.again:
            step = slope(flat, i)
            far = 0 if step is None else step * self.layout.program.axes[i].tile
        else:
            loops = (j for scope in reversed(self.stack) for j in scope.binds if j != lane)
            far = later(flat, loops, self.layout.count[lane], many)
        if again or self.layout.buffers[v.buffer].bytes >= NEAR:
            self.line(f"__builtin_prefetch({at} + {self.size(far)});")

    def _load(self, v: Load, lane: int | None) -> Expr:
        code, pointer, place = CODES[v.dtype.name], self.pointers[v.buffer], self.layout.place(v)
        idx, tail = self.scope.idx, self.scope.tail
        some = " && ".join(f"{self.size(n)} > 0" for n in place.bare)

        def element(idx: Mapping[int, Local]) -> str:
            one = f"get_{code}({pointer} + {self.size(place.flat, idx)})"
            return f"({some} ? {one} : 0)" if some else one  # of no elements: 0

        vector, (rest, last, extent) = "", place.border or (0, 0, 0)
        if lane is not None and self.layout.step(place.flat, lane) == 1:
            at, live = f"{pointer} + {self.size(place.flat, idx)}", f", {tail}" if tail else ""
            vector = f"{'ldt' if tail else 'ld'}_{code}({at}{live})"
            if self.step is not None:
                self._prefetch(v, at, self.step, lane)
        elif lane is not None and lane not in index_axes(rest) and slope(last, lane) == 1:
            where = ", ".join(self.size(e, idx) for e in (rest, last, extent))
            vector = f"ldc_{code}({pointer} + {where})"
        vector = f"({some} ? {vector} : (v{STORAGE[code][1]})0)" if some and vector else vector
        return self._read(code, lane, element, vector)

    def _index(self, e: Size, lane: int | None) -> Expr:
        low, high = self.layout.prover.interval(e)
        t = "i32" if max(-low - 1, high) < 2**31 else "i64"
        vector, step = "", None if lane is None else slope(e, lane)
        if step is not None:
            first, by = (f"(v{t})(({t}){self.size(s, self.scope.idx)})" for s in (e, step))
            vector = f"({first} + {by} * CV(IOTA, v{t}))"
        return self._read(t, lane, lambda idx: f"({t}){self.size(e, idx)}", vector)


def symbol_name(name: str) -> str:
    """The C variable that holds a symbol's value."""
    return "s_" + "".join(c if c.isalnum() and c.isascii() else f"_{ord(c):x}_" for c in name)
