"""Products of a tile program, as matrix units take them: for renderers and the model of time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from lambent.kernel.tile import (
    Accumulate,
    Dot,
    For,
    Let,
    Load,
    Map,
    Ref,
    Stmt,
    TileProgram,
    Value,
    axes_of,
    operands,
    statements,
    values,
)


def narrowed(v: Dot, lets: Mapping[str, Value]) -> Dot:
    """The product of values before they were made float32, where matrix units take such, and add
    up in float32: products of narrow floats are exact in it."""
    found = []
    for x in (v.a, v.b):
        given = lets.get(x.name, x) if isinstance(x, Ref) else x
        if not (isinstance(given, Map) and given.op == "cast" and given.dtype.name == "float32"):
            return v
        found.append(given.args[0])
    a, b = found
    narrow = all(x.dtype.is_float and x.dtype.itemsize < 4 for x in found)
    alike = a.dtype == b.dtype or a.dtype.itemsize == b.dtype.itemsize == 1
    return replace(v, a=a, b=b) if narrow and alike else v


def apart(program: TileProgram) -> tuple[frozenset[Load], dict[Load, Load]]:
    """Loads that the copy engine must not bring, and pairs that it brings both or neither of.

    In a loop whose first factors are in registers, Triton 3.6 waits for too few products before it
    lets the engine overwrite what they read: where a factor is computed, or read elsewhere too.
    It waits where a product stands between, and needs not where a factor is that of all turns.
    """
    never, pairs = set[Load](), dict[Load, Load]()
    every = list(statements(program.body))
    lets = {s.name: s.value for s in every if isinstance(s, Let)}
    tops = [top for s in every for top in operands(s)]
    shown = [v for top in tops for v in values(top)]
    dots = [narrowed(v, lets) for v in shown if isinstance(v, Dot)]
    factors = [x for dot in dots for x in (dot.a, dot.b) if isinstance(x, Load)]
    elsewhere = {v for v in shown if isinstance(v, Load) and shown.count(v) > factors.count(v)}
    for loop in (s for s in every if isinstance(s, For) and not s.parallel):
        inside = {v for s in loop.body for top in operands(s) for v in values(top)}
        for dot in (narrowed(v, lets) for v in inside if isinstance(v, Dot)):
            parts = [_parts(x, lets) for x in (dot.a, dot.b) if loop.axis in axes_of(x)]
            loads = [[p for p in part if isinstance(p, Load)] for part in parts]
            if any(isinstance(p, Dot) for part in parts for p in part):
                continue
            if not all(len(part) == 1 and part[0] not in elsewhere for part in parts):
                never.update(*loads)
            elif len(parts) == 2 and all(loads):
                pairs |= {loads[0][0]: loads[1][0], loads[1][0]: loads[0][0]}
    return frozenset(never), pairs


def _parts(x: Value, lets: Mapping[str, Value]) -> list[Value]:
    """All that a value is made of, through names."""
    parts, names = list(values(x)), set[str]()
    for p in parts:  # which grows
        if isinstance(p, Ref) and p.name in lets and p.name not in names:
            names.add(p.name)
            parts += values(lets[p.name])
    return parts


def plain(body: Iterable[Stmt]) -> bool:
    """Whether its loops only add up products: the compiler joins others wrongly with tasks'."""
    inner = [s for f in body if isinstance(f, For) for s in statements(f.body)]
    sums = (s for s in inner if isinstance(s, Accumulate))
    return all(isinstance(s.value, Dot) and s.op == "sum" and s.scale is None for s in sums)


def multiplies(s: Stmt) -> bool:
    return any(isinstance(v, Dot) for top in operands(s) for v in values(top))
