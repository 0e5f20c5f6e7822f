"""What the CUDA tests share: programs run by Triton's interpreter, against the reference."""

from __future__ import annotations

import importlib.util
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lambent.backends.base import kernel_symbols
from lambent.backends.triton.render import render
from lambent.graph.dim import evaluate
from lambent.kernel.tile import TileProgram

Array = np.ndarray[Any, Any]
GUARD = 64  # elements after an output, which a kernel must leave alone
HAS_TRITON = importlib.util.find_spec("triton") is not None
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="needs the cuda extra (Triton)")
Run = tuple[TileProgram, Mapping[str, Array], Mapping[str, int]]


def interpret(runs: Sequence[Run]) -> list[dict[str, Array] | str]:
    """The outputs of each run by name, or why there are none. All share one process."""
    jobs = [_job(*run) for run in runs]
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "interpreter.py")],
        input=pickle.dumps(jobs), capture_output=True, check=False,
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    return [_outputs(run, r) for run, r in zip(runs, pickle.loads(done.stdout), strict=True)]


def _job(program: TileProgram, inputs: Mapping[str, Array], symbols: Mapping[str, int]) -> Any:
    kernel, rendered = program.kernel, render(program)
    outputs = []
    for o in kernel.outputs:
        count = int(np.prod([int(evaluate(n, symbols)) for n in o.buffer.shape], dtype=int))
        outputs.append(np.full(count + GUARD, 77, o.buffer.dtype.numpy))
    arrays = [*outputs, *(np.array(inputs[b.name], order="C") for b in kernel.inputs)]
    dtypes = [b.dtype.name for b in (*(o.buffer for o in kernel.outputs), *kernel.inputs)]
    sizes = [int(symbols[s]) for s in kernel_symbols(kernel)]
    return rendered.source, arrays, dtypes, sizes, int(evaluate(rendered.tasks, symbols))


def _outputs(run: Run, result: Any) -> dict[str, Array] | str:
    if isinstance(result, str):
        return result
    program, _, symbols = run
    found = {}
    for o, raw in zip(program.kernel.outputs, result, strict=False):
        name, shape = o.buffer.name, [int(evaluate(n, symbols)) for n in o.buffer.shape]
        guard = raw[len(raw) - GUARD :]
        assert (guard == np.asarray(77, guard.dtype)).all(), f"{name}: written beyond its end"
        found[name] = raw[: len(raw) - GUARD].reshape(shape)
    return found
