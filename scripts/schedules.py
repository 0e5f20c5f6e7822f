"""On an NVIDIA GPU: times of many schedules of a few kernels, the best first.

    PYTHONPATH=src:tests/kernel python3 scripts/schedules.py OUT.json [NAME...]

What `backends/cuda/schedule.py` guesses first was picked from these tables.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from kernels import Build

from lambent.backends.base import get
from lambent.backends.cuda.schedule import wished
from lambent.graph.dim import axis
from lambent.graph.dtypes import bfloat16
from lambent.kernel.kernel import Kernel
from lambent.kernel.lower import lower

AGAIN = 24  # of the first times so many of the best are taken again


def scores(mask: str = "", n: int = 4096, d: int = 128, window: int = 1024) -> Kernel:
    """exp2(a − max a) weighted over v, over its sum, where a is a product of q and k."""
    b = Build()
    g, h, q, k, p, v = b.axes(4, 16, n, n, d, d)
    x = b.mul(b.load("Q", g, h, q, p, dtype=bfloat16), b.load("K", g, h, k, p, dtype=bfloat16))
    a = b.mul(b.sum(p, x), b.c(Fraction(d) ** -1 * 11, 1, dtype=bfloat16))
    if mask:
        keep = b.less(axis(k), axis(q) + 1)
        if mask == "window":
            keep = b.t.binary("mask", keep, b.less(axis(q), axis(k) + window))
        a = b.where(keep, a, b.t.inf(-1, bfloat16))
    top = b.t.reduce("fold", (k,), a, b.load("V", g, h, k, v, dtype=bfloat16))
    bottom = b.t.reduce("fold", (k,), a, b.c(1, dtype=bfloat16))
    b.out("O", b.mul(top, b.un("recip", bottom)), g, h, q, v)
    return b.kernel()


def product(m: int, n: int, k: int, added: bool = False) -> Kernel:
    """Rows of x times weights [n, k]; with a matrix added."""
    b = Build()
    i, j, p = b.axes(m, n, k)
    x, w = b.load("X", i, p, dtype=bfloat16), b.load("W", j, p, dtype=bfloat16)
    y = b.sum(p, b.mul(x, w))
    b.out("Y", b.add(b.load("R", i, j, dtype=bfloat16), y) if added else y, i, j)
    return b.kernel()


def gated(m: int, n: int, k: int) -> Kernel:
    """Two products of the same rows, one of which gates the other."""
    b = Build()
    i, j, p = b.axes(m, n, k)
    x = b.load("X", i, p, dtype=bfloat16)
    y, z = (b.sum(p, b.mul(x, b.load(w, j, p, dtype=bfloat16))) for w in "UW")
    c = b.c(-1, 1, dtype=bfloat16)
    gate = b.un("recip", b.add(b.c(1, dtype=bfloat16), b.un("exp2", b.mul(c, y))))
    b.out("Y", b.mul(b.mul(y, z), gate), i, j)
    return b.kernel()


def vector(n: int, k: int) -> Kernel:
    b = Build()
    j, p = b.axes(n, k)
    x, w = b.load("X", p, dtype=bfloat16), b.load("W", j, p, dtype=bfloat16)
    b.out("Y", b.sum(p, b.mul(x, w)), j)
    return b.kernel()


SQUARE: dict[str, tuple[int, ...]] = {
    "rows": (64, 128, 256), "columns": (128, 256), "contracted": (64, 128), "num_warps": (4, 8),
    "num_stages": (3, 4, 5), "descriptors": (0, 1), "persistent": (0, 132), "group": (8,),
}  # fmt: skip
FOLD: dict[str, tuple[int, ...]] = {
    "rows": (64, 128, 256), "streamed": (32, 64, 128), "num_warps": (4, 8), "num_stages": (2, 3, 4),
    "descriptors": (0, 1), "specialize": (0, 1), "backwards": (1,),
}  # fmt: skip
ROWS: dict[str, tuple[int, ...]] = {
    "row": (1, 2, 4, 8, 16), "reduced": (512, 1024, 2048, 4096, 1 << 14), "num_warps": (1, 2, 4, 8),
    "num_stages": (2, 4),
}  # fmt: skip
THIN: dict[str, tuple[int, ...]] = {
    "rows": (16, 32, 64, 128), "columns": (16, 32, 64, 128), "contracted": (128, 256, 512),
    "num_warps": (4, 8), "num_stages": (3, 4, 5), "turned": (0, 1),
}  # fmt: skip
KERNELS: dict[str, tuple[Callable[[], Kernel], dict[str, tuple[int, ...]]]] = {
    "full": (scores, FOLD),
    "causal": (lambda: scores("causal"), FOLD),
    "window": (lambda: scores("window"), FOLD),
    "square": (lambda: product(2048, 4096, 4096, added=True), SQUARE),
    "narrow": (lambda: product(2048, 1024, 4096), SQUARE),
    "gated": (lambda: gated(2048, 14336, 4096), SQUARE),
    "wide": (lambda: vector(14336, 4096), ROWS),
    "long": (lambda: vector(4096, 14336), ROWS),
    "small": (lambda: vector(1024, 4096), ROWS),
    "thin": (lambda: product(16, 14336, 4096), THIN),
}


def legal(wish: dict[str, int]) -> bool:
    """Whether it is worth compiling: tiles that are neither idle nor far too large."""
    tile = wish.get("rows", 1) * wish.get("columns", 1) // wish.get("num_warps", 1)
    if "row" in wish:
        each = wish["row"] * wish["reduced"] // (32 * wish["num_warps"])
        return 4 <= each <= 256
    if "turned" in wish:
        return wish["rows"] == wish["columns"]
    if "group" in wish:
        deep = wish["contracted"] == 128
        return 2048 <= tile <= 4096 and not (deep and wish["num_stages"] + wish["persistent"] > 3)
    specialized = wish["specialize"] and not wish["descriptors"]
    return 16 <= wish["rows"] // wish["num_warps"] <= 32 and not specialized


def sweep(name: str, backend: Any) -> list[dict[str, Any]]:
    make, grid = KERNELS[name]
    kernel = make()
    wishes = [dict(zip(grid, found, strict=True)) for found in itertools.product(*grid.values())]
    schedules = list(dict.fromkeys(wished(kernel, w) for w in wishes if legal(w)))
    schedules += [s for s in backend.guesses(kernel) if s not in schedules]
    start = time.monotonic()
    batch = backend.compile([lower(kernel, s) for s in schedules])
    built = time.monotonic() - start
    first = backend.measure(batch, {}, repeats=1, limit=20.0)
    good = sorted((o.seconds, i) for i, o in enumerate(first) if o.seconds)[:AGAIN]
    only = [i for _, i in good]
    again = backend.measure(batch, {}, repeats=5, limit=20.0, only=only)
    batch.close()
    print(f"== {name}: {len(schedules)} schedules, built in {built:.0f} s, all in "
          f"{time.monotonic() - start:.0f} s", flush=True)  # fmt: skip
    rows = [
        {"name": name, "status": o.status, "us": 1e6 * (a.seconds or o.seconds or 0),
         "message": o.message[:200], "tiles": s.tiles, "options": dict(s.options)}
        for s, o, a in zip(schedules, first, again, strict=True)
    ]  # fmt: skip
    rows.sort(key=lambda row: row["us"] or 1e9)
    for row in rows[:12]:
        print(f"{row['us']:9.2f}", dict(row["tiles"]), row["options"], flush=True)
    return rows


def main(out: str, *names: str) -> None:
    backend, rows = get("cuda"), list[dict[str, Any]]()
    for name in names or KERNELS:
        rows += sweep(name, backend)
        with open(out, "w") as file:
            json.dump(rows, file)
    backend.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
