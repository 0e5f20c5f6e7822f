"""ONNX's node tests: at least nine in ten pass, none is wrong; some of them compiled."""

from __future__ import annotations

import functools
import random

import node_cases
import numpy as np
import pytest

import lambent as lt
from lambent.frontends.onnx.errors import OnnxError


@functools.cache
def all_cases() -> list[node_cases.Case]:
    return node_cases.cases()


@pytest.mark.xdist_group("onnx nodes")
def test_node_tests_on_the_reference() -> None:
    outcomes = [node_cases.run(case) for case in all_cases()]
    wrong = [(o.case.name, o.reason) for o in outcomes if o.verdict == "wrong"]
    assert not wrong, wrong
    assert len(outcomes) > 1000 and node_cases.ratio(outcomes) >= 0.95
    nameless = [o.reason for o in outcomes if o.verdict == "refused" and "node 0" not in o.reason]
    assert not nameless  # every refusal says where


@pytest.mark.xdist_group("onnx nodes")
def test_a_sample_compiled() -> None:
    chosen = random.Random(5).sample(all_cases(), 12)
    ran = 0
    for case in chosen:
        try:
            outputs = node_cases.imported(case)
        except OnnxError:
            continue
        program = lt.compile(outputs, budget=0.3, progress=False)
        used = {slot.name: case.inputs[slot.name] for slot in program.manifest.inputs}
        found = [np.asarray(a) for a in program(**used).values()]
        assert node_cases.compare(found, case) == "", case.name
        ran += 1
    assert ran >= 8
