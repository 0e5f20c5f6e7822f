"""Sizes that a saved program knows, without a table of symbols: ints, or text such as `2*s+1`.

The text is what `graph.dim.show` makes of a size: a Python expression over declared symbols.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from lambent.graph.dim import Size, show

Text = int | str
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Pow: operator.pow,
    ast.FloorDiv: operator.floordiv, ast.Div: operator.floordiv,  # s/8: s is a multiple of 8
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[..., int]] = {"min": min, "max": max}


def text(size: Size) -> Text:
    """A size as a saved program knows it."""
    return size if isinstance(size, int) else show(size)


def number(size: Text, symbols: Mapping[str, int]) -> int:
    """The value of a size at values of its symbols."""

    def value(node: Any) -> int:
        match node:
            case ast.Constant(int(constant)):
                return constant
            case ast.Name(name):
                return symbols[name]
            case ast.UnaryOp(ast.USub(), operand):
                return -value(operand)
            case ast.BinOp(left, op, right):
                return _OPERATORS[type(op)](value(left), value(right))
            case ast.Call(ast.Name(name), [*arguments]):
                return _FUNCTIONS[name](*map(value, arguments))
        raise ValueError(f"no size: {size}")

    return size if isinstance(size, int) else value(ast.parse(size, mode="eval").body)
