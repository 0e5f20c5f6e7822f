"""Facts about e-classes, as egglog rules: free axes, dtype, finiteness, signs, weights.

Free axes merge by intersection: "does not depend on k" only ever turns true, so a guard that held
still holds. Two dtypes of one class are an error that stops the compiler. All the others are
relations that only grow.
"""

from __future__ import annotations

from collections.abc import Iterator

from lambent.algebra.rules import BINARY, INDEX_BINARY, UNARY, spell

DECLARATIONS = """
(datatype*
  (T (In String L) (C BigRat i64 i64) (Inf i64 i64) (Nan i64) (Val I) (Next i64 i64)
     (Scale BigRat i64 T) (Cast i64 T)
     (Add T T) (Mul T T) (Mod T T) (Less T T) (Eq T T) (Mask T T)
     (Exp2 T) (Log2 T) (Sin T) (Recip T) (Sqrt T) (Not T)
     (Sum i64 T) (Max i64 T) (Fold i64 T T) (Part i64 T T) (At i64 I T))
  (L (Nil) (Cons I L) (AtL i64 I L))
  (I (Ax i64) (IC i64) (IS String) (IAdd I I) (IMul i64 I) (IMulI I I) (IDiv I I)
     (IMin I I) (IMax I I) (IOf T) (AtI i64 I I)))
(function free (T) i64 :merge (& old new))
(function freeI (I) i64 :merge (& old new))
(function freeL (L) i64 :merge (& old new))
(function dt (T) i64 :no-merge)
(function holds (String) i64 :no-merge)
(relation flt (T))
(relation fin (T))
(relation real (T))
(relation pos (T))
(relation nneg (T))
(relation npos (T))
(relation wonly (T))
(relation fits (i64 i64))
(relation cut (i64 i64))
(relation finite_buffer (String))
(ruleset facts)
(ruleset algebra)
"""


def fact_rows() -> list[tuple[str, str]]:
    """(premises, conclusions) of every rule about facts."""
    return [*_free(), *_dtypes(), *_finite(), *_signs(), *_weights()]


def fact_rules(empty: int) -> list[str]:
    """One egglog rule a line. `empty`: the axes that may have no points."""
    return [spell(f"(rule ({a}) ({b}) :ruleset facts)", empty) for a, b in fact_rows()]


Row = tuple[str, str]


def _free() -> Iterator[Row]:
    yield "(= e (In n l)) (= f (freeL l))", "(set (free e) f)"
    for leaf in ("(C x k d)", "(Inf x d)", "(Nan d)", "(Next m d)"):
        yield f"(= e {leaf})", "(set (free e) 0)"
    yield "(= e (Val i)) (= f (freeI i))", "(set (free e) f)"
    for head in (*(f"{u} a" for u in UNARY), "Scale c n a", "Cast d a"):
        yield f"(= e ({head})) (= f (free a))", "(set (free e) f)"
    for op in BINARY:
        yield f"(= e ({op} a b)) (= f (free a)) (= g (free b))", "(set (free e) (| f g))"
    for op in ("Sum", "Max"):
        yield f"(= e ({op} m a)) (= f (free a))", "(set (free e) (& f (^ -1 m)))"
    for op in ("Fold", "Part"):
        yield (
            f"(= e ({op} m a v)) (= f (free a)) (= g (free v))",
            "(set (free e) (& (| f g) (^ -1 m)))",
        )
    for op, free in (("At", "free"), ("AtL", "freeL"), ("AtI", "freeI")):
        yield (
            f"(= e ({op} n i t)) (= f ({free} t)) (= g (freeI i))",
            f"(set ({free} e) (| (& f (^ -1 n)) g))",
        )
    yield "(= e (Nil))", "(set (freeL e) 0)"
    yield "(= e (Cons i l)) (= f (freeI i)) (= g (freeL l))", "(set (freeL e) (| f g))"
    yield "(= e (Ax m))", "(set (freeI e) m)"
    yield "(= e (IC n))", "(set (freeI e) 0)"
    yield "(= e (IS n))", "(set (freeI e) 0)"
    yield "(= e (IMul n a)) (= f (freeI a))", "(set (freeI e) f)"
    yield "(= e (IOf a)) (= f (free a))", "(set (freeI e) f)"
    for op in INDEX_BINARY:
        yield f"(= e ({op} a b)) (= f (freeI a)) (= g (freeI b))", "(set (freeI e) (| f g))"


def _dtypes() -> Iterator[Row]:
    for leaf in ("(C x k d)", "(Inf x d)", "(Nan d)", "(Next m d)", "(Cast d a)"):
        yield f"(= e {leaf})", "(set (dt e) d)"
    yield "(= e (In s l)) (= d (holds s))", "(set (dt e) d)"
    yield "(= e (Val i))", "(set (dt e) INT64)"
    for head in ("Less a b", "Eq a b", "Not a"):
        yield f"(= e ({head}))", "(set (dt e) BOOL)"
    heads = (
        *(f"{u} a" for u in UNARY if u != "Not"),
        *("Scale c n a", "Add a b", "Add b a", "Mul a b", "Mul b a", "Mod a b", "Mod b a"),
        *("Mask b a", "Sum m a", "Max m a", "Fold m b a", "Part m b a", "At n i a"),
    )
    for head in heads:
        yield f"(= e ({head})) (= d (dt a))", "(set (dt e) d)"
    yield "(= d (dt e)) (>= d FLOAT)", "(flt e)"
    yield "(= d (dt e)) (< d FLOAT)", "(fin e)"  # integers and bools


def _finite() -> Iterator[Row]:
    yield "(= e (C x k d))", "(fin e)"
    yield "(= e (Next m d))", "(fin e)"
    yield "(= e (In s l)) (finite_buffer s)", "(fin e)"
    yield "(fin e)", "(real e)"
    for fact in ("fin", "real"):
        for head in ("Scale c n a", "Cast d a", "Exp2 a", "Mask b a", "Sum m a", "Max m a"):
            yield f"(= e ({head})) ({fact} a)", f"({fact} e)"
        yield f"(= e (Log2 a)) ({fact} a) (pos a)", f"({fact} e)"
        for op in ("Add", "Mul"):
            yield f"(= e ({op} a b)) ({fact} a) ({fact} b)", f"({fact} e)"
    yield "(= e (Sqrt a)) (fin a) (nneg a)", "(fin e)"
    yield "(= e (Sqrt a)) (real a)", "(real e)"
    yield "(= e (Sin a)) (fin a)", "(fin e)"
    yield "(= e (Sin a))", "(real e)"
    yield "(= e (Recip a)) (fin a) (pos a)", "(fin e)"
    yield "(= e (Recip a)) (pos a)", "(real e)"
    yield "(= e (Fold m a v)) (fin a) (fin v)", "(fin e)"
    yield "(= e (Fold m a v)) (real v)", "(real e)"  # weights of 0 … 1, or NaN
    yield "(= e (Part m a v)) (real v)", "(real e)"


def _signs() -> Iterator[Row]:
    """For floats alone, by their origins: sums of integers wrap."""
    yield "(= e (C x k d)) (> x ZERO) (>= d FLOAT)", "(pos e)"
    yield "(= e (Next m d)) (>= d FLOAT) (= 0 (& m EMPTY))", "(pos e)"
    yield "(pos e)", "(nneg e)"
    yield "(= e (Exp2 a))", "(nneg e)"
    yield "(= e (Exp2 a)) (real a)", "(pos e)"
    yield "(= e (Recip a)) (real a) (pos a)", "(pos e)"
    yield "(= e (Recip a)) (nneg a)", "(nneg e)"
    yield "(= e (Fold m a (C x k d))) (> x ZERO)", "(pos e)"  # the maximum counts in full
    yield "(= e (Mul a a)) (flt a)", "(nneg e)"
    for fact in ("pos", "nneg"):
        yield f"(= e (Sqrt a)) ({fact} a)", f"({fact} e)"
        yield f"(= e (Max m a)) ({fact} a)", f"({fact} e)"
        yield f"(= e (Mul a b)) ({fact} a) ({fact} b)", f"({fact} e)"
        yield f"(= e (Scale c n a)) ({fact} a) (> c ZERO)", f"({fact} e)"
        yield f"(= e (Add a b)) ({fact} a) (nneg b)", f"({fact} e)"
    yield "(= e (Mask b a)) (nneg a)", "(nneg e)"
    yield "(= e (Sum m a)) (nneg a)", "(nneg e)"
    yield "(= e (Sum m a)) (pos a) (= 0 (& m EMPTY))", "(pos e)"
    yield "(= e (Add x (Scale NEG 0 (Max m x))))", "(npos e)"
    yield "(= e (Scale c n a)) (npos a) (> c ZERO)", "(npos e)"
    yield "(= e (Mul a b)) (npos a) (pos b)", "(npos e)"


def _weights() -> Iterator[Row]:
    """Made of weights, constants and indices alone (leaves that are weights are told)."""
    for leaf in ("(C x k d)", "(Inf x d)", "(Next m d)", "(Val i)"):
        yield f"(= e {leaf})", "(wonly e)"
    for head in (*(f"{u} a" for u in UNARY), "Scale c n a", "Cast d a", "Sum m a", "Max m a"):
        yield f"(= e ({head})) (wonly a)", "(wonly e)"
    for op in BINARY:
        yield f"(= e ({op} a b)) (wonly a) (wonly b)", "(wonly e)"
