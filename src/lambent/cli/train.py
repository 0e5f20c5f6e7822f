"""`lambent train`: a small model from its first batch on, and the same in PyTorch beside it."""

from __future__ import annotations

import itertools
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from lambent.cli import lessons
from lambent.cli.errors import UserError, choose, need
from lambent.cli.lessons import Lesson
from lambent.cli.output import number, print_json, say
from lambent.cli.progress import compile_graph, shown

WHAT = ("digits", "shakespeare")


def train(
    what: str, path: Path | None, steps: int, budget: float, folder: Path | None, peers: bool,
    seed: int, json: bool,
) -> None:  # fmt: skip
    """Train, tell how it went, and with `peers` how PyTorch did from the same weights and batches.

    Raises:
        UserError: there is no such model, no text, or a library is missing.
    """
    from lambent import nn

    choose("model", what, WHAT)
    if peers:
        need("torch", "torch", "--against torch")
    nn.seed(seed)
    lesson = _lesson(what, path)
    lesson = replace(lesson, steps=steps or lesson.steps)
    start = {name: array.copy() for name, array in lesson.model.state_dict().items()}
    found = run(lesson, budget, folder)
    if peers:
        from lambent.cli.training_peer import compare

        found |= compare(lesson, start, found["losses"], found["step_ms"])
    if json:
        print_json(found)
    else:
        _show(found)


def _lesson(what: str, path: Path | None) -> Lesson:
    if what == "digits":
        return lessons.digits()
    if path is None:
        raise UserError("lambent train shakespeare PATH: give the path of a text file")
    return lessons.text(path)


def run(lesson: Lesson, budget: float, folder: Path | None) -> dict[str, Any]:
    """What is told of a run: losses, times, and what the lesson ends with."""
    from lambent import Trainer, input, optim
    from lambent.optim.schedules import cosine

    begin = time.monotonic()
    with shown(lesson.name) as progress:
        trainer = Trainer(
            lesson.model, lessons.loss, optim.Optimizer(optim.AdamW(weight_decay=0.01)),
            cosine(lesson.rate, lesson.steps), next(lesson.batches()), folder=folder,
            budget=budget, progress=progress,
        )  # fmt: skip
    searched = time.monotonic()
    losses = trainer.fit(lesson.batches(), lesson.steps)
    trained = time.monotonic()
    batch = next(lesson.batches())
    x = input("x", batch["x"].shape, str(batch["x"].dtype))
    name = f"{lesson.name}, forward"
    logits = compile_graph(lesson.model(x), name, "cpu", budget / 4, fresh=False)
    told = lesson.finish(lambda x: logits(x=x))
    held = trainer.arrays()
    return {
        "model": lesson.name,
        "parameters": sum(a.size for a in held.values()),
        "steps": lesson.steps,
        "search_s": searched - begin,
        "train_s": trained - searched,
        "step_ms": step_time(lambda b: trainer.program(**trainer._held, **b), lesson) * 1e3,
        "losses": losses,
        **told,
    }


def step_time(step: Any, lesson: Lesson, count: int = 20) -> float:
    """Median seconds of a step, of `count` and two that are not timed."""
    times = []
    for batch in itertools.islice(lesson.batches(), count + 2):
        begin = time.perf_counter()
        step(batch)
        times.append(time.perf_counter() - begin)
    return statistics.median(times[2:])


def _show(found: dict[str, Any]) -> None:
    losses = found.pop("losses")
    print(f"loss {losses[0]:.4f} at first, {losses[-1]:.4f} after {len(losses)} steps")
    for name, value in found.items():
        if name == "text":
            continue
        print(f"{name.replace('_', ' ')}: {number(value) if isinstance(value, float) else value}")
    if "text" in found:
        say("what it writes now:")
        print(found["text"])
