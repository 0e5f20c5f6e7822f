"""Sampling: each filter keeps what it should, draws follow the probabilities, seeds repeat."""

from __future__ import annotations

import numpy as np
import pytest

from lambent.text.sampling import Sampler, Sampling

SCORES = np.log(np.array([0.05, 0.4, 0.3, 0.2, 0.05]))


def drawn(sampling: Sampling, count: int = 2000) -> np.ndarray:
    sampler = Sampler(sampling)
    return np.bincount([sampler.next(SCORES, []) for _ in range(count)], minlength=5) / count


def test_greedy_takes_the_best_and_the_first_of_equals() -> None:
    assert Sampler(Sampling()).next(SCORES, []) == 1
    assert Sampler(Sampling()).next(np.array([1.0, 2.0, 2.0]), []) == 1
    assert Sampler(Sampling()).next(np.array([1.0, np.nan, -np.inf]), []) == 0


def test_draws_follow_the_probabilities() -> None:
    np.testing.assert_allclose(drawn(Sampling(1.0)), np.exp(SCORES), atol=0.04)
    hot = np.exp(SCORES / 2) / np.exp(SCORES / 2).sum()
    np.testing.assert_allclose(drawn(Sampling(2.0)), hot, atol=0.04)


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        (Sampling(1.0, top_k=2), [1, 2]),
        (Sampling(1.0, top_k=1), [1]),
        (Sampling(1.0, top_p=0.3), [1]),
        (Sampling(1.0, top_p=0.65), [1, 2]),
        (Sampling(1.0, top_p=0.71), [1, 2, 3]),
        (Sampling(1.0, min_p=0.6), [1, 2]),
        (Sampling(1.0, min_p=0.4), [1, 2, 3]),
        (Sampling(1.0, top_k=3, min_p=0.7), [1, 2]),
    ],
)
def test_filters_keep_what_they_should(sampling: Sampling, kept: list[int]) -> None:
    found = drawn(sampling)
    assert np.flatnonzero(found).tolist() == kept
    want = np.exp(SCORES)[kept]
    np.testing.assert_allclose(found[kept], want / want.sum(), atol=0.04)


def test_seeds_repeat() -> None:
    a, b, c = (
        [s.next(SCORES, []) for _ in range(30)]
        for s in (Sampler(Sampling(1.0, seed=n)) for n in (1, 1, 2))
    )
    assert a == b != c


def test_repetition_is_punished() -> None:
    scores = np.array([2.0, 1.9, -1.0])
    assert Sampler(Sampling(penalty=1.2)).next(scores, [0]) == 1
    assert Sampler(Sampling(penalty=1.2, last=1)).next(scores, [0, 1]) == 0
    assert Sampler(Sampling(penalty=3.0)).next(np.array([-1.0, -2.0]), [0]) == 1
    assert scores.tolist() == [2.0, 1.9, -1.0]


@pytest.mark.parametrize(
    "wrong",
    [{"temperature": -1.0}, {"temperature": float("nan")}, {"top_p": 0.0}, {"min_p": 2.0},
     {"top_k": -1}, {"penalty": 0.0}, {"seed": -1}],
)  # fmt: skip
def test_options_out_of_range(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="out of range"):
        Sampling(**wrong)  # type: ignore[arg-type]


def test_scores_that_are_no_numbers() -> None:
    with pytest.raises(ValueError, match="no finite numbers"):
        Sampler(Sampling()).next(np.array([np.nan, -np.inf]), [])
