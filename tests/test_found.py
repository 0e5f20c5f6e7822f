"""What the search must find for long rows: the input is read once, and nothing is stored."""

from __future__ import annotations

import re

import lambent as lt

ROWS, COLUMNS = 256, 8192


def kernel_of(graph: lt.Tensor) -> str:
    """The tile program of the only kernel."""
    found = lt.compile(graph, budget=4, progress=False).explain()
    assert found["stored"] == [] and len(found["kernels"]) == 1
    return str(found["kernels"][0]["tile_program"])


def test_logsumexp_over_a_long_axis_reads_its_input_once() -> None:
    text = kernel_of(lt.logsumexp(lt.input("x", (ROWS, COLUMNS)), axis=-1))
    long = re.search(rf"axis (a\d+): {COLUMNS}, (whole|tiles)", text)
    assert long is not None
    assert long[2] == "whole" or text.count(f"for {long[1]} in") == 1


def test_layer_norm_reads_its_input_from_memory_once() -> None:
    text = kernel_of(lt.layer_norm(lt.input("x", (ROWS, COLUMNS)), COLUMNS))
    rows = re.search(rf"axis a\d+: {ROWS}, (?:tiles of (\d+)|whole)", text)
    assert rows is not None
    assert 4 * COLUMNS * int(rows[1] or ROWS) <= 1 << 19  # a task's rows stay in its core's cache
