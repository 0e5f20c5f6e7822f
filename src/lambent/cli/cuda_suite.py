"""`lambent bench --suite cuda`: naive graphs in bfloat16 against the best that PyTorch offers.

Everything is timed on the device by events, with a second-level cache that holds no operand, and
compared with the same work in float32. PyTorch makes the arrays and the streams here.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Sequence
from json import dumps
from pathlib import Path
from typing import Any

from lambent.cli.cuda_works import SUITE, Work
from lambent.cli.output import console, number, print_json, say, table

REPEATS = 30


def bench_suite(
    names: Sequence[str], against: Sequence[str], budget: float, json: bool, save: Path | None
) -> list[dict[str, Any]]:
    """Search, check and time each row one of the given patterns finds (all by default)."""
    found = []
    for make in SUITE:
        work = make()
        if not names or any(re.search(part, work.name) for part in names):
            try:
                found.append(bench_one(work, "torch.compile" in against, budget))
            except (RuntimeError, ValueError, NotImplementedError) as error:  # the next may do
                say(f"{work.name}: failed: {' '.join(str(error).split())[:600]}")
                continue
            say(f"{work.name}: {found[-1]['rates']} {work.unit}, errors {found[-1]['errors']}")
            if save is not None:  # after every row: the next one may fail
                save.write_text(dumps(found, indent=1))
    if json:
        print_json(found)
    else:
        _show(found)
    return found


def bench_one(work: Work, compiled: bool, budget: float) -> dict[str, Any]:
    """One row of the JSON form; rates are in the work's unit."""
    import torch

    import lambent as lt
    from lambent.cli.progress import compile_graph

    inputs = {n: lt.input(n, shape, "bfloat16") for n, shape in work.shapes.items()}
    program = compile_graph(work.graph(inputs), work.name, "cuda", budget)
    torch.manual_seed(1)
    arrays = {
        name: torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        for name, shape in work.shapes.items()
    }
    want = work.naive({n: a.float() for n, a in arrays.items()})
    result = torch.full(want.shape, math.nan, device="cuda", dtype=torch.bfloat16)
    given = [arrays[slot.name] for slot in program.manifest.inputs]
    addresses, shapes = [a.data_ptr() for a in given], [tuple(a.shape) for a in given]

    def ours() -> Any:
        stream = torch.cuda.current_stream().cuda_stream
        program.enqueue(addresses, shapes, [result.data_ptr()], stream)
        return result

    def peer(f: Callable[[dict[str, Any]], Any]) -> Callable[[], Any]:
        return lambda: f(arrays)

    runs = {"lambent": ours} | {n: peer(f) for n, f in work.peers.items()}
    if compiled:
        runs["torch.compile"] = peer(torch.compile(work.naive))
    row: dict[str, Any] = {"work": work.name, "unit": work.unit, "rates": {}, "errors": {}}
    for name, run in runs.items():
        try:
            if name != "copy":
                off = (run().float() - want).norm() / want.norm()
                row["errors"][name] = float(off)
            row["rates"][name] = work.amount / _seconds(run) / 1e12
        except (RuntimeError, ValueError) as error:  # a peer that cannot do it here
            say(f"{work.name}: {name}: {' '.join(str(error).split())[:300]}")
            row["rates"][name] = None
    told = program.explain()
    row |= {k: told[k] for k in ("kernels", "measured", "rejected", "rejected_because", "seconds")}
    return row


def _seconds(run: Callable[[], Any]) -> float:
    """The median device time of a run."""
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
    return float(statistics.median(start.elapsed_time(end) for start, end in pairs)) / 1e3


def _show(found: Sequence[dict[str, Any]]) -> None:
    peers = list(dict.fromkeys(name for row in found for name in row["rates"]))
    out = table("median rates by device time", "work", "unit", *peers, "our error", "kernels")
    for row in found:
        rates = [number(row["rates"].get(p)) for p in peers]
        error = row["errors"].get("lambent", math.nan)
        out.add_row(row["work"], row["unit"], *rates, f"{error:.1e}", str(len(row["kernels"])))
    console().print(out)
