"""The suite: its work means what PyTorch says, and its rows can be chosen, saved and compared."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lambent as lt
from lambent.backends.reference.graph import evaluate
from lambent.cli import bench, cuda_layers, cuda_suite, cuda_training, cuda_works, suite
from lambent.cli.examples import Example
from lambent.cli.peers import make_peers, to_numpy
from lambent.frontends import kept

SMALL: dict[str, tuple[Callable[[], Example], float]] = {
    "matmul": (lambda: suite.product(10, 11, 7), 1e-6),
    "matmul-t": (lambda: suite.product(10, 11, 7, transposed=True), 1e-6),
    "attention-window": (lambda: suite.windowed(2, 40, 8, 7), 1e-6),
    "attention-bias": (lambda: suite.biased(2, 12, 8), 1e-6),
    "rmsnorm": (lambda: suite.rmsnorm(5, 16), 1e-6),
    "nll": (lambda: suite.nll(6, 17), 1e-6),
    "matvec-float32": (lambda: suite.vector(19, 23, "float32"), 1e-6),
    "matvec-bfloat16": (lambda: suite.vector(19, 23, "bfloat16"), 1e-2),
    "matvec-int8": (lambda: suite.vector(19, 23, "int8"), 1e-2),
    "swiglu": (lambda: suite.swiglu(4, 8, 16), 1e-6),
    "layer": (lambda: suite.layer(6, 16, 2), 1e-6),
    "depthwise": (lambda: suite.depthwise(4, 6), 1e-6),
    "bottleneck": (lambda: suite.bottleneck(8, 4, 5), 1e-6),
}


@pytest.mark.parametrize("name", SMALL)
def test_the_work_means_what_pytorch_says(name: str) -> None:
    make, tolerance = SMALL[name]
    work = make()
    assert work.name == name
    reference = bench.in_float64(work)
    [found] = lt.evaluate([work.graph()], work.inputs, float64=True)
    assert bench.error(found, reference) < tolerance
    for peer in make_peers(work, ["torch", "onnxruntime"], 1, lambda _: None).values():
        assert bench.error(to_numpy(peer.run()), reference) < max(1e-5, tolerance)


def test_a_step_of_adamw_is_pytorchs() -> None:
    work = suite.adamw(3, (4, 5))
    want = bench.in_float64(work)
    found = lt.evaluate(work.graph(), work.inputs)
    assert bench.error(np.stack(found), want) < 1e-6
    for peer in make_peers(work, ["torch"], 1, lambda _: None).values():
        assert bench.error(to_numpy(peer.run()), want) < 1e-6
    outputs = {n: found[k] for n, k in work.donate.items()}
    assert all(a.shape == work.inputs[n].shape for n, a in outputs.items())


def test_rows_are_named_once_and_chosen_by_name() -> None:
    names = [row.name for row in suite.CPU]
    assert len(set(names)) == len(names)
    chosen = [row.name for row in bench.choose_rows(["matvec", "nll"], "cpu")]
    assert chosen == [n for n in names if "matvec" in n or "nll" in n]
    assert len(chosen) == 4


def test_a_suite_is_saved_and_compared(
    call: Any, small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = (suite.Row("the small one", lambda: small["softmax"], 1.5),)
    monkeypatch.setitem(bench.SUITES, "cpu", rows)
    saved = tmp_path / "rows.json"
    command = ("bench", "--suite", "cpu", "--against", "numpy")
    code, out, _ = call(*command, "--json", "--save", str(saved))
    assert code == 0
    [row] = json.loads(out)
    assert [row] == json.loads(saved.read_text())
    assert (row["name"], row["least"], row["right"]) == ("the small one", 1.5, True)
    assert row["search_s"] > 0 and row["gap"] >= 0 and row["start_again_s"] == 0.1
    code, out, _ = call(*command, "--compare", str(saved))
    assert code == 0 and "ratio before" in out
    saved.write_text("[1]")
    code, _, err = call(*command, "--compare", str(saved))
    assert code == 2 and "--save" in err


SIZES = cuda_layers.Sizes(hidden=32, heads=4, groups=2, width=8, inner=48)
TINY = dataclasses.replace(
    cuda_layers.SMOLLM2, layers=2, hidden=32, heads=4, kv_heads=2, head_dim=8, intermediate=48,
    vocabulary=40, scale=8**-0.5,
)  # fmt: skip
LITTLE = cuda_training.Sizes(layers=2, width=16, heads=2, context=9, batch=2, dtype="float32")
GPU_WORK = {
    "matmul": lambda: cuda_works.matmul(5, 7, 6),
    "causal": lambda: cuda_works.attention(2, 8, cuda_works.CAUSAL, n=9, batch=2),
    "grouped": lambda: cuda_works.attention(4, 8, cuda_works.CAUSAL, n=9, batch=2, kv=2),
    "window": lambda: cuda_works.attention(2, 8, cuda_works.sliding(9, 3), n=9, batch=2),
    "soft-cap": lambda: cuda_works.attention(2, 8, cuda_works.capped(2.0), n=9, batch=2),
    "bias": lambda: cuda_works.biased(2, 8, n=9, batch=2),
    "one query": lambda: cuda_works.attention(4, 8, cuda_works.Change(), n=9, kv=2, rows=1),
    "mlp": lambda: cuda_works.mlp(3, 8, 16),
    "8 bits": lambda: cuda_works.narrow_matmul(16),
    "TF32": lambda: cuda_works.tf32_matmul(8),
    "layer": lambda: cuda_layers.layer(6, sizes=SIZES),
    "layer, one token": lambda: cuda_layers.layer(1, held=6, sizes=SIZES),
    "model": lambda: cuda_layers.model(TINY, capacity=7),
    "step": lambda: cuda_training.step(LITTLE),
}  # fmt: skip


@pytest.mark.parametrize("name", GPU_WORK)
def test_work_for_gpus_means_what_pytorch_says(name: str) -> None:
    pytest.importorskip("torch")
    work, random = GPU_WORK[name](), np.random.default_rng(3)
    arrays = {n: random.standard_normal(s, np.float32) for n, s in work.shapes.items()}
    arrays |= work.given()
    given = {n: lt.input(n, a.shape, a.dtype) for n, a in arrays.items()}
    outputs = work.build(given)
    first = next(iter(outputs.values())) if isinstance(outputs, dict) else outputs
    (found,) = evaluate([first], arrays)
    tensors = {n: cuda_suite.to_torch(a.copy()) for n, a in arrays.items()}
    tensors = {n: x.float() if x.is_floating_point() else x for n, x in tensors.items()}
    for run in (work.naive, work.peers.get("PyTorch", work.naive)):
        want = run(tensors).float().numpy()
        np.testing.assert_allclose(found, want, atol=2e-3 * float(abs(want).max()))


def test_a_second_start_takes_the_program_that_was_kept() -> None:
    def graph() -> Any:
        x = lt.input("second_start", (3, 4))
        return {"y": x + 1, "z": x * 2}

    donate = {"second_start": "z"}
    first = bench.compile_graph(graph(), "first", "cpu", 1.0, donate=donate)
    assert bench.second_start(graph, first, "cpu", 1.0, {"donate": donate}) > 0
    assert kept.load_program(kept.graph_key(graph(), "cpu", 1.0, 0, {"donate": donate}))
