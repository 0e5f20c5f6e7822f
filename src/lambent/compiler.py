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
from lambent.backends.measuring.operands import draw, spec
from lambent.backends.measuring.turns import alternate
from lambent.explain.report import Tell, recorder, report
from lambent.graph.dim import Size
from lambent.graph.node import Node
from lambent.request import Donated, Outputs, asked
from lambent.runtime.build import build
from lambent.runtime.finish import plan_of, variants
from lambent.runtime.program import Program
from lambent.search.database import Database
from lambent.search.driver import Work, remembered, search
from lambent.search.tuning import Clock
from lambent.thrift import Thrift, cheapest, within

FINISH = 0.1  # the share of the budget for building and timing whole programs


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
    memory_limit: int | None = None,
    tf32: bool = False,
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
        memory_limit: bytes that all intermediates together may take at the sizes tuned for
            (`Program.arena_bytes`). Where it does not suffice, values are computed again.
        tf32: matrix units of the device "cuda" may take float32 operands of products as TF32, of
            11 significant bits; else float32 stays exact.

    Returns:
        A `Program`: call it with the graph's inputs by name.

    Raises:
        TypeError: `what` gives no Tensors, or the device has no such dtype.
        ValueError: two inputs or weights of one name; an unknown device; no such budget; a
            donated input and an output that differ in shape or dtype; buckets out of a range; a
            limit of memory that no program found keeps, with the least that one takes.
    """
    backend = get(f"{device}-tf32" if tf32 else device)
    nodes, form, given = asked(what, inputs, budget, donate or {}, backend)
    each = partial(
        _compiled, backend=backend, form=form, seed=seed, stop_gap=stop_gap,
        progress=progress, given=given,
    )  # fmt: skip
    return within(memory_limit, budget, partial(sizes.parted, nodes, buckets, each))


def _compiled(
    graph: Sequence[Node], stand_ins: Mapping[str, Size], thrift: Thrift, *, budget: float,
    backend: Backend, form: str | tuple[str, ...], seed: int, stop_gap: float, progress: Tell,
    given: Donated,
) -> Program:  # fmt: skip
    """The program of a graph with other sizes for some of its symbols."""
    nodes, clock = sizes.resized(graph, stand_ins), Clock()
    with clock.phase("saturate"):
        instances, segments = cut(nodes, again=thrift.again)
        saturated = {s.key: saturate(s.outputs) for s in segments}
    keys = [i.key for i in instances]
    works = [Work(saturated[s.key], keys.count(s.key), thrift.rent) for s in segments]
    hints = {s.name: s.hint for s in sizes.symbols(nodes)}
    key = f"{keys} {hints} {seed} {stop_gap} {thrift.rent}"
    history, record = recorder(progress)
    db = Database(cache_dir(), backend.device_key())
    effort, known = db.plan(key) or (0.0, None)
    found = search(
        works, backend, budget=budget * (1 - FINISH), db=db, seed=seed, symbols=hints,
        progress=record, clock=clock, stop_gap=stop_gap,
        known=known, settled=effort >= budget,
    )  # fmt: skip
    options = variants(found, [s.key for s in segments])
    made = [plan_of(nodes, instances, o, backend.default_schedule) for o in options]
    plans = [replace(p, donated=given) for p in made]
    begin = clock.elapsed()
    finish = partial(build, backend=backend, form=form, names=sizes.restored(stand_ins))
    programs = [finish(plans[0])]
    if len(plans) * (clock.elapsed() - begin) < budget - begin:  # there is time for the others
        programs += map(finish, plans[1:])
    arrays = {n: draw(spec(plans[0].buffers[n], hints), i) for i, n in enumerate(plans[0].inputs)}
    runs = {str(i): partial(one, **arrays) for i, one in enumerate(programs)}
    times = [*alternate(runs, min(1.0, budget * FINISH / 4), (2, 10)).values()]
    best = cheapest(times, [p.arena_bytes() for p in programs], thrift)
    chosen, program = options[best], programs[best]
    done = max(effort, budget * (not found.interrupted))
    db.put_plan(key, done, remembered([chosen[s.key] for s in segments]))
    told = report(
        backend, plans[best], chosen, instances, segments, saturated, found, history, program,
        times[best],
    )  # fmt: skip
    program.manifest = replace(program.manifest, explain=told)
    return program
