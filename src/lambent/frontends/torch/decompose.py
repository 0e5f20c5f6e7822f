"""What PyTorch takes apart before we read a graph: every op without a row that it knows how to."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, decomposition_table

from lambent.frontends.torch.convert import ROWS


@functools.cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """The core ATen decompositions and, for what they leave whole, PyTorch's others."""
    table = {**decomposition_table, **dict(core_aten_decompositions())}
    return {op: how for op, how in table.items() if not _has_row(op)}


def _has_row(op: Any) -> bool:
    if not isinstance(op, torch._ops.OpOverload):
        return False
    space, _, rest = str(op).partition(".")
    return space == "aten" and (rest in ROWS or rest.partition(".")[0] in ROWS)
