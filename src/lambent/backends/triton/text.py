"""Triton text of values: dims, brackets, broadcasting, conversions and constants."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from lambent.graph.dtypes import DType

PRELUDE = """\
import triton
import triton.language as tl


@triton.jit
def floor_div(a, b):
    q = a // b
    return tl.where(q * b > a, q - 1, q)


@triton.jit
def floor_mod(a, b):
    r = a % b
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)


@triton.jit
def nan_max(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


"""
# Triton's name of each dtype, and of the elements of a buffer: a bool is a byte in memory.
NAMES = {"bool": "int1"} | {
    n: n for n in ("int8", "int16", "int32", "int64", "uint8")
} | {n: n for n in ("float16", "bfloat16", "float32", "float64")}  # fmt: skip
NAMES |= {"float8_e4m3fn": "float8e4nv", "float8_e5m2": "float8e5"}
POINTERS = {
    "bool": "u8", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "uint8": "u8",
    "float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64",
    "float8_e4m3fn": "fp8e4nv", "float8_e5m2": "fp8e5",
}  # fmt: skip
BEYOND = {"float8_e4m3fn": (464.0, 127), "float8_e5m2": (61439.99, 124)}
"""The last number that rounds to a finite one, and the bits of what follows (NaN, an infinity),
where conversions of the device would stop at the greatest number."""
ATOM, PRODUCT, SUM, LOOSE = 3, 2, 1, 0
"""How tightly the outermost operator of a text binds."""
LEVELS = {"*": PRODUCT, "//": PRODUCT, "+": SUM, "-": SUM}


@dataclass(frozen=True, slots=True)
class Tile:
    """Text of a value. `dims`: its axes of more than one index, in the renderer's order."""

    text: str
    dims: tuple[int, ...] = ()
    dtype: str = "int32"
    level: int = ATOM

    def at(self, level: int) -> str:
        """The text, in brackets where it binds less tightly than that."""
        return self.text if self.level >= level else f"({self.text})"

    def over(self, dims: tuple[int, ...]) -> Tile:
        """The value broadcast to more dims."""
        if not self.dims or self.dims == dims:
            return self
        places = ", ".join(":" if i in self.dims else "None" for i in dims)
        return Tile(f"{self.at(ATOM)}[{places}]", dims, self.dtype)

    def to(self, dtype: str) -> Tile:
        """The value converted, with C's rules; a number that is not 0 is true."""
        if dtype == self.dtype:
            return self
        if dtype == "int1":
            return Tile(f"{self.at(SUM)} != 0", self.dims, dtype, LOOSE)
        text = (
            f"{self.at(ATOM)}.to(tl.{dtype})" if self.dims else f"tl.cast({self.text}, tl.{dtype})"
        )
        return Tile(text, self.dims, dtype)


def infix(sign: str, a: Tile, b: Tile, dims: tuple[int, ...], dtype: str) -> Tile:
    """a sign b over the dims."""
    a, b = a.over(dims), b.over(dims)
    level = LEVELS.get(sign, LOOSE)
    inner = level if level else SUM
    right = inner + 1 if sign in ("-", "//") else inner
    if sign in "&|^":
        inner = right = ATOM
    level = SUM if sign == "//" else level  # a product brackets a quotient
    return Tile(f"{a.at(inner)} {sign} {b.at(right)}", dims, dtype, level)


def call(
    function: str, args: list[Tile], dims: tuple[int, ...], dtype: str, more: str = ""
) -> Tile:
    """function(args) over the dims."""
    return Tile(f"{function}({', '.join(a.over(dims).text for a in args)}{more})", dims, dtype)


def number(x: float | int | bool, dtype: DType) -> str:
    """A Python literal of a constant in the dtype's compute type."""
    if dtype.compute.name == "bool":
        return str(bool(x))
    if not dtype.is_float:
        if not math.isfinite(x):
            return str(0 if dtype.kind == "u" else -(1 << (8 * dtype.itemsize - 1)))
        return str(int(x))
    return repr(float(x)) if math.isfinite(x) else f'float("{float(x)}")'


def literal(x: float | int | bool, dtype: DType, typed: bool) -> Tile:
    """A constant: a plain number, or `typed`, a tensor without dims."""
    name, text = NAMES[dtype.compute.name], number(x, dtype)
    if typed or name not in ("float32", "int32", "int64"):
        return Tile(f"tl.full((), {text}, tl.{name})", (), name)
    return Tile(text, (), name, ATOM if not text.startswith("-") else SUM)


def cast(t: Tile, was: DType, dtype: DType) -> Tile:
    """Rounded to the dtype; a float becomes an integer by truncation, NaN 0."""
    name = NAMES[dtype.name]
    if was.is_float and dtype.is_integer:
        safe = Tile(f"tl.where({t.text} == {t.text}, {t.text}, 0.0)", t.dims, t.dtype)
        return safe.to("int64").to(name)
    found = t.to(NAMES[was.compute.name] if was.is_float else t.dtype).to(name)
    if dtype.name not in BEYOND or was == dtype:
        return found
    limit, bits = BEYOND[dtype.name]
    wide = t.to("float32")
    sign = f"tl.where({wide.text} < 0.0, {bits + 128}, {bits})"
    over = f"({sign}).to(tl.uint8).to(tl.{name}, bitcast=True)"
    return Tile(f"tl.where(tl.abs({wide.text}) > {limit}, {over}, {found.text})", t.dims, name)


def needed(lines: list[tuple[str, str]]) -> list[str]:
    """The lines without those that define what no later line reads."""
    kept: list[str] = []
    used: set[str] = set()
    for name, text in reversed(lines):
        if not name or name in used:
            kept.append(text)
            used.update(re.findall(r"\w+", text))
    return kept[::-1]
