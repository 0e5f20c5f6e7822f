"""Products and sums as multisets: constants apart, operands sorted, nothing nested.

Without this, enumeration takes minutes: associativity and commutativity make every order a node.
"""

from __future__ import annotations

import math
from fractions import Fraction

from lambent.algebra.egraph import EClass, ENode, Saturated
from lambent.graph.orders import fixpoint

MAX_FACTORS = 8
MAX_MULTISETS = 32
Const = tuple[int, int, int]  # numerator / denominator · log2(e)^k; plain integers hash fast
ONE: Const = (1, 1, 0)
Multiset = tuple[Const, tuple[int, ...]]


def families(source: Saturated) -> dict[int, int]:
    """For each class the first of those that are equal to it up to a constant."""
    parent = {c: c for c in source.classes}

    def find(c: int) -> int:
        while parent[c] != c:
            c = parent[c] = parent[parent[c]]
        return c

    for c, e in source.classes.items():
        for n in e.nodes:
            if n.op == "scale":
                a, b = sorted((find(c), find(n.kids[0])))
                parent[b] = a
    return {c: find(c) for c in source.classes}


def times(a: Const, b: Const) -> Const:
    """The product of two constants, exactly."""
    if a == ONE or b == ONE:
        return b if a == ONE else a
    n, d = a[0] * b[0], a[1] * b[1]
    common = math.gcd(n, d)
    return n // common, d // common, a[2] + b[2]


def _const(value: Fraction, k: int) -> Const:
    return value.numerator, value.denominator, k


def flatten(source: Saturated, op: str) -> dict[int, list[Multiset]]:
    """Per class its flat products (or sums): constant and sorted operands that are not `op`.

    Those of integers have two: powers of random bits would multiply.
    """
    inner = (op, "scale") if op == "mul" else (op,)
    nodes = {c: [n for n in e.nodes if n.op in inner] for c, e in source.classes.items()}
    flat = {c: _atom(c, e, op, inner) for c, e in source.classes.items()}

    def refresh(c: int) -> bool:
        before, most = len(flat[c]), MAX_FACTORS if source.classes[c].dtype.is_float else 2
        for n in nodes[c]:
            _combine(flat, c, n, most)
        return len(flat[c]) != before

    fixpoint({c: [k for n in ns for k in n.kids] for c, ns in nodes.items()}, refresh)
    return {c: list(f) for c, f in flat.items()}


def _atom(c: int, e: EClass, op: str, inner: tuple[str, ...]) -> dict[Multiset, None]:
    """The class itself as an operand; a constant is no factor but a part of the constant."""
    consts = [n for n in e.nodes if n.op == "const"] if op == "mul" else []
    if consts:
        return {(_const(*consts[0].args), ()): None}
    whole = not e.dtype.is_float or any(n.op not in inner for n in e.nodes)
    return {(ONE, (c,)): None} if whole else {}


def _combine(flat: dict[int, dict[Multiset, None]], c: int, n: ENode, most: int) -> None:
    if n.op == "scale":
        const = _const(*n.args)
        found = [(times(k, const), f) for k, f in flat[n.kids[0]]]
    else:
        a, b = n.kids
        found = [(times(x[0], y[0]), tuple(sorted(x[1] + y[1]))) for x in flat[a] for y in flat[b]]
    for m in found:
        if len(flat[c]) >= MAX_MULTISETS:
            return
        if len(m[1]) <= most and c not in m[1] and not (m[0] == ONE and len(m[1]) == 1):
            flat[c][m] = None
