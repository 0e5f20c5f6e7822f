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


def mixed(program: TileProgram) -> frozenset[Load]:
    """Loads of which an operand of a product is computed.

    In such a loop the engine may be ahead of what still reads: Triton 3.6 waits for too few of the
    products whose first factor is in registers. Where a product stands between them it waits.
    """
    every = list(statements(program.body))
    lets = {s.name: s.value for s in every if isinstance(s, Let)}
    found: set[Load] = set()
    for dot in (v for s in every for top in operands(s) for v in values(top)):
        for x in (dot.a, dot.b) if isinstance(dot, Dot) else ():
            parts, names = list(values(x)), set[str]()
            for p in parts:  # grows by what names stand for
                if isinstance(p, Ref) and p.name in lets and p.name not in names:
                    names.add(p.name)
                    parts += values(lets[p.name])
            computed = any(isinstance(p, Map) and p.op != "cast" for p in parts)
            if computed and not any(isinstance(p, Dot) for p in parts):
                found.update(p for p in parts if isinstance(p, Load))
    return frozenset(found)


def plain(body: Iterable[Stmt]) -> bool:
    """Whether its loops only add up products: the compiler joins others wrongly with tasks'."""
    inner = [s for f in body if isinstance(f, For) for s in statements(f.body)]
    sums = (s for s in inner if isinstance(s, Accumulate))
    return all(isinstance(s.value, Dot) and s.op == "sum" and s.scale is None for s in sums)


def multiplies(s: Stmt) -> bool:
    return any(isinstance(v, Dot) for top in operands(s) for v in values(top))
