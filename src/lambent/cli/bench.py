"""`lambent bench`: ours and the peers in one process, checked against float64."""

from __future__ import annotations

import json as json_form
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import typer

from lambent.backends.measuring.turns import alternate
from lambent.cli import cuda_suite
from lambent.cli.cuda_rows import CUDA
from lambent.cli.cuda_works import Work
from lambent.cli.errors import UserError, choose
from lambent.cli.examples import Array, Example, example
from lambent.cli.output import console, number, print_json, say, size, table
from lambent.cli.peers import PEERS, Peer, make_peers, to_numpy
from lambent.cli.progress import compile_graph
from lambent.cli.suite import CPU, Row

SUITES: dict[str, tuple[Row, ...]] = {"cpu": CPU, "cuda": CUDA}
SECONDS = 4.0
"""How long ours and the peers of one example are timed."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What all rows of a run share. `budget` is in seconds, `threads` 0 means every core."""

    against: tuple[str, ...]
    threads: int
    budget: float
    device: str


def bench(
    names: Sequence[str], suite: str, settings: Settings, json: bool, save: Path | None,
    compare: Path | None,
) -> None:  # fmt: skip
    """Print a row for each example, or for each row of a suite that one of `names` finds.

    These are regular expressions. A row of the suite cuda may fail; the next one follows.

    Raises:
        UserError: unknown names, nothing to do, a file that no `--save` wrote.
        typer.Exit: with code 1 when a result is wrong, or a row failed.
    """
    from lambent.backends import base
    from lambent.backends.cpu.features import threads as all_threads

    for name in settings.against:
        choose("peer", name, PEERS)
    choose("device", settings.device, base.BACKENDS)
    chosen = choose_rows(names, suite)
    before = _read(compare) if compare else {}
    asked, count = settings.threads, settings.threads or all_threads()
    held = os.environ.get("OPENBLAS_NUM_THREADS") == str(asked)
    if asked and "numpy" in settings.against and not held:
        say(f"numpy: uses every core unless started with OPENBLAS_NUM_THREADS={asked}")
    rows, failed = list[dict[str, Any]](), list[str]()
    for row in chosen:
        try:
            rows.append(bench_row(row, settings, count))
        except (RuntimeError, ValueError, NotImplementedError) as error:
            if suite != "cuda":
                raise
            failed.append(row.name)
            say(f"{row.name}: failed: {' '.join(str(error).split())[:600]}")
            continue
        if save:
            save.write_text(json_form.dumps(rows, indent=1))
    if json:
        print_json(rows)
    elif rows:
        _show(rows, before)
    wrong = [row["name"] for row in rows if not row["right"]]
    if wrong:
        say(f"lambent: wrong result: {', '.join(wrong)}")
    if wrong or failed:
        raise typer.Exit(1)


def choose_rows(names: Sequence[str], suite: str) -> list[Row]:
    """The rows that are meant.

    Raises:
        UserError: there are none.
    """
    if not suite:
        if not names:
            raise UserError("lambent bench: name an example, or a suite with --suite cpu")
        return [Row(name, partial(example, name)) for name in names]
    rows = SUITES[choose("suite", suite, SUITES)]
    found = [row for row in rows if not names or any(re.search(n, row.name) for n in names)]
    if not found:
        raise UserError(f"suite {suite}: no row has {', '.join(names)} in its name")
    return found


def bench_row(row: Row, settings: Settings, threads: int) -> dict[str, Any]:
    """One row of the JSON form, with what compiling it took."""
    work = row.make()
    options = work.options() if isinstance(work, Work) else {"donate": work.donate}
    budget, start = row.share * settings.budget, None

    def search() -> tuple[Any, float]:
        start = time.monotonic()
        done = compile_graph(work.graph(), row.name, settings.device, budget, **options)
        return done, time.monotonic() - start

    program, first = search()
    again = search()[1] if row.again else None
    if row.again:
        start = second_start(work.graph, program, settings.device, budget, options)
    if isinstance(work, Work):
        against = (*settings.against, *row.against)
        found = cuda_suite.measure(work, program, against, row.peer, row.tolerance)
    else:
        peers = make_peers(work, settings.against, threads, say)
        found = bench_one(work, program, peers, threads, settings.device, row.tolerance)
    return found | {
        "name": row.name,
        "least": row.least,
        "gap": program.explain()["gap"],
        "search_s": first,
        "search_again_s": again,
        "start_again_s": start,
    }


def second_start(
    graph: Callable[[], Any], program: Any, device: str, budget: float, options: dict[str, Any]
) -> float:
    """Seconds from a graph to its program where an earlier start has kept it."""
    from lambent.frontends import kept

    kept.save_program(kept.graph_key(graph(), device, budget, 0, options), program)
    start = time.monotonic()
    compile_graph(graph(), "again", device, budget, fresh=False, **options)
    return time.monotonic() - start


def bench_one(
    work: Example, program: Any, peers: dict[str, Peer], threads: int, device: str,
    tolerance: float = 1e-4,
) -> dict[str, Any]:  # fmt: skip
    """One row of the JSON form. Peers that compute something else are left out."""

    def ours() -> Any:
        return program(**work.inputs)

    reference = in_float64(work)
    for name, peer in tuple(peers.items()):
        wrong = error(to_numpy(peer.run()), reference)
        if not wrong <= tolerance:
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
        "right": found <= tolerance,
    }


def _read(path: Path) -> dict[str, dict[str, Any]]:
    try:
        rows = json_form.loads(path.read_text())
        return {row["name"]: row for row in rows if isinstance(row["ours_ms"], float)}
    except (ValueError, TypeError, KeyError):
        raise UserError(f"{path} was not written by `lambent bench --save`") from None


def in_float64(work: Example) -> Array:
    """The example's meaning in float64."""
    data = {
        n: a.astype(np.float64) if a.dtype.kind in "fV" else a
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


def _show(rows: Sequence[dict[str, Any]], before: dict[str, dict[str, Any]]) -> None:
    peers = list(dict.fromkeys(name for row in rows for name in row["peers"]))
    then = ["ratio before"] if before else []
    rated = any("unit" in row for row in rows)
    last = ["rate", "kernels"] if rated else ["shape", "our peak bytes", "best peer's"]
    out = table(
        f"median ms, {rows[0]['device']}, {rows[0]['threads']} threads", "work", "lambent",
        *peers, "peer / lambent" if rated else "best peer / lambent", "aim", *then, "error", *last,
    )  # fmt: skip
    for row in rows:
        best = min(row["peers"], key=row["peers"].get, default=None)
        old = before.get(row["name"], {}).get("ratio_best")
        if rated:
            more = [f"{number(row['rates'][''])} {row['unit']}", str(len(row["kernels"]))]
        else:
            more = ["×".join(map(str, row["shape"])), size(row["ours_peak_bytes"]),
                    size(row["peers_peak_bytes"].get(best))]  # fmt: skip
        out.add_row(
            row["name"], number(row["ours_ms"]), *(number(row["peers"].get(p)) for p in peers),
            number(row["ratio_best"]), number(row["least"]),
            *([number(old)] if before else []), f"{row['error']:.1e}", *more,
        )  # fmt: skip
    console().print(out)
