"""What `lambent train` trains: small models, their data and their losses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import lambent as lt
from lambent import nn
from lambent.cli.errors import UserError, need
from lambent.cli.examples import Array, Arrays
from lambent.graph.tensor import Tensor, iota


@dataclass(frozen=True, slots=True)
class Lesson:
    """A model and how it learns.

    logits:  what the model makes of the entry `x` of a batch; entry `y` are the classes.
    batches: without end, the same in every run.
    finish:  gets logits as a function of one batch, and returns what is told at the end.
    """

    name: str
    model: nn.Module
    batches: Callable[[], Iterator[Arrays]]
    finish: Callable[[Callable[[Array], Array]], dict[str, Any]]
    rate: float
    steps: int


def loss(model: Any, batch: Mapping[str, Tensor], step: Tensor) -> Tensor:
    """Cross entropy of the last dim of the logits."""
    return lt.cross_entropy(model(batch["x"]), batch["y"], axis=-1)


# ---- digits ----------------------------------------------------------------------------------


class Convolutions(nn.Module):
    """[n, 1, 8, 8] → [n, 10]."""

    def __init__(self) -> None:
        self.first = nn.Conv2d(1, 16, 3, padding=1)
        self.second = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.last = nn.Linear(512, 10)

    def __call__(self, x: Tensor) -> Tensor:
        x = lt.relu(self.second(lt.relu(self.first(x))))
        return self.last(x.flatten(1))


def digits(batch: int = 64, steps: int = 600) -> Lesson:
    """Images of 8 × 8 of handwritten digits; a fifth of them is kept for the test.

    Raises:
        UserError: scikit-learn is not installed.
    """
    need("sklearn", "scikit-learn", "lambent train digits")
    from sklearn.datasets import load_digits

    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    x = (found.images[order] / 16).astype(np.float32)[:, None]
    y = found.target[order].astype(np.int64)
    held = len(y) // 5

    def batches() -> Iterator[Arrays]:
        random = np.random.default_rng(1)
        while True:
            chosen = random.integers(held, len(y), batch)
            yield {"x": x[chosen], "y": y[chosen]}

    def finish(logits: Callable[[Array], Array]) -> dict[str, Any]:
        right = 0
        for at in range(0, held, batch):
            part = np.resize(x[at : min(at + batch, held)], (batch, *x.shape[1:]))
            count = min(batch, held - at)
            right += int((logits(part).argmax(-1) == np.resize(y[at:held], batch))[:count].sum())
        return {"test accuracy": right / held}

    return Lesson("digits", Convolutions(), batches, finish, 3e-3, steps)


# ---- text ------------------------------------------------------------------------------------


class Block(nn.Module):
    """A pre-norm transformer layer, each place seeing those before it."""

    def __init__(self, width: int, heads: int) -> None:
        self.norm1 = nn.LayerNorm(width)
        self.attention = nn.MultiHeadAttention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def __call__(self, x: Tensor) -> Tensor:
        place = iota(x.shape[-2])
        seen = place.reshape(1, -1) <= place.reshape(-1, 1)
        x = x + self.attention(self.norm1(x), mask=seen)
        return x + self.down(lt.relu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """Bytes [n, context] → logits [n, context, 256]."""

    def __init__(self, context: int, width: int, heads: int, layers: int) -> None:
        self.tokens = nn.Embedding(256, width)
        self.places = nn.Embedding(context, width)
        self.blocks = [Block(width, heads) for _ in range(layers)]
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256, bias=False)

    def __call__(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) * 0.1 + self.places.weight * 0.1
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def text(
    path: Path, context: int = 64, batch: int = 16, layers: int = 4, width: int = 128,
    heads: int = 4, steps: int = 300, length: int = 200,
) -> Lesson:  # fmt: skip
    """Predicts the next byte of a text; at the end it continues the text's first line.

    Raises:
        UserError: no such file, or too short a text.
    """
    try:
        data = np.frombuffer(path.read_bytes(), np.uint8).astype(np.int64)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    if len(data) < 4 * context:
        raise UserError(f"{path}: {len(data)} bytes are too few; give at least {4 * context}")

    def batches() -> Iterator[Arrays]:
        random = np.random.default_rng(1)
        while True:
            starts = random.integers(0, len(data) - context, batch)
            x = data[starts[:, None] + np.arange(context + 1)]
            yield {"x": x[:, :-1].copy(), "y": x[:, 1:].copy()}

    def finish(logits: Callable[[Array], Array]) -> dict[str, Any]:
        random, written = np.random.default_rng(2), [*data[:context]]
        for _ in range(length):
            seen = np.resize(np.array(written[-context:], np.int64), (batch, context))
            e = np.exp(logits(seen)[0, -1].astype(np.float64))
            written.append(random.choice(256, p=e / e.sum()))
        return {"text": bytes(map(int, written[context:])).decode("utf-8", "replace")}

    model = Transformer(context, width, heads, layers)
    return Lesson("text", model, batches, finish, 1e-3, steps)
