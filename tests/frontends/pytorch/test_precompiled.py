"""PyTorch's own cache of compiled functions: a start without Dynamo, and what it must not take."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._C._dynamo.eval_frame import _reset_precompile_entries
from torch._dynamo.precompile_context import PrecompileContext

from lambent.frontends import kept
from lambent.frontends.torch import backend


class Inner(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> Any:
        y = self.inner(x).tanh()
        return y.sum(0), y


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[Any]]:
    """One entry for every graph that Dynamo hands over; nothing is kept yet."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(kept, "cache_dir", lambda: tmp_path)
    with torch._dynamo.config.patch(caching_precompile=True), torch.no_grad():
        yield []
    forget()


def forget() -> None:
    """What this process knows of the function."""
    PrecompileContext.clear()
    torch._dynamo.reset()
    _reset_precompile_entries(Inner.forward.__code__)


def start(model: torch.nn.Module, graphs: list[Any], dynamic: bool | None = None) -> Any:
    """Compiled as in a new process."""
    forget()

    def counted(module: Any, inputs: Any) -> Callable[..., Any]:
        graphs.append(module)
        return backend(module, inputs, options={"budget": 0.1, "fallback": False})

    return torch.compile(model, backend=counted, dynamic=dynamic)


def check(compiled: Any, model: torch.nn.Module, rows: int) -> None:
    x = torch.randn(rows, 8)
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_second_start_asks_for_no_graph(graphs: list[Any], dynamic: bool | None) -> None:
    model = Inner().eval()
    check(start(model, graphs, dynamic), model, 3)
    compiled = start(model, graphs, dynamic)
    check(compiled, model, 3)
    check(compiled, model, 3)
    assert len(graphs) == 1
    check(compiled, model, 4)
    assert len(graphs) == (1 if dynamic else 2)


def test_other_weights_have_another_program(graphs: list[Any]) -> None:
    model, other = Inner().eval(), Inner().eval()
    check(start(model, graphs, True), model, 3)
    compiled = start(other, graphs, True)
    check(compiled, other, 3)
    other.inner.weight.mul_(2)
    check(compiled, other, 5)
    assert len(graphs) == 1


def test_a_program_that_is_lost_is_made_again(graphs: list[Any], tmp_path: Path) -> None:
    model = Inner().eval()
    check(start(model, graphs), model, 3)
    for file in (tmp_path / "programs").glob("graph-*"):
        file.unlink()
    check(start(model, graphs), model, 3)
    assert len(graphs) == 1
