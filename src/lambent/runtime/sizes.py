"""Symbolic sizes as plain data: what a saved program knows of its dims, without a table of symbols.

A size is an int, or {"text": …, "terms": [[coefficient, [[atom, power], …]], …]} with an atom
["symbol", name], or ["div" | "min" | "max", size, size]. A symbol declared with a multiple m
appears as its atom `name/m`, which stands for the m-th part of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lambent.graph.dim import Size, show, symbol_hint, symbol_range, symbols_in, terms_of

Plain = int | dict[str, Any]
_OPS: dict[str, Callable[[int, int], int]] = {"div": lambda a, b: a // b, "min": min, "max": max}


@dataclass(frozen=True, slots=True)
class Symbol:
    """An atom of sizes: `low … high` and `hint` are values of the atom, not of the symbol."""

    atom: str
    low: int
    high: int
    hint: int

    @property
    def name(self) -> str:
        return self.atom.partition("/")[0]

    @property
    def multiple(self) -> int:
        return int(self.atom.partition("/")[2] or 1)


def plain(size: Size) -> Plain:
    """The size as JSON."""
    if isinstance(size, int):
        return size

    def atom(a: Any) -> list[Any]:
        return [a.kind, a.args[0]] if a.kind == "symbol" else [a.kind, *map(plain, a.args)]

    terms = [[c, [[atom(a), power] for a, power in product]] for c, product in terms_of(size)]
    return {"text": show(size), "terms": terms}


def text(size: Plain) -> str:
    return str(size) if isinstance(size, int) else str(size["text"])


def number(size: Plain, atoms: Mapping[str, int]) -> int:
    """The value of a size at values of its atoms."""
    if isinstance(size, int):
        return size

    def one(atom: Sequence[Any]) -> int:
        if atom[0] == "symbol":
            return atoms[atom[1]]
        return _OPS[atom[0]](number(atom[1], atoms), number(atom[2], atoms))

    return sum(c * math.prod(one(a) ** power for a, power in p) for c, p in size["terms"])


def unknown(size: Plain, atoms: Mapping[str, int]) -> tuple[str, int, int] | None:
    """(atom, coefficient, rest) if the size is coefficient · atom + rest, with one unknown atom."""
    found: tuple[str, int] | None = None
    rest = 0
    for c, product in () if isinstance(size, int) else size["terms"]:
        new = [(a, p) for a, p in product if a[0] != "symbol" or a[1] not in atoms]
        if not new:
            rest += number({"text": "", "terms": [[c, product]]}, atoms)
        elif found is None and len(product) == 1 and new[0][0][0] == "symbol" and new[0][1] == 1:
            found = new[0][0][1], c
        else:
            return None
    return None if found is None else (*found, rest)


def all_symbols(sizes: Sequence[Size]) -> tuple[Symbol, ...]:
    """The atoms of the sizes, by name."""
    names = frozenset[str]().union(*map(symbols_in, sizes))
    return tuple(Symbol(atom, *symbol_range(atom), symbol_hint(atom)) for atom in sorted(names))
