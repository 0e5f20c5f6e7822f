"""The models of `lambent train` in PyTorch, with the same names of weights."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from lambent.cli.examples import Array, Arrays
from lambent.cli.lessons import Lesson
from lambent.cli.peers import torch_compiled
from lambent.cli.train import step_time


class _Tree(torch.nn.Module):
    """The weights of a Lambent model by path."""

    def __init__(self, weights: Mapping[str, Any]) -> None:
        super().__init__()
        own = {n.replace(".", "/"): torch.as_tensor(a).clone() for n, a in weights.items()}
        self.w = torch.nn.ParameterDict({n: torch.nn.Parameter(w) for n, w in own.items()})

    def get(self, path: str) -> Any:
        return self.w[path.replace(".", "/")]

    def linear(self, name: str, x: Any) -> Any:
        return F.linear(x, self.get(f"{name}.weight"), self.get(f"{name}.bias"))

    def norm(self, name: str, x: Any) -> Any:
        shape = x.shape[-1:]
        return F.layer_norm(x, shape, self.get(f"{name}.weight"), self.get(f"{name}.bias"))


class Convolutions(_Tree):
    def forward(self, x: Any) -> Any:
        w = self.get
        x = F.relu(F.conv2d(x, w("first.weight"), w("first.bias"), padding=1))
        x = F.relu(F.conv2d(x, w("second.weight"), w("second.bias"), stride=2, padding=1))
        return self.linear("last", x.flatten(1))


class Transformer(_Tree):
    heads: int

    def forward(self, ids: Any) -> Any:
        x = F.embedding(ids, self.get("tokens.weight")) * 0.1 + self.get("places.weight") * 0.1
        layers = sum(n.endswith("norm1/weight") for n in self.w)
        for i in range(layers):
            y = self.norm(f"blocks.{i}.norm1", x)
            q, k, v = (self.split(self.linear(f"blocks.{i}.attention.{n}_proj", y)) for n in "qkv")
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.linear(f"blocks.{i}.attention.out_proj", y.transpose(1, 2).flatten(2))
            y = F.relu(self.linear(f"blocks.{i}.up", self.norm(f"blocks.{i}.norm2", x)))
            x = x + self.linear(f"blocks.{i}.down", y)
        return F.linear(self.norm("norm", x), self.get("head.weight"))

    def split(self, x: Any) -> Any:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


def twin(lesson: Lesson, weights: Mapping[str, Array]) -> torch.nn.Module:
    """The lesson's model in PyTorch."""
    if lesson.name == "digits":
        return Convolutions(weights)
    model = Transformer(weights)
    model.heads = lesson.model.blocks[0].attention.heads  # type: ignore[attr-defined]
    return model


def stepper(
    lesson: Lesson, weights: Mapping[str, Array], compiled: bool
) -> Callable[[Arrays], float]:
    """One step of training, which returns the loss before it."""
    model = twin(lesson, weights)
    run = torch_compiled(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=lesson.rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, lesson.steps)

    def step(batch: Arrays) -> float:
        x, y = (torch.from_numpy(batch[n]) for n in "xy")
        out = run(x)
        loss = F.cross_entropy(out.reshape(-1, out.shape[-1]), y.reshape(-1))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        return float(loss.detach())

    return step


def compare(
    lesson: Lesson, start: Mapping[str, Array], losses: Sequence[float], step_ms: float
) -> dict[str, Any]:
    """The largest difference of the two loss curves, and the ratios of step times to ours."""
    from lambent.backends.cpu.features import threads

    torch.set_num_threads(threads())
    step = stepper(lesson, start, compiled=False)
    theirs = [step(batch) for batch in itertools.islice(lesson.batches(), len(losses))]
    away = np.abs(np.array(losses) / np.array(theirs) - 1)
    eager = step_time(step, lesson) * 1e3
    compiled = step_time(stepper(lesson, start, compiled=True), lesson) * 1e3
    return {
        "torch_loss": theirs[-1],
        "largest_difference_of_losses": float(away.max()),
        "torch_ms": eager,
        "torch.compile_ms": compiled,
        "eager_over_ours": eager / step_ms,
        "torch.compile_over_ours": compiled / step_ms,
    }
