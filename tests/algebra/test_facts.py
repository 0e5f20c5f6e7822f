"""Every fact rule alone: what it concludes is so, for values that satisfy its premises."""

import numpy as np
import pytest
from rule_values import CODE, FLOATS, NAMES, Rejected, Sample, bits, mask_of, read

from lambent.algebra.facts import FACTS
from lambent.algebra.rules import Rule

ROWS = [row for row in FACTS if "(In " not in row[0]]


def parts(text):
    return read(f"({text})")


@pytest.mark.parametrize("row", ROWS, ids=range(len(ROWS)))
def test_fact(row):
    premises, conclusions = parts(row[0]), parts(row[1])
    define = next((p for p in premises if p[:2] == ["=", "e"]), None)
    before = text_of(define[2]) if define else "e"
    rule = Rule("fact", before, before, ())
    done = 0
    for seed in range(4000):
        with np.errstate(all="ignore"):
            sample = Sample(rule, seed, [x for x in FLOATS if not 1 < x < np.inf])
            try:
                sample.draw()
                if define:
                    sample.env["e"] = sample(define[2])
                if not all(sample.holds(p) for p in premises if p is not define):
                    continue
            except Rejected:
                continue
            assert all(concluded(sample, c) for c in conclusions), (row, sample.env)
        done += 1
        if done == 25:
            break
    assert done >= 10


def text_of(e):
    return e if isinstance(e, str) else f"({' '.join(map(text_of, e))})"


def concluded(sample, fact):
    if fact[0] != "set":
        return sample.holds(fact)
    name, value = fact[1][0], sample.fact(fact[2])
    if name == "dt":
        return sample.env["e"][2] in CODE and CODE[sample.env["e"][2]] == value
    if name == "freeL":
        return all(mask_of(i[0]) & ~value == 0 for i in sample.env["e"])
    return set(sample.env["e"][0]) <= bits(value)


def test_names_agree_with_the_table():
    from lambent.algebra import rules

    for name, value in NAMES.items():
        spelled = rules.spell(name)
        assert spelled == str(value) or str(value.numerator) in spelled
