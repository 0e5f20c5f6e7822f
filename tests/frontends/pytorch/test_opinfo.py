"""A sample of PyTorch's OpInfo database; `docs/torch.md` says how all of it went."""

from __future__ import annotations

import random
import re
import warnings
from pathlib import Path
from typing import Any

import opinfo
import pytest
import torch

DOCS = Path(__file__).parents[3] / "docs" / "torch.md"
SAMPLED, COMPILED, REFUSED = 120, 6, 30


@pytest.fixture(scope="module")
def ops() -> dict[str, Any]:
    """The database's ops by name."""
    try:
        with warnings.catch_warnings():  # PyTorch's test tools may warn as they are imported
            warnings.simplefilter("ignore")
            found = opinfo.all_ops()
    except ImportError as error:
        pytest.skip(f"PyTorch's test tools need a package: {error}")
    return {opinfo.name_of(op): op for op in found}


def told(verdict: str) -> list[str]:
    """The ops that the docs give this verdict."""
    text = DOCS.read_text()
    if verdict == "passed":
        return re.findall(r"`([^`]+)`", text.partition("\nPassed: ")[2].partition("\n")[0])
    table = text.partition(f"| {verdict} | why |")[2].partition("\n\n")[0]
    return re.findall(r"^\| `([^`]+)`", table, re.MULTILINE)


def test_the_docs_say_what_was_reached() -> None:
    assert len(told("passed")) >= 150
    assert not told("wrong")


def test_ops_that_passed_pass(ops: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    names = random.Random(1).sample(told("passed"), SAMPLED)
    results = [opinfo.check(ops[name], 2) for name in names]
    bad = [(r.name, r.verdict, list(r.reasons)) for r in results if r.verdict != "passed"]
    with capsys.disabled():
        print(f"\nOpInfo: {len(results) - len(bad)} of {len(results)} sampled ops pass")
    assert not bad, bad


def test_other_ops_are_refused_or_right(ops: dict[str, Any]) -> None:
    names = random.Random(2).sample(told("partly") + told("refused"), REFUSED)
    results = [opinfo.check(ops[name], 2) for name in names]
    wrong = [(r.name, list(r.reasons)) for r in results if r.wrong]
    assert not wrong, wrong


def test_compiled_programs_are_right_too(ops: dict[str, Any]) -> None:
    """Some that pass, by the CPU backend with hardly any search."""
    names = random.Random(3).sample(told("passed"), COMPILED)
    options = opinfo.Options(fallback=False, budget=0.1)
    for name in names:
        result = opinfo.check(ops[name], 1, options)
        assert result.verdict == "passed", (name, result.reasons)


def test_the_runner_finds_what_is_wrong() -> None:
    x = torch.ones(3)
    assert opinfo.difference(x, x * 1.001, False)
    assert opinfo.difference(x, x.double(), False)
    assert opinfo.difference([x], [x, x], False)
    assert not opinfo.difference(x, x + 1e-6, False)
