"""PyTorch's values as ours and back: dtypes, sizes, arrays that share memory."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import sympy
import torch
from torch.utils._sympy import functions as fn
from torch.utils._sympy.numbers import int_oo

from lambent.graph.dim import Dim, Size, representative
from lambent.graph.dtypes import DType, as_dtype
from lambent.graph.prove import maximum, minimum

Array = np.ndarray[Any, Any]
MOST = 2**24
"""The largest size of a dim that PyTorch leaves open."""


class Unsupported(NotImplementedError):
    """Something that our graphs cannot say; the message tells what, and why."""


def dtype_of(dtype: torch.dtype) -> DType:
    """Our dtype of this name.

    Raises:
        Unsupported: there is none.
    """
    try:
        return as_dtype(dtype)
    except TypeError:
        raise Unsupported(f"dtype {str(dtype).removeprefix('torch.')}") from None


# ---- sizes -----------------------------------------------------------------------------------


def size_of(size: Any) -> Size:
    """An int, a SymInt or a SymPy expression as a Size.

    Raises:
        Unsupported: it depends on data, or is no integer expression of sizes.
    """
    if isinstance(size, int):
        return int(size)
    if isinstance(size, torch.SymInt):
        return _size(size.node.expr, size.node.shape_env)
    raise Unsupported(f"the number {size}, which is known when it runs only")


def _size(expression: Any, env: Any) -> Size:
    if isinstance(expression, sympy.Integer):
        return int(expression)
    if isinstance(expression, sympy.Symbol):
        return _symbol(expression, env)
    if isinstance(expression, sympy.Pow) and isinstance(expression.exp, sympy.Integer):
        base, power = _size(expression.base, env), int(expression.exp)
        if power > 0:
            return functools.reduce(lambda a, b: a * b, [base] * power)
    rule = _SIZES.get(type(expression))
    if rule is None:
        raise Unsupported(f"the size {expression}")
    return functools.reduce(rule, (_size(a, env) for a in expression.args))


_SIZES: dict[type, Callable[[Size, Size], Size]] = {
    sympy.Add: lambda a, b: a + b,
    sympy.Mul: lambda a, b: a * b,
    fn.FloorDiv: lambda a, b: a // b,
    fn.CleanDiv: lambda a, b: a // b,
    fn.CeilDiv: lambda a, b: -(-a // b),
    fn.Mod: lambda a, b: a % b,
    fn.PythonMod: lambda a, b: a % b,
    fn.Max: maximum,
    fn.Min: minimum,
    sympy.Max: maximum,
    sympy.Min: minimum,
}
"""Function of SymPy → the same of two Sizes."""


def _symbol(symbol: sympy.Symbol, env: Any) -> Dim:
    """The Dim of a symbol. Its name tells range and hint, as a Dim's name stands for one range."""
    known = getattr(env, "backed_var_to_val", None) or getattr(env, "var_to_val", {})
    hint = known.get(symbol)
    if hint is None:
        raise Unsupported(f"the size {symbol}, which depends on data")
    bounds = env.var_to_range[symbol]
    low = max(int(bounds.lower), 0)
    high = MOST if bounds.upper in (int_oo, sympy.oo) else min(int(bounds.upper), MOST)
    hint = min(max(int(hint), low), high)
    return Dim(f"{symbol}_{low}_{high}_{hint}", low, high, hint=hint)


# ---- arrays ----------------------------------------------------------------------------------


def to_array(x: torch.Tensor) -> Array:
    """The tensor's memory as an array."""
    if x.dtype == torch.bfloat16:
        return x.detach().view(torch.int16).numpy(force=True).view(dtype_of(x.dtype).numpy)
    return x.numpy(force=True)


def to_torch(x: Array) -> torch.Tensor:
    """The array's memory as a tensor."""
    if x.dtype.name == "bfloat16":
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x)


def refuse_foreign(x: torch.Tensor) -> None:
    """Raise Unsupported for a tensor that is not a plain one in CPU memory, of a dtype of ours."""
    if x.layout != torch.strided:
        raise Unsupported(f"a tensor of layout {str(x.layout).removeprefix('torch.')}")
    if x.device.type != "cpu":
        raise Unsupported(f"a tensor on {x.device}; lambent compiles what is on the CPU")
    if x.is_quantized:
        raise Unsupported("a quantised tensor")
    dtype_of(x.dtype)


def laid_out(x: torch.Tensor) -> tuple[int, ...]:
    """The dims of a dense tensor in the order of memory; those of another in their own order."""
    shape = [representative(size_of(n)) for n in x.shape]
    strides = [representative(size_of(n)) for n in x.stride()]
    big = [i for i, n in enumerate(shape) if n > 1]
    ranked = iter(sorted(big, key=lambda i: -strides[i]))
    order = tuple(next(ranked) if i in big else i for i in range(x.ndim))
    step = 1
    for i in reversed([i for i in order if i in big]):
        if strides[i] != step:
            return tuple(range(x.ndim))
        step *= shape[i]
    return order


def inverse(order: Sequence[int]) -> tuple[int, ...]:
    """The permutation that undoes this one."""
    return tuple(order.index(i) for i in range(len(order)))
