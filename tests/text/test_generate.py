"""The loop: chunks and steps give the same scores, text comes in pieces, context has an end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small_model import session, write

from lambent.text import generate
from lambent.text.generate import Session, _before
from lambent.text.sampling import Sampling

GREEDY = Sampling()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("model") / "small.gguf")


def said(talk: Session, prompt: list[int], most: int, stop: tuple[str, ...] = ()) -> str:
    return "".join(piece for piece, _ in talk.generate(prompt, GREEDY, most, stop))


def test_chunks_and_steps_agree(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "CHUNK", 16)
    ids = [3 + i % 9 for i in range(16 + 7)]
    whole, steps = session(path), session(path)
    chunked = whole.feed(ids)
    for i in ids:
        one = steps.feed([i])
    np.testing.assert_allclose(chunked, one, atol=1e-5)
    used = len(ids)
    for name, cache in whole._caches.items():
        np.testing.assert_allclose(cache[:used], steps._caches[name][:used], atol=1e-5)


def test_a_known_start_is_not_computed_again(path: Path) -> None:
    talk, other = session(path), session(path)
    first, second = [3, 4, 5, 6], [3, 4, 5, 7, 8]
    talk.feed(first)
    pieces = list(talk.generate(second, GREEDY, 3))
    assert pieces[-1][1].prompt == 2
    assert "".join(p for p, _ in pieces) == said(other, second, 3)
    assert talk.ids[:5] == second


def test_caches_grow_with_the_conversation(path: Path) -> None:
    talk = session(path)
    talk._caches = talk._empty(20)
    talk.feed([3] * 18)
    assert len(talk._caches["k0"]) == 20
    before = talk.feed([4] * 5)
    assert len(talk._caches["k0"]) == 40 == len(talk._caches["v1"])
    np.testing.assert_allclose(before, session(path).feed([3] * 18 + [4] * 5), atol=1e-5)


def test_the_context_ends(path: Path) -> None:
    with pytest.raises(ValueError, match="100 tokens; the model's context is 100"):
        said(session(path), [3] * 100, 1)
    with pytest.raises(ValueError, match="the prompt has 0 tokens"):
        said(session(path), [], 1)
    talk = session(path)
    *_, (_, took) = talk.generate([3] * 97, Sampling(), 50)
    assert took.tokens <= 3 and len(talk.ids) <= 100


def test_it_ends_at_stop_strings_and_end_tokens(path: Path) -> None:
    whole = said(session(path), [3, 4], 12)
    assert len(whole) >= 4
    stop = whole[2:4]
    talk = session(path)
    pieces = list(talk.generate([3, 4], GREEDY, 12, (stop,)))
    assert "".join(p for p, _ in pieces) == whole[: whole.index(stop)]
    assert pieces[-1][1].ended == "stop"
    talk = session(path)
    first = int(np.argmax(session(path).feed([3, 4])))
    object.__setattr__(talk.text, "ends", frozenset([first]))
    *_, (rest, took) = talk.generate([3, 4], GREEDY, 12)
    assert (rest, took.ended, took.tokens) == ("", "end", 0)


def test_what_may_become_a_stop_string_is_held_back() -> None:
    assert _before("abcSTOdef", ["STOP"]) == ("abcSTOdef", False)
    assert _before("abcSTO", ["STOP"]) == ("abc", False)
    assert _before("abcSTOP d", ["STOP", "c"]) == ("ab", True)
    assert _before("abc", []) == ("abc", False)
