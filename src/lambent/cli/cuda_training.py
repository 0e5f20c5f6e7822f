"""The row of `lambent bench --suite cuda` that trains: a step of a transformer with AdamW.

Weights are bfloat16, with float32 masters and state, in PyTorch's loops as in ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from lambent.cli.cuda_works import Tensors, Work
from lambent.cli.examples import Arrays

RATE, DECAY = 1e-3, 0.01
WATCHED = "blocks.0.up.weight"
"""Its first moment, which starts at 0, is after one step its gradient times 1 − β₁."""


@dataclass(frozen=True, slots=True)
class Sizes:
    layers: int = 4
    width: int = 512
    heads: int = 8
    context: int = 512
    batch: int = 8
    dtype: str = "bfloat16"

    def work(self) -> float:
        """Operations of a step: each product of the forward pass has two in the backward pass."""
        tokens = self.batch * self.context
        weights = 12 * self.layers * self.width**2 + 256 * self.width
        attention = self.layers * self.context * self.width  # causal: half of two products
        return 6.0 * tokens * (weights + attention)


SIZES = Sizes()


@cache
def start(sizes: Sizes) -> tuple[Any, Arrays]:
    """The model, and all that a step is given: weights, state and a batch."""
    from lambent import nn
    from lambent.cli.lessons import Transformer

    nn.seed(0)
    s = sizes
    model = Transformer(s.context, s.width, s.heads, s.layers).astype(s.dtype)
    weights = model.state_dict()
    text = np.random.default_rng(1).integers(0, 256, (2, s.batch, s.context))
    return model, weights | _optimizer().start(weights) | {"x": text[0], "y": text[1]}


def _optimizer() -> Any:
    from lambent import optim

    return optim.Optimizer(optim.AdamW(weight_decay=DECAY))


def step(sizes: Sizes = SIZES) -> Work:
    """Cross entropy of the next byte, its gradients, and what AdamW makes of them."""

    def graph(t: Tensors) -> Any:
        import lambent as lt
        from lambent.cli import lessons

        model, _ = start(sizes)
        copy, params = model.trainable()
        loss = lessons.loss(copy, t, t["optimizer:step"])
        optimizer = _optimizer()
        state = {n: t[n] for n in optimizer.state(params)}
        new, after = optimizer.step(params, lt.grad(loss, params), state, RATE)
        moved = new | after
        first = f"{WATCHED}:m"
        return {first: moved[first], "loss": loss} | moved

    def naive(t: Tensors) -> Any:
        return stepper(sizes, t)()

    def peer(compiled: bool) -> Callable[[Tensors], Any]:
        held: list[Callable[[], Any]] = []

        def run(t: Tensors) -> Any:
            if not held:
                held.append(stepper(sizes, t, compiled))
            return held[0]()

        return run

    def given() -> Arrays:
        return start(sizes)[1]

    name = f"training step, {sizes.layers} layers of {sizes.width}"
    peers = {"PyTorch": peer(False), "torch.compile": peer(True)}
    return Work(
        name, "TFLOP/s", sizes.work(), {}, graph, naive, peers, given=given,
        donate=lambda: {n: n for n in given() if n not in "xy"},
    )  # fmt: skip


def stepper(sizes: Sizes, t: Mapping[str, Any], compiled: bool = False) -> Callable[[], Any]:
    """A step of PyTorch on copies of the weights, which returns what we return first."""
    import torch
    from torch.nn import functional as f

    from lambent.cli.training_peer import Transformer

    names = [n.removesuffix(":m") for n in t if n.endswith(":m")]
    model = Transformer({n: t[n].clone() for n in names})
    model.heads = sizes.heads
    run: Any = torch.compile(model) if compiled else model
    narrow = [model.get(n) for n in names]
    wide = [t[n].float().clone() for n in names]
    for w in wide:
        w.grad = torch.zeros_like(w)
    optimizer = torch.optim.AdamW(wide, lr=RATE, weight_decay=DECAY, fused=True)

    def step() -> Any:
        with torch.enable_grad():
            logits = run(t["x"])
            f.cross_entropy(logits.flatten(0, -2).float(), t["y"].flatten()).backward()  # type: ignore[no-untyped-call]
        torch._foreach_copy_([w.grad for w in wide], [p.grad for p in narrow])
        model.zero_grad()
        optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_(narrow, wide)
        return optimizer.state[wide[names.index(WATCHED)]]["exp_avg"]

    return step
