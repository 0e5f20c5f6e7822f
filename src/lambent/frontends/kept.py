"""Programs that outlive a process: whole files in the cache, found again without any search.

A file's name is a hash of what the program computes, on what device, and of our own sources. Of a
graph that is its nodes, names and sizes and the contents of its weights, so that a wrong hit is
impossible. Beside the hash stand the seconds of the search: who asks for as many or fewer gets the
program. The oldest files go once there are too many; `lambent cache clear` removes all.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lambent.backends.cache import cache_dir, digest
from lambent.graph.node import Node, topo
from lambent.graph.tensor import Tensor

if TYPE_CHECKING:
    from lambent.runtime.program import Program
    from lambent.search.driver import Progress

Array = np.ndarray[Any, Any]
Outputs = Tensor | Sequence[Tensor] | Mapping[str, Tensor]
LIMIT = 4 << 30
"""Bytes of programs that are kept."""


def compiled(
    outputs: Outputs,
    *,
    device: str = "cpu",
    budget: float = 60.0,
    seed: int = 0,
    progress: bool | Callable[[Progress], None] = True,
    **more: Any,
) -> Program:
    """As `lambent.compile`, or the program that an earlier call of equal meaning kept.

    The earlier search had as many seconds or more. Weights that a kept program reads as they are
    stay the arrays of the graph. `more` are the other options of `compile`.
    """
    return obtained(outputs, device, budget, seed, progress, **more)[0]


def obtained(
    outputs: Outputs, device: str, budget: float, seed: int,
    progress: bool | Callable[[Progress], None] = True, **more: Any,
) -> tuple[Program, str]:  # fmt: skip
    """As `compiled`, and the program's file."""
    own = graph_key(outputs, device, budget, seed, more)
    given = {n.name: n.attr.array for n in topo(_nodes(outputs)) if n.op == "weight"}
    key = longest(own)
    kept = load_program(key, given)
    if kept is not None:
        return kept, key
    from lambent.compiler import compile  # and what it searches with: a second, which a hit saves

    for seconds, _ in _searched(own)[:1] if progress else ():
        print(
            f"the program that is kept had {seconds:g} s of search; searching on, for {budget:g} s",
            file=sys.stderr,
        )
    program = compile(outputs, device=device, budget=budget, seed=seed, progress=progress, **more)
    if not program.explain()["interrupted"]:
        save_program(own, program)
    return program, own


def graph_key(
    outputs: Outputs, device: str, budget: float, seed: int, more: Mapping[str, Any] = {}
) -> str:
    """The file of a graph's program after a search of as many seconds."""
    return program_key("graph", device, (_meaning(outputs), seed, sorted(more.items())), budget)


def program_key(
    name: str, device: str, what: tuple[object, ...], budget: float | None = None,
    kind: str = "lambent",
) -> str:  # fmt: skip
    """The file of a program in the cache: what it computes, where, and by which compiler.

    budget: the seconds of search that it had.
    """
    from lambent.backends.base import get
    from lambent.search.database import code_version

    version = code_version(".")  # of all: what writes the graph, and what puts kernels together
    end = kind if budget is None else f"{budget:g}.{kind}"
    return f"programs/{name}-{digest(version, get(device).device_key(), str(what))}.{end}"


def longest(key: str) -> str:
    """The file of the same program that had most seconds of search, if no fewer than this one."""
    _, _, own = _parts(key)
    return next((file for seconds, file in _searched(key) if seconds >= own), key)


def _searched(key: str) -> list[tuple[float, str]]:
    """Of each file of a program the seconds of its search, and its name; most seconds first."""
    folder, stem, _ = _parts(key)
    names = [f"{folder}/{p.name}" for p in (cache_dir() / folder).glob(f"{stem}.*.lambent")]
    return sorted(((_parts(name)[2], name) for name in names), reverse=True)


def _parts(key: str) -> tuple[str, str, float]:
    """Folder, what the program is, and the seconds of its search."""
    folder, _, name = key.rpartition("/")
    stem, _, rest = name.partition(".")
    return folder, stem, float(rest.removesuffix(".lambent"))


def load_program(key: str, given: Mapping[str, Array] = {}) -> Program | None:
    """The cached program, or None: not there, or no longer readable.

    Args:
        given: weights by name, which take the place of equal ones in the file.
    """
    path = cache_dir() / key
    if not path.is_file():
        return None
    from lambent.runtime import save

    try:
        found = save.load(path)
        os.utime(path)
    except (ValueError, OSError) as error:
        print(f"cached program not usable, searching anew: {error}", file=sys.stderr)
        with contextlib.suppress(OSError):
            path.unlink()
        return None
    for part in (*found.narrower, found) if given else ():
        slots = zip(part.manifest.weights, part.weights, strict=True)
        part.weights = [_shared(given.get(slot.name), array) for slot, array in slots]
    return found


def save_program(key: str, program: Program) -> None:
    """Keep a program for the next run; a cache that cannot be written costs only time."""
    path = cache_dir() / key
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        program.save(path)
        for _, other in _searched(key):
            if longest(other) == key != other:  # nobody will ask for it any more
                (cache_dir() / other).unlink(missing_ok=True)
        _prune()
    except OSError as error:
        print(f"program not kept: {error}", file=sys.stderr)


def _prune() -> None:
    """Remove what was not used for longest, until the rest is within the limit."""
    files = [(p.stat(), p) for p in (cache_dir() / "programs").iterdir()]
    total = 0
    for stat, path in sorted(files, key=lambda f: (-f[0].st_mtime, f[1])):
        total += stat.st_size
        if total > LIMIT:
            path.unlink(missing_ok=True)


# ---- what a graph means ------------------------------------------------------------------------


def _nodes(outputs: Outputs) -> list[Node]:
    found = [outputs] if isinstance(outputs, Tensor) else outputs
    return [t.node for t in (found.values() if isinstance(found, Mapping) else found)]


def _meaning(outputs: Outputs) -> tuple[object, ...]:
    """All that the program of a graph depends on: nodes, names, sizes and facts, and weights."""
    from lambent.algebra.segments import abstract
    from lambent.graph.dim import declared, symbols_in
    from lambent.graph.prove import facts

    form = tuple(outputs) if isinstance(outputs, Mapping) else isinstance(outputs, Tensor)
    instance, segment = abstract(_nodes(outputs))
    atoms = {a for n in topo(instance.outputs) for d in n.shape for a in symbols_in(d)}
    known = [str(f) for f in facts() if symbols_in(f) <= atoms]
    return (
        segment.key, form, [n.name for n in (*instance.inputs, *instance.weights)],
        [str(declared(a)) for a in sorted(atoms)], known,
        [contents(n.attr.array) for n in instance.weights],
    )  # fmt: skip


def contents(array: Array) -> str:
    """A hash of an array's elements, in row-major order."""
    return hashlib.blake2b(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).hexdigest()


def _shared(given: Array | None, kept: Array) -> Any:
    """The graph's own array where it has the same elements in the order that code reads."""
    if given is None or (given.shape, given.dtype) != (kept.shape, kept.dtype):
        return kept
    flags = given.flags
    return given if flags.c_contiguous and flags.aligned else kept
