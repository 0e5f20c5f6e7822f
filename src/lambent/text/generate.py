"""The loop: tokens go through two programs, and come out as text piece by piece.

One program takes a chunk of the prompt, the other one new token; both are compiled once for every
length of the cache, which is a symbol. Caches are arrays that go in and come out.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from lambent.frontends.language import LanguageModel
from lambent.graph.dim import Dim
from lambent.graph.tensor import Tensor, input
from lambent.nn.decoder import cache_shape, decode
from lambent.text.sampling import Sampler, Sampling
from lambent.text.tokens import Text

__all__ = ["CHUNK", "Generated", "Session", "graph"]

Array = np.ndarray[Any, Any]
CHUNK = 64
"""Tokens of a prompt that go through at once."""
STEP = 64
"""Capacities of caches are multiples of this."""
USUAL = 512
"""The capacity that programs are tuned for."""


class Runs(Protocol):
    """A compiled program."""

    def __call__(self, /, **arrays: Any) -> Any: ...


def graph(model: LanguageModel, tokens: int) -> dict[str, Tensor]:
    """Scores of one of so many new tokens, and the new caches, for any length of the caches.

    Inputs: `ids` [tokens], `past` [1], `row` [1] where there are several tokens, caches `k0`, `v0`,
    `k1`, … and the model's weights.
    """
    c = model.config
    most = _most(c.context)
    capacity = Dim(f"capacity_{most}", STEP, most, multiple=STEP, hint=min(most, USUAL))
    shape = cache_shape(c, capacity)
    caches = [(input(f"k{i}", shape), input(f"v{i}", shape)) for i in range(c.layers)]
    ids, past = input("ids", (tokens,), "int64"), input("past", (1,), "int64")
    row = input("row", (1,), "int64") if tokens > 1 else None
    scores, kept = decode(c, model.inputs(), ids, past, caches, row)
    named = {f"{n}{i}": x for i, pair in enumerate(kept) for n, x in zip("kv", pair, strict=True)}
    return {"scores": scores, **named}


@dataclass(slots=True)
class Generated:
    """What a turn took. Seconds; tokens of the prompt that were new, and of the answer."""

    prompt: int = 0
    tokens: int = 0
    first: float = 0.0
    decoding: float = 0.0
    ended: str = "length"
    ids: list[int] = field(default_factory=list)

    def rate(self) -> float | None:
        """Tokens per second after the first."""
        return (self.tokens - 1) / self.decoding if self.tokens > 1 and self.decoding else None


class Session:
    """A conversation: the tokens so far and their caches.

    Args:
        chunk, step: programs of `graph(model, CHUNK)` and `graph(model, 1)`.
        compiled: how many of them were compiled now, and not found in the cache.
    """

    def __init__(
        self, model: LanguageModel, text: Text, chunk: Runs, step: Runs, compiled: int = 0
    ) -> None:
        self.model, self.text, self.chunk, self.step = model, text, chunk, step
        self.compiled = compiled
        self.ids: list[int] = []
        self._weights = model.arrays()
        self._caches = self._empty(4 * STEP)

    def generate(
        self, prompt: Sequence[int], sampling: Sampling, most: int, stop: Sequence[str] = ()
    ) -> Iterator[tuple[str, Generated]]:
        """Pieces of the answer as they come, and what it took so far.

        What `prompt` has in common with the tokens before is not computed again.

        Raises:
            ValueError: the prompt is empty, or does not fit in the model's context.
        """
        context, sampler, took = self.model.config.context, Sampler(sampling), Generated()
        if not prompt or len(prompt) >= context:
            raise ValueError(
                f"the prompt has {len(prompt)} tokens; the model's context is {context}, of which "
                "at least one is for the answer"
            )
        start = time.perf_counter()
        scores = self._read(prompt, took)
        shown, kept = "", ""
        most = min(most, context - len(prompt))
        while took.tokens < most:
            token = sampler.next(scores, self.ids)
            took.first = took.first or time.perf_counter() - start
            took.decoding = time.perf_counter() - start - took.first
            if token in self.text.ends:
                took.ended = "end"
                break
            took.tokens += 1
            took.ids.append(token)
            said = self.text.decode(took.ids)
            kept, found = _before(said, stop)
            if found:
                took.ended = "stop"
                break
            kept = kept.removesuffix("\ufffd")  # half a character: the rest is to come
            if len(kept) > len(shown) and kept.startswith(shown):
                yield kept[len(shown) :], took
                shown = kept
            if took.tokens < most:
                scores = self.feed([token])
        rest = kept if took.ended == "stop" else self.text.decode(took.ids)
        yield rest[len(shown) :], took

    def _read(self, prompt: Sequence[int], took: Generated) -> Array:
        """The scores behind the prompt, of which the start may be known."""
        common = 0
        while common < min(len(prompt) - 1, len(self.ids)) and prompt[common] == self.ids[common]:
            common += 1
        self.ids = self.ids[:common]
        took.prompt = len(prompt) - common
        return self.feed(prompt[common:])

    def feed(self, new: Sequence[int]) -> Array:
        """Take tokens into the caches; scores [vocabulary] behind the last of them."""
        scores: Array | None = None
        for at in range(0, len(new), CHUNK):
            scores = self._run(list(new[at : at + CHUNK]))
        assert scores is not None
        return scores

    def _run(self, new: list[int]) -> Array:
        past = len(self.ids)
        self._grow(past + len(new))
        given: dict[str, Any] = {"past": np.array([past], np.int64)}
        if len(new) > 1:
            given["row"] = np.array([len(new) - 1], np.int64)
            given["ids"] = np.array(new + [0] * (CHUNK - len(new)), np.int64)
        else:
            given["ids"] = np.array(new, np.int64)
        program = self.chunk if len(new) > 1 else self.step
        out = dict(program(**given, **self._caches, **self._weights))
        scores: Array = out.pop("scores")[0]
        self._caches = out
        self.ids += new
        return scores

    def _grow(self, least: int) -> None:
        """Twice the capacity where it is too small."""
        have = next(iter(self._caches.values())).shape[1]
        if least <= have:
            return
        wider = self._empty(max(2 * have, least))
        for name, old in self._caches.items():
            wider[name][:, :have] = old
        self._caches = wider

    def _empty(self, capacity: int) -> dict[str, Array]:
        c = self.model.config
        shape = cache_shape(c, min(_most(capacity), _most(c.context)))
        return {f"{n}{i}": np.zeros(shape, np.float32) for i in range(c.layers) for n in "kv"}


def _most(tokens: int) -> int:
    """The least capacity for so many tokens."""
    return -(-tokens // STEP) * STEP


def _before(said: str, stop: Sequence[str]) -> tuple[str, bool]:
    """The text before the first stop string; without the part that may become one."""
    places = [said.find(s) for s in stop if s and s in said]
    if places:
        return said[: min(places)], True
    held = max((n for s in stop for n in range(1, len(s)) if said.endswith(s[:n])), default=0)
    return said[: len(said) - held], False
