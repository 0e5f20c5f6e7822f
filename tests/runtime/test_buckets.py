"""Size buckets: one program whose parts are each tuned for a part of the sizes, right at all."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lambent as lt
from lambent.buckets import buckets
from lambent.graph.dim import Symbol

WEIGHT = np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32)


def compiled(name: str, high: int, **options: Any) -> Any:
    s = lt.Dim(name, 1, high)
    x = lt.input("x", (2, s, 16))
    scores = lt.softmax(x @ lt.weight("w", WEIGHT), 1)
    return lt.compile(
        {"y": scores.sum(-1), "x": x * 2.0}, donate={"x": "x"}, budget=0.5, progress=False,
        **options,
    )  # fmt: skip


def check(program: Any, sizes: list[int]) -> None:
    rng = np.random.default_rng(1)
    for n in sizes:
        x = rng.standard_normal((2, n, 16)).astype(np.float32)
        e = np.exp(np.float64(x) @ WEIGHT)
        old = x.copy()
        out = program(x=x)
        assert out["x"] is x
        np.testing.assert_array_equal(x, 2 * old)
        np.testing.assert_allclose(out["y"], (e / e.sum(1, keepdims=True)).sum(-1), rtol=1e-4)


def ranges(program: Any) -> list[list[list[int]]]:
    return [[*p.explain()["sizes"].values()] for p in (*program.narrower, program)]


def test_parts_that_are_asked_for(tmp_path: Path) -> None:
    """Right at all sizes, also from a file; other sizes are refused by the dim and its range."""
    program = compiled("bucket_s", 300, buckets={"bucket_s": [1, 20]})
    # one size is a number, without a symbol
    assert ranges(program) == [[], [[1, 20, 6]], [[1, 300, 64]]]
    assert [p.manifest.inputs[0].shape[1] for p in program.narrower] == [1, "bucket_s"]
    check(program, [1, 2, 19, 20, 21, 300])
    program.save(tmp_path / "p.lambent")
    again = lt.load(tmp_path / "p.lambent")
    assert ranges(again) == ranges(program)
    check(again, [300, 20, 1])
    parts = (*program.narrower, program)
    arrays = {id(a) for p in parts for a in p.weights}
    with zipfile.ZipFile(
        tmp_path / "p.lambent"
    ) as archive:  # what several parts read is there once
        assert sum(name.startswith("weights/") for name in archive.namelist()) == len(arrays)
    with pytest.raises(ValueError, match=r"bucket_s = 301, .* in the range 1 … 300"):
        again(x=np.zeros((2, 301, 16), np.float32))
    with pytest.raises(ValueError, match="dim 2 is 15, expected 16"):
        again(x=np.zeros((2, 20, 15), np.float32))


def test_one_compile_serves_all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    from lambent.backends.base import get

    made: list[Any] = []
    whole = type(get("cpu")).assemble
    counted = lambda self, assembly: made.append(assembly) or whole(self, assembly)  # noqa: E731
    monkeypatch.setattr(type(get("cpu")), "assemble", counted)
    program = compiled("bucket_once", 64)
    assert len(made) >= 1
    made.clear()
    check(program, [1, 2, 3, 31, 33, 64])
    assert not made


def test_symbols_in_compound_sizes_and_facts() -> None:
    s, t = lt.Dim("bucket_a", 2, 96, multiple=2), lt.Dim("bucket_b", 1, 96)
    lt.assume(s - t)  # t new rows behind s − t old ones
    x, y = lt.input("x", (s,)), lt.input("y", (t,))
    out = lt.pad(y, [(s - t, 0)]) + x.reshape(2, s // 2).sum(0).sum()
    program = lt.compile(
        out, budget=0.5, progress=False, buckets={"bucket_a": [8], "bucket_b": [1]}
    )
    assert len(program.narrower) == 2  # 4 and 64 are not to be tuned for together
    for n, m in ((2, 1), (2, 2), (8, 1), (8, 8), (10, 1), (96, 1), (96, 50), (96, 96)):
        a, b = np.arange(n, dtype=np.float32), np.ones(m, np.float32)
        want = np.pad(b, (n - m, 0)) + a.sum()
        np.testing.assert_array_equal(program(x=a, y=b), want)
    with pytest.raises(ValueError, match=r"assumed .*bucket_a.* >= 0, which fails"):
        program(x=np.zeros(4, np.float32), y=np.zeros(6, np.float32))


@given(st.integers(0, 50), st.integers(1, 10**6), st.integers(1, 7))
def test_chosen_parts(low: int, wide: int, multiple: int) -> None:
    low, high = low * multiple, (low + wide) * multiple
    hint = min(max(low, 64 // multiple * multiple), high)
    found = [b["s"] for b in buckets([Symbol("s", low, high, multiple, hint)])]
    assert 1 <= len(found) <= 3
    assert found[-1].high == high
    assert all(b.low == low and low <= b.hint <= b.high and not b.hint % multiple for b in found)
    assert sorted({b.high for b in found}) == [b.high for b in found]


def test_a_hint_says_what_to_tune_for() -> None:
    given_hint = Symbol("s", 1, 4096, 1, 100, typical=True)
    assert buckets([given_hint]) == [{"s": given_hint}]
    assert len(buckets([Symbol("s", 1, 4096, 1, 64)])) == 2
    two = [Symbol("s", 1, 4096, 1, 64), Symbol("t", 1, 16, 1, 16)]
    assert [b["t"] for b in buckets(two)] == [two[1]] * 2
    assert buckets(two, {}) == [{"s": two[0], "t": two[1]}]


@pytest.mark.parametrize("wrong", [{"t": [3]}, {"bucket_wrong": [64]}, {"bucket_wrong": [0]}])
def test_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="symbols: bucket_wrong in 1 … 64"):
        compiled("bucket_wrong", 64, buckets=wrong)
