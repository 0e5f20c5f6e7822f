"""torch.compile(backend="lambent"): values, fallback, mutation, aliasing, sizes, weights."""

from __future__ import annotations

import tomllib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.backends import registry

from lambent.frontends.torch import FallbackWarning, backend
from lambent.frontends.torch.region import Region

PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"
Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(0)


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry for every program that is built."""
    found: list[str] = []
    build = Region._build

    def counted(self: Region, args: Any) -> None:
        found.append("built")
        build(self, args)

    monkeypatch.setattr(Region, "_build", counted)
    return found


def ours(f: Function, dynamic: bool | None = None, **options: Any) -> Any:
    """f compiled for the NumPy reference, which is the quickest to build for."""
    options = {"device": "reference", "fallback": False, **options}
    return torch.compile(f, backend=backend, options=options, dynamic=dynamic)


def mlp() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)
    ).eval()


def close(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


# ---- the way in --------------------------------------------------------------------------------


def test_the_entry_point_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = tomllib.loads(PYPROJECT.read_text())["project"]["entry-points"]
    group = points["torch_dynamo_backends"]
    info = tmp_path / "lambent_stand_in-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lambent-stand-in\nVersion: 0\n")
    rows = [f"{name} = {where}\n" for name, where in group.items()]
    (info / "entry_points.txt").write_text("[torch_dynamo_backends]\n" + "".join(rows))
    monkeypatch.syspath_prepend(str(tmp_path))
    registry._discover_entrypoint_backends.cache_clear()
    registry._discover_entrypoint_backends()
    assert "lambent" in torch._dynamo.list_backends()
    x = torch.randn(3, 4)
    with torch.no_grad():
        close(torch.compile(torch.sin, backend="lambent", options={"budget": 0.5})(x), x.sin())


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(Exception, match=r"bugdet.*budget"):
        torch.compile(torch.sin, backend=backend, options={"bugdet": 3})(torch.ones(3))


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16", "int64", "bool"])
def test_dtypes_of_inputs_and_outputs(dtype: str) -> None:
    x = torch.randn(3, 5).mul(4).to(getattr(torch, dtype))

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x * 2, x.float().tanh(), x > 1, x[:, 1:].t()

    with torch.no_grad():
        torch.testing.assert_close(ours(f)(x), f(x), rtol=1e-2, atol=1e-2)


def test_the_layout_of_results_is_pytorchs() -> None:
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x + 1, x.permute(2, 0, 3, 1) * 2, (x.sum(1) + 1).t_() if x.dim() < 3 else x.exp()

    with torch.no_grad():
        for a, b in zip(ours(f)(x), f(x), strict=True):
            close(a, b)
            assert a.stride() == b.stride()


def test_results_need_no_copy_and_weights_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    from lambent.frontends.torch import region

    made: list[Any] = []
    given: list[Any] = []
    to_torch, to_array = region.to_torch, region.to_array
    monkeypatch.setattr(region, "to_torch", lambda a: made.append(a) or to_torch(a))
    monkeypatch.setattr(
        region, "to_array", lambda t: given.append((t, to_array(t))) or given[-1][1]
    )
    model = mlp()
    with torch.no_grad():
        y = ours(model)(torch.randn(3, 8))
    assert y.data_ptr() == made[0].ctypes.data
    assert len(given) == 7 and all(t.data_ptr() == a.ctypes.data for t, a in given)


# ---- fallback ----------------------------------------------------------------------------------


def sorts(x: torch.Tensor) -> torch.Tensor:
    y = (x * 2 + 1).flatten()
    return y.sort().values.cumsum(0) * 3


def test_pytorch_runs_what_we_cannot_and_a_warning_names_it() -> None:
    x = torch.randn(20, 100)
    with torch.no_grad(), pytest.warns(FallbackWarning, match=r"sort.*2000 elements") as told:
        close(ours(sorts, fallback=True)(x), sorts(x))
    assert len(told) == 1 and "cumsum" in str(told[0].message)


def test_without_fallback_it_is_an_error_that_says_the_way_out() -> None:
    with torch.no_grad(), pytest.raises(Exception, match=r"sort.*'fallback': True"):
        ours(sorts)(torch.randn(20, 100))


BAD: dict[str, tuple[Function, str]] = {
    "complex": (lambda x: torch.fft.fft(x).abs() + x.exp(), "complex"),
    "random": (lambda x: torch.bernoulli(x.sigmoid()) * 0 + x, "random"),
    "not on the CPU": (lambda x: torch.ones(3, device="meta").add(1).sum() * 0 + 1, "meta"),
}


@pytest.mark.parametrize("kind", BAD)
def test_foreign_values_stay_with_pytorch(kind: str) -> None:
    f, word = BAD[kind]
    x = torch.randn(6, 6)
    with torch.no_grad(), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        got, want = ours(f, fallback=True)(x), f(x)
    if want.device.type == "cpu":
        close(got, want)
    assert any(w.category is FallbackWarning and word in str(w.message) for w in told), told


APART: dict[str, Function] = {
    "a size that depends on data": lambda x: x[x > 0].sum() + x.exp().sum(),
    "a sparse tensor": lambda x: torch.sparse.mm(x.relu().to_sparse(), x.t()) + 1,
}


@pytest.mark.parametrize("kind", APART)
def test_what_dynamo_does_not_capture_is_pytorchs(kind: str) -> None:
    x = torch.randn(6, 6)
    with torch.no_grad():
        close(ours(APART[kind], fallback=True)(x), APART[kind](x))


# ---- mutation and aliasing ---------------------------------------------------------------------


class Cache(torch.nn.Module):
    """Writes to a buffer at every call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(4, 3))
        self.weight = torch.nn.Parameter(torch.randn(3))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        self.seen[at] = x * self.weight
        return self.seen.sum(0) * self.weight


def test_a_buffer_that_is_written_to(builds: list[str]) -> None:
    mine, theirs = Cache().eval(), Cache().eval()
    theirs.load_state_dict(mine.state_dict())
    with torch.no_grad():
        compiled = ours(mine)
        for i in range(4):
            x, at = torch.randn(3), torch.tensor([i])
            close(compiled(x, at), theirs(x, at))
            close(mine.seen, theirs.seen)
    assert len(builds) == 1


def test_an_input_that_is_written_to() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2).add_(y)
        y[1:3].zero_()
        return x.sum() + y.exp()

    mine = [torch.randn(5), torch.randn(5)]
    theirs = [t.clone() for t in mine]
    with torch.no_grad():
        close(ours(f)(*mine), f(*theirs))
    close(mine, theirs)


def test_views_of_one_tensor_that_is_written_to() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return y * 2

    mine, theirs = torch.randn(6), torch.zeros(6)
    theirs.copy_(mine)
    with torch.no_grad():
        close(ours(f)(mine[:4], mine[2:]), f(theirs[:4], theirs[2:]))
    close(mine, theirs)


def test_results_alias_what_pytorchs_alias() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return x, x.t(), x[1:], y, y.view(-1), y[0]

    x = torch.randn(3, 4)
    with torch.no_grad():
        found, wanted = ours(f)(x), f(x)
    close(found, wanted)
    pointers = [[a.untyped_storage().data_ptr() for a in out] for out in (found, wanted)]
    same = [[a == b for a in p for b in p] for p in pointers]
    assert same[0] == same[1] and pointers[0][:3] == pointers[1][:3]


# ---- sizes and weights -------------------------------------------------------------------------


def test_twenty_sizes_are_one_program(builds: list[str]) -> None:
    model = mlp()
    compiled = ours(model, dynamic=True)
    with torch.no_grad():
        for n in range(3, 23):
            x = torch.randn(n, 8)
            close(compiled(x), model(x))
    assert len(builds) == 1
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_a_size_alone_is_an_input() -> None:
    def f(x: torch.Tensor, n: int) -> torch.Tensor:
        return x.sum() + torch.arange(n) * 2

    with torch.no_grad():
        compiled = ours(f, dynamic=True)
        for n in (5, 9):
            close(compiled(torch.ones(3), n), f(torch.ones(3), n))


def test_new_weights_are_seen(builds: list[str]) -> None:
    model, x = mlp(), torch.randn(3, 8)
    compiled = ours(model)
    with torch.no_grad():
        for _ in range(4):
            close(compiled(x), model(x))
            close(compiled(x), model(x))
            model.load_state_dict(mlp().state_dict())
    assert len(builds) == 3  # with the third they are inputs


def test_an_input_that_is_a_part_of_a_weight_is_not_taken_for_it() -> None:
    model = mlp()
    weight = model[0].weight.detach()
    compiled = ours(model, dynamic=True)
    with torch.no_grad():
        for x in (weight[:3], weight[:5], weight[2:4]):
            close(compiled(x), model(x))


def test_the_compiled_program_on_the_cpu() -> None:
    model = mlp()
    compiled = torch.compile(
        model, backend=backend, options={"budget": 2, "fallback": False}, dynamic=True
    )
    with torch.no_grad():
        for n in (3, 7):
            x = torch.randn(n, 8)
            close(compiled(x), model(x))
