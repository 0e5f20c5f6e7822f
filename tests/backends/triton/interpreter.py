"""Runs rendered kernels by Triton's interpreter, in a process that compiles nothing.

`python interpreter.py` reads a pickle of jobs from standard input and writes one of results: for
each job its arrays after the run, or the text of an error.
"""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np


def load(source: str, folder: Path, number: int) -> Any:
    """The function `kernel` of a source text."""
    import importlib.util

    path = folder / f"job_{os.getpid()}_{number}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.kernel


def as_torch(array: np.ndarray[Any, Any], dtype: str) -> Any:
    import torch

    if dtype == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    if dtype.startswith("float8"):
        return torch.from_numpy(array.view(np.uint8)).view(getattr(torch, dtype))
    return torch.from_numpy(array.view(np.uint8) if dtype == "bool" else array)


def exact_dots() -> None:
    """The interpreter holds bfloat16 as its bits, and multiplies those: give it numbers."""
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder
    tl = interpreter.tl
    plain = builder.create_dot

    def create_dot(self: Any, a: Any, b: Any, d: Any, *more: Any) -> Any:
        if a.dtype == tl.bfloat16:
            a, b = (self.create_fp_ext(x, tl.float32) for x in (a, b))
        return plain(self, a, b, d, *more)

    builder.create_dot = create_dot


def main() -> None:
    import tempfile

    jobs = pickle.load(sys.stdin.buffer)
    exact_dots()
    results: list[Any] = []
    with tempfile.TemporaryDirectory() as folder:
        for number, (source, arrays, dtypes, sizes, tasks) in enumerate(jobs):
            given = [as_torch(a, d) for a, d in zip(arrays, dtypes, strict=True)]
            try:
                with np.errstate(all="ignore"):
                    load(source, Path(folder), number)[(tasks,)](*given, *sizes)
                results.append(arrays)
            except Exception as error:
                results.append(f"{type(error).__name__}: {error}")
    sys.stdout.buffer.write(pickle.dumps(results))


if __name__ == "__main__":
    main()
