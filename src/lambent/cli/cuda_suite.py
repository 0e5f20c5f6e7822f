"""How a row of `lambent bench --suite cuda` is measured: on the device.

Everything is timed by events, with a second-level cache that holds no operand, and compared with
the same work in float32. PyTorch makes the arrays and the streams here.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lambent.cli.cuda_works import Tensors, Work
from lambent.cli.examples import Array
from lambent.cli.output import say

FAIR = 1.5
"""How much further than the peers' results, in the same arithmetic, ours may be from float32."""
ROUNDS = 3
REPEATS = 10
"""Timed runs of each in a round."""
TOKENS = 50
"""Runs of a row in tokens a second: they are timed together, by the clock of the host."""


def measure(
    work: Work, program: Any, against: Sequence[str], peer: str, tolerance: float
) -> dict[str, Any]:
    """What `bench` shows of a row: times in ms, and rates in the work's unit.

    Args:
        peer: whose time is compared with ours.
        tolerance: largest norm of our difference from float32, relative to the result's; where the
            peers' is larger, `FAIR` times theirs.
    """
    import torch

    arrays = _arrays(work)
    theirs = arrays | {n: arrays[n].clone() for n in work.donate()}  # ours move
    want = work.naive({n: a.float() if a.is_floating_point() else a for n, a in arrays.items()})
    ours, result = _ours(program, arrays)
    runs: dict[str, Callable[[], Any]] = {"": ours} | {n: _of(f, theirs) for n, f in _peers(work)}
    if "torch.compile" in against:
        runs.setdefault("torch.compile", _of(torch.compile(work.naive), theirs))
    errors = dict[str, float]()
    for name, run in [*runs.items()]:
        try:
            with torch.no_grad():
                found = run() if name else (run(), result)[1]
                if name != "copy":
                    errors[name] = float((found.float() - want).norm() / want.norm())
        except (RuntimeError, ValueError) as error:  # a peer that cannot do it here
            if not name:
                raise
            del runs[name]
            say(f"{work.name}: {name}: {' '.join(str(error).split())[:300]}")
    times = _alternate(runs, _by_clock if work.unit == "tokens/s" else _seconds)
    rates = {
        n: work.amount / t / (1 if work.unit == "tokens/s" else 1e12) for n, t in times.items()
    }
    say(f"{work.name}: {rates} {work.unit}, errors {errors}")
    told, others = program.explain(), [e for n, e in errors.items() if n]
    mine, at = times.pop(""), times.get(peer)
    return {
        "work": work.name,
        "shape": [],
        "dtype": program.manifest.inputs[0].dtype,
        "ours_ms": 1e3 * mine,
        "peers": {n: 1e3 * t for n, t in times.items()},
        "unit": work.unit,
        "rates": rates,
        "device": "cuda",
        "threads": 1,
        "ratio_best": at and at / mine,
        "error": errors[""],
        "errors": errors,
        "right": errors[""] <= max(tolerance, FAIR * max(others, default=0.0)),
        "ours_peak_bytes": program.peak_bytes(),
    } | {k: told[k] for k in ("kernels", "measured", "rejected", "rejected_because", "seconds")}


def _arrays(work: Work) -> Tensors:
    import torch

    torch.manual_seed(1)
    arrays: Tensors = {}
    for name, shape in work.shapes.items():
        arrays[name] = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        if name in work.weights:
            arrays[name] *= shape[-1] ** -0.5
    arrays |= {n: to_torch(a).cuda() for n, a in work.given().items()}
    with torch.no_grad():
        work.ready(arrays)
    return arrays


def to_torch(a: Array) -> Any:
    """A NumPy array as a tensor, bfloat16 too, which NumPy knows only by an extension."""
    import torch

    if a.dtype.kind != "V":
        return torch.from_numpy(a)
    return torch.from_numpy(a.astype(np.float32)).to(getattr(torch, str(a.dtype)))


def _ours(program: Any, arrays: Tensors) -> tuple[Callable[[], None], Any]:
    """A run of the program, and the array that has its first result after it."""
    import torch

    m = program.manifest
    made = [
        torch.full(tuple(s.shape), math.nan, device="cuda", dtype=getattr(torch, s.dtype))
        for s in m.outputs
    ]
    given = [arrays[slot.name] for slot in m.inputs]
    addresses, shapes = [a.data_ptr() for a in given], [tuple(a.shape) for a in given]
    results = [a.data_ptr() for a in made]

    def run() -> None:
        stream = torch.cuda.current_stream().cuda_stream
        program.enqueue(addresses, shapes, results, stream)

    kind, number = m.results[0]
    return run, (made if kind == "output" else given)[number]


def _peers(work: Work) -> list[tuple[str, Callable[[Tensors], Any]]]:
    """Those of the work; and where it moves bytes, a copy that moves as many."""
    import torch

    if work.unit != "TB/s":
        return [*work.peers.items()]
    buffer = torch.empty(int(work.amount / 2), dtype=torch.int8, device="cuda")
    return [*work.peers.items(), ("copy", lambda t: buffer.clone())]


def _of(f: Callable[[Tensors], Any], arrays: Tensors) -> Callable[[], Any]:
    return lambda: f(arrays)


def _alternate(
    runs: dict[str, Callable[[], Any]], timed: Callable[[Callable[[], Any]], list[float]]
) -> dict[str, float]:
    """Median seconds of each: they take turns, as the device's clock follows its heat."""
    import torch

    found: dict[str, list[float]] = {name: [] for name in runs}
    with torch.no_grad():
        for _ in range(ROUNDS):
            for name, run in runs.items():
                found[name] += timed(run)
    return {name: statistics.median(times) for name, times in found.items()}


def _seconds(run: Callable[[], Any]) -> list[float]:
    """Device times of some runs."""
    import torch

    flush = torch.empty(256 << 20, dtype=torch.int8, device="cuda")
    for _ in range(3):
        run()
    event: Any = torch.cuda.Event
    pairs = [[event(enable_timing=True) for _ in range(2)] for _ in range(REPEATS)]
    for start, end in pairs:
        flush.zero_()
        start.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) / 1e3 for start, end in pairs]


def _by_clock(run: Callable[[], Any]) -> list[float]:
    """Seconds of a run, of many one after the other, until all are done."""
    import torch

    for _ in range(5):
        run()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(TOKENS):
        run()
    torch.cuda.synchronize()
    return [(time.perf_counter() - start) / TOKENS]
