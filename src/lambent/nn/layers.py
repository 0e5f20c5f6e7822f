"""Layers with weights, named and shaped as in PyTorch: Linear, Embedding, norms, convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod, sqrt
from typing import ClassVar, TypeAlias

from lambent.functional.conv import conv
from lambent.functional.indexing import embedding
from lambent.functional.linalg import linear
from lambent.functional.norm import group_norm, layer_norm, rms_norm
from lambent.graph.dtypes import DType, float32
from lambent.graph.tensor import Tensor, describe
from lambent.nn.module import Module, parameter

__all__ = [
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "Embedding",
    "GroupNorm",
    "LayerNorm",
    "Linear",
    "RMSNorm",
]

Ints: TypeAlias = "int | Sequence[int]"


class Linear(Module):
    """x @ weightᵀ + bias: […, n] → […, m]. weight [m, n], bias [m], both from ±1/√n at first."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, n: int, m: int, bias: bool = True, *, dtype: DType = float32) -> None:
        bound = 1 / sqrt(max(n, 1))
        self.weight = parameter((m, n), dtype, bound=bound)
        self.bias = parameter((m,), dtype, bound=bound) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        """Raises ValueError: the last dim of x is not n."""
        if x.ndim == 0 or x.shape[-1] != self.weight.shape[1]:
            raise ValueError(f"Linear: weight {describe(self.weight)} for input {describe(x)}")
        return linear(x, self.weight, self.bias)


class Embedding(Module):
    """Rows of weight [n, d] at ids […] → […, d]; an id out of range gives zeros."""

    weight: Tensor

    def __init__(self, n: int, d: int, *, dtype: DType = float32) -> None:
        self.weight = parameter((n, d), dtype, bound=sqrt(3))  # variance 1, as PyTorch

    def __call__(self, ids: Tensor) -> Tensor:
        return embedding(ids, self.weight)


class LayerNorm(Module):
    """`layer_norm` over the last dims, with weight (ones) and bias (zeros) of their shape."""

    weight: Tensor
    bias: Tensor | None

    def __init__(
        self, shape: Ints, eps: float = 1e-5, bias: bool = True, *, dtype: DType = float32
    ) -> None:
        sizes = _sizes(shape)
        self.eps = eps
        self.weight = parameter(sizes, dtype, fill=1.0)
        self.bias = parameter(sizes, dtype) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        return layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class RMSNorm(Module):
    """`rms_norm` over the last dims, with weight (ones) of their shape."""

    weight: Tensor

    def __init__(self, shape: Ints, eps: float | None = None, *, dtype: DType = float32) -> None:
        self.eps = eps
        self.weight = parameter(_sizes(shape), dtype, fill=1.0)

    def __call__(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight.shape, self.weight, self.eps)


class GroupNorm(Module):
    """`group_norm` of [n, c, …], with weight (ones) and bias (zeros) [c]."""

    weight: Tensor
    bias: Tensor

    def __init__(
        self, groups: int, channels: int, eps: float = 1e-5, *, dtype: DType = float32
    ) -> None:
        self.groups, self.eps = groups, eps
        self.weight = parameter((channels,), dtype, fill=1.0)
        self.bias = parameter((channels,), dtype)

    def __call__(self, x: Tensor) -> Tensor:
        return group_norm(x, self.groups, self.weight, self.bias, self.eps)


class _Conv(Module):
    """A convolution over `rank` dims with weight [o, c / groups, *kernel] and bias [o].

    Args:
        channels, outputs: c and o. The numbers are those of `lt.conv1d`.
    """

    rank: ClassVar[int]
    weight: Tensor
    bias: Tensor | None

    def __init__(
        self,
        channels: int,
        outputs: int,
        kernel: Ints,
        stride: Ints = 1,
        padding: Ints | str = 0,
        dilation: Ints = 1,
        groups: int = 1,
        bias: bool = True,
        *,
        dtype: DType = float32,
    ) -> None:
        if channels % groups or outputs % groups:
            raise ValueError(f"Conv: {groups} groups do not divide {channels} and {outputs}")
        self.stride, self.padding = stride, padding
        self.dilation, self.groups = dilation, groups
        shape = (channels // groups, *_sizes(kernel, self.rank))
        bound = 1 / sqrt(max(prod(shape), 1))
        self.weight = parameter((outputs, *shape), dtype, bound=bound)
        self.bias = parameter((outputs,), dtype, bound=bound) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        """[n, c, *size] → [n, o, *size']."""
        numbers = (self.stride, self.padding, self.dilation, self.groups)
        return conv(self.rank, x, self.weight, self.bias, *numbers)


class Conv1d(_Conv):
    """`conv1d` of [n, c, l] with weight [o, c / groups, k] and bias [o]."""

    rank = 1


class Conv2d(_Conv):
    """`conv2d` of [n, c, h, w] with weight [o, c / groups, i, j] and bias [o]."""

    rank = 2


class Conv3d(_Conv):
    """`conv3d` of [n, c, d, h, w] with weight [o, c / groups, *kernel] and bias [o]."""

    rank = 3


def _sizes(given: Ints, rank: int = 1) -> tuple[int, ...]:
    sizes = (given,) * rank if isinstance(given, int) else tuple(given)
    if rank > 1 and len(sizes) != rank:
        raise ValueError(f"Conv: the kernel needs {rank} sizes, got {given!r}")
    return sizes
