"""The algebra as a table: one row per rule, `before → after` where the guards hold.

A row is data: the text is egglog's, with lower-case names as variables; `e` is the class of
`before`. Every row is legal by construction: both sides are equal over the reals and over ±inf and
NaN where the guards let them occur, with no narrower accumulator and no new overflow.
`tests/algebra` reads the same table and fuzzes every row alone.

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
    """`before` may be replaced by `after` where all guards hold; `retire` drops `before` then."""

    name: str
    before: str
    after: str
    when: tuple[str, ...] = ()
    retire: bool = False

    def text(self, empty: int = 0) -> str:
        """The egglog rule. `empty`: the axes that may have no points."""
        guards = " ".join((f"(= e {self.before})", *self.when))
        actions = f"(union e {self.after})" + (f" (subsume {self.before})" if self.retire else "")
        rule = f'(rule ({guards}) ({actions}) :ruleset algebra :name "{self.name}")'
        return spell(rule, empty)


def spell(text: str, empty: int = 0) -> str:
    """Replace the named constants of the table by egglog's spelling."""
    names = _NAMES | {"EMPTY": str(empty)}
    return re.sub(r"\b[A-Z][A-Z0-9]+\b", lambda m: names.get(m[0], m[0]), text)


def _lacks(axes: str, term: str, set_name: str = "f") -> tuple[str, str]:
    """No axis of these is free in the term."""
    return f"(= {set_name} (free {term}))", f"(= 0 (& {axes} {set_name}))"


def _some_lacking(term: str) -> tuple[str, ...]:
    """q: those of the axes m that the term lacks; some, but not all."""
    return f"(= f (free {term}))", "(= q (& m (^ -1 f)))", "(!= q 0)", "(!= q m)"


_FILLED = "(= 0 (& m EMPTY))"  # a sum of nothing is 0, whatever is taken out of it

ARITHMETIC = (
    # a + b → b + a;  a·b → b·a;  a·(b·c) → (a·b)·c.  Sums are flattened when kernels are listed.
    Rule("add_swap", "(Add a b)", "(Add b a)"),
    Rule("mul_swap", "(Mul a b)", "(Mul b a)"),
    Rule("mul_regroup", "(Mul a (Mul b c))", "(Mul (Mul a b) c)"),
    # x + 0 → x;  x·1 → x;  two constants are one
    Rule("add_zero", "(Add (C ZERO 0 d) x)", "x", retire=True),
    Rule("mul_one", "(Mul (C ONE 0 d) x)", "x", retire=True),
    Rule("add_const", "(Add (C a n d) (C b n d))", "(C (+ a b) n d)", ("(>= d FLOAT)",), True),
)

SCALES = (
    # constants are no factors but scales: exact rationals that drift outwards
    Rule("scale_left", "(Mul (C a n d) x)", "(Scale a n x)", ("(>= d FLOAT)",), True),
    Rule("scale_right", "(Mul x (C a n d))", "(Scale a n x)", ("(>= d FLOAT)",), True),
    Rule("scale_one", "(Scale ONE 0 x)", "x", retire=True),
    Rule("scale_const", "(Scale a n (C b m d))", "(C (* a b) (+ n m) d)", retire=True),
    Rule("scale_scale", "(Scale a n (Scale b m x))", "(Scale (* a b) (+ n m) x)"),
    Rule("mul_scale", "(Mul (Scale a n x) y)", "(Scale a n (Mul x y))"),
    Rule("sum_scale", "(Sum m (Scale a n x))", "(Scale a n (Sum m x))"),
    Rule("scale_sum", "(Scale a n (Sum m x))", "(Sum m (Scale a n x))"),
    Rule("max_scale", "(Max m (Scale a n x))", "(Scale a n (Max m x))", ("(> a ZERO)",)),
    Rule("scale_max", "(Scale a n (Max m x))", "(Max m (Scale a n x))", ("(> a ZERO)",)),
    Rule("mask_scale", "(Mask b (Scale a n x))", "(Scale a n (Mask b x))"),
    Rule("scale_mask", "(Scale a n (Mask b x))", "(Mask b (Scale a n x))"),
    # the sign apart from the size, so that positive scales enter a Max
    Rule(
        "scale_sign",
        "(Scale a n x)",
        "(Scale NEG 0 (Scale (* NEG a) n x))",
        ("(< a ZERO)", "(!= a NEG)"),
    ),
    Rule("scale_sign_k", "(Scale NEG n x)", "(Scale NEG 0 (Scale ONE n x))", ("(!= n 0)",)),
    # exp2(c·(a + b)) → exp2(c·a + c·b): a shift by the maximum becomes visible
    Rule("exp_scale", "(Exp2 (Scale c n (Add a b)))", "(Exp2 (Add (Scale c n a) (Scale c n b)))"),
)

SUMS = (
    # Σ c·x → c·Σ x where c lacks the axes (or some of them), and back
    Rule(
        "sum_out_some",
        "(Sum m (Mul c x))",
        "(Sum (^ m q) (Mul c (Sum q x)))",
        (*_some_lacking("c"), "(real c)", _FILLED),
    ),
    Rule(
        "sum_out",
        "(Sum m (Mul c x))",
        "(Mul c (Sum m x))",
        (*_lacks("m", "c"), "(real c)", _FILLED),
    ),
    Rule(
        "sum_in",
        "(Mul c (Sum m x))",
        "(Sum m (Mul c x))",
        (*_lacks("m", "c"), "(real c)", _FILLED),
    ),
    Rule("sum_sum", "(Sum p (Sum q x))", "(Sum (| p q) x)", ("(= 0 (& p q))",)),
    # Σ x → (number of points)·x where x lacks the axes
    Rule(
        "sum_count_some",
        "(Sum m x)",
        "(Mul (Next q d) (Sum (^ m q) x))",
        (*_some_lacking("x"), "(= d (dt x))", _FILLED),
    ),
    Rule(
        "sum_count",
        "(Sum m x)",
        "(Mul (Next m d) x)",
        (*_lacks("m", "x"), "(= d (dt x))", _FILLED),
    ),
    Rule("sum_none", "(Sum 0 x)", "x"),
)

MAXIMA = (
    # max c·x → c·max x for c > 0;  max (c + x) → c + max x; for floats: integers wrap
    Rule(
        "max_out",
        "(Max m (Mul c x))",
        "(Mul c (Max m x))",
        (*_lacks("m", "c"), "(pos c)", "(real c)", "(flt e)"),
    ),
    Rule(
        "max_in",
        "(Mul c (Max m x))",
        "(Max m (Mul c x))",
        (*_lacks("m", "c"), "(pos c)", "(real c)", "(flt e)"),
    ),
    Rule(
        "max_add",
        "(Max m (Add c x))",
        "(Add c (Max m x))",
        (*_lacks("m", "c"), "(real c)", "(flt e)"),
    ),
    Rule("max_max", "(Max p (Max q x))", "(Max (| p q) x)", ("(= 0 (& p q))",)),
    Rule("max_free", "(Max m x)", "x", _lacks("m", "x")),
)

DISTRIBUTION = (
    # over summands made of weights alone: bounded, as weights are few
    Rule(
        "mul_add_weights",
        "(Mul w (Add x b))",
        "(Add (Mul w x) (Mul w b))",
        ("(wonly w)", "(fin w)", "(wonly b)", "(= f (free w))", "(!= f 0)", "(flt e)"),
    ),
    Rule(
        "sum_add_weights",
        "(Sum m (Add x b))",
        "(Add (Sum m x) (Sum m b))",
        ("(wonly b)", "(flt e)"),
    ),
    # Σ w·(x + y) → Σ w·x + y·Σ w where y lacks the axes: a mean behind a product
    Rule(
        "sum_shift",
        "(Sum m (Mul w (Add x y)))",
        "(Add (Sum m (Mul w x)) (Mul y (Sum m w)))",
        ("(wonly w)", "(fin w)", *_lacks("m", "y"), "(real y)", "(flt e)", _FILLED),
    ),
)

ONE_PASS = (
    # Σ exp2(a − max a)·v → Fold(a, v): a running maximum and a sum that is rescaled
    Rule(
        "online",
        "(Sum m (Mul (Exp2 (Add a (Scale NEG 0 (Max m a)))) v))",
        "(Fold m a v)",
    ),
    Rule(
        "online_one",
        "(Sum m (Exp2 (Add a (Scale NEG 0 (Max m a)))))",
        "(Fold m a (C ONE 0 d))",
        ("(= d (dt a))",),
    ),
    # exp2(a − log2 l) → exp2(a)/l for a ≤ 0: it cannot overflow
    Rule(
        "exp_log",
        "(Exp2 (Add a (Scale NEG 0 (Log2 l))))",
        "(Mul (Exp2 a) (Recip l))",
        ("(npos a)", "(nneg l)"),
    ),
)

MASKS = (
    # a mask is not a product: it is 0 where false even for inf and NaN
    Rule("mask_swap", "(Mask a (Mask b x))", "(Mask b (Mask a x))"),
    Rule("mask_twice", "(Mask a (Mask a x))", "(Mask a x)"),
    Rule("mask_mul", "(Mul y (Mask b x))", "(Mask b (Mul y x))", ("(fin y)",)),
    Rule("mul_mask", "(Mask b (Mul y x))", "(Mul y (Mask b x))", ("(fin y)",)),
    Rule("mask_add", "(Add (Mask b x) (Mask b y))", "(Mask b (Add x y))"),
    Rule("mask_sum", "(Sum m (Mask b x))", "(Mask b (Sum m x))", _lacks("m", "b")),
    Rule("sum_mask", "(Mask b (Sum m x))", "(Sum m (Mask b x))", _lacks("m", "b")),
    Rule("mask_max", "(Max m (Mask b x))", "(Mask b (Max m x))", _lacks("m", "b")),
    Rule("not_not", "(Not (Not b))", "b"),
    # a cast keeps 0; a bool as a number is a mask of 1
    Rule("cast_mask", "(Cast d (Mask b x))", "(Mask b (Cast d x))"),
    Rule(
        "cast_bool",
        "(Cast d b)",
        "(Mask b (C ONE 0 d))",
        ("(= BOOL (dt b))", "(!= d BOOL)"),
    ),
)

SIFTING = (
    # ¬(a < b) ∧ ¬(b < a) → a = b: not for floats, where NaN is neither
    Rule(
        "equal",
        "(Mask (Not (Less a b)) (Not (Less b a)))",
        "(Eq a b)",
        ("(= d (dt a))", "(< d FLOAT)"),
    ),
    Rule("equal_swap", "(Eq a b)", "(Eq b a)"),
    # an axis index compared in a narrow integer dtype that holds all of it
    Rule(
        "equal_wide",
        "(Eq (Cast d (Val (Ax n))) i)",
        "(Eq (Val (Ax n)) (Cast INT64 i))",
        ("(fits n d)",),
    ),
    # Σ over n of (n = i)·x(n) → x(i) where i is in range: a one-hot product is a gather
    Rule(
        "sift",
        "(Sum m (Mask (Eq (Val (Ax n)) i) x))",
        "(Sum (^ m n) (Mask (Mask (Less (C NEG 0 INT64) i) (Less i (Next n INT64)))"
        " (At n (IOf i) x)))",
        ("(= n (& m n))", *_lacks("n", "i"), "(= INT64 (dt i))"),
    ),
)

SPLITS = (
    # reduced axes in an outer and an inner part, for work that is shared out and combined
    Rule(
        "sum_split",
        "(Sum m x)",
        "(Sum o (Sum (^ m o) x))",
        ("(cut o i)", "(= c (| o i))", "(= c (& m c))"),
    ),
    Rule(
        "max_split",
        "(Max m x)",
        "(Max o (Max (^ m o) x))",
        ("(cut o i)", "(= c (| o i))", "(= c (& m c))"),
    ),
    Rule(
        "fold_split",
        "(Fold m a v)",
        "(Fold o (Max (^ m o) a) (Part (^ m o) a v))",
        ("(cut o i)", "(= c (| o i))", "(= c (& m c))"),
    ),
    Rule(
        "part_split",
        "(Part m a v)",
        "(Part o (Max (^ m o) a) (Part (^ m o) a v))",
        ("(cut o i)", "(= c (| o i))", "(= c (& m c))"),
    ),
)

TABLE = (
    *ARITHMETIC, *SCALES, *SUMS, *MAXIMA, *DISTRIBUTION, *ONE_PASS, *MASKS, *SIFTING,
)  # fmt: skip


def _substitution() -> tuple[Rule, ...]:
    """The mechanical rows: At, AtL and AtI move inwards and end at leaves."""
    rows = [
        ("(At n i t)", "t", _lacks("n", "t")),
        ("(AtI n i t)", "t", ("(= f (freeI t))", "(= 0 (& n f))")),
        ("(AtI n i (Ax n))", "i", ()),
        ("(At n i (Val x))", "(Val (AtI n i x))", ()),
        ("(Val (IOf t))", "t", ("(= INT64 (dt t))",)),
        ("(At n i (In s l))", "(In s (AtL n i l))", ()),
        ("(AtL n i (Nil))", "(Nil)", ()),
        ("(AtL n i (Cons x l))", "(Cons (AtI n i x) (AtL n i l))", ()),
        ("(AtI n i (IMul c a))", "(IMul c (AtI n i a))", ()),
        ("(AtI n i (IOf t))", "(IOf (At n i t))", ()),
        ("(At n i (Scale c k a))", "(Scale c k (At n i a))", ()),
        ("(At n i (Cast d a))", "(Cast d (At n i a))", ()),
    ]
    for op in INDEX_BINARY:
        rows.append((f"(AtI n i ({op} a b))", f"({op} (AtI n i a) (AtI n i b))", ()))
    for op in UNARY:
        rows.append((f"(At n i ({op} a))", f"({op} (At n i a))", ()))
    for op in BINARY:
        rows.append((f"(At n i ({op} a b))", f"({op} (At n i a) (At n i b))", ()))
    uncaptured = ("(= f (freeI i))", "(= 0 (& m (| n f)))")
    for op in ("Sum", "Max"):
        rows.append((f"(At n i ({op} m x))", f"({op} m (At n i x))", uncaptured))
    return tuple(Rule(f"at_{k}", *row) for k, row in enumerate(rows))


SUBSTITUTION = _substitution()
