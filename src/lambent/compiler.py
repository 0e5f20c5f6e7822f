"""compile: the one function that walks the whole path, from a graph to a program that runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from lambent import buckets as sizes
from lambent.algebra.egraph import saturate
from lambent.algebra.segments import cut
from lambent.backends.base import Backend, get
from lambent.backends.cache import cache_dir
from lambent.explain.report import Tell, recorder, report
from lambent.graph.dim import Size
from lambent.graph.node import Node
from lambent.request import Donated, Outputs, check_names, donated, outputs_of
from lambent.runtime.build import build
from lambent.runtime.finish import plan_of, time_whole, variants
from lambent.runtime.program import Program
from lambent.search.database import Database
from lambent.search.driver import Work, remembered, search
from lambent.search.tuning import Clock

FINISH = 0.1  # the share of the budget for building and timing whole programs
SAME = 1.03  # programs whose times differ by less are told apart by the memory they take


def compile(
    what: Outputs | Callable[..., Outputs],
    *inputs: Any,
    device: str = "cpu",
    budget: float = 60.0,
    seed: int = 0,
    progress: Tell = True,
    stop_gap: float = 0.05,
    donate: Mapping[str, int | str] | None = None,
    buckets: Mapping[str, Sequence[int]] | None = None,
) -> Program:
    """Search for the fastest program that computes the outputs.

    Args:
        what: a Tensor, several in a list or in a dict by name, or a function or Module that returns
            them when it is called with `inputs`.
        device: where the program is to run.
        budget: seconds that the search may take; the first program found may take longer.
        seed: of the schedules that are sampled.
        progress: True for a line now and then on a terminal, or a function that gets `Progress`.
        stop_gap: the search ends when the best is proved to be this near to what is possible.
        donate: inputs whose arrays are given up: the output, by number or name, that each is to
            hold after a run. Only what differs is written, as far as the compiler can tell.
        buckets: sizes at which another part of a symbol's range begins to be tuned for itself, by
            the symbol's name: the largest of each part but the last. By default a wide range of a
            symbol without a hint is parted; with {} none is. The parts share the budget.

    Returns:
        A `Program`: call it with the graph's inputs by name.

    Raises:
        TypeError: `what` gives no Tensors.
        ValueError: two inputs or weights of one name; an unknown device; no such budget; a
            donated input and an output that differ in shape or dtype; buckets out of a range.
    """
    if not budget > 0:
        raise ValueError(f"compile: a budget of {budget} seconds; it must be positive")
    tensors, form = outputs_of(what(*inputs) if callable(what) else what)
    nodes = [t.node for t in tensors]
    check_names(nodes)
    each = partial(
        _compiled, nodes, backend=get(device), form=form, seed=seed, stop_gap=stop_gap,
        progress=progress, given=donated(donate or {}, tensors, form),
    )  # fmt: skip
    parts = [sizes.stand_ins(b) for b in sizes.buckets(sizes.symbols(nodes), buckets)]
    return sizes.joined([each(part, budget=budget / len(parts)) for part in parts])


def _compiled(
    graph: Sequence[Node], stand_ins: Mapping[str, Size], *, backend: Backend, budget: float,
    form: str | tuple[str, ...], seed: int, stop_gap: float, progress: Tell, given: Donated,
) -> Program:  # fmt: skip
    """The program of a graph with other sizes for some of its symbols."""
    nodes, clock = sizes.resized(graph, stand_ins), Clock()
    with clock.phase("saturate"):
        instances, segments = cut(nodes)
        saturated = {s.key: saturate(s.outputs) for s in segments}
    works = [Work(saturated[s.key], sum(i.key == s.key for i in instances)) for s in segments]
    hints = {s.name: s.hint for s in sizes.symbols(nodes)}
    key = f"{[i.key for i in instances]} {hints} {seed} {stop_gap}"
    history, record = recorder(progress)
    db = Database(cache_dir(), backend.device_key())
    effort, known = db.plan(key) or (0.0, None)
    found = search(
        works, backend, budget=budget * (1 - FINISH), db=db, seed=seed, symbols=hints,
        progress=record, clock=clock, stop_gap=stop_gap,
        known=known if effort >= budget else None,
    )  # fmt: skip
    options = variants(found, [s.key for s in segments])
    made = [plan_of(nodes, instances, o, backend.default_schedule) for o in options]
    plans = [replace(p, donated=given) for p in made]
    begin = clock.elapsed()
    finish = partial(build, backend=backend, form=form, names=sizes.restored(stand_ins))
    programs = [finish(plans[0])]
    if len(plans) * (clock.elapsed() - begin) < budget - begin:  # there is time for the others
        programs += map(finish, plans[1:])
    times = time_whole(programs, plans[0], hints, min(1.0, budget * FINISH / 4))
    alike = [i for i, t in enumerate(times) if t <= SAME * min(times)]
    best = min(alike, key=lambda i: (programs[i].arena_bytes(), times[i]))
    chosen = options[best]
    spent = 0.0 if found.interrupted else budget
    db.put_plan(key, max(effort, spent), remembered([chosen[s.key] for s in segments]))
    program = programs[best]
    told = report(
        backend, plans[best], chosen, instances, segments, saturated, found, history, program,
        times[best],
    )  # fmt: skip
    program.manifest = replace(program.manifest, explain=told)
    return program
