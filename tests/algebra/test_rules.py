"""Every rule of the table, alone: both sides equal with signs, infinities, zeros and NaN."""

import re
from dataclasses import replace

import pytest
from rule_values import counterexample

from lambent.algebra.rules import SPLITS, SUBSTITUTION, TABLE

RULES = {r.name: r for r in (*TABLE, *SPLITS, *SUBSTITUTION)}


@pytest.mark.parametrize("name", RULES)
def test_both_sides_are_equal(name):
    found, samples = counterexample(RULES[name])
    assert found is None, found
    assert samples >= 25


def without(name, guard):
    rule = RULES[name]
    kept = tuple(g for g in rule.guards if guard not in g)
    assert len(kept) < len(rule.guards), (name, guard)
    return replace(rule, guards=kept)


def everything(name):
    """The rule with all axes for those that its factor lacks."""
    rule = RULES[name]
    kept = tuple(g for g in rule.guards if not g.startswith(("(= f ", "(= q ")))
    assert len(kept) < len(rule.guards)
    before, after, *kept = (re.sub(r"\bm\b", "q", x) for x in (rule.before, rule.after, *kept))
    return replace(rule, before=before, after=after, guards=tuple(kept))


def changed(name, old, new, side="after"):
    rule = RULES[name]
    text = getattr(rule, side)
    assert old in text
    return replace(rule, **{side: text.replace(old, new)})


AT = "(At n at x)"
MUTANTS = {
    "sum_out of infinite factors": without("sum_out", "real c"),
    "sum_out captures": everything("sum_out"),
    "sum_in captures": without("sum_in", "(& m f_c)"),
    "sum_sum of one axis twice": without("sum_sum", "(& p q)"),
    "sum_count forgets the count": changed("sum_count", "(Next q d)", "(C ONE 0 d)"),
    "sum_count counts too much": changed("sum_count", "(Next q d)", "(Next m d)"),
    "factor of infinities": without("factor", "real c"),
    "factor_scale loses its scale": changed("factor_scale", "(Scale a n y)", "y"),
    "max_free drops too much": everything("max_free"),
    "max_scale of any sign": without("max_scale", "> a"),
    "max_scale_back of any sign": without("max_scale_back", "> a"),
    "max_mul of any sign": without("max_mul", "pos c"),
    "max_mul of infinite factors": without("max_mul", "real c"),
    "max_add of wrapping integers": without("max_add", "flt e"),
    "max_mul_back captures": without("max_mul_back", "(& m f_c)"),
    "max_add of infinities": without("max_add", "real c"),
    "max_add_back captures": without("max_add_back", "(& m f_c)"),
    "sum_shift captures": everything("sum_shift"),
    "sum_shift of infinities": without("sum_shift", "real y"),
    "mask_mul of what is not finite": without("mask_mul", "fin y"),
    "mask_mul_back of what is not finite": without("mask_mul_back", "fin y"),
    "mask_sum captures": without("mask_sum", "(& m f_b)"),
    "mask_max captures": without("mask_max", "(& m f_b)"),
    "mask_max_back captures": without("mask_max_back", "(& m f_b)"),
    "exp_log overflows": without("exp_log", "npos a"),
    "exp_log of negatives": without("exp_log", "nneg l"),
    "equal of NaN": without("equal", "< d FLOAT"),
    "sift captures": without("sift", "(& n f_i)"),
    "sift without its range": changed(
        "sift", "(Mask (Less (C NEG 0 INT64) i) (Less i (Next n INT64)))", "(Less i (Next n INT64))"
    ),
    "scale_sign loses the sign": changed("scale_sign", "(* NEG a)", "a"),
    "scale_const forgets log2 e": changed("scale_const", "(+ n m)", "n"),
    "fold_split carries NaN": changed("fold_split", "Part", "Fold"),
    "part_split without its maximum": changed("part_split", "(Max r (Add", "(Add (Max r a) (Add"),
    "sum_split takes the last part for whole": changed("sum_split", "(Mask in (At n at x))", AT),
    "max_split takes 0 for outside": changed("max_split", "(Inf -1 d)", "(C ZERO 0 d)"),
    "fold_split of what is outside": changed("fold_split", "(Mask in (At n at v))", "(At n at v)"),
    "sum_split captures": without("sum_split", "(& w f_x)"),
    "sum_split of an axis twice": without("sum_split", "(& m w)"),
    "online sums other axes": changed("online", "(Max m a)", "(Max p a)", "before"),
    "at_sum captures": without("at_sum", "(& m"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name):
    assert counterexample(MUTANTS[name], wanted=3000, tries=30_000)[0] is not None
