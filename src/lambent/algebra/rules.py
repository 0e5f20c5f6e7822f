"""The algebra as a table: one row per rule, `before → after` where the guards hold.

A row is data: the text is egglog's, with lower-case names as variables; `e` is the class of
`before`. Every row is legal by construction: both sides are equal over the reals and over ±inf and
NaN where the guards let them occur, with no narrower accumulator and no new overflow.
`tests/algebra` reads the same table and fuzzes every row alone.

    name: before => after if guard, guard
        =>> also retires `before`: it is no longer offered; <=> is a second rule, `name_back`
        [this/that] is a row for each; brackets of equally many parts choose alike

    T  In(buffer, index)  C(rational, k, dtype) = rational·log2(e)^k  Inf(±1, dtype)  Nan(dtype)
       Val(index)  Next(axes, dtype): the number of points of the axes  Scale(rational, k, t)
       the unary and binary operations  Sum Max (axes, t)  Fold Part (axes, a, v)
       At(axis, i, t): t where the axis has the index i (an unfinished substitution)

Axes are bits of an i64. Guards are facts of a class: `free` what it depends on (axes, and VARIES
for inputs and symbols), `dt` its dtype, `flt` a float, `fin` never ±inf nor NaN, `real` never ±inf,
`pos` above 0 or NaN, `nneg` +0, above, or NaN, `npos` 0, below, or NaN. Finite is meant over the
reals. Inputs are taken for finite; weights are looked at. Of what values depend on:

    (lacks c m)   c does not depend on the axes m
    (part q m c)  q is what c lacks of the axes m, at least one of them
    (fixed c)     c is made of weights, constants and indices alone
    (apart m n)   no axis is in both
    (filled m)    all have points
    (cuts m)      n among m is also counted as places i of parts o: at the index `at` where `in`;
                  w has o and i, none of which is among m, and r is m with i for n
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from lambent.algebra import term
from lambent.graph.dtypes import DTYPES, bool_, int64

CODE = {d: (16 if d.is_float else 0) + i for i, d in enumerate(DTYPES.values())}
"""A number per dtype; those of floats are 16 and above."""

MOST_AXES = 62
VARIES = 1 << MOST_AXES
"""Beside the axes, in the mask of what a value depends on: inputs and symbols."""

UNARY = "/".join(op.capitalize() for op in term.UNARY if op != "cast")
BINARY = "/".join(op.capitalize() for op in term.BINARY)
INDEX = "IAdd/IMulI/IDiv/IMin/IMax"

_WORDS = {
    "ZERO": "(bigrat (bigint 0) (bigint 1))",
    "ONE": "(bigrat (bigint 1) (bigint 1))",
    "NEG": "(bigrat (bigint -1) (bigint 1))",
    "FLOAT": "16",
    "BOOL": str(CODE[bool_]),
    "INT64": str(CODE[int64]),
    "VARIES": str(VARIES),
}
_GUARDS = {
    "lacks": "(= f_{0} (free {0})), (= 0 (& {1} f_{0}))",
    "part": "(= f (free {2})), (= {0} (& {1} (^ -1 f))), (!= {0} 0)",
    "fixed": "(= d_{0} (free {0})), (= 0 (& VARIES d_{0}))",
    "apart": "(= 0 (& {0} {1}))",
    "filled": "(= 0 (& {0} EMPTY))",
    "cuts": "(cut n o i at in), (= n (& {0} n)), (= w (| o i)), (= 0 (& {0} w)),"
    " (= r (| i (^ {0} n)))",
}


def bits(mask: int) -> Iterator[int]:
    """The positions of the set bits, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


@dataclass(frozen=True, slots=True)
class Rule:
    """One row. Guards are egglog facts about the variables of `before`."""

    name: str
    before: str
    after: str
    guards: tuple[str, ...] = ()
    retire: bool = False

    def text(self, number: int) -> str:
        """The egglog rule: (number, e, after) is a row of `equal`, which `join` makes one class."""
        facts = " ".join((f"(= e {self.before})", *self.guards))
        sort = re.sub(r"\(At([IL]).*|.*", r"\1", self.before)
        actions = f"(equal{sort} {number} e {self.after})"
        actions += f" (subsume {self.before})" if self.retire else ""
        return f"(rule ({facts}) ({actions}) :ruleset algebra)"


def spell(text: str, empty: int = 0, symbolic: int = 0) -> str:
    """Replace the named constants of a table by egglog's spelling.

    Args:
        empty, symbolic: the axes that may have no points, and those of a symbolic extent.
    """
    words = _WORDS | {"EMPTY": str(empty), "SYMBOLIC": str(symbolic)}
    return re.sub(r"\b[A-Z][A-Z0-9]+\b", lambda m: words.get(m[0], m[0]), text)


def choices(row: str) -> Iterator[str]:
    """The row for every choice of [this/that]; brackets of equally many parts choose alike."""
    brackets = [bracket.split("/") for bracket in re.findall(r"\[(.*?)\]", row)]
    template = re.sub(r"\[.*?\]", "{}", row)
    counts = dict.fromkeys(map(len, brackets))
    for picks in itertools.product(*map(range, counts)):
        pick = dict(zip(counts, picks, strict=True))
        yield template.format(*(parts[pick[len(parts)]] for parts in brackets))


def _guard(found: re.Match[str]) -> str:
    return _GUARDS.get(found[1], found[0]).format(*found[2].split())


def parse(*rows: str) -> tuple[Rule, ...]:
    """The rules of rows of the table."""
    rules = []
    for row in itertools.chain.from_iterable(map(choices, rows)):
        name, _, rest = row.partition(": ")
        rest, _, guards = rest.partition(" if ")
        before, arrow, after = re.split(r" (=>>?|<=>) ", rest)
        guards = re.sub(r"\((\w+) ([\w ]+)\)", _guard, guards)
        known = tuple(guard for guard in guards.split(", ") if guard)
        rules.append(Rule(name, before, after, known, arrow == "=>>"))
        if arrow == "<=>":
            rules.append(Rule(f"{name}_back", after, before, known))
    return tuple(rules)


TABLE = parse(
    # Sums have no row that regroups: they are flattened when kernels are listed, and what is
    # written as (a + b) − a to find a rounding error keeps its meaning.
    "[add/mul/eq]_swap: ([Add/Mul/Eq] a b) => ([Add/Mul/Eq] b a)",
    # Of floats: integers are indices and random bits, no contractions, and powers of one multiply.
    "mul_regroup: (Mul a (Mul b c)) => (Mul (Mul a b) c) if (flt e)",
    "[add_zero/mul_one/scale_one/sum_none/max_none]:"
    " ([Add (C ZERO 0 d)/Mul (C ONE 0 d)/Scale ONE 0/Sum 0/Max 0] x) =>> x",
    # Constants of floats are no factors but scales: exact rationals that drift outwards.
    "scale_[left/right]: (Mul [(C a n d) x/x (C a n d)]) =>> (Scale a n x) if (>= d FLOAT)",
    "scale_const: (Scale a n (C b m d)) =>> (C (* a b) (+ n m) d)",
    "scale_scale: (Scale a n (Scale b m x)) => (Scale (* a b) (+ n m) x)",
    "mul_scale: (Mul (Scale a n x) y) => (Scale a n (Mul x y))",
    "[sum/max]_scale: ([Sum/Max] m (Scale a n x)) <=> (Scale a n ([Sum/Max] m x)) if [/(> a ZERO)]",
    # The sign apart from the size, so that a size can enter a Max.
    "scale_sign: (Scale a n x) => (Scale NEG 0 (Scale (* NEG a) n x)) if (< a ZERO)",
    # A shift by the maximum becomes visible.
    "exp_scale: (Exp2 (Scale c n (Add a b))) => (Exp2 (Add (Scale c n a) (Scale c n b)))",
    # A factor leaves a Sum, and goes back into a sum of sums, but not elsewhere: powers of one sum
    # (a polynomial of a product's result) would multiply without use.
    "sum_out: (Sum m (Mul c x)) => (Sum (^ m q) (Mul c (Sum q x)))"
    " if (part q m c), (real c), (filled m)",
    "sum_in: (Sum p (Mul c (Sum m x))) => (Sum (| p m) (Mul c x))"
    " if (lacks c m), (real c), (apart p m), (filled m)",
    "[sum_sum/max_max]: ([Sum/Max] p ([Sum/Max] q x)) => ([Sum/Max] (| p q) x) if (apart p q)",
    "sum_count: (Sum m x) => (Mul (Next q d) (Sum (^ m q) x))"
    " if (part q m x), (= d (dt x)), (filled m)",
    "max_free: (Max m x) => (Max (^ m q) x) if (part q m x)",
    # What grows with its operand, of floats: integers wrap.
    "max_[mul/add]: (Max m ([Mul/Add] c x)) <=> ([Mul/Add] c (Max m x))"
    " if (lacks c m), (real c), (flt e), [(pos c)/]",
    # Distribution over summands that are made of weights alone: bounded, as weights are few.
    "mul_add_weights: (Mul w (Add x b)) => (Add (Mul w x) (Mul w b))"
    " if (fixed w), (fin w), (fixed b), (= f (free w)), (!= f 0), (flt e)",
    "sum_add_weights: (Sum m (Add x b)) => (Add (Sum m x) (Sum m b)) if (fixed b), (flt e)",
    # And where y lacks axes: a mean behind a product, or what is added to weights in blocks.
    "sum_shift[/_block]: (Sum m (Mul w (Add x y))) => (Add (Sum m (Mul w x))"
    " (Sum (^ m q) (Mul y (Sum q w)))) if [(fixed w)/(fixed x), (fixed y)], (fin w), (part q m y),"
    " (real y), (flt e), (filled m)",
    # A common factor leaves a sum of two: a row's share of a difference is taken once.
    "factor[/_scale]: (Add (Mul c x) [(Mul c y)/(Scale a n (Mul c y))])"
    " => (Mul c (Add x [y/(Scale a n y)])) if (real c), (flt e)",
    # A running maximum, and a sum that is rescaled; v may be absent.
    "online[/_one]: (Sum m [(Mul (Exp2 (Add a (Scale NEG 0 (Max m a)))) v)"
    "/(Exp2 (Add a (Scale NEG 0 (Max m a))))]) => (Fold m a [v/(C ONE 0 d)]) if (= d (dt a))",
    # For a ≤ 0, where exp2(a) cannot overflow.
    "exp_log: (Exp2 (Add a (Scale NEG 0 (Log2 l)))) => (Mul (Exp2 a) (Recip l))"
    " if (npos a), (nneg l)",
    # A mask is not a product: it is 0 where false, even of inf and NaN. It passes what keeps 0.
    "mask_[mask/cast/scale/mul/sum/max]: ([Mask a/Cast d/Scale c n/Mul y/Sum m/Max m] (Mask b x))"
    " <=> (Mask b ([Mask a/Cast d/Scale c n/Mul y/Sum m/Max m] x))"
    " if [///(fin y)/(lacks b m)/(lacks b m)]",
    "mask_twice: (Mask a (Mask a x)) => (Mask a x)",
    "mask_all: (Mask (C ONE 0 BOOL) x) =>> x",
    "mask_none: (Mask (Not (C ONE 0 BOOL)) x) =>> (C ZERO 0 d) if (= d (dt x))",
    "mask_add: (Add (Mask b x) (Mask b y)) => (Mask b (Add x y))",
    "not_not: (Not (Not b)) => b",
    "cast_bool: (Cast d b) => (Mask b (C ONE 0 d)) if (= BOOL (dt b)), (!= d BOOL)",
    # Not of floats, where NaN is neither.
    "equal: (Mask (Not (Less a b)) (Not (Less b a))) => (Eq a b) if (= d (dt a)), (< d FLOAT)",
    # An axis index compared in a narrow integer dtype that holds all of it.
    "equal_wide: (Eq (Cast d (Val (Ax n))) i) => (Eq (Val (Ax n)) (Cast INT64 i)) if (fits n d)",
    # Σ over n of (n = i)·x(n) → x(i) where i is in range: a one-hot product is a gather.
    "sift: (Sum m (Mask (Eq (Val (Ax n)) i) x)) => (Sum (^ m n)"
    " (Mask (Mask (Less (C NEG 0 INT64) i) (Less i (Next n INT64))) (At n (IOf i) x)))"
    " if (= n (& m n)), (lacks i n), (= INT64 (dt i))",
)

_PART = "(Add (Mask in (At n at {})) (Mask (Not in) (Inf -1 d)))"  # −inf outside
SPLITS = parse(
    # A reduction in parts, for work that is shared out and combined: of places i in parts o.
    "sum_split: (Sum m x) => (Sum o (Sum r (Mask in (At n at x)))) if (cuts m), (lacks x w)",
    "outside_scale: (Add (Mask b (Scale c n a)) (Mask (Not b) (Inf -1 d)))"
    " => (Scale c n (Add (Mask b a) (Mask (Not b) (Inf -1 d)))) if (> c ZERO)",
    f"max_split: (Max m a) => (Max o (Max r {_PART.format('a')}))"
    " if (cuts m), (lacks a w), (flt a), (= d (dt a))",
    f"[fold/part]_split: ([Fold/Part] m a v) => ([Fold/Part] o (Max r {_PART.format('a')})"
    f" (Part r {_PART.format('a')} (Mask in (At n at v))))"
    " if (cuts m), (lacks a w), (lacks v w), (= d (dt a))",
)

SUBSTITUTION = parse(
    # At, AtL and AtI (in terms, lists, index expressions) move inwards and end at leaves.
    f"at_[{UNARY}/Scale c k/Cast d]: (At n i ([{UNARY}/Scale c k/Cast d] a))"
    f" => ([{UNARY}/Scale c k/Cast d] (At n i a))",
    "at_[val/in/of/times]: ([At/At/AtI/AtI] n i ([Val/In s/IOf/IMul c] x))"
    " => ([Val/In s/IOf/IMul c] ([AtI/AtL/At/AtI] n i x))",
    f"at_[{BINARY}]: (At n i ([{BINARY}] a b)) => ([{BINARY}] (At n i a) (At n i b))",
    f"at_[{INDEX}]: (AtI n i ([{INDEX}] a b)) => ([{INDEX}] (AtI n i a) (AtI n i b))",
    "at_[sum/max]: (At n i ([Sum/Max] m x)) => ([Sum/Max] m (At n i x))"
    " if (= f (freeI i)), (= 0 (& m (| n f)))",
    "at_cons: (AtL n i (Cons x l)) => (Cons (AtI n i x) (AtL n i l))",
    "at_free[/_list/_index]: (At[/L/I] n i t) => t if (= f (free[/L/I] t)), (apart n f)",
    "at_axis: (AtI n i (Ax n)) => i",
    "val_of: (Val (IOf t)) => t if (= INT64 (dt t))",
)
