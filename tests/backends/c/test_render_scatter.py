"""Sums of what an index chooses are written where it leads: no loop over the places."""

from __future__ import annotations

import numpy as np
import pytest
from programs import Library, a, index, load, loops, op, program, ref

from lambent.backends.c.target import Target
from lambent.backends.cpu.features import detect
from lambent.graph.dtypes import DTYPES, DType, float32, float64, int64
from lambent.kernel.tile import Accumulate, For, Let, Reduce, Stmt, Store, TileProgram, Var

NATIVE = Target(detect().vector_bytes)
ROWS, IDS, WIDTH = 50, 37, 19
SHAPES = {"I": (IDS,), "X": (IDS, WIDTH)}
CASES = {
    "whole": (ROWS, IDS, WIDTH),
    "rows in tiles": (8, IDS, WIDTH),
    "ids in tiles": (ROWS, 10, WIDTH),
    "all in tiles": (16, 8, 8),
}


def scatter(rows: int, ids: int, width: int, dtype: DType = float32) -> TileProgram:
    """Y[v, d] = Σ_t mask(v == I[t], X[t, d])."""
    extents = {0: (ROWS, rows), 1: (WIDTH, width), 2: (IDS, ids)}
    hit = op("eq", index(a(0)), load("I", a(2), dtype=int64), dtype=DTYPES["bool"])
    x = op("mask", hit, load("X", a(2), a(1), dtype=dtype), dtype=dtype)
    total = Reduce("sum", frozenset({2}), x)
    body: list[Stmt] = [Let("r", total)]
    if ids < IDS:
        step = Accumulate("r", "sum", total)
        body = [Var("r", (0, 1), dtype, 0.0), For(2, 0, IDS, (step,))]
    body.append(Store("Y", (a(0), a(1)), ref("r", 0, 1, dtype=dtype)))
    looped = [i for i, (extent, tile) in extents.items() if i < 2 and tile < extent]
    dtypes = {"X": dtype, "Y": dtype, "I": int64}
    body = [loops(extents, looped, *body)] if looped else body
    return program(body, extents, {"Y": (ROWS, WIDTH)}, SHAPES, dtypes)


@pytest.fixture(scope="module")
def library() -> Library:
    made = {name.replace(" ", "_"): scatter(*tiles) for name, tiles in CASES.items()}
    made |= {d.name: scatter(8, 10, WIDTH, d) for d in (float64, int64)}
    return Library(made, NATIVE)


@pytest.mark.parametrize("name", [*(n.replace(" ", "_") for n in CASES), "float64", "int64"])
def test_values(library: Library, name: str) -> None:
    """Ids occur several times, or not at all, or are out of range."""
    rng = np.random.default_rng(0)
    ids = rng.integers(-5, ROWS + 5, IDS)
    x = rng.normal(0, 9, (IDS, WIDTH)).astype(
        library.programs[name].kernel.outputs[0].buffer.dtype.numpy
    )
    (found,) = library(name, [ids, x], [(ROWS, WIDTH)])
    wanted = np.zeros((ROWS, WIDTH), x.dtype)
    inside = (ids >= 0) & (ids < ROWS)
    np.add.at(wanted, ids[inside], x[inside])
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_no_loop_over_the_rows_reads_the_ids(library: Library) -> None:
    """In the whole program there are two loops around what is read: ids, and the width."""
    text = library.text[library.text.index("void whole_body") :]
    depth = most = 0
    for line in text[: text.index("static")].splitlines():
        stripped = line.strip()
        most = max(most, depth) if "b2 +" in line else most
        depth += stripped.startswith("LOOP")
        depth -= stripped == "}" and len(line) - len(line.lstrip()) <= 2 * depth
    assert "b2 +" in text and most <= 2
