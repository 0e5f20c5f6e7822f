"""Real ONNX models from packages, for the tests; and their times against ONNX Runtime.

    pip install --no-deps silero-vad magika rapidocr-onnxruntime basic-pitch
    python tests/frontends/onnx/real_models.py [silero magika …] [--budget 60]

runs `lambent run FILE.onnx --against onnxruntime` for each and prints a row: milliseconds, ONNX
Runtime's time over ours, the largest error, seconds to the first result. It fails where a result
differs by more than 1e-3.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OCR = "rapidocr_onnxruntime"
STATE = (2, 1, 128)


@dataclass(frozen=True)
class Real:
    """A model's file in its package, and what `from_onnx` is told.

    bench: the sizes at which it is timed, where they are not those of the test.
    """

    package: str
    file: str
    shapes: Mapping[str, Sequence[int]]
    values: Mapping[str, Any] = field(default_factory=dict)
    scale: float = 0.5
    bench: Mapping[str, Sequence[int]] = field(default_factory=dict)
    most: Mapping[str, int] = field(default_factory=dict)

    def path(self) -> Path:
        """Where the file lies.

        Raises:
            ImportError: the package is not installed.
        """
        spec = importlib.util.find_spec(self.package)
        if spec is None or not spec.submodule_search_locations:
            raise ImportError(f"{self.package} is not installed (pip install --no-deps)")
        return Path(spec.submodule_search_locations[0]) / self.file

    def arguments(self) -> list[str]:
        """Those of `lambent run`."""
        found = [str(self.path()), "--against", "onnxruntime"]
        for name, shape in (self.bench or self.shapes).items():
            found += ["--shape", f"{name}={','.join(map(str, shape))}"]
        for name, value in self.values.items():
            found += ["--value", f"{name}={value}"]
        for name, high in self.most.items():
            found += ["--input", f"{name}=0..{high}"]
        return found


TIMED = {
    "silero": Real(
        "silero_vad", "data/silero_vad_16k_op15.onnx", {"input": (1, 576), "state": STATE},
        {"sr": 16000}, 0.1,
    ),
    "magika": Real(
        "magika", "models/standard_v3_3/model.onnx", {"bytes": (1, 2048)}, most={"bytes": 256}
    ),
    "detection": Real(
        OCR, "models/ch_PP-OCRv4_det_infer.onnx", {"x": (1, 3, 64, 96)},
        bench={"x": (1, 3, 320, 320)},
    ),
    "recognition": Real(
        OCR, "models/ch_PP-OCRv4_rec_infer.onnx", {"x": (1, 3, 48, 64)},
        bench={"x": (1, 3, 48, 320)},
    ),
    "classification": Real(
        OCR, "models/ch_ppocr_mobile_v2.0_cls_infer.onnx", {"x": (1, 3, 48, 96)},
        bench={"x": (1, 3, 48, 192)},
    ),
    "basic-pitch": Real(
        "basic_pitch", "saved_models/icassp_2022/nmp.onnx",
        {"serving_default_input_2:0": (1, 43844, 1)},
    ),
}  # fmt: skip
MODELS = {
    **TIMED,
    "silero, with branches": Real(
        "silero_vad", "data/silero_vad.onnx", {"input": (1, 288), "state": STATE}, {"sr": 8000}, 0.1
    ),
    "silero, a sequence": Real(
        "silero_vad", "data/silero_vad_16k_sequence.onnx",
        {"input": (3, 576), "h": (1, 1, 128), "c": (1, 1, 128)}, {}, 0.1,
    ),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", help=", ".join(TIMED))
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of search for each")
    given = parser.parse_args()
    failed = False
    for name in given.models or TIMED:
        command = [sys.executable, "-m", "lambent", "run", *TIMED[name].arguments()]
        command += ["--budget", str(given.budget), "--json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        failed |= done.returncode != 0
        if done.stdout:
            told = json.loads(done.stdout)
            print(
                f"{name:16} {told['ours_ms']:8.3f} ms; ONNX Runtime takes {told['ratio_best']:.2f} "
                f"times as long; error {told['error']:.1e}; "
                f"first result {told['seconds_to_first']:.1f} s",
                flush=True,
            )
    sys.exit(failed)


if __name__ == "__main__":
    main()
