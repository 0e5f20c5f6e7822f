"""Gradients as users ask for them: `grad`, and marks on values that it goes by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, overload

from lambent.graph.autograd import STOP, adjoints
from lambent.graph.node import make
from lambent.graph.tensor import Tensor, describe

K = TypeVar("K")


@overload
def grad(loss: Tensor, params: Tensor) -> Tensor: ...
@overload
def grad(loss: Tensor, params: Mapping[K, Tensor]) -> dict[K, Tensor]: ...
@overload
def grad(loss: Tensor, params: Sequence[Tensor]) -> list[Tensor]: ...
def grad(loss: Tensor, params: Any) -> Any:
    """The gradients of a scalar by some of the values that it is computed from.

    Args:
        loss: floating, of shape ().
        params: floating tensors of the loss's graph: one, several, or several by name. Inputs,
            weights, or values in between.

    Returns:
        Tensors of the shapes and dtypes of the params, in the same form.

    Raises:
        TypeError: a loss or a param that is not floating.
        ValueError: a loss that is no scalar; a param that the loss does not depend on, or only
            through comparisons, integers or `stop_gradient`.
    """
    if isinstance(params, Tensor):
        return grad(loss, [params])[0]
    if not isinstance(params, Mapping):
        return list(grad(loss, dict(enumerate(params))).values())
    if loss.shape != () or not loss.dtype.is_float:
        kind = TypeError if loss.shape == () else ValueError
        raise kind(
            f"grad: the loss is {describe(loss)}, no floating scalar; take .sum() or .mean()"
        )
    found = adjoints(loss, {p.node for p in params.values()})
    for key, p in params.items():
        name = repr(p.node.name if p.node.op in ("input", "weight") else key)
        if not p.dtype.is_float:
            raise TypeError(f"grad: {name} is {describe(p)}: not floating, it has no gradient")
        if p.node not in found:
            raise ValueError(
                f"grad: the loss does not depend on {name}, {describe(p)}, or only through "
                "comparisons, integers or stop_gradient; leave it out of the params"
            )
    return {key: found[p.node] for key, p in params.items()}


def stop_gradient(x: Tensor) -> Tensor:
    """x itself, taken for a constant by `grad`. It costs nothing: the compiler sees x."""
    return Tensor(make("contiguous", (x.node,), x.shape, x.dtype, STOP))


def checkpoint(x: Tensor) -> Tensor:
    """x itself, with the hint that it is worth storing for the backward pass.

    What is stored and what is computed again is a choice of the search, kernel by kernel, so the
    hint changes no value and may be ignored.
    """
    return Tensor(make("contiguous", (x.node,), x.shape, x.dtype, "checkpoint"))
