"""For long rows the best cover is one kernel that reads its input from memory once."""

from __future__ import annotations

from test_enumerate import PRICES, problem
from test_spellings import CALIBRATION

import lambent as lt
from lambent.algebra.egraph import saturate
from lambent.backends.cpu.schedule import default_schedule
from lambent.kernel.lower import lower
from lambent.kernel.tile import For, TileProgram, statements
from lambent.search.bound import Bounder
from lambent.search.cover import solve
from lambent.search.enumerate import enumerate_kernels

ROWS, COLUMNS = 256, 8192


def best(graph: lt.Tensor) -> TileProgram:
    """The only kernel of the cheapest cover, under its first schedule."""
    saturated = saturate([graph.node])
    found = enumerate_kernels(saturated, PRICES, 24)
    bounder = Bounder(CALIBRATION, saturated.extents)
    cover = solve(problem(found), [bounder.bound(c.kernel) for c in found.candidates])
    (kernel,) = (found.candidates[k].kernel for k in cover.kernels)
    return lower(kernel, default_schedule(kernel))


def test_logsumexp_over_a_long_axis_reads_its_input_once() -> None:
    program = best(lt.logsumexp(lt.input("x", (ROWS, COLUMNS)), axis=-1))
    (long,) = (i for i, a in program.axes.items() if a.extent == COLUMNS)
    loops = [s for s in statements(program.body) if isinstance(s, For) and s.axis == long]
    assert len(loops) == 1 or (not loops and program.axes[long].tile >= COLUMNS)


def test_layer_norm_reads_its_input_from_memory_once() -> None:
    program = best(lt.layer_norm(lt.input("x", (ROWS, COLUMNS)), COLUMNS))
    (rows,) = (a for a in program.axes.values() if a.extent == ROWS)
    assert 4 * COLUMNS * rows.tile <= 1 << 19  # a task's rows stay in the cache of its core
