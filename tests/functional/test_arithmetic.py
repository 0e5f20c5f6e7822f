"""Arithmetic, comparison, logic and rounding against NumPy and PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from compare import SPECIAL, broadcastable, check, few, run, seeds, shapes, values
from hypothesis import given
from hypothesis import strategies as st

import lambent as lt

Case = tuple[Callable[..., Any], Callable[..., Any]]

FLOATS: dict[str, Case] = {
    "add": (lambda x, y: x + y, np.add),
    "sub": (lambda x, y: x - y, np.subtract),
    "mul": (lambda x, y: x * y, np.multiply),
    "div": (lambda x, y: x / y, np.divide),
    "less": (lambda x, y: x < y, np.less),
    "less_equal": (lambda x, y: x <= y, np.less_equal),
    "greater": (lambda x, y: x > y, np.greater),
    "greater_equal": (lambda x, y: x >= y, np.greater_equal),
    "equal": (lambda x, y: x == y, np.equal),
    "not_equal": (lambda x, y: x != y, np.not_equal),
    "maximum": (lt.maximum, np.maximum),
    "minimum": (lt.minimum, np.minimum),
    "logical_and": (lt.logical_and, np.logical_and),
    "logical_or": (lt.logical_or, np.logical_or),
    "logical_xor": (lt.logical_xor, np.logical_xor),
    "where": (lambda x, y: lt.where(x < y, x, y), lambda x, y: np.where(x < y, x, y)),
    "clip": (lambda x, y: lt.clip(x, y, 2.0), lambda x, y: np.clip(x, y, np.float32(2.0))),
}


@pytest.mark.parametrize("name", FLOATS)
@few
@given(broadcastable(), seeds)
def test_floats(name: str, pair: tuple[Any, Any], seed: int) -> None:
    f, expected = FLOATS[name]
    x, y = values(pair[0], "float32", seed, True), values(pair[1], "float32", seed + 1, True)
    check(f, expected, x, y)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "less", "less_equal", "equal", "maximum",
                                  "minimum", "logical_xor", "where"])  # fmt: skip
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
@few
@given(broadcastable(), seeds)
def test_integers(name: str, dtype: str, pair: tuple[Any, Any], seed: int) -> None:
    f, expected = FLOATS[name]
    x, y = values(pair[0], dtype, seed), values(pair[1], dtype, seed + 1)
    check(f, expected, x, y)


def test_dtypes_promote_as_the_array_api() -> None:
    names = ["bool", "uint8", "int8", "int16", "int32", "int64", "float32", "float64"]
    for a in names:
        for b in names:
            want = np.result_type(a, b) if "float" not in a + b else torch_promote(a, b)
            if a == b == "bool":
                continue
            x, y = lt.input("x", (2,), a), lt.input("y", (2,), b)
            assert (x * y).dtype.name == (b if a == "bool" else a if b == "bool" else want)
            assert (x + y).dtype.name == want


def torch_promote(a: str, b: str) -> str:
    return str(torch.promote_types(getattr(torch, a), getattr(torch, b))).removeprefix("torch.")


def test_python_numbers_are_weak() -> None:
    for dtype in lt.float16, lt.bfloat16, lt.float32, lt.float64:
        x = lt.input("x", (2,), dtype)
        assert (x * 2.5).dtype == (3 + x).dtype == (x - True).dtype == (x**2.5).dtype == dtype
    x = lt.input("x", (2,), "int8")
    assert (x + 1).dtype == lt.int8
    assert (x * 0.5).dtype == lt.float32
    assert (lt.input("b", (2,), bool) + 1).dtype == lt.int64
    assert (np.float64(0.5) * lt.input("y", (2,))).dtype == lt.float32
    assert (np.arange(2.0) * lt.input("y", (2,))).dtype == lt.float64  # an array is not weak


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64"])
def test_integer_floor_division_is_exact(dtype: str) -> None:
    info, rng = np.iinfo(dtype), np.random.default_rng(0)
    edges = [info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2, 3, 7, 100]
    edges += [] if info.min == 0 else [-1, -2, -3, -7, -100]
    random = rng.integers(info.min, info.max, 300, dtype)
    shifts = rng.integers(0, 8 * info.dtype.itemsize - 1, 300)
    every = np.array([*edges, *(random >> shifts.astype(dtype))], dtype)
    a, b = every[:, None], every[None, :]
    check(lambda x, y: [x // y, x % y], lambda x, y: [x // y, x % y], a, b)


def test_case_5_floor_semantics() -> None:
    a, b = np.meshgrid(np.arange(-12, 13), [n for n in range(-5, 6) if n], indexing="ij")
    for dtype in "int32", "float32":
        x, y = a.astype(dtype), b.astype(dtype)
        for c in -3, 0, 4:
            f = lambda x, y, c=c: [x // y, x % y, (x * y + c) // y, (x // y) // c if c else x]  # noqa: E731
            check(f, f, x, y)


def test_constant_divisors() -> None:
    x = values((40,), "int32", 1)
    for n in 3, -4, 7:
        check(lambda x, n=n: [x // n, x % n, n // (x + 20)],
              lambda x, n=n: [x // n, x % n, n // (x + 20)], x)  # fmt: skip
    check(lambda x: x / 4, lambda x: (x / 4).astype("float32"), x)


@few
@given(broadcastable(), seeds)
def test_float_floor_division(pair: tuple[Any, Any], seed: int) -> None:
    x, y = values(pair[0], "float32", seed, True), values(pair[1], "float32", seed + 1, True)
    check(lambda x, y: [x // y, x % y], lambda x, y: [x // y, x % y], x, y)


UNARY: dict[str, Case] = {
    "neg": (lambda x: -x, np.negative),
    "abs": (abs, np.abs),
    "sign": (lt.sign, lambda x: torch.sign(torch.tensor(x)).numpy()),
    "floor": (lt.floor, np.floor),
    "ceil": (lt.ceil, np.ceil),
    "trunc": (lt.trunc, np.trunc),
    "round": (lt.round, np.round),
    "isnan": (lt.isnan, np.isnan),
    "isinf": (lt.isinf, np.isinf),
    "isfinite": (lt.isfinite, np.isfinite),
    "sqrt": (lt.sqrt, np.sqrt),
    "rsqrt": (lt.rsqrt, lambda x: torch.rsqrt(torch.tensor(x)).numpy()),
    "reciprocal": (lt.reciprocal, np.reciprocal),
    "square": (lt.square, np.square),
    "logical_not": (lt.logical_not, np.logical_not),
    "bool": (lambda x: x.bool(), lambda x: x.astype(bool)),
}
WIDE = np.array([*SPECIAL, 0.3, -0.3, 1.5, 2.5, -1.5, -2.5, 3.49999, 1e-30, -1e-30, 0.49999997,
                 8388607.5, -8388607.5, 16777216.0, 3e9, -3e30, 2.9999998], np.float32)  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str, dtype: str) -> None:
    f, expected = UNARY[name]
    if name in ("rsqrt", "square") and dtype == "float16":
        return
    with np.errstate(over="ignore"):
        check(f, expected, WIDE.astype(dtype), rtol=1e-3 if dtype == "float16" else 1e-6)


@pytest.mark.parametrize("name", ["abs", "neg", "sign", "floor", "round", "square", "bool"])
@few
@given(shapes, seeds)
def test_unary_of_integers(name: str, shape: tuple[int, ...], seed: int) -> None:
    f, expected = UNARY[name]
    check(f, expected, values(shape, "int32", seed))


def test_power() -> None:
    base = np.array([*SPECIAL, 1.7, -1.7, 10.0, -2.0, 3.0], np.float32)
    exponents = np.array([*SPECIAL, 1.5, -1.5, 3.0, 2.0, 5.0, -4.0, 0.25], np.float32)
    want = torch.pow(torch.tensor(base)[:, None], torch.tensor(exponents)).numpy()
    check(lambda x, y: x**y, lambda x, y: want, base[:, None], exponents, rtol=2e-5)
    for n in -3, -1, 0, 1, 2, 3, 7, 0.5, -0.5, 1.5, 64:
        want = torch.pow(torch.tensor(base), n).numpy()
        check(lambda x, n=n: x**n, lambda x, want=want: want, base, rtol=2e-5)
        check(lambda x, n=n: float(n) ** x if n > 0 else x, lambda x, n=n: np.float32(n) ** x
              if n > 0 else x, exponents, rtol=2e-5)  # fmt: skip
    check(lambda x: x**3, lambda x: x**3, values((9,), "int32", 0))


def test_bool_logic() -> None:
    x, y = np.array([[True], [False]]), np.array([True, False])
    check(lambda x, y: [x & y, x | y, x ^ y, ~x, x + y, x == y, x < y],
          lambda x, y: [x & y, x | y, x ^ y, ~x, x | y, x == y, x < y], x, y)  # fmt: skip
    check(lambda x: ~x, lambda x: ~x, np.array([0, 5, -7, 127, -128], np.int8))


def test_masks_are_exact() -> None:
    x = np.array(SPECIAL, np.float32)
    mask = np.arange(len(x)) % 2 == 0
    want = np.where(mask, x, np.float32(0))
    np.testing.assert_array_equal(run(lambda m, x: m * x, mask, x), want)
    check(lambda m, x: lt.where(m, x, -math.inf), lambda m, x: np.where(m, x, -np.inf), mask, x,
          dtype=False)  # fmt: skip
    check(lambda m, x: (m * x).sum(), lambda m, x: np.sum(want), mask, x)


@pytest.mark.parametrize("to", ["bool", "int8", "uint8", "int64", "float16", "float32", "float64"])
def test_casts(to: str) -> None:
    x = np.array([0.0, -0.0, 0.4, -0.6, 1.9, -1.9, 100.5, -3.0], np.float32)
    x = np.abs(x) if to == "uint8" else x
    check(lambda x: x.astype(to), lambda x: x.astype(to), x)
    check(lambda x: x.astype(to), lambda x: x.astype(to), values((7,), "int64", 3))
    check(lambda x: x.astype(to), lambda x: x.astype(to), values((7,), "bool", 3))
    special = np.array([np.nan, np.inf, 0.0, 1e-40], np.float32)
    check(lambda x: x.bool(), lambda x: x.astype(bool), special)


BAD: list[tuple[Callable[[lt.Tensor, lt.Tensor], object], type[Exception], str]] = [
    (lambda x, i: x + lt.input("y", (5,)), ValueError, r"add.*\[2, 3\].*\[5\]"),
    (lambda x, i: i & i, TypeError, r"&.*int32\[2, 3\]"),
    (lambda x, i: -(x < 0), TypeError, r"negation of bool\[2, 3\].*~"),
    (lambda x, i: x.sum(2), IndexError, r"sum: axis 2.*float32\[2, 3\]"),
    (lambda x, i: x.reshape(4, 2), ValueError, r"reshape.*6.*8"),
    (lambda x, i: x.reshape(-1, 4), ValueError, r"6 elements do not divide into \[-1, 4\]"),
    (lambda x, i: x @ x, ValueError, r"matmul.*float32\[2, 3\].*3 and 2 differ.*mT"),
    (lambda x, i: i ** -1, ValueError, r"negative power"),
    (lambda x, i: i ** i, TypeError, r"exponent"),
    (lambda x, i: i.astype("uint8") + 300, OverflowError, r"300.*uint8"),
    (lambda x, i: x.astype("complex64"), TypeError, r"complex64.*supported"),
    (lambda x, i: bool(x), TypeError, r"where"),
    (lambda x, i: len(x.sum()), TypeError, r"len"),
    (lambda x, i: float(x), TypeError, r"no value while the graph is built"),
    (lambda x, i: np.asarray(x), TypeError, r"no value"),
    (lambda x, i: x[:, :, 0], IndexError, r"3 indices.*float32\[2, 3\]"),
    (lambda x, i: x[5], IndexError, r"index 5.*size 2"),
    (lambda x, i: x[0.5], TypeError, r"0\.5"),
    (lambda x, i: x[::0], TypeError, r"step"),
    (lambda x, i: x.permute(0, 0), ValueError, r"permutation"),
    (lambda x, i: x.pad([(1, 1)]), ValueError, r"pad: 1 pairs for the 2 dims"),
    (lambda x, i: lt.zeros(0, 3).max(0), ValueError, r"max_reduce: axis 0.*empty"),
    (lambda x, i: lt.concat([x, x[:, :2]]), ValueError, r"concat"),
    (lambda x, i: lt.einsum("ij,jk->ik", x, x), ValueError, r"label 'j'"),
    (lambda x, i: lt.gelu(x, "exact"), ValueError, r"gelu"),
    (lambda x, i: x.prod(4), IndexError, r"prod"),
    (lambda x, i: lt.input("", (2,)), ValueError, r"name"),
    (lambda x, i: lt.input("n", (2, -1)), ValueError, r"negative"),
    (lambda x, i: lt.input("n", (2.5,)), TypeError, r"2\.5"),
    (lambda x, i: lt.tensor([[1], [1, 2]]), TypeError, r"array"),
    (lambda x, i: x.contiguous(bool), TypeError, r"astype"),
    (lambda x, i: x + "a", TypeError, r"unsupported dtype"),
]  # fmt: skip


@pytest.mark.parametrize("case", BAD, ids=[str(i) for i in range(len(BAD))])
def test_errors_say_what_is_wrong(case: Any) -> None:
    f, kind, text = case
    with pytest.raises(kind, match=text):
        f(lt.input("x", (2, 3)), lt.input("i", (2, 3), "int32"))


@given(st.integers(-300, 300), st.integers(-300, 300))
@few
def test_scalars(a: int, b: int) -> None:
    x = np.array([a], np.int64)
    check(lambda x: [x + b, b - x, x * b, x // (b or 1)],
          lambda x: [x + b, b - x, x * b, x // (b or 1)], x)  # fmt: skip


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_floats_of_eight_bits_are_computed_with_in_others(name: str) -> None:
    """They are stored, cast and viewed; sums and products of them are float32, or the wider one."""
    x, wide = lt.input("x", (4, 4), name), lt.input("y", (4, 4), "bfloat16")
    for made in (x @ x, x + x, x * 2, lt.exp(x), x.sum(), lt.where(x < 1, x, 0)):
        assert made.dtype.name == "float32"
    assert (x @ wide).dtype.name == "bfloat16" and x.mT[1:].dtype.name == name
    given = np.random.default_rng(0).normal(0, 1, (4, 4)).astype(x.dtype.numpy)
    plain = given.astype(np.float32)
    np.testing.assert_allclose(lt.evaluate(x @ x, {"x": given}), plain @ plain, rtol=1e-6)
