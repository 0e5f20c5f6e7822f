"""Symbolic integers: the one algebra of shapes and index expressions, used by every later stage.

    Size  =  int | Dim                                a result that is constant is a plain int
    Dim   =  Σ coefficient · Π atom ^ power            an integer polynomial in normal form
    Atom  =  symbol(name) | axis(number) | value(term) | div(Size, Size) | min(Size, Size) | max(…)

`e % n` is `e − n·(e // n)`, so it needs no atom. `==` is identity of normal forms and always a
plain bool; `<` and its relatives are proofs, and raise `Undecided` where neither answer is proved;
a truth test of a symbolic value raises, as it would silently pick one program for all sizes.
The canonical order is by kind, then by name, number or structure: never by what was built first.
"""

from __future__ import annotations

import itertools
import math
import operator
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from keyword import iskeyword
from typing import Any, Literal, TypeAlias, TypeVar
from weakref import WeakValueDictionary

import numpy as np

Size: TypeAlias = "int | Dim"
Kind: TypeAlias = Literal["symbol", "min", "max", "div", "axis", "value"]
Monomial: TypeAlias = "tuple[tuple[Atom, int], ...]"
Term: TypeAlias = "tuple[int, Monomial]"
Polynomial: TypeAlias = "dict[Monomial, int]"
Interval: TypeAlias = tuple[int, int]
Extents: TypeAlias = "Mapping[int, Size] | Sequence[Size]"
R = TypeVar("R")

UNBOUNDED = 10**30
"""Stands for "no bound known" in an interval; larger than any integer a program can hold."""

_KINDS: tuple[Kind, ...] = ("value", "axis", "div", "max", "min", "symbol")  # canonical order
_COMPOUND = ("div", "min", "max")  # atoms made of two sizes
_DEPTH = 6  # nested eliminations in one proof
_FACT_DEPTH = 3  # the same, once a declared fact was used
_STEPS = 1000  # expressions looked at in one proof
_MEMO = 1 << 16  # entries a prover remembers


class Undecided(ValueError):
    """A comparison or truth test that the ranges of the symbols do not decide."""


class Refused(ValueError):
    """An operation that is not proved legal for every size in range."""


# ---- atoms -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Atom:
    """What a Dim is a polynomial of. Interned: equal atoms are one object.

    `args` holds (name,), (axis number,), (term,), (numerator, divisor) or the two operands.
    """

    kind: Kind
    args: tuple[Any, ...]
    key: tuple[Any, ...] = field(repr=False)  # canonical order
    axes: frozenset[int] = field(repr=False)  # axes in it, at any depth
    weight: int = field(repr=False)  # number of atoms in it, itself included

    def __reduce__(self) -> tuple[Any, ...]:
        if self.kind == "symbol":
            return _restore_symbol, (_SYMBOLS[self.args[0]],)
        return _intern, (self.kind, self.args)

    def __deepcopy__(self, memo: object) -> Atom:
        return self


_LOCK = threading.RLock()
_ATOMS: WeakValueDictionary[tuple[Kind, tuple[Any, ...]], Atom] = WeakValueDictionary()
_SERIAL = itertools.count()


def _intern(kind: Kind, args: tuple[Any, ...]) -> Atom:
    with _LOCK:
        atom = _ATOMS.get((kind, args))
        if atom is None:
            inner = [a for arg in args for a in _atoms(arg)] if kind in _COMPOUND else []
            axes = frozenset(args if kind == "axis" else ()).union(*(a.axes for a in inner))
            key = (_KINDS.index(kind), _arguments_key(kind, args))
            atom = Atom(kind, args, key, axes, weight=1 + sum(a.weight for a in inner))
            _ATOMS[kind, args] = atom
        return atom


def _arguments_key(kind: Kind, args: tuple[Any, ...]) -> Any:
    if kind == "value":  # the serial number only tells terms of two different tables apart
        return args[0].id, next(_SERIAL)
    return tuple(_size_key(arg) for arg in args) if kind in _COMPOUND else args[0]


def _monomial_key(monomial: Monomial) -> tuple[Any, ...]:
    return tuple((atom.key, power) for atom, power in monomial)


def _size_key(size: Size) -> tuple[Any, ...]:
    return tuple((_monomial_key(m), c) for c, m in terms_of(size))


# ---- symbols and facts -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Symbol:
    """A declared symbol; with a multiple m, the atom `name/m` is what ranges over low … high."""

    name: str
    atom: str
    low: int
    high: int
    multiple: int
    hint: int


_SYMBOLS: dict[str, _Symbol] = {}  # by declared name and by name of the atom
_FACTS: list[Dim] = []


def _declare(symbol: _Symbol, any_hint: bool = False) -> None:
    with _LOCK:
        known = _SYMBOLS.setdefault(symbol.name, symbol)
        if symbol != known and not (any_hint and replace(symbol, hint=known.hint) == known):
            raise ValueError(
                f"Dim {symbol.name!r} is already declared with another range, multiple or hint: "
                f"{known}, now {symbol}; use another name"
            )
        _SYMBOLS[symbol.atom] = known


def _restore_symbol(symbol: _Symbol) -> Atom:
    _declare(symbol)
    return _intern("symbol", (symbol.atom,))


def symbol_range(name: str) -> Interval:
    """Least and greatest value of a declared symbol (or of the atom `name/multiple`)."""
    symbol = _SYMBOLS[name]
    scale = symbol.multiple if name == symbol.name else 1
    return symbol.low * scale, symbol.high * scale


def symbol_hint(name: str) -> int:
    """The size that the search tunes for, of a declared symbol's atom."""
    return _SYMBOLS[name].hint


def assume(fact: Size) -> None:
    """Declare that `fact >= 0`. Proofs use it; whoever binds the symbols checks it at run time.

    Raises:
        ValueError: the fact is false for every size in range.
    """
    if not isinstance(fact, Dim):
        if fact < 0:
            raise ValueError(f"assume({fact}): is negative")
        return
    if _PROVER.ge0(-fact - 1):
        raise ValueError(f"assume({fact}): is negative for every size in range")
    with _LOCK:
        if fact not in _FACTS and not _PROVER.ge0(fact):
            _FACTS.append(fact)


def facts() -> tuple[Size, ...]:
    """The declared facts, each of which is >= 0, in the order of their declaration."""
    return tuple(_FACTS)


# ---- polynomials -----------------------------------------------------------------------------


def _method(f: Callable[[Size, Size], R]) -> Callable[[Dim, Size], R]:
    """The operator that does f to itself and another size; also to a NumPy integer."""

    def method(self: Dim, other: Size) -> R:
        if isinstance(other, (Dim, int)):
            return f(self, other)
        return f(self, int(other)) if isinstance(other, np.integer) else NotImplemented

    return method


class Dim:
    """A symbolic integer. `Dim("s", 1, 4096)` declares a symbol; arithmetic makes the rest.

    Args:
        name: of the symbol, a Python identifier: sizes are saved as Python expressions.
        min, max: the range, inclusive; sizes are not negative.
        multiple: the symbol is a multiple of this; inside it is `multiple · s'`, so that a
            split by `multiple` is exact.
        hint: the size the search tunes for; by default 64, moved into the range.

    Raises:
        ValueError: an empty range, or a name declared before with another range or hint.
    """

    __slots__ = ("_hash", "_order", "_polynomial")
    __array_ufunc__ = None  # NumPy integers leave arithmetic to us

    _hash: int | None
    _order: tuple[Term, ...] | None
    _polynomial: Polynomial

    def __new__(
        cls, name: str, min: int = 1, max: int = 4096, *, multiple: int = 1, hint: int | None = None
    ) -> Dim:
        if not name.isidentifier() or iskeyword(name):
            raise ValueError(f"Dim name {name!r}: must be a Python identifier")
        if min < 0 or multiple < 1 or -(-min // multiple) > max // multiple:
            raise ValueError(
                f"Dim({name!r}, {min}, {max}, multiple={multiple}): no size in this range"
            )
        low, high = -(-min // multiple), max // multiple
        wanted = (64 if hint is None else hint) // multiple
        clamped = low if wanted < low else high if wanted > high else wanted
        atom = name if multiple == 1 else f"{name}/{multiple}"
        _declare(_Symbol(name, atom, low, high, multiple, clamped), any_hint=hint is None)
        return _dim({((_intern("symbol", (atom,)), 1),): multiple})

    def terms(self) -> tuple[Term, ...]:
        """(coefficient, ((atom, power), …)) per term, in canonical order; () is the constant."""
        if self._order is None:
            ordered = sorted(self._polynomial.items(), key=lambda item: _monomial_key(item[0]))
            self._order = tuple((c, m) for m, c in ordered)
        return self._order

    __add__ = __radd__ = _method(lambda a, b: _add(a, b))
    __sub__ = _method(lambda a, b: _add(a, b, -1))
    __rsub__ = _method(lambda a, b: _add(b, a, -1))
    __mul__ = __rmul__ = _method(lambda a, b: _multiply(a, b))
    __floordiv__ = _method(lambda a, b: _PROVER.div(a, b))
    __rfloordiv__ = _method(lambda a, b: _PROVER.div(b, a))
    __mod__ = _method(lambda a, b: _PROVER.mod(a, b))
    __rmod__ = _method(lambda a, b: _PROVER.mod(b, a))
    __le__ = _method(lambda a, b: _decide(b - a, a, "<=", b))
    __lt__ = _method(lambda a, b: _decide(b - a - 1, a, "<", b))
    __ge__ = _method(lambda a, b: _decide(a - b, a, ">=", b))
    __gt__ = _method(lambda a, b: _decide(a - b - 1, a, ">", b))

    def __neg__(self) -> Dim:
        return _dim({m: -c for m, c in self._polynomial.items()})

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Dim) and self._polynomial == other._polynomial

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self._polynomial.items()))
        return self._hash

    def __bool__(self) -> bool:
        raise Undecided(f"truth of {self}: it is symbolic; compare it with a size")

    def __int__(self) -> int:
        raise Undecided(f"{self} is symbolic, not one integer")

    __index__ = __int__

    def __repr__(self) -> str:
        return show(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_terms, (self.terms(),)

    def __deepcopy__(self, memo: object) -> Dim:
        return self


def _dim(polynomial: Polynomial) -> Dim:
    self = object.__new__(Dim)
    self._hash = self._order = None
    self._polynomial = polynomial
    return self


def _normal(polynomial: Polynomial) -> Size:
    polynomial = {m: c for m, c in polynomial.items() if c}
    if not polynomial:
        return 0
    if len(polynomial) == 1 and () in polynomial:
        return polynomial[()]
    return _dim(polynomial)


def _from_terms(terms: tuple[Term, ...]) -> Size:
    """Rebuild after pickling; atoms are sorted anew, as value terms may have new numbers."""
    return _normal({_sorted(dict(m)): c for c, m in terms})


def _polynomial(size: Size) -> Polynomial:
    return size._polynomial if isinstance(size, Dim) else {(): size} if size else {}


def _sorted(powers: dict[Atom, int]) -> Monomial:
    return tuple(sorted(((a, p) for a, p in powers.items() if p), key=lambda item: item[0].key))


def _add(a: Size, b: Size, k: int = 1) -> Size:
    """a + k·b"""
    out = dict(_polynomial(a))
    for m, c in _polynomial(b).items():
        out[m] = out.get(m, 0) + k * c
    return _normal(out)


def _multiply(a: Size, b: Size) -> Size:
    out: Polynomial = {}
    for m, c in _polynomial(a).items():
        for n, d in _polynomial(b).items():
            product = _join(m, n)
            out[product] = out.get(product, 0) + c * d
    return _normal(out)


def _join(m: Monomial, n: Monomial) -> Monomial:
    if not m or not n:
        return m or n
    powers = dict(m)
    for atom, power in n:
        powers[atom] = powers.get(atom, 0) + power
    return _sorted(powers)


def _divide_monomial(m: Monomial, n: Monomial) -> Monomial | None:
    powers = dict(m)
    for atom, power in n:
        powers[atom] = powers.get(atom, 0) - power
        if powers[atom] < 0:
            return None
    return _sorted(powers)


def _degree(monomial: Monomial) -> int:
    return sum(power for _, power in monomial)


def _leading(size: Size) -> Monomial:
    """The greatest monomial in the graded lexicographic order, symbols being the greatest atoms."""

    def grade(monomial: Monomial) -> tuple[Any, ...]:
        return _degree(monomial), _monomial_key(monomial[::-1])

    return max(_polynomial(size), key=grade, default=())


def _divide(e: Size, n: Size) -> tuple[Size, Size]:
    """(q, r) with e = q·n + r as polynomials: long division; by an integer, term by term."""
    if isinstance(n, int):
        q = _normal({m: c // n for m, c in _polynomial(e).items() if c % n == 0 or m == ()})
        return q, _add(e, q, -n)
    lead = _leading(n)
    scale = n._polynomial[lead]
    quotient: Size = 0
    rest = e
    for _ in range(32):
        for c, m in sorted(terms_of(rest), key=lambda term: -_degree(term[1])):
            over = _divide_monomial(m, lead)
            if over is not None and c % scale == 0:
                break
        else:
            break
        step = _normal({over: c // scale})
        quotient, rest = quotient + step, rest - step * n
    return quotient, rest


def exact(e: Size, n: Size) -> Size | None:
    """e / n where n divides e as a polynomial with integer coefficients, else None."""
    if n == 0:
        return None
    quotient, rest = _divide(e, n)
    return quotient if rest == 0 else None


def terms_of(size: Size) -> tuple[Term, ...]:
    """`Dim.terms`, also for an int."""
    if isinstance(size, Dim):
        return size.terms()
    return ((size, ()),) if size else ()


def _atoms(size: Size) -> list[Atom]:
    """The atoms of the terms themselves, in canonical order."""
    found = dict.fromkeys(atom for m in _polynomial(size) for atom, _ in m)
    return sorted(found, key=lambda atom: atom.key)


def _of(atom: Atom) -> Dim:
    return _dim({((atom, 1),): 1})


def _linear(e: Size, atom: Atom) -> tuple[Size, Size] | None:
    """(c, rest) with e = c·atom + rest and no atom in either (at top level), or None."""
    factor: Polynomial = {}
    rest: Polynomial = {}
    for m, c in _polynomial(e).items():
        power = dict(m).get(atom, 0)
        if power > 1:
            return None
        if power:
            factor[tuple(item for item in m if item[0] is not atom)] = c
        else:
            rest[m] = c
    return _normal(factor), _normal(rest)


def _replace(e: Size, atom: Atom, by: Size) -> Size:
    """e with the atom replaced in its terms (not inside other atoms)."""
    out: Size = 0
    for m, c in _polynomial(e).items():
        term = _normal({tuple(item for item in m if item[0] is not atom): c})
        for _ in range(dict(m).get(atom, 0)):
            term = term * by
        out = out + term
    return out


# ---- building --------------------------------------------------------------------------------


def axis(i: int) -> Dim:
    """The index along axis number i: at least 0, below the extent that a Prover knows."""
    return _of(_intern("axis", (operator.index(i),)))


def value(term: Hashable) -> Dim:
    """The integer value of a term: an interned object with an integer attribute `id`."""
    return _of(_intern("value", (term,)))


def minimum(a: Size, b: Size) -> Size:
    """The smaller of two sizes; an atom only where neither order is proved."""
    return _extreme("min", a, b)


def maximum(a: Size, b: Size) -> Size:
    """The larger of two sizes; an atom only where neither order is proved."""
    return _extreme("max", a, b)


def _extreme(kind: Kind, a: Size, b: Size, prover: Prover | None = None) -> Size:
    ge0 = (prover or _PROVER).ge0
    if ge0(a - b):
        return b if kind == "min" else a
    if ge0(b - a):
        return a if kind == "min" else b
    return _of(_intern(kind, tuple(sorted((a, b), key=_size_key))))


def substitute(size: Size, f: Callable[[Atom], Size | None], prover: Prover | None = None) -> Size:
    """Replace atoms, also inside others: f gives the replacement, or None to keep the atom.

    Divisions are simplified anew, with the axis ranges of the prover where one is given.

    Raises:
        Refused: a new divisor is not proved positive.
    """
    prover = prover or _PROVER
    memo: dict[Atom, Size] = {}

    def one(atom: Atom) -> Size:
        if atom not in memo:
            new = f(atom)
            memo[atom] = rebuild(atom) if new is None else new
        return memo[atom]

    def rebuild(atom: Atom) -> Size:
        if atom.kind not in _COMPOUND:
            return _of(atom)
        a, b = (whole(arg) for arg in atom.args)
        if (a, b) == atom.args:
            return _of(atom)
        return prover.div(a, b) if atom.kind == "div" else _extreme(atom.kind, a, b, prover)

    def whole(e: Size) -> Size:
        out: Size = 0
        for c, monomial in terms_of(e):
            out = out + math.prod((one(a) for a, p in monomial for _ in range(p)), start=c)
        return out

    return whole(size)


# ---- reading ---------------------------------------------------------------------------------


def evaluate(
    size: Size,
    symbols: Mapping[str, int] = {},
    axes: Mapping[int, Any] = {},
    values: Mapping[Any, Any] = {},
) -> Any:
    """The number at given symbols, axis indices and values of terms (ints or NumPy int arrays).

    A symbol declared with a multiple may be given under its own name.

    Raises:
        KeyError: something in the expression is not given.
    """
    memo: dict[Atom, Any] = {}

    def one(atom: Atom) -> Any:
        if atom not in memo:
            memo[atom] = compute(atom)
        return memo[atom]

    def compute(atom: Atom) -> Any:
        if atom.kind == "symbol":
            return _bound_symbol(atom.args[0], symbols)
        if atom.kind == "axis":
            return axes[atom.args[0]]
        if atom.kind == "value":
            return values[atom.args[0]]
        a, b = (whole(arg) for arg in atom.args)
        if atom.kind == "div":
            return a // b
        if isinstance(a, int) and isinstance(b, int):
            return min(a, b) if atom.kind == "min" else max(a, b)
        return np.minimum(a, b) if atom.kind == "min" else np.maximum(a, b)

    def whole(e: Size) -> Any:
        if isinstance(e, int):
            return e
        return sum(c * math.prod(one(a) ** p for a, p in m) for c, m in e.terms())

    return whole(size)


def _bound_symbol(name: str, symbols: Mapping[str, int]) -> int:
    if name in symbols:
        return symbols[name]
    symbol = _SYMBOLS[name]
    if symbol.name not in symbols:
        raise KeyError(f"no value given for symbol {name!r}")
    quotient, rest = divmod(symbols[symbol.name], symbol.multiple)
    if rest:
        raise ValueError(
            f"{symbol.name} = {symbols[symbol.name]}: must be a multiple of {symbol.multiple}"
        )
    return quotient


def representative(size: Size) -> int:
    """The value at the hints of its symbols: orders the search, never decides legality."""
    return int(evaluate(size, {name: _SYMBOLS[name].hint for name in symbols_in(size)}))


def _walk(size: Size) -> Iterator[Atom]:
    """Every atom at any depth, each once, in canonical order."""
    seen: set[Atom] = set()

    def visit(e: Size) -> Iterator[Atom]:
        for atom in _atoms(e):
            if atom in seen:
                continue
            seen.add(atom)
            yield atom
            if atom.kind in _COMPOUND:
                for arg in atom.args:
                    yield from visit(arg)

    return visit(size)


def axes_in(size: Size) -> frozenset[int]:
    """Numbers of the axes in the expression (not those inside value terms)."""
    return frozenset[int]().union(*(atom.axes for atom in _atoms(size)))


def symbols_in(size: Size) -> frozenset[str]:
    """Names of the symbols in the expression; `name/multiple` for one declared with a multiple."""
    return frozenset(atom.args[0] for atom in _walk(size) if atom.kind == "symbol")


def values_in(size: Size) -> tuple[Any, ...]:
    """The terms whose values are in the expression, by number."""
    found = [atom for atom in _walk(size) if atom.kind == "value"]
    return tuple(atom.args[0] for atom in sorted(found, key=lambda atom: atom.key))


def show(size: Size) -> str:
    """Readable text, which is also a Python expression: `2*s+1`, `(s+1)//2`, `min(s, t)`."""
    text = ""
    for c, m in sorted(terms_of(size), key=lambda term: -_degree(term[1])):
        product = "*".join(_show_factor(a, p, alone=len(m) == 1 and c == 1) for a, p in m)
        scale = "" if abs(c) == 1 and m else str(abs(c))
        sign = "-" if c < 0 else "+" if text else ""
        text += sign + "*".join(part for part in (scale, product) if part)
    return text or "0"


def _show_factor(atom: Atom, power: int, alone: bool) -> str:
    text = _show_atom(atom)
    if "/" in text and atom.kind in ("symbol", "div") and not (alone and power == 1):
        text = f"({text})"
    return text if power == 1 else f"{text}**{power}"


def _show_atom(atom: Atom) -> str:
    if atom.kind == "symbol":
        return str(atom.args[0])
    if atom.kind == "axis":
        return f"a{atom.args[0]}"
    if atom.kind == "value":
        return f"v{atom.args[0].id}"
    a, b = (show(arg) for arg in atom.args)
    if atom.kind == "div":
        return "//".join(
            text if text.replace("_", "").isalnum() else f"({text})" for text in (a, b)
        )
    return f"{atom.kind}({a}, {b})"


# ---- proofs ----------------------------------------------------------------------------------


class Prover:
    """Decides and divides with the ranges of axes known; symbols and facts are global.

    Args:
        extents: of the axes, by number; may grow later. An axis of unknown extent is only >= 0.
    """

    __slots__ = ("_extents", "_facts", "_intervals", "_proved")

    def __init__(self, extents: Extents = ()) -> None:
        self._extents = extents
        self._facts = len(_FACTS)
        self._proved: dict[Dim, bool] = {}
        self._intervals: dict[Dim, Interval] = {}

    def extent(self, i: int) -> Size | None:
        """The extent of axis number i, None where unknown."""
        if isinstance(self._extents, Mapping):
            return self._extents.get(i)
        return self._extents[i] if i < len(self._extents) else None

    def ge0(self, e: Size) -> bool:
        """True only if e >= 0 for every symbol and axis index in range (sound, incomplete).

        Where an axis is empty there is no index, and nothing to prove. The answer depends on
        the declared facts, not on what was proved before.
        """
        if not isinstance(e, Dim):
            return e >= 0
        if self._facts != len(_FACTS):
            self._proved.clear()
            self._facts = len(_FACTS)
        known = self._proved.get(e)
        if known is None:
            if len(self._proved) > _MEMO:
                self._proved.clear()
            known = self._proved[e] = _Proof(self).ge0(e, _DEPTH) or self._by_fact(e)
        return known

    def _by_fact(self, e: Dim) -> bool:
        """e >= k·fact for one declared fact."""
        proof = _Proof(self)
        return any(proof.ge0(_add(e, fact, -k), _FACT_DEPTH) for fact in _FACTS for k in (1, 2))

    def interval(self, e: Size) -> Interval:
        """Sound numeric bounds of e, inclusive."""
        if not isinstance(e, Dim):
            return e, e
        known = self._intervals.get(e)
        if known is None:
            if len(self._intervals) > _MEMO:
                self._intervals.clear()
            known = self._intervals[e] = self._interval(e)
        return known

    def _interval(self, e: Dim) -> Interval:
        low = high = 0
        for c, monomial in e.terms():
            part = (c, c)
            for atom, power in monomial:
                for _ in range(power):
                    part = _span(part, self._atom_interval(atom))
            low, high = low + part[0], high + part[1]
        for atom in _atoms(e):  # e = k·(x − n·(x//n)) + rest: the bracket is 0 … n−1
            if atom.kind != "div":
                continue
            x, n = atom.args
            linear = _linear(e, atom)
            k = exact(linear[0], n) if linear else None
            if k is None:
                continue
            rest = e + k * (x - n * _of(atom))
            if len(terms_of(rest)) < len(e.terms()):
                outer = self.interval(rest)
                part = _span(self.interval(-k), (0, self.interval(n)[1] - 1))
                low, high = max(low, outer[0] + part[0]), min(high, outer[1] + part[1])
        return low, high

    def _atom_interval(self, atom: Atom) -> Interval:
        if atom.kind == "symbol":
            return symbol_range(atom.args[0])
        if atom.kind == "value":
            return -UNBOUNDED, UNBOUNDED
        if atom.kind == "axis":
            extent = self.extent(atom.args[0])
            return 0, UNBOUNDED if extent is None else max(self.interval(extent)[1] - 1, 0)
        (a, b), (c, d) = (self.interval(arg) for arg in atom.args)
        if atom.kind == "min":
            return min(a, c), min(b, d)
        if atom.kind == "max":
            return max(a, c), max(b, d)
        c, d = max(c, 1), max(d, 1)
        corners = (a // c, a // d, b // c, b // d)
        return min(corners), max(corners)

    def div(self, e: Size, n: Size) -> Size:
        """floor(e / n), simplified so that a split and its inverse cancel.

        Raises:
            Refused: n is neither proved >= 1 nor a negative int.
        """
        if isinstance(n, int) and n < 0:
            e, n = -e, -n
        if not self.ge0(n - 1):
            raise Refused(f"({show(e)}) // ({show(n)}): the divisor is not proved to be >= 1")
        if isinstance(e, int) and isinstance(n, int):
            return e // n
        if n == 1:
            return e
        quotient, rest = _divide(e, n)
        return quotient + self._div_rest(rest, n)

    def _div_rest(self, r: Size, n: Size) -> Size:
        """floor(r / n) where no term of r is a multiple of n."""
        for q in (0, -1, 1):  # q·n <= r < (q + 1)·n
            if self.ge0(r - q * n) and self.ge0((q + 1) * n - 1 - r):
                return q
        if isinstance(n, int):
            low, high = self.interval(r)
            if low // n == high // n:
                return low // n
        for c, m in terms_of(r):  # (x//a + y) // n  =  (x + a·y) // (a·n)
            if c == 1 and len(m) == 1 and m[0][1] == 1 and m[0][0].kind == "div":
                x, a = m[0][0].args
                if self.ge0(a * n - 1):
                    return self.div(x + a * _add(r, _of(m[0][0]), -1), a * n)
        for g in self._radices(r, n):  # (g·x + y) // (g·m)  =  x // m,  where 0 <= y < g
            x, y = _divide(r, g)
            m_ = exact(n, g)
            if x == 0 or m_ is None or not self.ge0(m_ - 1):
                continue
            if self.ge0(y) and self.ge0(g - 1 - y):
                return self.div(x, m_)
        lead = _leading(r)
        if lead and _polynomial(r)[lead] < 0:  # one form for x // n and −x // n
            return -1 - self.div(-r - 1, n)
        return _of(_intern("div", (r, n)))

    def mod(self, e: Size, n: Size) -> Size:
        """e − n·floor(e / n): the sign of the divisor, as Python's."""
        return e - n * self.div(e, n)

    def _radices(self, r: Size, n: Size) -> list[Size]:
        """Divisors of n by which r may split into digits, the largest first."""
        found: dict[Size, None] = {}
        for c, m in terms_of(r):
            if not m:
                continue
            coefficient, powers = abs(c), dict(m)
            for d, other in terms_of(n):
                coefficient, theirs = math.gcd(coefficient, d), dict(other)
                powers = {a: min(p, theirs.get(a, 0)) for a, p in powers.items()}
            found[_normal({_sorted(powers): coefficient})] = None
        for atom in _atoms(r):
            if atom.kind == "axis":
                extent = self.extent(atom.args[0])
                if extent is not None and extent != 0 and exact(n, extent) is not None:
                    found[extent] = None

        def smallness(g: Size) -> tuple[Any, ...]:
            return -_degree(_leading(g)), -max(_polynomial(g).values()), _size_key(g)

        return sorted((g for g in found if g not in (1, n)), key=smallness)


class _Proof:
    """One attempt at `e >= 0`, with its own memo: its outcome depends on nothing before it.

    Split on min and max; eliminate each floor division by its two inequalities; push axes and
    symbols to the bound that the sign of their coefficient asks for. Giving up is False.
    """

    __slots__ = ("_memo", "_prover", "_steps")

    def __init__(self, prover: Prover) -> None:
        self._prover = prover
        self._memo: dict[tuple[Dim, int], bool] = {}
        self._steps = _STEPS

    def ge0(self, e: Size, depth: int) -> bool:
        if not isinstance(e, Dim):
            return e >= 0
        known = self._memo.get((e, depth))
        if known is None:
            self._steps -= 1
            known = self._prover.interval(e)[0] >= 0
            if not known and depth > 0 and self._steps > 0:
                known = self._search(e, depth)
            self._memo[e, depth] = known
        return known

    def _search(self, e: Dim, depth: int) -> bool:
        atoms = _atoms(e)
        kinds = {atom.kind for atom in atoms}
        if "value" in kinds:
            return False
        if "min" in kinds or "max" in kinds:
            return self._by_cases(e, [a for a in atoms if a.kind in ("min", "max")], depth)
        if "div" in kinds:  # the outermost first: it may hold the others
            divs = [a for a in atoms if a.kind == "div"]
            return self._by_division(e, max(divs, key=lambda a: (a.weight, a.key)), depth)
        if "axis" in kinds:
            return self._by_axis(e, [a for a in atoms if a.kind == "axis"], depth)
        return _at_corner(e, atoms)

    def _by_cases(self, e: Dim, atoms: list[Atom], depth: int) -> bool:
        for atom in atoms:
            linear = _linear(e, atom)
            if linear is None:
                continue
            holds = [self.ge0(_replace(e, atom, arg), depth - 1) for arg in atom.args]
            if all(holds):
                return True
            sign = 1 if atom.kind == "max" else -1  # max(x, y) >= x; min(x, y) <= x
            return any(holds) and self.ge0(sign * linear[0], depth - 1)
        return False

    def _by_division(self, e: Dim, atom: Atom, depth: int) -> bool:
        """e = c·(x//n) + rest, and x − n + 1 <= n·(x//n) <= x."""
        linear = _linear(e, atom)
        if linear is None:
            return False
        factor, rest = linear
        x, n = atom.args
        k = exact(factor, n)
        total, slack = rest, 0
        if k is None:  # over the integers, e >= 0 is n·e + n − 1 >= 0
            k, total, slack = factor, rest * n, n - 1
        if self.ge0(k, depth - 1):
            if self.ge0(total + k * (x - n + 1) + slack, depth - 1):
                return True
            return self.ge0(x, depth - 1) and self.ge0(rest, depth - 1)
        return self.ge0(-k, depth - 1) and self.ge0(total + k * x + slack, depth - 1)

    def _by_axis(self, e: Dim, atoms: list[Atom], depth: int) -> bool:
        for atom in atoms:
            linear = _linear(e, atom)
            if linear is None:
                return False
            factor, rest = linear
            if self.ge0(factor, depth):
                return self.ge0(rest, depth)
            extent = self._prover.extent(atom.args[0])
            if extent is not None and self.ge0(-factor, depth):
                return self.ge0(rest + factor * (extent - 1), depth)
        return False


def _at_corner(e: Size, symbols: list[Atom]) -> bool:
    """Measured from some corner of the box of its symbols, e has no negative coefficient."""
    choices: Iterator[tuple[bool, ...]] = iter([(False,) * len(symbols)])
    if len(symbols) <= 4:
        choices = itertools.product((False, True), repeat=len(symbols))
    for from_top in choices:
        shifted = e
        for atom, top in zip(symbols, from_top, strict=True):
            low, high = symbol_range(atom.args[0])
            shifted = _replace(shifted, atom, high - _of(atom) if top else low + _of(atom))
        if all(c >= 0 for c in _polynomial(shifted).values()):
            return True
    return False


def _span(a: Interval, b: Interval) -> Interval:
    """The interval of products."""
    products = (a[0] * b[0], a[0] * b[1], a[1] * b[0], a[1] * b[1])
    return min(products), max(products)


def _decide(e: Size, a: Size, relation: str, b: Size) -> bool:
    """Whether e >= 0, which is what `a relation b` means."""
    if _PROVER.ge0(e):
        return True
    if _PROVER.ge0(-e - 1):
        return False
    raise Undecided(f"{show(a)} {relation} {show(b)} is not decided by the ranges of its symbols")


def bounds(size: Size, extents: Extents = ()) -> Interval:
    """Sound numeric bounds, inclusive; beyond ±UNBOUNDED where nothing is known."""
    return Prover(extents).interval(size)


_PROVER: Prover = Prover()
