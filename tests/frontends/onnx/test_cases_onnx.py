"""The known faults of `tests/test_cases.py` by ONNX's door: what the importer may get wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from models import INT, F, info, model, node, ours, theirs

import lambent as lt
from lambent.algebra.segments import abstract
from lambent.frontends import kept
from lambent.graph.node import topo

R = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return R.standard_normal(shape).astype(np.float32)


def test_case_1_layer_norm_written_with_the_sum_of_squares() -> None:
    m = model(
        [
            node("Mul", "x,x", "xx"), node("ReduceMean", "xx,axis", "q"),
            node("ReduceMean", "x,axis", "mean"), node("Mul", "mean,mean", "mm"),
            node("Sub", "q,mm", "v"), node("Add", "v,eps", "ve"), node("Sqrt", "ve", "s"),
            node("Sub", "x,mean", "c"), node("Div", "c,s", "o"),
        ],
        [info("x", [1, 4, 64])], [info("o", [1, 4, 64])],
        {"axis": np.array([-1]), "eps": np.float32(1e-5)},
    )  # fmt: skip
    x = normal(1, 4, 64)
    wide = x.astype(np.float64)
    want = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    program = lt.compile(lt.from_onnx(m), budget=0.5, progress=False)
    np.testing.assert_allclose(program(x=x)["o"], want, rtol=1e-4, atol=1e-4)


def test_case_2_a_product_keeps_its_batches() -> None:
    m = model(
        [node("MatMul", "a,b", "o")], [info("a", [2, 3, 4]), info("b", [2, 4, 5])],
        [info("o", [2, 3, 5])],
    )  # fmt: skip
    a, b = normal(2, 3, 4), normal(2, 4, 5)
    np.testing.assert_allclose(ours(m, {"a": a, "b": b})[0], a @ b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("op", "shape", "index", "axis"),
    [
        ("GatherElements", (5, 7), (5, 3), 1), ("GatherElements", (5, 7), (3, 7), 0),
        ("Gather", (11, 6), (2, 3), 0),
    ],
)  # fmt: skip
def test_case_3_gathers_by_axis_and_by_row(
    op: str, shape: tuple[int, ...], index: tuple[int, ...], axis: int
) -> None:
    m = model(
        [node(op, "x,i", "o", axis=axis)], [info("x", shape), info("i", index, INT)],
        [info("o", None)],
    )  # fmt: skip
    arrays = {"x": normal(*shape), "i": R.integers(0, shape[axis], index)}
    np.testing.assert_array_equal(ours(m, arrays)[0], theirs(m, arrays)[0])


def test_case_4_a_narrow_product_does_not_drift() -> None:
    narrow = onnx.TensorProto.BFLOAT16
    m = model(
        [node("Cast", "a", "p", to=narrow), node("Cast", "b", "q", to=narrow),
         node("MatMul", "p,q", "n"), node("Cast", "n", "o", to=F)],
        [info("a", [4, 8192]), info("b", [8192, 4])], [info("o", [4, 4])],
    )  # fmt: skip
    a, b = normal(4, 8192), normal(8192, 4)
    program = lt.compile(lt.from_onnx(m), budget=0.5, progress=False)
    want = a.astype(np.float64) @ b
    assert np.linalg.norm(program(a=a, b=b)["o"] - want) < 1e-2 * np.linalg.norm(want)


@pytest.mark.parametrize(("op", "more"), [("Div", {}), ("Mod", {"fmod": 0}), ("Mod", {"fmod": 1})])
def test_case_5_division_and_remainder_for_all_signs(op: str, more: dict[str, Any]) -> None:
    a, b = (x.reshape(-1) for x in np.meshgrid(np.arange(-12, 13), [*range(-5, 0), *range(1, 6)]))
    m = model(
        [node(op, "a,b", "o", **more)], [info("a", a.shape, INT), info("b", a.shape, INT)],
        [info("o", a.shape, INT)],
    )  # fmt: skip
    np.testing.assert_array_equal(ours(m, {"a": a, "b": b})[0], theirs(m, {"a": a, "b": b})[0])


def test_case_6_equal_runs_give_equal_graphs(tmp_path: Path) -> None:
    """In another process with another order of sets; an equal graph's search is equal (case 6)."""
    m = model(
        [node("MatMul", "x,w", "y"), node("Relu", "y", "z"), node("MatMul", "z,v", "u"),
         node("Softmax", "u", "o"), node("Add", "u,z", "p")],
        [info("x", ["case_6_n", 8])], [info("o", None), info("p", None)],
        {"w": normal(8, 8), "v": normal(8, 8)},
    )  # fmt: skip
    file = tmp_path / "m.onnx"
    onnx.save(m, file)
    code = (
        "import lambent as lt; from lambent.frontends import kept; "
        f"print(kept.graph_key(lt.from_onnx({str(file)!r}), 'cpu', 1.0, 0))"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "1"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    assert done.stdout.strip() == kept.graph_key(lt.from_onnx(m), "cpu", 1.0, 0)


def test_case_7_candidates_are_verified_on_valid_data() -> None:
    m = model(
        [
            node("Log", "x", "l"), node("Sqrt", "x", "s"), node("Div", "l,s", "a"),
            node("Pow", "x,power", "b"), node("Erf", "x", "e"), node("Mod", "e,x", "c", fmod=1),
            node("Cast", "x", "w", to=INT), node("Div", "i,j", "q"), node("Mod", "i,j", "r"),
            node("Add", "q,r", "d"), node("Mul", "w,w", "f"),
        ],
        [info("x", [40, 30]), info("i", [64], INT), info("j", [64], INT)],
        [info(n, None, INT if n in "df" else F) for n in "abcdf"], {"power": np.float32(2.5)},
    )  # fmt: skip
    given = {
        "x": R.uniform(0.1, 3, (40, 30)).astype(np.float32),
        "i": R.integers(-50, 50, 64), "j": R.choice([-3, -1, 2, 5], 64),
    }  # fmt: skip
    program = lt.compile(lt.from_onnx(m), budget=0.1, progress=False)
    for got, want in zip(program(**given).values(), theirs(m, given), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    assert not program.explain()["rejected"]


def test_case_11_a_large_product_is_not_materialised() -> None:
    n = 512
    m = model(
        [node("Unsqueeze", "x,last", "c"), node("Mul", "c,w", "p"),
         node("ReduceSum", "p,middle", "o", keepdims=0)],
        [info("x", [n, n]), info("w", [n, n])], [info("o", [n, n])],
        {"last": np.array([2]), "middle": np.array([1])},
    )  # fmt: skip
    x, w = normal(n, n), normal(n, n)
    program = lt.compile(lt.from_onnx(m), budget=0.5, progress=False)
    np.testing.assert_allclose(program(x=x, w=w)["o"], x @ w, rtol=1e-3, atol=1e-3)
    assert program.peak_bytes() <= 1.5 * 3 * x.nbytes


def test_cases_8_and_9_one_program_at_every_length_and_its_weights_stay() -> None:
    m = model(
        [node("Concat", "cache,x", "k", axis=0), node("MatMul", "k,w", "y"),
         node("Softmax", "y", "o", axis=-1)],
        [info("cache", ["n", 8]), info("x", [1, 8])], [info("o", None), info("k", None)],
        {"w": normal(8, 8)},
    )  # fmt: skip
    program = lt.compile(lt.from_onnx(m, dims={"n": (0, 64)}), budget=1, progress=False)
    cache = np.zeros((0, 8), np.float32)
    for _ in range(64):
        arrays = {"cache": cache, "x": normal(1, 8)}
        found = program(**arrays)
        np.testing.assert_allclose(found["o"], theirs(m, arrays)[0], rtol=1e-5, atol=1e-5)
        cache = found["k"]


def test_case_10_windows_over_an_open_size_stay_small() -> None:
    m = model(
        [node("MaxPool", "x", "o", kernel_shape=[3], strides=[2])], [info("x", [1, 4, "n"])],
        [info("o", None)],
    )  # fmt: skip
    (out,) = lt.from_onnx(m, dims={"n": (3, 4096)}).values()
    assert len(topo([out.node])) < 40
    x = normal(1, 4, 101)
    np.testing.assert_array_equal(lt.evaluate([out], {"x": x})[0], theirs(m, {"x": x})[0])


def test_case_12_the_weight_gradients_product_is_the_graph_that_we_would_write() -> None:
    m = model(
        [node("Gemm", "x,dy", "o", transA=1)], [info("x", [512, 1024]), info("dy", [512, 1024])],
        [info("o", [1024, 1024])],
    )  # fmt: skip
    x, dy = lt.input("x", (512, 1024)), lt.input("dy", (512, 1024))
    written = lt.from_onnx(m)["o"]
    assert abstract([written.node])[1].key == abstract([(x.mT @ dy).node])[1].key
