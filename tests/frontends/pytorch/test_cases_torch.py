"""The known faults of `tests/test_cases.py` by PyTorch's door: what it may get wrong itself."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

import lambent as lt
from lambent.frontends import kept
from lambent.frontends.torch import backend, from_torch
from lambent.frontends.torch.region import Region

# PyTorch's own use of what it has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")

Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def compiled(f: Function, device: str = "reference", dynamic: bool | None = None) -> Any:
    options = {"device": device, "budget": 0.5, "fallback": False}
    return torch.compile(f, backend=backend, options=options, dynamic=dynamic)


class Graph(torch.nn.Module):
    """A function as a module, for export."""

    def __init__(self, f: Function) -> None:
        super().__init__()
        self.f = f

    def forward(self, *args: torch.Tensor) -> Any:
        return self.f(*args)


def test_cases_1_to_3_layer_norm_from_sums_batches_and_gathers_on_the_cpu() -> None:
    def f(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, i: torch.Tensor) -> Any:
        mean = x.sum(-1, keepdim=True) / 64
        square = (x * x).sum(-1, keepdim=True) / 64
        norm = (x - mean) * torch.rsqrt(square - mean * mean + 1e-5)
        rows = torch.nn.functional.embedding(i, b[0])
        return norm, a @ b, torch.take_along_dim(b[0], i, 1), torch.gather(b[0], 0, i), rows

    given = (
        torch.randn(1, 4, 64), torch.randn(2, 3, 4), torch.randn(2, 4, 5),
        torch.randint(0, 4, (4, 3)),
    )  # fmt: skip
    with torch.no_grad():
        torch.testing.assert_close(compiled(f, "cpu")(*given), f(*given), rtol=1e-4, atol=1e-5)


def test_case_4_a_narrow_product_does_not_drift() -> None:
    a, b = torch.randn(4, 8192).bfloat16(), torch.randn(8192, 4).bfloat16()
    with torch.no_grad():
        got = compiled(torch.matmul)(a, b)
    want = a.double() @ b.double()
    assert got.dtype == torch.bfloat16
    assert (got.double() - want).abs().max() < 1e-2 * want.abs().max()


def test_case_5_division_and_remainder_are_floored_for_all_signs() -> None:
    def f(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Any:
        q, r = a // b, a % b
        return q, r, (a * b + c) // b, q // c, r % c, torch.div(a, b, rounding_mode="trunc")

    numbers = [n for n in range(-5, 6) if n]
    rows = itertools.product(range(-12, 13), numbers, numbers)
    a, b, c = torch.tensor(list(rows)).T.contiguous()
    with torch.no_grad():
        for x, y in zip(compiled(f)(a, b, c), f(a, b, c), strict=True):
            assert torch.equal(x, y)


def test_case_6_equal_runs_give_equal_graphs() -> None:
    """In another process with another order of sets; an equal graph's search is equal (case 6)."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "1"}
    command = [sys.executable, "-W", "ignore", __file__]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    assert done.stdout.strip() == graph_key()


def graph_key() -> str:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    return kept.graph_key(from_torch(layer, (torch.ones(1, 5, 8),)), "cpu", 1.0, 0)


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The programs that are built."""
    made: list[Any] = []
    build = Region._build

    def noted(self: Region, args: Any) -> None:
        build(self, args)
        made.append(self.run)

    monkeypatch.setattr(Region, "_build", noted)
    return made


def test_case_7_candidates_are_verified_on_valid_data(programs: list[Any]) -> None:
    def f(x: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> Any:
        whole = (x * 10).to(torch.int32) // 3
        return x.log() / x.sqrt(), x**2.5, x.erf() % x, whole, (i * 3 + 1) // j, i % j + i // j

    x = torch.rand(40, 30) * 3 + 0.1
    i, j = torch.randint(-50, 50, (64,)), torch.tensor([-3, -1, 2, 5]).repeat(16)
    with torch.no_grad():
        got = compiled(f, "cpu")(x, i, j)
    torch.testing.assert_close(got, f(x, i, j), rtol=1e-4, atol=1e-4)
    assert not programs[0].explain()["rejected"]


def test_case_11_a_large_product_is_not_materialised(programs: list[Any]) -> None:
    x, w = torch.randn(512, 512), torch.randn(512, 512)
    with torch.no_grad():
        got = compiled(lambda x, w: (x[:, :, None] * w).sum(1), "cpu")(x, w)
    torch.testing.assert_close(got, x @ w, rtol=1e-3, atol=1e-3)
    assert programs[0].peak_bytes() <= 1.5 * 3 * x.nbytes


def test_cases_8_and_9_a_cache_grows_for_64_steps_in_one_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    builds: list[int] = []
    build = Region._build
    monkeypatch.setattr(Region, "_build", lambda self, args: builds.append(1) or build(self, args))
    project = torch.nn.Linear(8, 8).eval()

    def step(x: torch.Tensor, keys: torch.Tensor) -> Any:
        keys = torch.cat([keys, project(x)])
        weights = torch.softmax(x @ keys.T, -1)
        return weights @ keys, keys

    run = compiled(step)
    mine = theirs = torch.randn(3, 8)
    torch._dynamo.mark_dynamic(mine, 0)
    with torch.no_grad():
        for _ in range(64):
            x = torch.randn(1, 8)
            (got, mine), (want, theirs) = run(x, mine), step(x, theirs)
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert len(builds) <= 2  # the first may be for its own size alone


def test_case_10_windows_over_an_open_size_build_quickly() -> None:
    n = torch.export.Dim("n", min=8, max=4096)
    pool = Graph(lambda x: torch.nn.functional.avg_pool1d(x, 3, 2))
    start = time.process_time()
    graph = from_torch(pool, (torch.ones(1, 4, 64),), dynamic_shapes=(({2: n},),))
    assert time.process_time() - start < 20  # nearly all of it PyTorch's
    assert isinstance(graph.shape[2], lt.Dim)


def test_case_12_the_weight_gradients_product_is_the_graph_that_we_would_write() -> None:
    """Node for node: so what the search finds for one it finds for the other."""
    x, dy = torch.ones(1024, 512), torch.ones(1024, 512)
    graph = from_torch(Graph(lambda x, dy: x.T @ dy), (x, dy))
    ours = [lt.input(f"args_{i}", (1024, 512)) for i in range(2)]
    assert graph.node is (ours[0].mT @ ours[1]).node


if __name__ == "__main__":  # as the other process of case 6
    print(graph_key())
