"""A second start of torch.compile(backend="lambent"): no tracing of ours where nothing changed."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lambent.frontends import kept
from lambent.frontends.torch import again, backend
from lambent.frontends.torch.backend import Options

Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """One entry for every graph that is traced; no note and no program is kept yet."""
    found: list[Any] = []
    home = sys.modules["lambent.frontends.torch.backend"]
    compile_graph = home.compile_graph

    def counted(*args: Any) -> Any:
        found.append(args)
        return compile_graph(*args)

    notes: dict[str, bytes] = {}
    store = types.SimpleNamespace(read=notes.get, write=notes.__setitem__)
    monkeypatch.setattr(home, "compile_graph", counted)
    monkeypatch.setattr(again, "cache", store)
    monkeypatch.setattr(kept, "cache_dir", lambda: tmp_path)
    return found


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)
        self.register_buffer("shift", torch.randn(8))

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> Any:
        z = torch.nn.functional.gelu(self.inner(x), approximate="tanh") + self.shift
        return z, (z if y is None else z * y).sum(-1)


def start(f: Function, *args: Any, **options: Any) -> Any:
    """The first call, as in a new process."""
    torch._dynamo.reset()
    compiled = torch.compile(f, backend=backend, options={"budget": 0.1, **options})
    with torch.no_grad():
        torch.testing.assert_close(compiled(*args), f(*args), rtol=1e-4, atol=1e-5)
    return compiled


def test_an_equal_start_traces_nothing_and_sees_new_inputs(traced: list[Any]) -> None:
    model = Small().eval()
    start(model, torch.randn(3, 8))
    compiled = start(model, torch.randn(3, 8))
    x = torch.randn(8, 3).T
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    assert len(traced) == 2  # of the three starts of a graph: the last has other strides


def test_a_parameter_that_changes_is_seen(traced: list[Any]) -> None:
    model, x = Small().eval(), torch.randn(3, 8)
    start(model, x)
    compiled = start(model, x)
    for change in (model.inner.weight, model.shift):
        with torch.no_grad():
            change.mul_(2)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    assert len(traced) == 2


def test_a_program_that_is_lost_is_made_again(traced: list[Any], tmp_path: Path) -> None:
    x = torch.randn(3, 8)
    start(torch.exp, x)
    for file in (tmp_path / "programs").iterdir():
        file.unlink()
    start(torch.exp, x)
    assert len(traced) == 2


def other_contents(model: Small, x: torch.Tensor) -> Any:
    with torch.no_grad():
        model.shift[3] += 1
    return model, x


def test_a_longer_search_serves_who_asks_for_less(traced: list[Any]) -> None:
    x = torch.randn(3, 8)
    for budget, graphs in ((0.2, 1), (0.1, 1), (0.3, 2)):
        start(torch.exp, x, budget=budget)
        assert len(traced) == graphs


OTHER: dict[str, Callable[[Small, torch.Tensor], Any]] = {
    "contents of a buffer": other_contents,
    "another operation": lambda model, x: (lambda a: [b + 0 for b in model(a)], x),
    "a number in the graph": lambda model, x: (lambda a: model(a * 2), x),
    "a dtype": lambda model, x: (model.double(), x.double()),
    "a shape": lambda model, x: (model, x[:2].clone()),
    "one more input": lambda model, x: (model, x, x + 1),
}


def key(f: Function, *args: Any, **options: Any) -> str | None:
    """The name of the note on a graph, which is run as it is."""
    found: list[str | None] = []

    def look(module: Any, inputs: Any) -> Any:
        fixed = frozenset(x.data_ptr() for x in inputs if hasattr(x, "_dynamo_static_input_type"))
        found.append(again.Again(module, inputs, fixed, Options(**options)).key)
        return module.forward

    torch._dynamo.reset()
    torch.compile(f, backend=look)(*args)
    return found[0]


@pytest.mark.parametrize("what", OTHER)
def test_what_differs_has_another_name(what: str) -> None:
    model, x = Small().eval(), torch.randn(3, 8)
    with torch.no_grad():
        first, same = key(model, x), key(model, x + 1)
        assert first == same != key(*OTHER[what](model, x)) is not None


def test_settings_and_options_are_part_of_the_name() -> None:
    model, x = Small().eval(), torch.randn(3, 8)
    with torch.no_grad():
        names = {key(model, x), key(model, x, seed=1)}
        assert key(model, x, budget=1.0) in names  # how long a search was stands in the note
        with torch.autocast("cpu", torch.bfloat16):
            names.add(key(model, x))
        torch.use_deterministic_algorithms(True)
        try:
            names.add(key(model, x))
        finally:
            torch.use_deterministic_algorithms(False)
    assert len(names) == 4


def test_gradients_open_sizes_and_the_functions_of_others_have_no_name() -> None:
    model, x = Small().eval(), torch.randn(3, 8)
    assert key(model, x) is None
    torch._dynamo.mark_dynamic(x, 0)
    with torch.no_grad():
        assert key(lambda a: a * 2, x) is None
        assert key(lambda a: ours(a) * 2, torch.randn(3)) is None


@torch._dynamo.allow_in_graph
def ours(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def writes(x: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    return x + 1


def views(x: torch.Tensor) -> Any:
    y = x * 2
    return y, y[0], x.T


def draws(x: torch.Tensor) -> torch.Tensor:
    return x + torch.rand(3) * 0


@pytest.mark.parametrize("f", [writes, views, draws])
@pytest.mark.filterwarnings("ignore::lambent.frontends.torch.FallbackWarning")
def test_more_than_a_program_is_traced_each_time(traced: list[Any], f: Function) -> None:
    for _ in range(2):
        torch._dynamo.reset()
        mine, theirs = torch.arange(9.0).reshape(3, 3), torch.arange(9.0).reshape(3, 3)
        with torch.no_grad():
            compiled = torch.compile(f, backend=backend, options={"budget": 0.1})
            torch.testing.assert_close(compiled(mine), f(theirs))
        torch.testing.assert_close(mine, theirs)
    assert len(traced) == 2


def test_results_come_in_their_order_and_as_often(traced: list[Any]) -> None:
    def f(x: torch.Tensor) -> Any:
        y, z = x.exp(), x.sum(0)
        return {"b": z, "a": (y, z), "c": y.t().contiguous()}

    x = torch.randn(3, 8)
    start(f, x)
    start(f, x)
    assert len(traced) == 1
