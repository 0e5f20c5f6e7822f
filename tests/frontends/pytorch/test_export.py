"""from_torch: names, structure, open dims, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import lambent as lt
from lambent.frontends.torch import Unsupported, from_torch

# PyTorch's own use of what it has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")


class Two(torch.nn.Module):
    """Two inputs by name, results in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.arange(4.0))
        self.register_buffer("shift", torch.ones(4, dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> dict[str, Any]:
        y = x * self.scale + self.shift
        return {"y": y, "kept": torch.where(mask, y, 0).sum(0)}


def arguments(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(n)
    return torch.randn(n, 4), torch.rand(n, 4) > 0.5


def test_names_structure_and_open_sizes() -> None:
    module = Two().eval()
    n = torch.export.Dim("n", min=2, max=64)
    graph = from_torch(module, arguments(5), dynamic_shapes={"x": {0: n}, "mask": {0: n}})
    assert sorted(graph) == ["kept", "y"]
    for size in (5, 9):
        x, mask = arguments(size)
        given = {"x": x.numpy(), "mask": mask.numpy()}
        found = lt.evaluate(list(graph.values()), given)
        for name, value in zip(graph, found, strict=True):
            want = module(x, mask)[name].detach().numpy()
            np.testing.assert_allclose(value, want, rtol=1e-6, atol=1e-6)


def test_it_compiles_and_shares_the_weights() -> None:
    module = torch.nn.Linear(4, 3).eval()
    graph = lt.from_torch(module, (torch.ones(2, 4),))
    pointers = {module.weight.data_ptr(), module.bias.data_ptr()}
    assert {n.attr.array.ctypes.data for n in weights(graph)} == pointers
    x = np.ones((2, 4), np.float32)
    found = lt.compile(graph, budget=1, progress=False)(input=x)
    np.testing.assert_allclose(found, module(torch.from_numpy(x)).detach(), rtol=1e-5)


def weights(graph: lt.Tensor) -> list[Any]:
    from lambent.graph.node import topo

    return [n for n in topo([graph.node]) if n.op == "weight"]


class Counter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return x * self.count


class Fourier(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.rfft(x).abs()


@pytest.mark.parametrize(
    ("module", "words"), [(Counter(), "writes to count.*backend"), (Fourier(), "fft.*complex")]
)
def test_what_a_graph_cannot_say_is_refused(module: torch.nn.Module, words: str) -> None:
    with pytest.raises(Unsupported, match=words):
        from_torch(module, (torch.ones(4),))
