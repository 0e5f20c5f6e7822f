"""Every length from 1 to 300: MiniLM, and a step of SmolLM2 behind so many tokens.

    python scripts/lengths.py minilm|smollm2 [--most 300] [--budget 120] [--rounds 9]

One program each. Every length is compared with PyTorch, and timed against its longer neighbour.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch

import lambent as lt
from lambent.cli import bench_talk, minilm, talk
from lambent.nn.bert import SentenceEncoder

Call = Callable[[], np.ndarray]
Length = tuple[Call, np.ndarray]
"""A run at a length, and what it must give."""


def encoder(most: int, budget: float) -> Iterator[Length]:
    n = lt.Dim("lengths_n", 1, 512)
    model = SentenceEncoder.from_state(minilm.config(), minilm.weights())
    given = (lt.input(name, (1, n), "int64") for name in ("ids", "mask"))
    program = lt.compile(model(*given), budget=budget)
    theirs = minilm.torch_encoder(minilm.config())
    weights = {name: torch.from_numpy(a) for name, a in minilm.weights().items()}
    ids = np.random.default_rng(0).integers(1000, 20000, (1, most))
    for length in range(1, most + 1):
        now = {"ids": ids[:, :length].copy(), "mask": np.ones((1, length), np.int64)}
        with torch.no_grad():
            want = theirs(weights | {name: torch.from_numpy(a) for name, a in now.items()})
        yield (lambda now=now: program(**now)), np.asarray(want)


def step(most: int, budget: float) -> Iterator[Length]:
    session = talk.open_session("smollm2", budget, "cpu", fresh=False)
    text = session.text.encode("The river flows past the old town, and people walk. " * most)
    ids = text[:most]
    ours = bench_talk.ours(session)
    state = bench_talk.torch_state(session.model)
    theirs = bench_talk.torch_engine(session.model, state, torch.float32)
    theirs.feed(0, ids[:1])
    ours.feed(0, ids)
    for past in range(most):
        want = theirs.feed(past, ids[past : past + 1])
        yield (lambda past=past: ours.feed(past, ids[past : past + 1])), want


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=("minilm", "smollm2"))
    parser.add_argument("--most", type=int, default=300)
    parser.add_argument("--budget", type=float, default=120.0)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    made = {"minilm": encoder, "smollm2": step}[options.model](options.most, options.budget)
    calls, errors = [], []
    for call, want in made:
        calls.append(call)
        errors.append(float(np.abs(call() - want).max()))
    times = np.full((options.rounds, len(calls)), np.inf)
    for turn in range(options.rounds):
        for i, call in enumerate(calls):
            start = time.perf_counter()
            call()
            times[turn, i] = time.perf_counter() - start
    best = np.median(times, 0)
    ratios = best[:-1] / best[1:]
    worst = int(ratios.argmax())
    told = {
        "lengths": len(calls), "error": max(errors), "error_at": int(np.argmax(errors)) + 1,
        "worst_ratio": float(ratios[worst]), "at": worst + 1,
        "above_1.5": int((ratios > 1.5).sum()),
        "ms": {n: round(1e3 * float(best[n - 1]), 3) for n in (1, 2, 50, 150, options.most)
               if n <= options.most},
    }  # fmt: skip
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
