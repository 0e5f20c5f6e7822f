"""Which functions are methods and operators of `Tensor`: the one place that says so.

`Methods` is a table: for a type checker it is the base of Tensor, and at run time each row is set on
Tensor. (The functions need Tensor, so Tensor cannot name them itself.)
"""

from __future__ import annotations

from lambent.graph.functional import shaping
from lambent.graph.tensor import Tensor, broadcast_to, cast, contiguous, reshape


class Methods:
    """The rows: method name = function whose first parameter is the tensor."""

    __getitem__ = shaping.getitem
    astype = cast
    contiguous = contiguous
    reshape = reshape
    broadcast_to = broadcast_to
    expand = shaping.expand
    permute = shaping.permute
    transpose = shaping.transpose
    mT = property(shaping.mT)
    T = property(shaping.T)
    flatten = shaping.flatten
    unflatten = shaping.unflatten
    squeeze = shaping.squeeze
    unsqueeze = shaping.unsqueeze
    flip = shaping.flip
    pad = shaping.pad
    window = shaping.window


for _name, _function in vars(Methods).items():
    if _name == "__getitem__" or not _name.startswith("__"):
        setattr(Tensor, _name, _function)
