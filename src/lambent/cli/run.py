"""`lambent run`: a real model, compiled by search, run, and compared with PyTorch."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from lambent.cli import minilm
from lambent.cli.errors import choose
from lambent.cli.examples import Array
from lambent.cli.output import console, number, print_json, say, table
from lambent.cli.progress import compile_graph

PEERS = ("torch", "torch.compile")
NOTHING: dict[str, Any] = {
    "error": None,
    "cosine": None,
    "ours_ms": None,
    "peers": {},
    "ratio_best": None,
}

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
    compared = compare(program, device, ids, mask, vectors) if peers else NOTHING
    if json:
        told = {
            "model": model, "device": device, "texts": said, "tokens": ids.shape[1],
            "cached": cached, "seconds_to_first": ready, "peak_bytes": program.peak_bytes(),
            "similarity": vectors @ vectors.T, "embeddings": vectors,
        }  # fmt: skip
        print_json(told | compared)
    elif compared is not NOTHING:
        _show_comparison(compared)


def obtain(batch: int, length: int, budget: float, device: str, fresh: bool) -> tuple[Any, bool]:
    """The program for these shapes, and whether it came from the cache of programs."""
    from lambent.frontends import kept

    key = kept.program_key("minilm", device, (batch, length, minilm.version()), budget)
    if not fresh and (program := kept.load_program(kept.longest(key))) is not None:
        return program, True
    program = compile_graph(minilm.graph(batch, length), "minilm", device, budget)
    kept.save_program(key, program)
    return program, False


def compare(program: Any, device: str, ids: Array, mask: Array, vectors: Array) -> dict[str, Any]:
    """Errors against PyTorch and times in alternation; nothing where PyTorch is not installed."""
    if importlib.util.find_spec("torch") is None:
        say("PyTorch is not installed: no comparison (pip install torch)")
        return NOTHING
    from lambent.backends.cpu.features import threads
    from lambent.cli.bench import bench_one
    from lambent.cli.peers import make_peers, to_numpy

    say("preparing PyTorch for comparison; torch.compile may take up to a minute")
    work = minilm.example(ids, mask)
    peers = make_peers(work, PEERS, threads(), say)
    theirs = to_numpy(peers["torch"].run())
    lengths = np.linalg.norm(vectors, axis=-1) * np.linalg.norm(theirs, axis=-1)
    row = bench_one(work, program, peers, threads(), device)
    return {
        "error": float(np.max(np.abs(vectors - theirs))),
        "cosine": float(np.min(np.sum(vectors * theirs, -1) / lengths)),
    } | {key: row[key] for key in ("ours_ms", "peers", "ratio_best")}


def _show_similarities(texts: Sequence[str], vectors: Array) -> None:
    out = table("cosine similarity", "text", *(str(i + 1) for i in range(len(texts))))
    for i, (text, row) in enumerate(zip(texts, vectors @ vectors.T, strict=True)):
        out.add_row(f"{i + 1}  {text}", *(f"{value:.3f}" for value in row))
    console().print(out)


def _show_comparison(found: dict[str, Any]) -> None:
    screen = console()
    screen.print(
        f"\nagainst PyTorch on the same weights: largest error {found['error']:.1e}, "
        f"smallest cosine {found['cosine']:.7f}"
    )
    out = table("time of a run, medians in alternation", "", "ms", "time / ours")
    for name, ms in ({"lambent": found["ours_ms"]} | found["peers"]).items():
        out.add_row(name, number(ms), number(ms / found["ours_ms"]))
    screen.print(out)
