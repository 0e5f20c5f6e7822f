"""Driving egglog: terms in, equality saturation under limits, rows out.

Program text goes through `egglog.bindings`, which versions 13.2 and 14.0 share. One step a call, as
no version stops inside a step, and each e-graph stays in the thread that made it.
"""

from __future__ import annotations

import functools
import math
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any

from egglog.bindings import EGraph

from lambent.algebra.facts import DECLARATIONS, fact_rules
from lambent.algebra.rules import CODE, MOST_AXES, SPLITS, SUBSTITUTION, TABLE, VARIES, spell
from lambent.algebra.term import BINARY, REDUCTIONS, UNARY, Term
from lambent.algebra.translate import Translation
from lambent.graph.dim import Atom, Dim, Monomial, Size, exact, representative, terms_of
from lambent.graph.prove import Prover

HEAD = {op: op.capitalize() for op in ("in", "inf", "nan", "val", *UNARY, *BINARY, *REDUCTIONS)} | {
    "const": "C"
}
"""The head in the e-graph of each operation of a term."""
TYPED = ("const", "inf", "nan", "cast")
"""Operations that have the number of their dtype as a last argument."""

PART = 256  # elements of a part of a long reduction
MANY = 8  # parts that such a reduction has at least
FEW = 64  # results; with more of them there is work to share out without parts

_AT_ONCE = 40  # lines: one large text costs 13.2.0 gigabytes


def in_parts(translation: Translation, part: int, few: int) -> list[int]:
    """The axes that are also counted in parts; see `Session`."""
    sizes = [*map(representative, translation.extents)]
    terms = [t for t in translation.terms() if math.prod(sizes[a] for a in t.free) <= few]
    short = frozenset[int]().union(*(t.axes for t in terms))
    return [a for a, n in enumerate(sizes) if n >= MANY * part > 0 and a in short]


class Session:
    """One e-graph: the table, the facts, and the terms of one translation.

    A reduction with at most `few` results over an axis that is long enough for MANY parts is also
    offered in parts of `part` elements; 0 for none. Sizes are the usual ones.

    After `saturate`: the rounds, and whether they reached a fixpoint. `cuts`: of an axis that is
    also counted in parts its number, and those of the part and of the place in it.

    Raises:
        ValueError: more axes than an i64 has bits.
    """

    def __init__(self, translation: Translation, part: int = 0, few: int = FEW) -> None:
        self.translation = translation
        self.egraph = EGraph()
        long, count = in_parts(translation, part, few), len(translation.extents)
        parts = [n for a in long for n in ((translation.extents[a] + part - 1) // part, part)]
        self.extents = (*translation.extents, *parts)
        self.cuts = tuple((a, count + 2 * i, count + 2 * i + 1) for i, a in enumerate(long))
        if len(self.extents) > MOST_AXES:
            raise ValueError(f"{count} axes in one region, at most {MOST_AXES}: cut the graph")
        self.strings: list[str] = []  # names may hold anything: the e-graph has numbers instead
        self.rounds, self.saturated = 0, False
        self.rules = (*TABLE, *(SPLITS if self.cuts else ()), *SUBSTITUTION)
        empty = sum(1 << a for a, n in enumerate(self.extents) if not Prover().ge0(n - 1))
        symbolic = sum(1 << a for a, n in enumerate(self.extents) if isinstance(n, Dim))
        table = [*DECLARATIONS, *fact_rules(), *self._parts()]
        table += [rule.text(i) for i, rule in enumerate(self.rules)]
        lines = [spell(line, empty, symbolic) for line in table]
        lines += [*self._told(), *self._terms()]
        for i in range(0, len(lines), _AT_ONCE):
            self.run("\n".join(lines[i : i + _AT_ONCE]))

    def run(self, text: str) -> list[Any]:
        return list(self.egraph.run_program(*self.egraph.parse_program(text)))

    # ---- terms in ----------------------------------------------------------------------------

    def _parts(self) -> Iterator[str]:
        """The axes that are also counted in parts, and where a place in a part is on the axis."""
        for n, o, i in self.cuts:
            size, even = self.extents[i], exact(self.extents[n], self.extents[i])
            at = f"(IAdd (IMul {size} (Ax {1 << o})) (Ax {1 << i}))"
            here = f"(Less (Val {at}) (Next {1 << n} INT64))" if even is None else "(C ONE 0 BOOL)"
            yield f"(cut {1 << n} {1 << o} {1 << i} {at} {here})"

    def _told(self) -> Iterator[str]:
        """Facts about axes and buffers. Inputs are taken for finite, weights are looked at."""
        for dtype in (d for d in CODE if d.is_integer and d.itemsize < 8):
            top = 2 ** (8 * dtype.itemsize - (dtype.kind == "i"))
            fitting = (b for b, n in enumerate(self.extents) if Prover().ge0(top - n))
            yield from (f"(fits {1 << b} {CODE[dtype]})" for b in fitting)
        for buffer in self.translation.buffers.values():
            name = self._string(buffer.name)
            yield f"(set (holds {name}) {CODE[buffer.dtype]})"
            yield f"(set (varies {name}) {0 if buffer.weight else VARIES})"
            if buffer.finite and buffer.dtype.is_float:
                yield f"(finite_buffer {name})"

    def _terms(self) -> Iterator[str]:
        for term in self.translation.terms():
            yield f"(let {_name(term)} {self._text(term)})"
        for t, u in self.translation.alternatives:
            yield f"(union {_name(t)} {_name(u)})"
        for i, root in enumerate(self.translation.roots):
            yield f"(let $root{i} {_name(root.term)})"

    def _text(self, term: Term) -> str:
        args = [str(a) for a in term.args]
        if term.op == "in":
            buffer, index = term.args
            items = [self._index(e) for e in index]
            args = [self._string(buffer), _nest("Cons", [*items, "(Nil)"])]
        elif term.op == "const":
            r, k = term.args
            number = f'(bigrat (from-string "{r.numerator}") (from-string "{r.denominator}"))'
            args = [number, str(k)]
        elif term.op == "val":
            args = [self._index(term.args[0])]
        elif term.axes:
            args = [str(sum(1 << a for a in term.axes))]
        if term.op in TYPED:
            args.append(str(CODE[term.dtype]))
        return f"({' '.join((HEAD[term.op], *args, *map(_name, term.kids)))})"

    def _string(self, name: str) -> str:
        if name not in self.strings:
            self.strings.append(name)
        return f'"{self.strings.index(name)}"'

    def _index(self, e: Size) -> str:
        """Sums and products nest to the right; symbols come before axes in a product."""
        return _nest("IAdd", [self._product(c, m) for c, m in terms_of(e)] or ["(IC 0)"])

    def _product(self, c: int, monomial: Monomial) -> str:
        factors = [self._atom(a) for a, power in monomial for _ in range(power)]
        if not factors:
            return f"(IC {c})"
        text = _nest("IMulI", factors)
        return text if c == 1 else f"(IMul {c} {text})"

    def _atom(self, atom: Atom) -> str:
        if atom.kind == "symbol":
            return f"(IS {self._string(atom.args[0])})"
        if atom.kind == "axis":
            return f"(Ax {1 << atom.args[0]})"
        if atom.kind == "value":
            return f"(IOf {_name(atom.args[0])})"
        return f"(I{atom.kind.capitalize()} {' '.join(map(self._index, atom.args))})"

    # ---- saturation --------------------------------------------------------------------------

    def saturate(self, limit: int, seconds: float, rounds: int = 40) -> None:
        """Rounds of all rules until nothing changes, or a limit is passed.

        limit: e-nodes; seconds: of time. Both are looked at between rounds.
        """
        start = time.monotonic()
        self.run("(run-schedule (saturate (run facts)))")
        while self.rounds < rounds and not self.saturated:
            self.run("(run-schedule (run algebra))")
            (step,) = self.run("(run-schedule (run join) (saturate (run facts)))")
            self.rounds += 1
            self.saturated = not step.report.updated
            if self.size() > limit or time.monotonic() - start > seconds:
                break

    def size(self) -> int:
        """The number of e-nodes, those of indices among them."""
        found = re.findall(r"\('(\w+)', (\d+)\)", str(self.run("(print-size)")))
        return sum(int(n) for name, n in found if name[0].isupper())


def _name(term: Term) -> str:
    return f"$t{term.id}"


def _nest(head: str, parts: Sequence[str]) -> str:
    """(head a (head b c)) of a, b, c."""
    return functools.reduce(lambda text, part: f"({head} {part} {text})", reversed(parts))
