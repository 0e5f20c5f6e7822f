"""The algebra as a table: one row per rule, `before → after` where the guards hold.

A row is data: the text is egglog's, with lower-case names as variables; `e` is the class of
`before`. Every row is legal by construction: both sides are equal over the reals and over ±inf and
NaN where the guards let them occur, with no narrower accumulator and no new overflow.
`tests/algebra` reads the same table and fuzzes every row alone.

    name: before => after if guards        (=>> also retires `before`: it is no longer offered)

    T  In(buffer, index)  C(rational, k, dtype) = rational·log2(e)^k  Inf(±1, dtype)  Nan(dtype)
       Val(index)  Next(axes, dtype): the number of points of the axes  Scale(rational, k, t)
       the unary and binary operations  Sum Max (axes, t)  Fold Part (axes, a, v)
       At(axis, i, t): t where the axis has the index i (an unfinished substitution)

Axes are bits of an i64. Guards are facts of a class: `free` the axes that the value depends on,
`dt` its dtype, `flt` a float, `fin` never ±inf nor NaN, `real` never ±inf, `pos` above 0 or NaN,
`nneg` +0, above, or NaN, `npos` 0, below, or NaN, `wonly` made of weights and constants alone.
Finite is meant over the reals. Inputs are taken for finite; weights are looked at.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from lambent.graph.dtypes import DTYPES, bool_, int64

CODE = {d: (16 if d.is_float else 0) + i for i, d in enumerate(DTYPES.values())}
"""A number per dtype; those of floats are 16 and above."""

UNARY = ("Exp2", "Log2", "Sin", "Recip", "Sqrt", "Not")
INDEX_BINARY = ("IAdd", "IMulI", "IDiv", "IMin", "IMax")
BINARY = ("Add", "Mul", "Mod", "Less", "Eq", "Mask")

_NAMES = {
    "ZERO": "(bigrat (bigint 0) (bigint 1))",
    "ONE": "(bigrat (bigint 1) (bigint 1))",
    "NEG": "(bigrat (bigint -1) (bigint 1))",
    "FLOAT": "16",
    "BOOL": str(CODE[bool_]),
    "INT64": str(CODE[int64]),
}


@dataclass(frozen=True, slots=True)
class Rule:
    """One row. Guards are egglog facts about the variables of `before`."""

    name: str
    before: str
    after: str
    guards: tuple[str, ...] = ()
    retire: bool = False

    def text(self, empty: int = 0) -> str:
        """The egglog rule. `empty`: the axes that may have no points."""
        facts = " ".join((f"(= e {self.before})", *self.guards))
        actions = f"(union e {self.after})" + (f" (subsume {self.before})" if self.retire else "")
        return spell(f'(rule ({facts}) ({actions}) :ruleset algebra :name "{self.name}")', empty)


def spell(text: str, empty: int = 0) -> str:
    """Replace the named constants of the table by egglog's spelling."""
    names = _NAMES | {"EMPTY": str(empty)}
    return re.sub(r"\b[A-Z][A-Z0-9]+\b", lambda m: names.get(m[0], m[0]), text)


def parse(table: str) -> tuple[Rule, ...]:
    """The rows of a text table. Indented lines continue a row; # starts a note."""
    rows = []
    lines = [line for line in table.splitlines() if line.strip() and line.strip()[0] != "#"]
    for row in re.split(r"\n(?=\w)", "\n".join(lines)):
        name, _, rest = " ".join(row.split()).partition(": ")
        rest, _, guards = rest.partition(" if ")
        before, arrow, after = re.split(r" (=>>?) ", rest)
        facts = [fact for guard in _lists(guards) for fact in _facts(guard)]
        rows.append(Rule(name, before, after, tuple(facts), arrow == "=>>"))
    return tuple(rows)


def _lists(text: str) -> list[str]:
    """The outermost bracketed parts."""
    out, depth, start = [], 0, 0
    for i, c in enumerate(text):
        if c == "(":
            start = start if depth else i
            depth += 1
        elif c == ")":
            depth -= 1
            if not depth:
                out.append(text[start : i + 1])
    return out


def _facts(guard: str) -> tuple[str, ...]:
    """`(lacks c m)`: c does not depend on the axes m. `(filled m)`: the axes m have points."""
    head, *names = guard[1:-1].split()
    if head == "lacks":
        term, axes = names
        return f"(= f_{term} (free {term}))", f"(= 0 (& {axes} f_{term}))"
    return (f"(= 0 (& {names[0]} EMPTY))",) if head == "filled" else (guard,)


TABLE = parse("""
# a + b → b + a; a·b → b·a; a·(b·c) → (a·b)·c. Sums are flattened when kernels are listed, and have
# no such row: what is written as (a + b) − a to find a rounding error keeps its meaning.
add_swap: (Add a b) => (Add b a)
mul_swap: (Mul a b) => (Mul b a)
mul_regroup: (Mul a (Mul b c)) => (Mul (Mul a b) c)
add_zero: (Add (C ZERO 0 d) x) =>> x
mul_one: (Mul (C ONE 0 d) x) =>> x
add_const: (Add (C a n d) (C b n d)) =>> (C (+ a b) n d) if (>= d FLOAT)

# Constants of floats are no factors but scales: exact rationals that drift outwards.
scale_left: (Mul (C a n d) x) =>> (Scale a n x) if (>= d FLOAT)
scale_right: (Mul x (C a n d)) =>> (Scale a n x) if (>= d FLOAT)
scale_one: (Scale ONE 0 x) =>> x
scale_const: (Scale a n (C b m d)) =>> (C (* a b) (+ n m) d)
scale_scale: (Scale a n (Scale b m x)) => (Scale (* a b) (+ n m) x)
mul_scale: (Mul (Scale a n x) y) => (Scale a n (Mul x y))
sum_scale: (Sum m (Scale a n x)) => (Scale a n (Sum m x))
scale_sum: (Scale a n (Sum m x)) => (Sum m (Scale a n x))
max_scale: (Max m (Scale a n x)) => (Scale a n (Max m x)) if (> a ZERO)
scale_max: (Scale a n (Max m x)) => (Max m (Scale a n x)) if (> a ZERO)
mask_scale: (Mask b (Scale a n x)) => (Scale a n (Mask b x))
scale_mask: (Scale a n (Mask b x)) => (Mask b (Scale a n x))
# The sign apart from the size, so that a size can enter a Max.
scale_sign: (Scale a n x) => (Scale NEG 0 (Scale (* NEG a) n x)) if (< a ZERO) (!= a NEG)
scale_sign_k: (Scale NEG n x) => (Scale NEG 0 (Scale ONE n x)) if (!= n 0)
# exp2(c·(a + b)) → exp2(c·a + c·b): a shift by the maximum becomes visible.
exp_scale: (Exp2 (Scale c n (Add a b))) => (Exp2 (Add (Scale c n a) (Scale c n b)))

# Σ c·x → c·Σ x where c lacks the axes, or some of them (q); and back into a sum of sums, but not
# elsewhere: powers of one sum (a polynomial of a product's result) would multiply without use.
sum_out: (Sum m (Mul c x)) => (Mul c (Sum m x)) if (lacks c m) (real c) (filled m)
sum_out_some: (Sum m (Mul c x)) => (Sum (^ m q) (Mul c (Sum q x)))
    if (= f (free c)) (= q (& m (^ -1 f))) (!= q 0) (!= q m) (real c) (filled m)
sum_in: (Sum p (Mul c (Sum m x))) => (Sum (| p m) (Mul c x))
    if (lacks c m) (real c) (= 0 (& p m)) (filled m)
sum_sum: (Sum p (Sum q x)) => (Sum (| p q) x) if (= 0 (& p q))
sum_none: (Sum 0 x) => x
# Σ x → (number of points)·x where x lacks the axes, or some of them.
sum_count: (Sum m x) => (Mul (Next m d) x) if (lacks x m) (= d (dt x)) (filled m)
sum_count_some: (Sum m x) => (Mul (Next q d) (Sum (^ m q) x))
    if (= f (free x)) (= q (& m (^ -1 f))) (!= q 0) (!= q m) (= d (dt x)) (filled m)

# max c·x → c·max x for c > 0; max (c + x) → c + max x. Of floats: integers wrap.
max_out: (Max m (Mul c x)) => (Mul c (Max m x)) if (lacks c m) (pos c) (real c) (flt e)
max_in: (Mul c (Max m x)) => (Max m (Mul c x)) if (lacks c m) (pos c) (real c) (flt e)
max_add: (Max m (Add c x)) => (Add c (Max m x)) if (lacks c m) (real c) (flt e)
max_max: (Max p (Max q x)) => (Max (| p q) x) if (= 0 (& p q))
max_free: (Max m x) => x if (lacks x m)

# Distribution over summands that are made of weights alone: bounded, as weights are few.
mul_add_weights: (Mul w (Add x b)) => (Add (Mul w x) (Mul w b))
    if (wonly w) (fin w) (wonly b) (= f (free w)) (!= f 0) (flt e)
sum_add_weights: (Sum m (Add x b)) => (Add (Sum m x) (Sum m b)) if (wonly b) (flt e)
# Σ w·(x + y) → Σ w·x + y·Σ w where y lacks the axes: a mean behind a product.
sum_shift: (Sum m (Mul w (Add x y))) => (Add (Sum m (Mul w x)) (Mul y (Sum m w)))
    if (wonly w) (fin w) (lacks y m) (real y) (flt e) (filled m)

# Σ exp2(a − max a)·v → Fold(a, v): a running maximum, and a sum that is rescaled.
online: (Sum m (Mul (Exp2 (Add a (Scale NEG 0 (Max m a)))) v)) => (Fold m a v)
online_one: (Sum m (Exp2 (Add a (Scale NEG 0 (Max m a))))) => (Fold m a (C ONE 0 d)) if (= d (dt a))
# exp2(a − log2 l) → exp2(a)/l for a ≤ 0, where it cannot overflow.
exp_log: (Exp2 (Add a (Scale NEG 0 (Log2 l)))) => (Mul (Exp2 a) (Recip l)) if (npos a) (nneg l)

# A mask is not a product: it is 0 where false, even of inf and NaN.
mask_swap: (Mask a (Mask b x)) => (Mask b (Mask a x))
mask_twice: (Mask a (Mask a x)) => (Mask a x)
mask_mul: (Mul y (Mask b x)) => (Mask b (Mul y x)) if (fin y)
mul_mask: (Mask b (Mul y x)) => (Mul y (Mask b x)) if (fin y)
mask_add: (Add (Mask b x) (Mask b y)) => (Mask b (Add x y))
mask_sum: (Sum m (Mask b x)) => (Mask b (Sum m x)) if (lacks b m)
sum_mask: (Mask b (Sum m x)) => (Sum m (Mask b x)) if (lacks b m)
mask_max: (Max m (Mask b x)) => (Mask b (Max m x)) if (lacks b m)
not_not: (Not (Not b)) => b
# A cast keeps 0; a bool as a number is a mask of 1.
cast_mask: (Cast d (Mask b x)) => (Mask b (Cast d x))
cast_bool: (Cast d b) => (Mask b (C ONE 0 d)) if (= BOOL (dt b)) (!= d BOOL)

# ¬(a < b) ∧ ¬(b < a) → a = b; not of floats, where NaN is neither.
equal: (Mask (Not (Less a b)) (Not (Less b a))) => (Eq a b) if (= d (dt a)) (< d FLOAT)
equal_swap: (Eq a b) => (Eq b a)
# An axis index compared in a narrow integer dtype that holds all of it.
equal_wide: (Eq (Cast d (Val (Ax n))) i) => (Eq (Val (Ax n)) (Cast INT64 i)) if (fits n d)
# Σ over n of (n = i)·x(n) → x(i) where i is in range: a one-hot product is a gather.
sift: (Sum m (Mask (Eq (Val (Ax n)) i) x)) => (Sum (^ m n)
    (Mask (Mask (Less (C NEG 0 INT64) i) (Less i (Next n INT64))) (At n (IOf i) x)))
    if (= n (& m n)) (lacks i n) (= INT64 (dt i))
""")

SPLITS = parse("""
# A reduction in an outer and an inner part, for work that is shared out and combined.
sum_split: (Sum m x) => (Sum o (Sum (^ m o) x)) if (cut o i) (= c (| o i)) (= c (& m c))
max_split: (Max m x) => (Max o (Max (^ m o) x)) if (cut o i) (= c (| o i)) (= c (& m c))
fold_split: (Fold m a v) => (Fold o (Max (^ m o) a) (Part (^ m o) a v))
    if (cut o i) (= c (| o i)) (= c (& m c))
part_split: (Part m a v) => (Part o (Max (^ m o) a) (Part (^ m o) a v))
    if (cut o i) (= c (| o i)) (= c (& m c))
""")


def _substitution() -> tuple[Rule, ...]:
    """The mechanical rows: At, AtL and AtI move inwards and end at leaves."""
    inwards = [(op, "a", "{a}") for op in UNARY] + [(op, "a b", "{a} {b}") for op in BINARY]
    inwards += [("Scale", "c k a", "c k {a}"), ("Cast", "d a", "d {a}")]
    rows = [f"at{op}: (At n i ({op} {a})) => ({op} {b})" for op, a, b in inwards]
    at = "\n".join(rows).format(a="(At n i a)", b="(At n i b)")
    index = "\n".join(
        f"at{op}: (AtI n i ({op} a b)) => ({op} (AtI n i a) (AtI n i b))" for op in INDEX_BINARY
    )
    return parse(f"{at}\n{index}\n{_LEAVES}")


_LEAVES = """
at_free: (At n i t) => t if (lacks t n)
at_free_index: (AtI n i t) => t if (= f (freeI t)) (= 0 (& n f))
at_axis: (AtI n i (Ax n)) => i
at_val: (At n i (Val x)) => (Val (AtI n i x))
at_in: (At n i (In s l)) => (In s (AtL n i l))
at_nil: (AtL n i (Nil)) => (Nil)
at_cons: (AtL n i (Cons x l)) => (Cons (AtI n i x) (AtL n i l))
at_times: (AtI n i (IMul c a)) => (IMul c (AtI n i a))
at_of: (AtI n i (IOf t)) => (IOf (At n i t))
at_sum: (At n i (Sum m x)) => (Sum m (At n i x)) if (= f (freeI i)) (= 0 (& m (| n f)))
at_max: (At n i (Max m x)) => (Max m (At n i x)) if (= f (freeI i)) (= 0 (& m (| n f)))
val_of: (Val (IOf t)) => t if (= INT64 (dt t))
"""
SUBSTITUTION = _substitution()
