"""torch.compile(backend="lambent") with gradients: forward and backward graphs are both ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lambent.frontends.torch import backend

Step = Callable[..., torch.Tensor]


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


class Layer(nn.Module):
    """Tokens, causal attention of two heads, and a gated layer; the loss of the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, 8, padding_idx=3)
        self.norm, self.qkv, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)
        self.last = nn.Linear(8, 11)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids[:, :-1])
        parts = self.qkv(self.norm(x)).chunk(3, -1)
        q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + F.gelu(self.out(y.transpose(1, 2).flatten(2)))
        return F.cross_entropy(self.last(x).flatten(0, 1), ids[:, 1:].flatten())


class Convolutions(nn.Module):
    """Plain, grouped and transposed convolutions, a norm over the batch, and pools."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4), nn.ReLU(),
            nn.MaxPool2d(3, 1, 1), nn.ConvTranspose2d(4, 4, 2, stride=2, groups=2), nn.SiLU(),
            nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x).square().mean()


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "a transformer layer": (Layer, lambda: torch.randint(0, 11, (2, 6))),
    "convolutions": (Convolutions, lambda: torch.randn(2, 2, 8, 8)),
}


def trained(model: nn.Module, run: Any, batches: list[torch.Tensor]) -> list[float]:
    """The losses of some steps."""
    optimizer, losses = torch.optim.SGD(model.parameters(), 0.3), []
    for batch in batches:
        optimizer.zero_grad()
        loss = run(batch)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("name", MODELS)
def test_steps_are_pytorchs(name: str) -> None:
    """Nothing is left to PyTorch: `fallback=False` would refuse it."""
    make, batch = MODELS[name]
    mine, theirs = make(), make()
    theirs.load_state_dict(mine.state_dict())
    options = {"device": "reference", "fallback": False}
    batches = [batch() for _ in range(3)]
    compiled = torch.compile(mine, backend=backend, options=options)
    found = trained(mine, compiled, batches)
    assert found == pytest.approx(trained(theirs, theirs, batches), rel=1e-5)
    for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-6)


def test_equal_elements_share_no_gradient_of_a_pool() -> None:
    """As in PyTorch all of it goes to the first."""
    x = torch.tensor([[[[1.0, 1.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1.0, 1.0]]]], requires_grad=True)
    options = {"device": "reference", "fallback": False}

    def f(x: torch.Tensor) -> torch.Tensor:
        return (F.max_pool2d(x, 2, 1) * torch.arange(1.0, 5.0).view(1, 1, 2, 2)).sum()

    (found,) = torch.autograd.grad(torch.compile(f, backend=backend, options=options)(x), x)
    (wanted,) = torch.autograd.grad(f(x), x)
    torch.testing.assert_close(found, wanted)


def test_the_compiled_programs_on_the_cpu() -> None:
    model, x = nn.Sequential(nn.Linear(6, 4), nn.Tanh()), torch.randn(5, 6)
    options = {"budget": 0.2, "fallback": False}
    y = torch.compile(model, backend=backend, options=options)(x).square().sum()
    found = torch.autograd.grad(y, list(model.parameters()))
    wanted = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
