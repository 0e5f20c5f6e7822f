"""Seconds from `torch.compile` to the first result, each in a new process: cold, and then again.

    python tests/frontends/pytorch/starts.py minilm efficientnet --dynamic --precompile

`--precompile` sets PyTorch's switch TORCH_CACHING_PRECOMPILE; `--backend inductor` or `eager` shows
PyTorch's own. What was kept before counts: for a cold start give an empty XDG_CACHE_HOME.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--dynamic", action="store_true", help="with open sizes")
    parser.add_argument("--precompile", action="store_true", help="Dynamo's results are kept too")
    parser.add_argument("--backend", default="lambent")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of search")
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--here", action="store_true", help="in this process")
    given = parser.parse_args()
    if given.here:
        (name,) = given.models
        print(_start(name, given.backend, given.budget, given.dynamic))
        return
    for name in given.models:
        with tempfile.TemporaryDirectory() as folder:
            more = {"TORCHINDUCTOR_CACHE_DIR": folder}
            if given.precompile:
                more["TORCH_CACHING_PRECOMPILE"] = "1"
            command = [sys.executable, "-W", "ignore", __file__, name, "--here"]
            command += ["--backend", given.backend, "--budget", str(given.budget)]
            for _ in range(given.starts):
                subprocess.run(
                    command + ["--dynamic"] * given.dynamic, check=True, env=os.environ | more
                )


def _start(name: str, way: str, budget: float, dynamic: bool) -> str:
    begun = time.perf_counter()
    import torch

    imported = time.perf_counter() - begun
    torch.set_num_threads(2)
    import whole_models

    model, arguments = whole_models.make(name)
    if dynamic:
        arguments_at, sizes = whole_models.SIZED[name]
        arguments = arguments_at(sizes[0])
    with torch.no_grad():
        want = model(**arguments)
        known = "torch._dynamo" in sys.modules
        begun = time.perf_counter()
        if way == "lambent":  # as torch.compile(backend="lambent") does where it is installed
            from lambent.frontends.torch import backend

            options = {"budget": budget, "fallback": False}
            compiled = torch.compile(model, backend=backend, options=options, dynamic=dynamic)
        else:
            compiled = torch.compile(model, backend=way, dynamic=dynamic)
        got = compiled(**arguments)
        seconds = time.perf_counter() - begun
    error = float((got - want).abs().max() / want.abs().max())
    assert error < 1e-4, error
    return (
        f"{name}, {way}, dynamic={dynamic}: first result after {seconds:.1f} s, "
        f"{'without' if known else 'with'} the import of torch._dynamo; before that import torch "
        f"{imported:.1f} s; error {error:.1e}"
    )


if __name__ == "__main__":
    main()
