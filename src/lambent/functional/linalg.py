"""Contractions: matmul, einsum and their kin, and attention as anyone would write it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lambent.functional import operands
from lambent.functional.arithmetic import rsqrt, where
from lambent.functional.mathematics import as_float
from lambent.functional.operands import TensorLike, as_tensor, cast, constant, promoted, reduce
from lambent.functional.reducing import softmax
from lambent.functional.shaping import flatten, mT, permute, unsqueeze
from lambent.graph.dim import Dim
from lambent.graph.dtypes import bool_
from lambent.graph.tensor import Tensor, describe, iota, view


def _contract(x: Tensor, axis: int) -> Tensor:
    """The sum over an axis in the dtype of x; of bools `any`."""
    if x.dtype == bool_ and x.shape[axis] == 0:
        return constant(False, shape=x.shape[:axis] + x.shape[axis + 1 :])
    return reduce("max_reduce" if x.dtype == bool_ else "sum_reduce", x, axis)


def matmul(x: TensorLike, y: TensorLike) -> Tensor:
    """x @ y, (…, n, k) @ (…, k, m) → (…, n, m): `sum(x[…, n, k, 1] · y[…, 1, k, m])`.

    A 1-D operand is a row or a column whose dim is dropped again; leading dims broadcast. The dtype
    is the promoted one, also of integers; the product of bools is True if any pair is.

    Raises:
        ValueError: a scalar, or inner sizes that differ.
    """
    a, b = promoted(x, y)
    if a.ndim == 0 or b.ndim == 0:
        raise ValueError(f"matmul: needs at least 1 dim, got {describe(a, b)}; use *")
    row, column = a.ndim == 1, b.ndim == 1
    a = unsqueeze(a, 0) if row else a
    b = unsqueeze(b, 1) if column else b
    if a.shape[-1] != b.shape[-2]:
        raise ValueError(
            f"matmul: {describe(as_tensor(x), as_tensor(y))}: the inner sizes {a.shape[-1]} and "
            f"{b.shape[-2]} differ; transpose one with .mT"
        )
    try:
        product = unsqueeze(a, -1) * unsqueeze(b, -3)
    except ValueError:
        raise ValueError(f"matmul: the leading dims of {describe(a, b)} do not broadcast") from None
    out = _contract(product, product.ndim - 2)
    lead = out.shape[:-2]
    rows, columns = () if row else out.shape[-2:-1], () if column else out.shape[-1:]
    return view("reshape", out, lead + rows + columns)


def rmatmul(x: Tensor, y: TensorLike) -> Tensor:
    """y @ x."""
    return matmul(y, x)


def linear(x: TensorLike, weight: TensorLike, bias: TensorLike | None = None) -> Tensor:
    """x Wᵀ + b with the weight as (out, in), as PyTorch keeps it: `matmul(x, W.mT) + b`.

    Written as `sum(x[…, 1, k] · W)`, so that the gradient by W lies as W does.
    """
    a, w = promoted(x, weight)
    if a.ndim == 0 or w.ndim != 2 or a.shape[-1] != w.shape[1]:
        y = matmul(x, mT(as_tensor(weight)))  # which says what is wrong
    else:
        product = unsqueeze(a, -2) * w
        y = _contract(product, product.ndim - 1)
    return y if bias is None else y + bias


def dot(x: TensorLike, y: TensorLike) -> Tensor:
    """NumPy's dot: the last dim of x with the second last (or only) of y, as one `matmul`."""
    a, b = promoted(x, y)
    if a.ndim == 0 or b.ndim == 0:
        return a * b
    if b.ndim == 1:
        return matmul(a, b)
    lead = a.shape[:-1]
    flat = view("reshape", a, (math.prod(lead), a.shape[-1]))
    order = (b.ndim - 2, *range(b.ndim - 2), b.ndim - 1)
    right = permute(b, order)
    out = matmul(flat, flatten(right, 1)) if b.ndim > 2 else matmul(flat, right)
    return view("reshape", out, lead + right.shape[1:])


def outer(x: TensorLike, y: TensorLike) -> Tensor:
    """All products of two vectors: `x[:, None] · y`; more dims are flattened."""
    return unsqueeze(flatten(as_tensor(x)), 1) * flatten(as_tensor(y))


def diagonal(x: TensorLike, axis0: int = 0, axis1: int = 1) -> Tensor:
    """Elements whose indices along two axes of one size agree, as a new last dim.

    `sum` over one axis of x masked by `i == j`.

    Raises:
        ValueError: the same axis twice, or different sizes.
    """
    x = as_tensor(x)
    a, b = operands.as_axis("diagonal", x, axis0), operands.as_axis("diagonal", x, axis1)
    if a == b or x.shape[a] != x.shape[b]:
        raise ValueError(f"diagonal: axes {axis0} and {axis1} of {describe(x)} make no square")
    x = permute(x, [i for i in range(x.ndim) if i not in (a, b)] + [a, b])
    n = x.shape[-1]
    same = view("reshape", iota(n), (n, 1)) == iota(n)
    return _contract(same * x, x.ndim - 2)


# ---- einsum ----------------------------------------------------------------------------------


def einsum(spec: str, *operands: TensorLike) -> Tensor:
    """NumPy's einsum: ellipsis, repeated labels (diagonals) and implicit output.

    Operands are multiplied from left to right; a label is summed as soon as no later operand and
    not the output has it.

    Raises:
        ValueError: a malformed spec, or sizes that differ under one label.
    """
    xs = [as_tensor(x) for x in operands]
    xs = list(promoted(*xs)) if xs else xs
    labels, result = _parse(spec, xs)
    pairs = [_without_repeats(x, names) for x, names in zip(xs, labels, strict=True)]
    out, names = pairs[0]
    for i, (x, more) in enumerate(pairs):
        if i > 0:
            both = names + "".join(c for c in more if c not in names)
            out, names = _product(spec, out, names, x, more, both), both
        needed = set(result).union(*(later for _, later in pairs[i + 1 :]))
        for c in [c for c in names if c not in needed]:
            out, names = _contract(out, names.index(c)), names.replace(c, "")
    return permute(out, [names.index(c) for c in result])


def _parse(spec: str, xs: Sequence[Tensor]) -> tuple[list[str], str]:
    """Labels of every operand and of the result; the dims of an ellipsis are called 0, 1, …"""
    text = spec.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(xs):
        raise ValueError(f"einsum {spec!r}: {len(terms)} terms for {len(xs)} operands")
    ranks = [x.ndim - len(t.replace("...", "")) for t, x in zip(terms, xs, strict=True)]
    rank = max((r for r, t in zip(ranks, terms, strict=True) if "..." in t), default=0)
    dots = "".join(chr(ord("0") + i) for i in range(rank))
    for term, r, x in zip(terms, ranks, xs, strict=True):
        if r < 0 or (r > 0 and "..." not in term):
            raise ValueError(f"einsum {spec!r}: {term!r} does not name the dims of {describe(x)}")
    labels = [t.replace("...", dots[rank - r :]) for t, r in zip(terms, ranks, strict=True)]
    if arrow:
        result = right.replace("...", dots)
    else:
        once = sorted(c for c in set(left) - set(",.") if left.count(c) == 1)
        result = dots + "".join(once)
    named = set("".join(labels))
    bad = [c for c in "".join(labels) + result if not (c.isalpha() or c in dots)]
    if bad or not set(result) <= named or len(set(result)) != len(result):
        raise ValueError(f"einsum {spec!r}: malformed; write for example 'bij,bjk->bik'")
    return labels, result


def _without_repeats(x: Tensor, names: str) -> tuple[Tensor, str]:
    for c in sorted(set(names)):
        while names.count(c) > 1:
            a, b = names.index(c), names.rindex(c)
            x = diagonal(x, a, b)
            names = names[:a] + names[a + 1 : b] + names[b + 1 :] + c
    return x, names


def _product(spec: str, a: Tensor, an: str, b: Tensor, bn: str, both: str) -> Tensor:
    """The product over all labels of both; a dim that one lacks has size 1 there."""
    for c in an:
        if c in bn and not c.isdigit() and a.shape[an.index(c)] != b.shape[bn.index(c)]:
            raise ValueError(f"einsum {spec!r}: label {c!r} has two sizes in {describe(a, b)}")
    spread = []
    for x, names in ((a, an), (b, bn)):
        x = permute(x, [names.index(c) for c in both if c in names])
        sizes = iter(x.shape)
        spread.append(view("reshape", x, tuple(next(sizes) if c in names else 1 for c in both)))
    return spread[0] * spread[1]


# ---- attention -------------------------------------------------------------------------------


def attention(
    query: TensorLike,
    key: TensorLike,
    value: TensorLike,
    mask: TensorLike | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """`softmax(q kᵀ · scale + mask) v`, written just so; what is stored is for the search to find.

    Args:
        query, key, value: (…, q, d), (…, k, d) and (…, k, e); leading dims broadcast.
        mask: bool (False hides a key) or a number to add; broadcasts to (…, q, k).
        causal: hides keys after the query's own position, counted from the start of both.
        scale: 1/√d by default.

    A query that sees no key gives NaN, as the same formula does in NumPy.
    """
    q, k, v = (as_float(x) for x in promoted(query, key, value))
    scores = matmul(q, mT(k))
    d = q.shape[-1]
    if scale is not None or not isinstance(d, Dim):
        scores = scores * (scale if scale is not None else 1 / math.sqrt(d))
    else:
        scores = scores * rsqrt(constant(d, q.dtype))
    if causal:
        rows, columns = scores.shape[-2:]
        seen = iota(columns) < view("reshape", iota(rows), (rows, 1)) + 1
        scores = where(seen, scores, -math.inf)
    if mask is not None:
        mask = as_tensor(mask)
        bias = where(mask, scores, -math.inf) if mask.dtype == bool_ else scores + mask
        scores = cast(bias, q.dtype)
    return matmul(softmax(scores, -1), v)
