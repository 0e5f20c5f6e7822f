"""Proofs about symbolic integers: what is >= 0 for every size in range, and what follows from it.

A proof is sound and incomplete. Division, minimum and comparison simplify by what is proved, and
otherwise keep an atom, or raise; giving up never gives a wrong answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache, reduce
from typing import TypeAlias

from lambent.graph.dim import (
    Atom,
    Dim,
    Kind,
    Refused,
    Size,
    Undecided,
    atoms_of,
    combine,
    common,
    divide,
    exact,
    intern,
    leading,
    show,
    size_key,
    split,
    symbol_range,
    terms_of,
)

Interval: TypeAlias = tuple[int, int]
Extents: TypeAlias = "Mapping[int, Size] | Sequence[Size]"

UNBOUNDED = 10**30
"""Stands for "no bound known" in an interval; larger than any integer a program can hold."""

_DEPTH = 6  # nested eliminations in one proof
_FACT_DEPTH = 3  # the same, once a declared fact was used
_MEMO = 1 << 16  # answers that a prover remembers

_FACTS: list[Size] = []


class Prover:
    """Decides and divides with the ranges of axes known; symbols and facts are global.

    Args:
        extents: of the axes, by number; may grow later. An axis of unknown extent is only >= 0.
    """

    __slots__ = ("_bounded", "_extents", "_proved")

    def __init__(self, extents: Extents = ()) -> None:
        self._extents = extents
        self._proved = lru_cache(_MEMO)(self._prove)
        self._bounded = lru_cache(_MEMO)(self._bound)

    def ge0(self, e: Size) -> bool:
        """True only if e >= 0 for every symbol and axis index in range (sound, incomplete).

        Where an axis is empty there is no index, and nothing to prove. The answer depends on
        the declared facts (e >= k·fact is enough), not on what was proved before.
        """
        if not isinstance(e, Dim):
            return e >= 0
        return self._proved(e, _DEPTH) or any(
            self._proved(e - k * fact, _FACT_DEPTH) for fact in _FACTS for k in (1, 2)
        )

    def decide(self, e: Size, a: Size, relation: str, b: Size) -> bool:
        """Whether e >= 0, which is what `a relation b` means.

        Raises:
            Undecided: neither it nor its opposite is proved.
        """
        if self.ge0(e):
            return True
        if self.ge0(-e - 1):
            return False
        raise Undecided(f"{show(a)} {relation} {show(b)} is not decided by the ranges of symbols")

    # ---- bounds ------------------------------------------------------------------------------

    def interval(self, e: Size) -> Interval:
        """Sound numeric bounds of e, inclusive."""
        return self._bounded(e) if isinstance(e, Dim) else (e, e)

    def _bound(self, e: Dim) -> Interval:
        low = high = 0
        for c, monomial in terms_of(e):
            factors = (self._atom_interval(atom) for atom, power in monomial for _ in range(power))
            part = reduce(_span, factors, (c, c))
            low, high = low + part[0], high + part[1]
        for atom in (a for a in atoms_of(e) if a.kind == "div"):
            x, n = atom.args  # e = rest − k·(x − n·(x//n)): the bracket is 0 … n−1
            k = exact(split(e, atom)[0], n)
            if k is None:
                continue
            rest = e + k * (x - n * atom.dim())
            if len(terms_of(rest)) < len(terms_of(e)):
                outer = self.interval(rest)
                part = _span(self.interval(-k), (0, self.interval(n)[1] - 1))
                low, high = max(low, outer[0] + part[0]), min(high, outer[1] + part[1])
        return low, high

    def _atom_interval(self, atom: Atom) -> Interval:
        if atom.kind == "value":
            return -UNBOUNDED, UNBOUNDED
        if not atom.inner:
            low, high = self._range(atom)
            return low, max(self.interval(high)[1], 0)
        (a, b), (c, d) = (self.interval(arg) for arg in atom.args)
        if atom.kind != "div":
            pick = min if atom.kind == "min" else max
            return pick(a, c), pick(b, d)
        c, d = max(c, 1), max(d, 1)
        corners = (a // c, a // d, b // c, b // d)
        return min(corners), max(corners)

    def _range(self, atom: Atom) -> tuple[int, Size]:
        """Least and greatest value of a symbol or an axis."""
        if atom.kind == "symbol":
            return symbol_range(atom.args[0])
        try:
            return 0, self._extents[atom.args[0]] - 1
        except LookupError:
            return 0, UNBOUNDED

    # ---- proofs: eliminate one atom after the other ------------------------------------------

    def _prove(self, e: Size, depth: int) -> bool:
        if self.interval(e)[0] >= 0:
            return True
        atoms = atoms_of(e)
        if not atoms or depth == 0 or any(a.kind == "value" for a in atoms):
            return False
        extremes = [a for a in atoms if a.kind in ("min", "max")]
        if extremes:
            return self._by_cases(e, extremes[0], depth - 1)
        divisions = [a for a in atoms if a.kind == "div"]
        if divisions:  # the outermost first: it may hold the others
            outermost = max(divisions, key=lambda a: (len(a.inner), a.key))
            return self._by_division(e, outermost, depth - 1)
        return self._by_range(e, atoms, depth)

    def _by_cases(self, e: Size, atom: Atom, depth: int) -> bool:
        """The minimum or maximum is either operand."""
        k, rest = split(e, atom)
        holds = [self._proved(k * arg + rest, depth) for arg in atom.args]
        sign = 1 if atom.kind == "max" else -1  # max(x, y) >= x; min(x, y) <= x
        return all(holds) or (any(holds) and self._proved(sign * k, depth))

    def _by_division(self, e: Size, atom: Atom, depth: int) -> bool:
        """e = k·(x//n) + rest, and x − n + 1 <= n·(x//n) <= x."""
        factor, rest = split(e, atom)
        x, n = atom.args
        k, total = exact(factor, n), rest
        if k is None:  # over the integers, e >= 0 is n·e + n − 1 >= 0
            k, total = factor, rest * n + n - 1
        if self._proved(k, depth):
            if self._proved(total + k * (x - n + 1), depth):
                return True
            return self._proved(x, depth) and self._proved(rest, depth)
        return self._proved(-k, depth) and self._proved(total + k * x, depth)

    def _by_range(self, e: Size, atoms: list[Atom], depth: int) -> bool:
        """Push an axis or a symbol to the bound that the sign of its factor asks for."""
        for atom in atoms:  # axes come first: their extents hold symbols
            k, rest = split(e, atom)
            low, high = self._range(atom)
            if self._proved(k, depth):
                return self._proved(low * k + rest, depth)
            if self._proved(-k, depth):
                return self._proved(high * k + rest, depth)
        return False

    # ---- division, minimum and maximum -------------------------------------------------------

    def div(self, e: Size, n: Size) -> Size:
        """floor(e / n), simplified so that a split and its inverse cancel.

        Raises:
            Refused: n is neither proved >= 1 nor a negative int.
        """
        if isinstance(n, int) and n < 0:
            e, n = -e, -n
        if not self.ge0(n - 1):
            raise Refused(f"({show(e)}) // ({show(n)}): the divisor is not proved to be >= 1")
        quotient, rest = divide(e, n)
        return quotient + self._div_rest(rest, n)

    def _div_rest(self, r: Size, n: Size) -> Size:
        """floor(r / n) where no term of r is a multiple of n."""
        least = self.interval(r)[0] // max(self.interval(n)[0], 1)
        for q in (0, -1, 1, least):  # q·n <= r < (q + 1)·n
            if self.ge0(r - q * n) and self.ge0((q + 1) * n - 1 - r):
                return q
        for atom in (a for a in atoms_of(r) if a.kind == "div"):
            (x, a), (factor, y) = atom.args, split(r, atom)
            if factor == 1 and self.ge0(a * n - 1):  # (x//a + y) // n  =  (x + a·y) // (a·n)
                return self.div(x + a * y, a * n)
        for g in self._radices(r, n):  # (g·x + y) // (g·m)  =  x // m,  where 0 <= y < g
            outer, (x, y) = exact(n, g), divide(r, g)
            if outer is None or x == 0 or not self.ge0(outer - 1):
                continue
            if self.ge0(y) and self.ge0(g - 1 - y):
                return self.div(x, outer)
        scale, lead = leading(r)
        if lead and scale < 0:  # one form for x // n and −x // n
            return -1 - self.div(-r - 1, n)
        return intern("div", r, n).dim()

    def _radices(self, r: Size, n: Size) -> list[Size]:
        """By what r may split into digits: what its terms share with n, and the extents in it."""
        found = [common(term, *terms_of(n)) for term in terms_of(r) if term[1]]
        found += [self._range(a)[1] + 1 for a in atoms_of(r) if a.kind == "axis"]
        return [g for g in dict.fromkeys(found) if g not in (0, 1, n)]

    def mod(self, e: Size, n: Size) -> Size:
        """e − n·floor(e / n): the sign of the divisor, as Python's."""
        return e - n * self.div(e, n)

    def apply(self, kind: Kind, a: Size, b: Size) -> Size:
        """The div, min or max of two sizes; an atom only where nothing simpler is proved."""
        if kind == "div":
            return self.div(a, b)
        for small, large in ((b, a), (a, b)):
            if self.ge0(large - small):
                return small if kind == "min" else large
        return intern(kind, *sorted((a, b), key=size_key)).dim()


def _span(a: Interval, b: Interval) -> Interval:
    """The interval of products."""
    products = (a[0] * b[0], a[0] * b[1], a[1] * b[0], a[1] * b[1])
    return min(products), max(products)


SYMBOLS_ONLY = Prover()
"""Knows no extents: what the operators of `Dim` decide with."""


def assume(fact: Size) -> None:
    """Declare that `fact >= 0`. Proofs use it; whoever binds the symbols checks it at run time.

    Raises:
        ValueError: the fact is false for every size in range.
    """
    if SYMBOLS_ONLY.ge0(-fact - 1):
        raise ValueError(f"assume({fact}): is negative for every size in range")
    if not SYMBOLS_ONLY.ge0(fact):
        _FACTS.append(fact)


def facts() -> tuple[Size, ...]:
    """The declared facts, each of which is >= 0, in the order of their declaration."""
    return tuple(_FACTS)


def bounds(size: Size, extents: Extents = ()) -> Interval:
    """Sound numeric bounds, inclusive; beyond ±UNBOUNDED where nothing is known."""
    return Prover(extents).interval(size)


def minimum(a: Size, b: Size) -> Size:
    """The smaller of two sizes; an atom only where neither order is proved."""
    return SYMBOLS_ONLY.apply("min", a, b)


def maximum(a: Size, b: Size) -> Size:
    """The larger of two sizes; an atom only where neither order is proved."""
    return SYMBOLS_ONLY.apply("max", a, b)


def substitute(size: Size, f: Callable[[Atom], Size | None], prover: Prover = SYMBOLS_ONLY) -> Size:
    """Replace atoms, also inside others: f gives the replacement, or None to keep the atom.

    Divisions are simplified anew, with the axis ranges of the prover where one is given.

    Raises:
        Refused: a new divisor is not proved positive.
    """

    @cache
    def one(atom: Atom) -> Size:
        new = f(atom)
        if new is not None:
            return new
        if atom.inner:
            args = tuple(combine(arg, one) for arg in atom.args)
            if args != atom.args:
                return prover.apply(atom.kind, *args)
        return atom.dim()

    out: Size = combine(size, one)
    return out
