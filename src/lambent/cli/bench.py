"""`lambent bench`: ours and the peers in alternation in one process, checked against float64."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import typer

from lambent.cli.errors import choose
from lambent.cli.examples import Array, Example, example
from lambent.cli.output import console, number, print_json, say, size, table
from lambent.cli.peers import PEERS, Peer, make_peers, to_numpy
from lambent.cli.progress import compile_graph
from lambent.cli.timing import alternate

SECONDS = 4.0
"""How long ours and the peers of one example are timed."""

TOLERANCE = 1e-4
"""Largest error allowed, relative to the largest magnitude of the result."""


def bench_examples(
    names: Sequence[str],
    against: Sequence[str],
    threads: int,
    budget: float,
    device: str,
    json: bool,
) -> None:
    """Print a row for each example.

    Raises:
        typer.Exit: with code 1 when a result is wrong.
    """
    from lambent.backends import base
    from lambent.backends.cpu.features import threads as all_threads

    wanted = [name.strip() for name in against if name.strip()]
    for name in wanted:
        choose("peer", name, PEERS)
    examples = [example(name) for name in names]
    count = threads or all_threads()
    if threads and "numpy" in wanted and os.environ.get("OPENBLAS_NUM_THREADS") != str(threads):
        say(f"numpy: uses every core unless started with OPENBLAS_NUM_THREADS={threads}")
    choose("device", device, base.BACKENDS)
    rows = []
    for work in examples:
        program = compile_graph(work.graph(), work.name, device, budget)
        peers = make_peers(work, wanted, count, say)
        rows.append(bench_one(work, program, peers, count, device))
    if json:
        print_json(rows)
    else:
        _show(rows)
    wrong = [row["work"] for row in rows if not row["error"] <= TOLERANCE]
    if wrong:
        say(f"lambent: wrong result: {', '.join(wrong)} (error above {TOLERANCE:g})")
        raise typer.Exit(1)


def bench_one(
    work: Example, program: Any, peers: dict[str, Peer], threads: int, device: str
) -> dict[str, Any]:
    """One row of the JSON form."""

    def ours() -> Any:
        return program(**work.inputs)

    reference = in_float64(work)
    for name, peer in tuple(peers.items()):
        wrong = error(to_numpy(peer.run()), reference)
        if not wrong <= TOLERANCE:
            say(f"{work.name}: {name} left out, its result is wrong by {wrong:.1e}")
            del peers[name]
    found = error(np.asarray(ours()), reference)
    runs: dict[str, Callable[[], Any]] = {"": ours} | {n: p.run for n, p in peers.items()}
    times = {name: seconds * 1e3 for name, seconds in alternate(runs, SECONDS).items()}
    mine = times.pop("")
    return {
        "work": work.name,
        "shape": list(work.shape),
        "dtype": work.dtype,
        "device": device,
        "threads": threads,
        "ours_ms": mine,
        "peers": times,
        "ratio_best": min(times.values()) / mine if times else None,
        "error": found,
        "ours_peak_bytes": program.peak_bytes(),
        "peers_peak_bytes": {n: p.peak() for n, p in peers.items()},
    }


def in_float64(work: Example) -> Array:
    """The example's meaning in float64."""
    data = {
        n: a.astype(np.float64) if a.dtype.kind == "f" else a
        for n, a in (work.inputs | work.weights).items()
    }
    result: Array = work.numpy(data)
    return result


def error(found: Array, reference: Array) -> float:
    """The largest difference, relative to the largest magnitude of the reference."""
    if found.shape != reference.shape:
        return float("inf")
    difference = float(np.max(np.abs(found.astype(np.float64) - reference)))
    return difference / float(np.max(np.abs(reference)))


def _show(rows: Sequence[dict[str, Any]]) -> None:
    peers = list(dict.fromkeys(name for row in rows for name in row["peers"]))
    out = table(
        f"median ms, {rows[0]['device']}, {rows[0]['threads']} threads", "work", "shape", "lambent",
        *peers, "best peer / lambent", "error", "our peak bytes", "best peer's",
    )  # fmt: skip
    for row in rows:
        best = min(row["peers"], key=row["peers"].get, default=None)
        out.add_row(
            row["work"], "×".join(map(str, row["shape"])), number(row["ours_ms"]),
            *(number(row["peers"].get(p)) for p in peers), number(row["ratio_best"]),
            f"{row['error']:.1e}", size(row["ours_peak_bytes"]),
            size(row["peers_peak_bytes"].get(best)),
        )  # fmt: skip
    console().print(out)
