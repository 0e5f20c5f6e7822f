"""Facts about e-classes, as egglog rules: what they depend on, dtype, finiteness, signs.

Dependence merges by intersection: "does not depend on k" only ever turns true, so a guard that held
still holds. Two dtypes of one class are an error that stops the compiler. All the others are
relations that only grow. Brackets are choices, as in the table of rules.
"""

from __future__ import annotations

from lambent.algebra.rules import BINARY, INDEX, UNARY, choices

_DECLARATIONS = (
    "(datatype* (T (In String L) (C BigRat i64 i64) (Inf i64 i64) (Nan i64) (Val I) (Next i64 i64)"
    " (Scale BigRat i64 T) (Cast i64 T) (Add T T) (Mul T T) (Mod T T) (Less T T) (Eq T T)"
    " (Mask T T) (Exp2 T) (Log2 T) (Sin T) (Recip T) (Sqrt T) (Not T)"
    " (Sum i64 T) (Max i64 T) (Fold i64 T T) (Part i64 T T) (At i64 I T))"
    " (L (Nil) (Cons I L) (AtL i64 I L))"
    " (I (Ax i64) (IC i64) (IS String) (IAdd I I) (IMul i64 I) (IMulI I I) (IDiv I I)"
    " (IMin I I) (IMax I I) (IOf T) (AtI i64 I I)))",
    "(function free[/I/L] ([T/I/L]) i64 :merge (& old new))",
    "(function [dt/holds/varies] ([T/String/String]) i64 :no-merge)",
    "(relation [flt/fin/real/pos/nneg/npos] (T))",
    "(relation fits (i64 i64))",
    "(relation cut (i64 i64 i64 I T))",
    "(relation finite_buffer (String))",
    "(relation equal[/I/L] (i64 [T/I/L] [T/I/L]))",
    "(function applied (i64) i64 :merge (+ old new))",
    "(ruleset [facts/algebra/join])",
    "(rule ((equal[/I/L] n a b) (!= a b)) ((union a b) (set (applied n) 1)) :ruleset join)",
)
DECLARATIONS = [line for row in _DECLARATIONS for line in choices(row)]

_SIZE = "(* VARIES (min 1 (& m SYMBOLIC)))"  # VARIES if the size of an axis in m does
_FACTS = (
    # What it depends on: free axes, and VARIES where an input or a symbol is in it.
    "(= e ([Val/IOf/IMul n] a)) (= f ([freeI/free/freeI] a)) => (set ([free/freeI/freeI] e) f)",
    "(= e (In s l)) (= f (freeL l)) (= g (varies s)) => (set (free e) (| f g))",
    "(= e [(C x k d)/(Inf x d)/(Nan d)]) => (set (free e) 0)",
    f"(= e (Next m d)) => (set (free e) {_SIZE})",
    f"(= e ([{UNARY}/Scale c n/Cast d] a)) (= f (free a)) => (set (free e) f)",
    f"(= e ([{BINARY}] a b)) (= f (free a)) (= g (free b)) => (set (free e) (| f g))",
    f"(= e ([Sum/Max] m a)) (= f (free a)) => (set (free e) (| {_SIZE} (& f (^ -1 m))))",
    "(= e ([Fold/Part] m a v)) (= f (free a)) (= g (free v))"
    f" => (set (free e) (| {_SIZE} (& (| f g) (^ -1 m))))",
    "(= e (At[/I/L] n i t)) (= f (free[/I/L] t)) (= g (freeI i))"
    " => (set (free[/I/L] e) (| (& f (^ -1 n)) g))",
    "(= e (Nil)) => (set (freeL e) 0)",
    "(= e (Cons i l)) (= f (freeI i)) (= g (freeL l)) => (set (freeL e) (| f g))",
    f"(= e (Ax m)) => (set (freeI e) (| {_SIZE} m))",
    "(= e ([IC/IS] n)) => (set (freeI e) [0/VARIES])",
    f"(= e ([{INDEX}] a b)) (= f (freeI a)) (= g (freeI b)) => (set (freeI e) (| f g))",
    # Dtypes.
    "(= e [(C x k d)/(Inf x d)/(Nan d)/(Next m d)/(Cast d a)]) => (set (dt e) d)",
    "(= e (In s l)) (= d (holds s)) => (set (dt e) d)",
    "(= e (Val i)) => (set (dt e) INT64)",
    "(= e [(Less a b)/(Eq a b)/(Not a)]) => (set (dt e) BOOL)",
    "(= e ([Exp2/Log2/Sin/Recip/Sqrt/Scale c n/Sum m/Max m/At n i] a)) (= d (dt a))"
    " => (set (dt e) d)",
    "(= e ([Add/Mul/Mod] [a b/b a])) (= d (dt a)) => (set (dt e) d)",
    "(= e ([Mask/Fold m/Part m] b a)) (= d (dt a)) => (set (dt e) d)",
    "(= d (dt e)) ([>=/<] d FLOAT) => ([flt/fin] e)",
    # Finite: over the reals, and never infinite where it may be NaN.
    "(= e [(C x k d)/(Next m d)]) => (fin e)",
    "(= e (In s l)) (finite_buffer s) => (fin e)",
    "(fin e) => (real e)",
    "(= e ([Scale c n/Cast d/Exp2/Mask b/Sum m/Max m] a)) ([fin/real] a) => ([fin/real] e)",
    "(= e ([Add/Mul] a b)) (fin a) (fin b) => (fin e)",
    "(= e ([Add/Mul] a b)) (real a) (real b) => (real e)",
    "(= e (Log2 a)) ([fin/real] a) (pos a) => ([fin/real] e)",
    "(= e (Sqrt a)) (fin a) (nneg a) => (fin e)",
    "(= e (Sqrt a)) (real a) => (real e)",
    "(= e (Sin a)) (fin a) => (fin e)",
    "(= e (Sin a)) => (real e)",
    "(= e (Recip a)) (fin a) (pos a) => (fin e)",
    "(= e (Recip a)) (pos a) => (real e)",
    "(= e (Fold m a v)) (fin a) (fin v) => (fin e)",
    "(= e ([Fold/Part] m a v)) (real v) => (real e)",  # weights of 0 … 1, or NaN
    # Signs, of floats alone by their origins: sums of integers wrap.
    "(= e (C x k d)) (> x ZERO) (>= d FLOAT) => (pos e)",
    "(= e (Next m d)) (>= d FLOAT) (= 0 (& m EMPTY)) => (pos e)",
    "(pos e) => (nneg e)",
    "(= e (Exp2 a)) => (nneg e)",
    "(= e (Exp2 a)) (real a) => (pos e)",
    "(= e (Recip a)) (real a) (pos a) => (pos e)",
    "(= e (Recip a)) (nneg a) => (nneg e)",
    "(= e (Fold m a (C x k d))) (> x ZERO) => (pos e)",  # the maximum counts in full
    "(= e (Mul a a)) (flt a) => (nneg e)",
    "(= e ([Sqrt/Max m/Mask b/Sum m] a)) (nneg a) => (nneg e)",
    "(= e ([Sqrt/Max m] a)) (pos a) => (pos e)",
    "(= e (Sum m a)) (pos a) (= 0 (& m EMPTY)) => (pos e)",
    "(= e (Mul a b)) ([pos/nneg] a) ([pos/nneg] b) => ([pos/nneg] e)",
    "(= e (Add a b)) ([pos/nneg] a) (nneg b) => ([pos/nneg] e)",
    "(= e (Add x (Scale NEG 0 (Max m x)))) => (npos e)",
    "(= e (Scale c n a)) ([pos/nneg/npos] a) (> c ZERO) => ([pos/nneg/npos] e)",
    "(= e (Mul a b)) (npos a) (pos b) => (npos e)",
)
FACTS = [row.partition(" => ")[::2] for choice in _FACTS for row in choices(choice)]
"""(premises, conclusion) of every rule about facts."""


def fact_rules() -> list[str]:
    """One egglog rule a line."""
    return [f"(rule ({a}) ({b}) :ruleset facts)" for a, b in FACTS]
