"""Symbolic integers: the one algebra of shapes and index expressions, used by every later stage.

    Size  =  int | Dim                                a result that is constant is a plain int
    Dim   =  Σ coefficient · Π atom ^ power            an integer polynomial in normal form
    Atom  =  symbol(name) | axis(number) | value(term) | div(Size, Size) | min(Size, Size) | max(…)

`e % n` is `e − n·(e // n)`, so it needs no atom. `==` is identity of normal forms and always a
plain bool; `<` and its relatives are proofs, and raise `Undecided` where neither answer is proved;
a truth test of a symbolic value raises, as it would silently pick one program for all sizes.
The canonical order is by kind, then by name, number or structure: never by what was built first.
Whatever needs a proof (division, comparison, minimum, substitution) is in `graph.prove`.
"""

from __future__ import annotations

import itertools
import math
import operator
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache, reduce
from keyword import iskeyword
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias, TypeVar, get_args
from weakref import WeakValueDictionary

import numpy as np

if TYPE_CHECKING:
    from lambent.graph.prove import Prover

Size: TypeAlias = "int | Dim"
Kind: TypeAlias = Literal["value", "axis", "div", "max", "min", "symbol"]  # in canonical order
Monomial: TypeAlias = "tuple[tuple[Atom, int], ...]"
Term: TypeAlias = "tuple[int, Monomial]"
Polynomial: TypeAlias = "dict[Monomial, int]"
R = TypeVar("R")


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
    inner: frozenset[Atom] = field(repr=False)  # the atoms inside it, at any depth

    def dim(self) -> Dim:
        """The atom as an expression."""
        return _dim({((self, 1),): 1})

    def __reduce__(self) -> tuple[Any, ...]:
        if self.kind == "symbol":
            return _declare, (declared(self.args[0]),)
        return intern, (self.kind, *self.args)


_LOCK = threading.Lock()
_ATOMS: WeakValueDictionary[tuple[Kind, tuple[Any, ...]], Atom] = WeakValueDictionary()
_SERIAL = itertools.count()


def intern(kind: Kind, *args: Any) -> Atom:
    """The one atom with these parts."""
    with _LOCK:
        atom = _ATOMS.get((kind, args))
        if atom is None:
            dims = [arg for arg in args if isinstance(arg, Dim)]
            inner = frozenset[Atom]().union(*map(_all_atoms, dims))
            key = tuple(size_key(arg) for arg in args) if dims else args
            if kind == "value":  # the number only tells terms of two different tables apart
                key = (args[0].id, next(_SERIAL))
            atom = _ATOMS[kind, args] = Atom(kind, args, (get_args(Kind).index(kind), key), inner)
        return atom


def axis(i: int) -> Dim:
    """The index along axis number i: at least 0, below the extent that a Prover knows."""
    return intern("axis", operator.index(i)).dim()


def value(term: Hashable) -> Dim:
    """The integer value of a term: an interned object with an integer attribute `id`."""
    return intern("value", term).dim()


# ---- symbols ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Symbol:
    """A declared symbol, with its range and the size that the search tunes for.

    With a multiple m it is m times the atom named `name/m`. `typical`: the hint was given.
    """

    name: str
    low: int
    high: int
    multiple: int
    hint: int
    typical: bool = field(default=False, compare=False)


_SYMBOLS: dict[str, Symbol] = {}


def _declare(symbol: Symbol) -> Atom:
    known = _SYMBOLS.setdefault(symbol.name, symbol)
    if symbol != known:
        raise ValueError(f"Dim {symbol.name!r} is declared as {known}, now {symbol}; rename one")
    return intern("symbol", symbol.name + (f"/{symbol.multiple}" if symbol.multiple > 1 else ""))


def declared(atom: str) -> Symbol:
    """The symbol that an atom `name` or `name/multiple` belongs to."""
    return _SYMBOLS[atom.partition("/")[0]]


def symbol_range(name: str) -> tuple[int, int]:
    """Least and greatest value of a declared symbol, or of its atom `name/multiple`."""
    symbol, unit = declared(name), int(name.partition("/")[2] or 1)
    return symbol.low // unit, symbol.high // unit


def hints(names: Iterable[str]) -> dict[str, int]:
    """The sizes that the search tunes for, of declared symbols or of their atoms, by name."""
    return {symbol.name: symbol.hint for symbol in map(declared, names)}


# ---- expressions -----------------------------------------------------------------------------


def _method(f: Callable[[Size, Size], R]) -> Callable[[Dim, Size], R]:
    """The operator that does f to itself and another size; also to a NumPy integer."""

    def method(self: Dim, other: Size) -> R:
        if isinstance(other, (Dim, int)):
            return f(self, other)
        return f(self, int(other)) if isinstance(other, np.integer) else NotImplemented

    return method


def _prover() -> Prover:
    """What the operators prove with; imported late, as a proof is itself arithmetic on Dims."""
    from lambent.graph.prove import SYMBOLS_ONLY

    return SYMBOLS_ONLY


class Dim:
    """A symbolic integer. `Dim("s", 1, 4096)` declares a symbol; arithmetic makes the rest.

    Args:
        name: of the symbol, a Python identifier: sizes are saved as Python expressions.
        min, max: the range, inclusive; sizes are not negative.
        multiple: the symbol is a multiple of this; inside it is `multiple · s'`, so that a
            split by `multiple` is exact.
        hint: the size the search tunes for, all of the range alike; by default 64, moved into the
            range, and a wide range is tuned in parts (see `compile`).

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
            raise ValueError(f"Dim {name!r}: no size in {min} … {max} with multiple={multiple}")
        low, high = -(-min // multiple) * multiple, max // multiple * multiple
        typical, usual = hint is not None, _SYMBOLS[name].hint if name in _SYMBOLS else 64
        _, hint, _ = sorted((low, (usual if hint is None else hint) // multiple * multiple, high))
        return _dim({((_declare(Symbol(name, low, high, multiple, hint, typical)), 1),): multiple})

    __add__ = __radd__ = _method(lambda a, b: _add(a, b))
    __sub__ = _method(lambda a, b: _add(a, b, -1))
    __rsub__ = _method(lambda a, b: _add(b, a, -1))
    __mul__ = __rmul__ = _method(lambda a, b: _multiply(a, b))
    __floordiv__ = _method(lambda a, b: _prover().div(a, b))
    __rfloordiv__ = _method(lambda a, b: _prover().div(b, a))
    __mod__ = _method(lambda a, b: _prover().mod(a, b))
    __rmod__ = _method(lambda a, b: _prover().mod(b, a))
    __le__ = _method(lambda a, b: _prover().decide(b - a, a, "<=", b))
    __lt__ = _method(lambda a, b: _prover().decide(b - a - 1, a, "<", b))
    __ge__ = _method(lambda a, b: _prover().decide(a - b, a, ">=", b))
    __gt__ = _method(lambda a, b: _prover().decide(a - b - 1, a, ">", b))

    def __neg__(self) -> Dim:
        return _dim({m: -c for m, c in self._polynomial.items()})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dim) and self._polynomial == other._polynomial

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self._polynomial.items()))
        return self._hash

    def _no_number(self) -> NoReturn:
        raise Undecided(f"{self} is symbolic: no integer, neither true nor false; compare it")

    __bool__ = __int__ = __index__ = _no_number

    def __repr__(self) -> str:
        return show(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_terms, (terms_of(self),)


def _dim(polynomial: Polynomial) -> Dim:
    self = object.__new__(Dim)
    self._hash = self._order = None
    self._polynomial = polynomial
    return self


# ---- polynomials -----------------------------------------------------------------------------


def _total(products: Iterable[tuple[Monomial, int]]) -> Size:
    """The sum of monomials with coefficients, of which several may be of one monomial."""
    polynomial: Polynomial = {}
    for m, c in products:
        polynomial[m] = polynomial.get(m, 0) + c
    polynomial = {m: c for m, c in polynomial.items() if c}
    if any(polynomial):  # some monomial is not the empty one
        return _dim(polynomial)
    return polynomial.get((), 0)


def _from_terms(terms: tuple[Term, ...]) -> Size:
    """Rebuild after pickling; atoms are sorted anew, as value terms may have new numbers."""
    return _total((_sorted(dict(m)), c) for c, m in terms)


def _products(size: Size) -> Iterable[tuple[Monomial, int]]:
    return size._polynomial.items() if isinstance(size, Dim) else [((), size)]


def _sorted(powers: Mapping[Atom, int]) -> Monomial:
    return tuple(sorted(((a, p) for a, p in powers.items() if p), key=lambda item: item[0].key))


def _monomial_key(monomial: Monomial) -> tuple[Any, ...]:
    return tuple((atom.key, power) for atom, power in monomial)


def size_key(size: Size) -> tuple[Any, ...]:
    """Places a size in the canonical order."""
    return tuple((_monomial_key(m), c) for c, m in terms_of(size))


def degree(monomial: Monomial) -> int:
    """The sum of its powers."""
    return sum(power for _, power in monomial)


def _add(a: Size, b: Size, k: int = 1) -> Size:
    """a + k·b"""
    return _total([*_products(a), *((m, k * c) for m, c in _products(b))])


def _multiply(a: Size, b: Size) -> Size:
    return _total((_join(m, n), c * d) for m, c in _products(a) for n, d in _products(b))


def _join(m: Monomial, n: Monomial, sign: int = 1) -> Monomial:
    """m · n, or m / n where sign is −1 (with powers below 0 where n does not divide m)."""
    powers = dict(m)
    for atom, power in n:
        powers[atom] = powers.get(atom, 0) + sign * power
    return _sorted(powers)


def leading(size: Size) -> Term:
    """The term that is greatest in the graded lexicographic order, symbols being greatest."""
    return max(terms_of(size), key=_grade, default=(0, ()))


def _grade(term: Term) -> tuple[Any, ...]:
    return degree(term[1]), _monomial_key(term[1][::-1])


def divide(e: Size, n: Size) -> tuple[Size, Size]:
    """(q, r) with e = q·n + r as polynomials: long division; by an integer, term by term."""
    if isinstance(n, int):
        q = _total((m, c // n) for m, c in _products(e) if c % n == 0 or m == ())
        return q, e - n * q
    scale, lead = leading(n)
    for c, m in _by_degree(e):
        over = _join(m, lead, -1)
        if c % scale == 0 and all(power > 0 for _, power in over):
            step = _total([(over, c // scale)])
            quotient, rest = divide(e - step * n, n)
            return quotient + step, rest
    return 0, e


def exact(e: Size, n: Size) -> Size | None:
    """e / n where n divides e as a polynomial with integer coefficients, else None."""
    quotient, rest = divide(e, n) if n != 0 else (0, 1)
    return quotient if rest == 0 else None


def common(*terms: Term) -> Size:
    """The greatest product of a number and atoms that divides all these terms."""
    powers = reduce(operator.and_, (Counter(dict(m)) for _, m in terms))
    return _total([(_sorted(powers), math.gcd(*(c for c, _ in terms)))])


def split(e: Size, atom: Atom) -> tuple[Size, Size]:
    """(q, rest) with e = q·atom + rest, and no such atom in the terms of the rest."""
    one = ((atom, 1),)
    factor = _total((_join(m, one, -1), c) for m, c in _products(e) if atom in dict(m))
    rest = _total((m, c) for m, c in _products(e) if atom not in dict(m))
    return factor, rest


# ---- reading ---------------------------------------------------------------------------------


def terms_of(size: Size) -> tuple[Term, ...]:
    """(coefficient, ((atom, power), …)) per term, in canonical order; () is the constant."""
    if not isinstance(size, Dim):
        return ((size, ()),) if size else ()
    if size._order is None:
        ordered = sorted(size._polynomial.items(), key=lambda item: _monomial_key(item[0]))
        size._order = tuple((c, m) for m, c in ordered)
    return size._order


def _by_degree(size: Size) -> list[Term]:
    return sorted(terms_of(size), key=lambda term: -degree(term[1]))


def atoms_of(size: Size) -> list[Atom]:
    """The atoms of the terms themselves, in canonical order."""
    return sorted({a for m, _ in _products(size) for a, _ in m}, key=lambda atom: atom.key)


def _all_atoms(size: Size) -> set[Atom]:
    """The atoms at any depth."""
    return {a for m, _ in _products(size) for atom, _ in m for a in (atom, *atom.inner)}


@lru_cache(1 << 14)
def axes_in(size: Size) -> frozenset[int]:
    """Numbers of the axes in the expression (not those inside value terms)."""
    return frozenset(atom.args[0] for atom in _all_atoms(size) if atom.kind == "axis")


def symbols_in(size: Size) -> frozenset[str]:
    """Names of the symbols in the expression; `name/multiple` for one declared with a multiple."""
    return frozenset(atom.args[0] for atom in _all_atoms(size) if atom.kind == "symbol")


@lru_cache(1 << 14)
def values_in(size: Size) -> tuple[Any, ...]:
    """The terms whose values are in the expression, by number."""
    found = [atom for atom in _all_atoms(size) if atom.kind == "value"]
    return tuple(atom.args[0] for atom in sorted(found, key=lambda atom: atom.key))


def combine(size: Size, f: Callable[[Atom], Any]) -> Any:
    """The polynomial with f(atom) for every atom of its terms."""
    return sum(
        math.prod((f(atom) for atom, power in m for _ in range(power)), start=c)
        for c, m in terms_of(size)
    )


def evaluate(
    size: Size, symbols: Mapping[str, int] = {}, axes: Mapping[int, Any] = {},
    values: Mapping[Any, Any] = {},
) -> Any:  # fmt: skip
    """The number at given symbols, axis indices and values of terms (ints or NumPy int arrays).

    A symbol declared with a multiple may be given under its own name.

    Raises:
        KeyError: something in the expression is not given.
    """

    @cache
    def one(atom: Atom) -> Any:
        if atom.kind == "symbol":
            return _bound_symbol(atom.args[0], symbols)
        if atom.kind == "axis":
            return axes[atom.args[0]]
        if atom.kind == "value":
            return values[atom.args[0]]
        meaning: dict[str, Any] = {"div": operator.floordiv, "min": np.minimum, "max": np.maximum}
        return meaning[atom.kind](*(combine(arg, one) for arg in atom.args))

    return combine(size, one)


def _bound_symbol(atom: str, symbols: Mapping[str, int]) -> int:
    if atom in symbols:
        return symbols[atom]
    symbol = declared(atom)
    quotient, rest = divmod(symbols[symbol.name], symbol.multiple)
    if rest:
        raise ValueError(f"{symbol.name} must be a multiple of {symbol.multiple}")
    return quotient


def representative(size: Size) -> int:
    """The value at the hints of its symbols: orders the search, never decides legality."""
    return int(evaluate(size, hints(symbols_in(size))))


def _name(atom: Atom) -> str:
    if atom.kind == "symbol":
        return str(atom.args[0])
    return f"a{atom.args[0]}" if atom.kind == "axis" else f"v{atom.args[0].id}"


def show(size: Size, name: Callable[[Atom], str] = _name) -> str:
    """Readable text, which is also a Python expression: `2*s+1`, `(s+1)//2`, `min(s, t)`.

    Args:
        name: says how symbols, axes and values are called.
    """
    text = ""
    for c, m in _by_degree(size):
        factors = [_show_factor(a, p, name, alone=c == p == len(m) == 1) for a, p in m]
        if abs(c) != 1 or not m:
            factors.insert(0, str(abs(c)))
        text += ("-" if c < 0 else "+" if text else "") + "*".join(factors)
    return text or "0"


def _show_factor(atom: Atom, power: int, name: Callable[[Atom], str], alone: bool) -> str:
    if atom.kind in ("min", "max"):
        text = f"{atom.kind}({', '.join(show(arg, name) for arg in atom.args)})"
    elif atom.kind == "div":
        parts = (show(arg, name) for arg in atom.args)
        text = "//".join(p if p.replace("_", "").isalnum() else f"({p})" for p in parts)
    else:
        text = name(atom)
    if "/" in text and atom.kind in ("symbol", "div") and not alone:
        text = f"({text})"
    return text if power == 1 else f"{text}**{power}"
