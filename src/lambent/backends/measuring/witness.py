"""Witnesses: what a kernel gives under a plain schedule must every other schedule give as well.

The reference says what is right, but of a large kernel at a few points alone: a row of scores is a
million operations there, and a device is done with all of them in a millisecond. What only some
schedules do wrong is seen at thousands of other places, where two of them differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lambent.algebra.term import walk
from lambent.backends.measuring.operands import Spec
from lambent.backends.measuring.verify import Expected, allowed
from lambent.kernel.kernel import Kernel
from lambent.kernel.tile import Schedule

Array = np.ndarray[Any, Any]
PLACES = 4096  # of each output
KEPT = ("num_warps", "num_stages", "group")


def key(kernel: Kernel) -> Any:
    """What a witness is of."""
    return kernel.outputs, kernel.inputs


def plain(given: Schedule) -> Schedule:
    """The schedule with nothing but tiles, their order, warps and stages."""
    return replace(given, options=tuple(o for o in given.options if o[0] in KEPT))


def places(kernel: Kernel, outputs: Sequence[Spec], expected: Expected, exact: bool) -> Expected:
    """Where a witness is asked; its values are not known yet.

    `slack` is all that may lie between two schedules: twice what each may be off.
    """
    random = np.random.default_rng(0)
    counts = [math.prod(o.shape) for o in outputs]
    found = tuple(np.arange(n) if n <= PLACES else random.integers(n, size=PLACES) for n in counts)
    slacks = expected.slack or (0.0,) * len(outputs)
    pairs = zip(kernel.outputs, slacks, strict=True)
    slack = tuple(2 * (s + allowed(kernel, o, exact)) for o, s in pairs)
    return replace(expected, samples=found, values=(), slack=slack)


def unlike(kernel: Kernel, found: Sequence[Array], other: Expected) -> str:
    """In what way values differ from the witness's, or nothing; nothing where these are not known.

    Where floats are compared a rounding decides now and then: there a few values may differ.
    """
    every = list(walk(*(o.term for o in kernel.outputs)))
    steps = any(t.op in ("less", "eq") and t.kids[0].dtype.is_float for t in every)
    for o, got, want, slack in zip(kernel.outputs, found, other.values, other.slack, strict=False):
        a, b = (np.asarray(x, np.float64) for x in (got, want))
        finite = np.abs(b[np.isfinite(b)])
        scale = float(finite.mean()) if len(finite) else 1.0
        with np.errstate(all="ignore"):
            near = np.abs(a - b) <= slack * (np.abs(b) + scale)
        same = near | (a == b) | (np.isnan(a) & np.isnan(b))
        if not o.buffer.dtype.is_float:
            same = got == want
        wrong = np.count_nonzero(~same)
        rounds = steps or not o.buffer.dtype.is_float
        if wrong > (len(got) // 200 if rounds else 0):
            return f"output {o.buffer.name!r}: {wrong} of {len(got)} values are not its witness's"
    return ""


def joined(expected: Expected, other: Expected | None) -> tuple[Array, ...]:
    """The places of both, for each output."""
    if other is None:
        return expected.samples
    pairs = zip(expected.samples, other.samples, strict=True)
    return tuple(np.concatenate(pair) for pair in pairs)
