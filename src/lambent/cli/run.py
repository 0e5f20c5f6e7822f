"""`lambent run`: a real model, compiled by search, run, and compared with PyTorch."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lambent.cli import minilm
from lambent.cli.errors import choose
from lambent.cli.examples import Array
from lambent.cli.output import console, number, print_json, say, size, table
from lambent.cli.progress import compile_graph

PEERS = ("torch", "torch.compile")
SECONDS = 6.0
"""How long ours and the peers are timed."""

TEXTS = (
    "A cat sleeps on the warm windowsill.",
    "The kitten is napping in the sun by the window.",
    "A compiler turns a program into machine code.",
    "Searching for the fastest kernel takes some time, but it is done only once.",
)


def run_model(
    model: str,
    texts: Sequence[str] | None,
    budget: float,
    device: str,
    fresh: bool,
    peers: bool,
    json: bool,
) -> None:
    """The main job; see `lambent run --help`."""
    choose("model", model, ["minilm"])
    start = time.perf_counter()
    said = list(texts or TEXTS)
    ids, mask = minilm.tokens(said)
    program, cached = obtain(ids.shape[0], ids.shape[1], budget, device, fresh)
    vectors = np.asarray(program(ids=ids, mask=mask))
    ready = time.perf_counter() - start
    if not json:
        how = "from the cache" if cached else "after the search"
        say(f"{len(said)} texts, {ids.shape[1]} tokens each; first embedding {ready:.1f} s, {how}")
        _show_similarities(said, vectors)
    compared = compare(program, ids, mask, vectors) if peers else {}
    if json:
        print_json(
            {
                "model": model, "device": device, "texts": said, "tokens": ids.shape[1],
                "cached": cached, "seconds_to_first": ready, "similarity": vectors @ vectors.T,
                "embeddings": vectors, "arena_bytes": program.peak_bytes(),
            } | _form(compared)
        )  # fmt: skip
    elif compared:
        _show_comparison(compared, program.peak_bytes())


def obtain(batch: int, length: int, budget: float, device: str, fresh: bool) -> tuple[Any, bool]:
    """The program for these shapes, and whether it came from the cache of programs."""
    from lambent.cli import store

    key = store.program_key("minilm", device, batch, length)
    if not fresh and (program := store.load_program(key)) is not None:
        return program, True
    program = compile_graph(minilm.graph(batch, length), "minilm", device, budget)
    store.save_program(key, program)
    return program, False


def compare(program: Any, ids: Array, mask: Array, vectors: Array) -> dict[str, Any]:
    """Errors against PyTorch and times in alternation; empty where PyTorch is not installed."""
    if importlib.util.find_spec("torch") is None:
        say("PyTorch is not installed: no comparison (pip install torch)")
        return {}
    from lambent.backends.cpu.features import threads
    from lambent.cli.peers import make_peers, to_numpy
    from lambent.cli.timing import alternate

    work = minilm.example(ids, mask)
    made = make_peers(work, PEERS, threads(), say)
    theirs = to_numpy(made["torch"].run())
    cosine = np.sum(vectors * theirs, -1) / (
        np.linalg.norm(vectors, axis=-1) * np.linalg.norm(theirs, axis=-1)
    )
    runs: dict[str, Callable[[], Any]] = {"": lambda: program(**work.inputs)}
    times = alternate(runs | {name: peer.run for name, peer in made.items()}, SECONDS)
    ours = times.pop("")
    return {
        "error": float(np.max(np.abs(vectors - theirs))),
        "cosine": float(cosine.min()),
        "ours": ours,
        "peers": times,
    }


def _form(compared: dict[str, Any]) -> dict[str, Any]:
    if not compared:
        return {"error": None, "cosine": None, "ours_ms": None, "peers": {}, "ratio_best": None}
    peers = {name: seconds * 1e3 for name, seconds in compared["peers"].items()}
    ours = compared["ours"] * 1e3
    return {
        "error": compared["error"], "cosine": compared["cosine"], "ours_ms": ours, "peers": peers,
        "ratio_best": min(peers.values()) / ours,
    }  # fmt: skip


def _show_similarities(texts: Sequence[str], vectors: Array) -> None:
    out = table("cosine similarity", "text", *(str(i + 1) for i in range(len(texts))))
    for i, (text, row) in enumerate(zip(texts, vectors @ vectors.T, strict=True)):
        out.add_row(f"{i + 1}  {text}", *(f"{value:.3f}" for value in row))
    console().print(out)


def _show_comparison(compared: dict[str, Any], peak: int) -> None:
    screen = console()
    screen.print(
        f"\nagainst PyTorch on the same weights: largest error {compared['error']:.1e}, "
        f"smallest cosine {compared['cosine']:.7f}"
    )
    out = table("time of a run, medians in alternation", "", "ms", "time / ours")
    out.add_row("lambent", number(compared["ours"] * 1e3), "")
    for name, seconds in compared["peers"].items():
        out.add_row(name, number(seconds * 1e3), number(seconds / compared["ours"]))
    screen.print(out)
    screen.print(f"memory for intermediates: {size(peak)}")
