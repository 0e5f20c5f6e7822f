"""Products of narrow floats, as matrix units take them: for renderers and the model of time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lambent.kernel.tile import Dot, Map, Ref, Value


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
