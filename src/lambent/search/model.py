"""What a tile program is likely to take: work that its loops really repeat, over the peak rates.

A bound counts every term once; a schedule may compute it anew in every tile of an outer loop. The
model sees that. It orders what is measured; it never certifies.
"""

from __future__ import annotations

import math

from lambent.backends.base import Calibration
from lambent.graph.dim import axes_in, representative
from lambent.kernel.tile import (
    Accumulate,
    Dot,
    For,
    Let,
    Load,
    Map,
    Reduce,
    Stmt,
    Store,
    TileProgram,
    Value,
    axes_of,
    operands,
)  # fmt: skip
from lambent.search.bound import MATH, rate
from lambent.search.space import TRANSCENDENTAL

EFFICIENCY = 0.7  # of the peak, that well-scheduled code reaches


def likely_time(program: TileProgram, calibration: Calibration) -> float:
    """Seconds of the program's arithmetic and loads, with what its loops repeat."""
    sizes = {i: min(a.tile, max(1, representative(a.extent))) for i, a in program.axes.items()}

    def value(v: Value) -> float:
        own: float = math.prod(sizes[i] for i in axes_of(v) if i in sizes)
        match v:
            case Map(op=op):
                own *= MATH if op in TRANSCENDENTAL else 1.0
            case Dot(axes=axes):
                own *= 2 * math.prod(sizes[i] for i in axes)
            case Reduce(axes=axes):
                own *= math.prod(sizes[i] for i in axes)
            case Load():
                own *= 0.5
            case _:
                own = 0.0
        below = sum(value(x) for x in operands(v))
        return own / rate(calibration, v.dtype) + below

    def body(stmts: tuple[Stmt, ...]) -> float:
        seconds = 0.0
        for s in stmts:
            match s:
                case For(axis=i, stop=stop):
                    extent = max(1, representative(program.axes[i].extent))
                    trips = -(-extent // program.axes[i].tile)
                    part = 0.5 if axes_in(stop) else 1.0  # ends, or starts, where the mask does
                    seconds += trips * part * body(s.body)
                case Let(value=v) | Store(value=v):
                    seconds += value(v)
                case Accumulate(value=v, scale=scale):
                    seconds += value(v) + (value(scale) if scale is not None else 0.0)
                case _:
                    pass
        return seconds

    return body(program.body) / EFFICIENCY
