"""The loop: tokens go through a program, and come out as text piece by piece.

One program serves a chunk of the prompt and a single new token, behind a text of any length:
both numbers of tokens are symbols. Caches are arrays of which new rows are written in place.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Protocol

import numpy as np

from lambent.frontends.language import LanguageModel
from lambent.graph.dim import Dim
from lambent.graph.prove import assume
from lambent.graph.tensor import Tensor, input
from lambent.nn.decoder import DecoderConfig, cache_shape, decode
from lambent.text.sampling import Sampler, Sampling
from lambent.text.tokens import Text

__all__ = ["CHUNK", "Generated", "Session", "compile_options", "graph"]

Array = np.ndarray[Any, Any]
CHUNK = 128
"""The most tokens of a prompt that go through at once."""
ROOM = 256
"""Tokens that caches have room for at first; it doubles when it is full."""
USUAL = 512
"""The length of a conversation that programs are tuned for."""


class Runs(Protocol):
    """A compiled program."""

    manifest: Any

    def __call__(self, /, **arrays: Any) -> Any: ...
    def run(self, given: Sequence[Array]) -> Any: ...


def graph(model: LanguageModel) -> dict[str, Tensor]:
    """Scores behind the last of some new tokens, and the caches with these in their last rows.

    Inputs: `ids` [tokens]; caches `k0`, `v0`, `k1`, … [length, …]; length counts all tokens so
    far, the new ones too; the model's weights.
    """
    c = model.config
    tokens, length = _tokens(c), Dim(f"length_{c.context}", 1, c.context, hint=USUAL)
    assume(length - tokens)
    shape = cache_shape(c, length)
    caches = [(input(f"k{i}", shape), input(f"v{i}", shape)) for i in range(c.layers)]
    scores, kept = decode(c, model.inputs(), input("ids", (tokens,), "int64"), caches, last=True)
    return {"scores": scores, **dict(zip(_names(c), chain.from_iterable(kept), strict=True))}


def compile_options(model: LanguageModel) -> dict[str, Any]:
    """How `graph` is compiled: a single token is tuned for itself, caches are written in place."""
    c = model.config
    return {
        "buckets": {str(_tokens(c)): [1]} if min(CHUNK, c.context) > 1 else {},
        "donate": {name: name for name in _names(c)},
    }


def _tokens(c: DecoderConfig) -> Dim:
    most = min(CHUNK, c.context)
    return Dim(f"tokens_{most}", 1, most, hint=most)


def _names(c: DecoderConfig) -> list[str]:
    """Of the caches."""
    return [f"{n}{i}" for i in range(c.layers) for n in "kv"]


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
        program: of `graph(model)`.
        compiled: whether it was compiled now, and not found in the cache.
    """

    def __init__(
        self, model: LanguageModel, text: Text, program: Runs, compiled: bool = False
    ) -> None:
        self.model, self.text, self.program, self.compiled = model, text, program, compiled
        self.ids: list[int] = []
        self._weights = model.arrays()
        self._given: list[Array] = []  # arrays of a run, in the program's order
        self._places: dict[str, int] = {}  # in it, of those that change
        self._caches = self._empty(ROOM)

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
        length = len(self.ids) + len(new)
        self._grow(length)
        now = {"ids": np.array(new, np.int64)}
        now |= {name: cache[:length] for name, cache in self._caches.items()}
        if self._given:  # the weights were looked at in the first run
            for name, array in now.items():
                self._given[self._places[name]] = array
            out = self.program.run(self._given)
        else:
            whole = now | self._weights
            out = self.program(**whole)
            order = [slot.name for slot in self.program.manifest.inputs]
            self._given = [whole[name] for name in order]
            self._places = {name: order.index(name) for name in now}
        self.ids += new
        scores: Array = out["scores"][0]
        return scores

    def _grow(self, least: int) -> None:
        """Twice the room where it is too small."""
        have = len(next(iter(self._caches.values())))
        if least <= have:
            return
        wider = self._empty(max(2 * have, least))
        for name, old in self._caches.items():
            wider[name][:have] = old
        self._caches = wider

    def _empty(self, room: int) -> dict[str, Array]:
        """In one piece of memory, of which large pages are made: a token reads all of them."""
        c = self.model.config
        shape = (2 * c.layers, *cache_shape(c, min(room, c.context)))
        count = math.prod(map(int, shape))
        memory = np.zeros(count + 16, np.float32)
        first = -memory.ctypes.data % 64 // memory.itemsize
        whole = memory[first : first + count].reshape(shape)
        return dict(zip(_names(c), whole, strict=True))


def _before(said: str, stop: Sequence[str]) -> tuple[str, bool]:
    """The text before the first stop string; without the part that may become one."""
    places = [said.find(s) for s in stop if s and s in said]
    if places:
        return said[: min(places)], True
    held = max((n for s in stop for n in range(1, len(s)) if said.endswith(s[:n])), default=0)
    return said[: len(said) - held], False
