"""A stand-in for compiling, so that the command line is tested without a search."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lambent import compiler
from lambent.cli import bench, examples
from lambent.cli.app import start

EXPLAIN: dict[str, Any] = {
    "device": "cpu",
    "e_classes": 60,
    "e_nodes": 201,
    "rounds": 9,
    "saturated": True,
    "rules": {"online": 2, "commute": 40, "unused": 0},
    "programs": 10**31,
    "candidates": 31,
    "measured": 12,
    "gap": 0.04,
    "noise": 0.01,
    "additivity_error": 0.07,
    "stored": [{"name": "t0", "shape": [8, 64], "dtype": "float32", "bytes": 2048}],
    "kernels": [
        {"name": "k0", "count": 1, "ms": 2.0, "bound_ms": 1.5, "tile_program": "for", "source": "C"}
    ],
    "arena_bytes": 2048,
    "seconds": dict.fromkeys(
        ["saturate", "enumerate", "cover", "lower", "compile", "verify", "measure", "rest"], 0.5
    ),
}


class StandIn:
    """A Program that runs an example's NumPy form."""

    def __init__(self, work: examples.Example, off: float = 0.0) -> None:
        self.work, self.off = work, off

    def __call__(self, **arrays: Any) -> Any:
        return self.work.numpy(self.work.weights | arrays) + np.float32(self.off)

    told = EXPLAIN

    def explain(self) -> dict[str, Any]:
        return self.told

    def peak_bytes(self) -> int:
        return 4096

    def save(self, path: Path) -> None:
        path.write_text(self.work.name)


Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def stand_in() -> type[StandIn]:
    """The class of programs that the stand-in for `compile` returns."""
    return StandIn


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: Any, tmp_path: Path) -> Call:
    """Runs the command line in this process: exit code, standard output, standard error."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = start(arguments)
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def small(monkeypatch: Any) -> dict[str, examples.Example]:
    """Small forms of the examples under their own names, and a `compile` that does not search."""
    made = {
        e.name: e
        for e in (
            examples.attention(2, 32, 16),
            examples.attention(2, 32, 16, causal=True),
            examples.attention_backward(2, 32, 16),
            examples.layernorm(8, 32),
            examples.matmul(32),
            examples.mlp(8, 16, 32),
            examples.softmax(8, 32),
            examples.conv(4, 8, 4),
            examples.gelu(8, 32),
        )
    }
    monkeypatch.setattr(examples, "EXAMPLES", {n: lambda e=e: e for n, e in made.items()})
    monkeypatch.setattr(bench, "SECONDS", 0.0)
    monkeypatch.setattr(bench, "second_start", lambda *how: 0.1)  # no graph is there to keep
    monkeypatch.setenv("LAMBENT_THREADS", "1")
    monkeypatch.setattr(examples.Example, "graph", lambda self: self)

    def compile(graph: Any, *, device: str, budget: float, progress: Any, **more: Any) -> StandIn:
        progress(
            SimpleNamespace(
                segments=1, candidates=3, measured=2, best=2e-3, bound=None, seconds=0.5
            )
        )
        return StandIn(graph)

    monkeypatch.setattr(compiler, "compile", compile)
    return made
