"""Driving egglog: terms in, equality saturation under limits, rows out.

Program text goes through `egglog.bindings`, which versions 13.2 and 14.0 share. One step a call, as
no version stops inside a step, and each e-graph stays in the thread that made it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from egglog.bindings import EGraph

from lambent.algebra.facts import DECLARATIONS, fact_rules
from lambent.algebra.rules import CODE, SPLITS, SUBSTITUTION, TABLE, Rule
from lambent.algebra.term import BINARY, REDUCTIONS, UNARY, Term, walk
from lambent.algebra.translate import Translation
from lambent.graph.dim import Size, terms_of
from lambent.graph.prove import Prover

HEAD = {op: op.capitalize() for op in (*UNARY, *BINARY, *REDUCTIONS) if op != "cast"}
"""The head in the e-graph of each operation that has operands alone, and axes."""

_PARSED_AT_ONCE = 40  # lines: one large text costs 13.2.0 gigabytes
MOST_AXES = 62


@dataclass(frozen=True, slots=True)
class Bits:
    """Axes as bits of a mask. An axis that is cut has two bits, the outer one first."""

    of: dict[int, tuple[int, ...]]
    extents: tuple[Size, ...]
    cuts: tuple[tuple[int, int], ...]

    def mask(self, axes: Iterable[int]) -> int:
        return sum(1 << b for a in axes for b in self.of[a])


@dataclass(frozen=True, slots=True)
class Run:
    """What saturation did: rounds, whether a fixpoint was reached, matches of each rule."""

    rounds: int
    saturated: bool
    applied: dict[str, int]


def name_bits(translation: Translation, split: int) -> Bits:
    """A bit for every axis that occurs; reduced axes are cut in up to `split` parts.

    Raises:
        ValueError: more axes than an i64 has bits.
    """
    terms = list(walk(*_all_terms(translation)))
    reduced = frozenset[int]().union(*(t.axes for t in terms))
    used = reduced.union(*(t.free for t in terms))
    used = used.union(*(_axes(e) for root in translation.roots for e in root.index))
    of: dict[int, tuple[int, ...]] = {}
    extents: list[Size] = []
    cuts = []
    for a in sorted(used):
        extent, first = translation.extents[a], len(extents)
        parts = _parts(extent, split) if a in reduced else 1
        if parts > 1 and isinstance(extent, int):
            extents += [parts, extent // parts]
            cuts.append((1 << first, 2 << first))
        else:
            extents.append(extent)
        of[a] = tuple(range(first, len(extents)))
    if len(extents) > MOST_AXES:
        raise ValueError(f"{len(extents)} axes in one region, at most {MOST_AXES}: cut the graph")
    return Bits(of, tuple(extents), tuple(cuts))


def _parts(extent: Size, split: int) -> int:
    if not isinstance(extent, int):
        return 1
    return max((d for d in range(1, min(split, extent - 1) + 1) if extent % d == 0), default=1)


def _axes(e: Size) -> frozenset[int]:
    return frozenset(a.args[0] for _, m in terms_of(e) for a, _ in m if a.kind == "axis")


def _all_terms(translation: Translation) -> list[Term]:
    return [root.term for root in translation.roots] + [
        t for pair in translation.alternatives for t in pair
    ]


class Session:
    """One e-graph: the table, the facts, and the terms of one translation."""

    def __init__(
        self,
        translation: Translation,
        bits: Bits,
        finite: Iterable[str],
        rules: Sequence[Rule] = TABLE + SUBSTITUTION,
    ) -> None:
        self.egraph = EGraph()
        self.bits = bits
        self.strings: list[str] = []  # names may hold anything: the e-graph has numbers instead
        self._names: dict[Term, str] = {}
        empty = sum(1 << b for b, n in enumerate(bits.extents) if not Prover().ge0(n - 1))
        self._lines(DECLARATIONS)
        splits = SPLITS if bits.cuts else ()
        self._lines(fact_rules(empty))
        self._lines([rule.text(empty) for rule in (*rules, *splits)])
        self._lines([f"(cut {o} {i})" for o, i in bits.cuts])
        self._lines(
            [
                f"(set (holds {self._string(b.name)}) {CODE[b.dtype]})"
                for b in translation.buffers.values()
            ]
        )
        self._lines([f"(finite_buffer {self._string(name)})" for name in finite])
        self._lines(list(self._terms(translation)))

    def run(self, text: str) -> list[Any]:
        return list(self.egraph.run_program(*self.egraph.parse_program(text)))

    def _lines(self, lines: Sequence[str]) -> None:
        for i in range(0, len(lines), _PARSED_AT_ONCE):
            self.run("\n".join(lines[i : i + _PARSED_AT_ONCE]))

    # ---- terms in ----------------------------------------------------------------------------

    def _terms(self, translation: Translation) -> Iterator[str]:
        narrow = set()
        for term in walk(*_all_terms(translation)):
            name = self._names[term] = f"$t{term.id}"
            yield f"(let {name} {self._text(term)})"
            if term.op == "in" and translation.buffers[term.args[0]].weight:
                yield f"(wonly {name})"
            if term.op == "cast" and term.kids[0].op == "val" and term.dtype.is_integer:
                narrow.add(term.dtype)
        for dtype in sorted(narrow, key=CODE.__getitem__):
            top = 2 ** (8 * dtype.itemsize - (dtype.kind == "i"))
            for bit, extent in enumerate(self.bits.extents):
                if Prover().ge0(top - extent):
                    yield f"(fits {1 << bit} {CODE[dtype]})"
        for t, u in translation.alternatives:
            yield f"(union {self._names[t]} {self._names[u]})"
        for i, root in enumerate(translation.roots):
            yield f"(let $root{i} {self._names[root.term]})"

    def _text(self, term: Term) -> str:
        code = CODE[term.dtype]
        kids = " ".join(self._names[k] for k in term.kids)
        if term.op == "in":
            index = "(Nil)"
            for e in reversed(term.args[1]):
                index = f"(Cons {self._index(e)} {index})"
            return f"(In {self._string(term.args[0])} {index})"
        if term.op == "const":
            r, k = term.args
            return f"(C {_rational(r)} {k} {code})"
        if term.op in ("inf", "nan"):
            return f"(Inf {term.args[0]} {code})" if term.op == "inf" else f"(Nan {code})"
        if term.op == "val":
            return f"(Val {self._index(term.args[0])})"
        if term.op == "cast":
            return f"(Cast {code} {kids})"
        axes = f"{self.bits.mask(term.axes)} " if term.axes else ""
        return f"({HEAD[term.op]} {axes}{kids})"

    def _string(self, name: str) -> str:
        if name not in self.strings:
            self.strings.append(name)
        return f'"{self.strings.index(name)}"'

    def _index(self, e: Size) -> str:
        """Sums and products nest to the right; symbols come before axes in a product."""
        parts = []
        for c, monomial in terms_of(e):
            factors = [self._atom(a) for a, power in monomial for _ in range(power)]
            if not factors:
                parts.append(f"(IC {c})")
                continue
            text = factors.pop()
            while factors:
                text = f"(IMulI {factors.pop()} {text})"
            parts.append(text if c == 1 else f"(IMul {c} {text})")
        text = parts.pop() if parts else "(IC 0)"
        while parts:
            text = f"(IAdd {parts.pop()} {text})"
        return text

    def _atom(self, atom: Any) -> str:
        if atom.kind == "symbol":
            return f"(IS {self._string(atom.args[0])})"
        if atom.kind == "axis":
            return f"(Ax {self.bits.mask(atom.args)})"
        if atom.kind == "value":
            return f"(IOf {self._names[atom.args[0]]})"
        head = {"div": "IDiv", "min": "IMin", "max": "IMax"}[atom.kind]
        return f"({head} {' '.join(self._index(x) for x in atom.args)})"

    # ---- saturation --------------------------------------------------------------------------

    def saturate(self, limit: int, seconds: float, rounds: int = 40) -> Run:
        """Rounds of all rules until nothing changes, or a limit is passed.

        limit: e-nodes; seconds: of time. Both are looked at between rounds.
        """
        start = time.monotonic()
        applied: dict[str, int] = {}
        self.run("(run-schedule (saturate (run facts)))")
        for done in range(1, rounds + 1):
            (step,) = self.run("(run-schedule (run algebra) (saturate (run facts)))")
            for rule, matches in step.report.num_matches_per_rule.items():
                if not rule.startswith("("):
                    applied[rule] = applied.get(rule, 0) + matches
            if not step.report.updated:
                return Run(done, True, _counts(applied))
            if self.size() > limit or time.monotonic() - start > seconds:
                break
        return Run(done, False, _counts(applied))

    def size(self) -> int:
        """The number of e-nodes, those of indices among them."""
        text = str(self.run("(print-size)"))
        found = re.findall(r"\('(\w+)', (\d+)\)", text)
        return sum(int(n) for name, n in found if name[0].isupper())


def _counts(applied: Mapping[str, int]) -> dict[str, int]:
    """Of the rows of the table; the substitution rows together."""
    out = {r.name: applied[r.name] for r in (*TABLE, *SPLITS) if applied.get(r.name)}
    moved = sum(n for name, n in applied.items() if name not in out)
    return out | ({"substitute": moved} if moved else {})


def _rational(r: Fraction) -> str:
    numbers = f'(from-string "{r.numerator}") (from-string "{r.denominator}")'
    return f"(bigrat {numbers})"
