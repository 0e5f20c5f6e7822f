"""Convolutions against PyTorch: ranks, strides, padding, dilation, groups, small and empty dims."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from against_torch import draw, same
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lambent.backends.reference.graph import evaluate
from lambent.functional import conv
from lambent.graph.dim import Dim
from lambent.graph.tensor import input

OURS = {1: conv.conv1d, 2: conv.conv2d, 3: conv.conv3d}
TRANSPOSED = {1: conv.conv_transpose1d, 2: conv.conv_transpose2d, 3: conv.conv_transpose3d}
TORCH = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TORCH_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def numbers(rank: int, low: int, high: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.tuples(*[st.integers(low, high)] * rank)


@st.composite
def cases(draw_: st.DrawFn) -> dict[str, Any]:
    rank = draw_(st.integers(1, 3))
    top = {1: 9, 2: 6, 3: 4}[rank]
    return {
        "rank": rank,
        "batch": draw_(st.sampled_from([None, 0, 1, 2])),
        "groups": draw_(st.sampled_from([1, 1, 2, 3])),
        "inner": draw_(st.integers(1, 3)),  # input channels a group
        "outer": draw_(st.integers(1, 3)),
        "size": draw_(numbers(rank, 1, top)),
        "kernel": draw_(numbers(rank, 1, 3)),
        "stride": draw_(numbers(rank, 1, 3)),
        "padding": draw_(numbers(rank, 0, 2)),
        "dilation": draw_(numbers(rank, 1, 2)),
        "bias": draw_(st.booleans()),
        "seed": draw_(st.integers(0, 99)),
    }


def operands(c: dict[str, Any], transposed: bool) -> list[torch.Tensor]:
    rng = np.random.default_rng(c["seed"])
    lead = () if c["batch"] is None else (c["batch"],)
    groups, inner, outer = c["groups"], c["inner"], c["outer"]
    first = (groups * inner, outer) if transposed else (groups * outer, inner)
    out = [draw(rng, (*lead, groups * inner, *c["size"])), draw(rng, (*first, *c["kernel"]))]
    return out + ([draw(rng, (groups * outer,))] if c["bias"] else [])


@settings(max_examples=60, deadline=None)
@given(cases())
def test_conv_is_pytorchs(c: dict[str, Any]) -> None:
    spans = [(k - 1) * d + 1 for k, d in zip(c["kernel"], c["dilation"], strict=True)]
    room = [n + 2 * p - s for n, p, s in zip(c["size"], c["padding"], spans, strict=True)]
    assume(min(room) >= 0)
    rank, xs = c["rank"], operands(c, transposed=False)
    keys = {k: c[k] for k in ("stride", "padding", "dilation", "groups")}
    same(
        lambda x, w, b=None: OURS[rank](x, w, b, **keys),
        lambda x, w, b=None: TORCH[rank](x, w, b, **keys),
        *xs,
    )


@settings(max_examples=60, deadline=None)
@given(cases(), st.data())
def test_conv_transpose_is_pytorchs(c: dict[str, Any], data: st.DataObject) -> None:
    assume(c["batch"] != 0)
    rank, xs = c["rank"], operands(c, transposed=True)
    most = [max(s, d) - 1 for s, d in zip(c["stride"], c["dilation"], strict=True)]
    extra = tuple(data.draw(st.integers(0, m)) for m in most)
    parts = zip(
        c["size"], c["stride"], c["padding"], c["dilation"], c["kernel"], extra, strict=True
    )
    assume(min((n - 1) * s - 2 * p + d * (k - 1) + e + 1 for n, s, p, d, k, e in parts) >= 1)
    keys = {k: c[k] for k in ("stride", "padding", "dilation", "groups")} | {
        "output_padding": extra
    }
    same(
        lambda x, w, b=None: TRANSPOSED[rank](x, w, b, **keys),
        lambda x, w, b=None: TORCH_TRANSPOSED[rank](x, w, b, **keys),
        *xs,
    )


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("kernel", [1, 2, 3, 4])
@pytest.mark.parametrize("padding", ["same", "valid"])
def test_padding_by_name(kernel: int, padding: str) -> None:
    rng = np.random.default_rng(kernel)
    x, w = draw(rng, (2, 3, 6, 5)), draw(rng, (4, 3, kernel, kernel))
    same(
        lambda x, w: conv.conv2d(x, w, padding=padding, dilation=1),
        lambda x, w: F.conv2d(x, w, padding=padding),
        x,
        w,
    )


@pytest.mark.parametrize("dtype", ["float32", "int64", "int32"])
def test_other_dtypes(dtype: str) -> None:
    rng = np.random.default_rng(1)
    x, w = draw(rng, (2, 3, 7), dtype), draw(rng, (4, 3, 3), dtype)
    exact = F.conv1d(x.double(), w.double()).to(x.dtype)
    same(conv.conv1d, lambda x, w: exact, x, w, rtol=1e-5)


def test_symbolic_sizes() -> None:
    n = Dim("conv_n", 1, 64)
    x = input("x", (2, 3, n), "float64")
    w = input("w", (4, 3, 3), "float64")
    y = conv.conv1d(x, w, padding=1, stride=2)
    up = conv.conv_transpose1d(x, w.transpose(0, 1), stride=2, padding=1, output_padding=1)
    rng = np.random.default_rng(0)
    for size in (1, 2, 7):
        a, b = draw(rng, (2, 3, size)), draw(rng, (4, 3, 3))
        got, got_up = evaluate([y, up], {"x": a.numpy(), "w": b.numpy()})
        np.testing.assert_allclose(got, F.conv1d(a, b, padding=1, stride=2), atol=1e-12)
        want = F.conv_transpose1d(a, b.transpose(0, 1), None, 2, 1, 1)
        np.testing.assert_allclose(got_up, want, atol=1e-12)


def test_errors_name_the_op_and_the_shapes() -> None:
    x, w = input("x", (2, 4, 5)), input("w", (6, 2, 3))
    with pytest.raises(ValueError, match=r"conv1d.*float32\[2, 4, 5\].*4 channels, not 2"):
        conv.conv1d(x, w)
    with pytest.raises(ValueError, match="conv1d: 4 groups do not divide"):
        conv.conv1d(x, w, groups=4)
    with pytest.raises(ValueError, match=r"conv1d: the window 3 .* spans 9"):
        conv.conv1d(x, w, groups=2, dilation=4)
    with pytest.raises(ValueError, match="conv1d: stride must be 1 integers >= 1"):
        conv.conv1d(x, w, groups=2, stride=0)
    with pytest.raises(ValueError, match="conv2d: needs"):
        conv.conv2d(x, w)
    with pytest.raises(ValueError, match="'same' at stride 1"):
        conv.conv1d(x, w, groups=2, stride=2, padding="same")
    with pytest.raises(ValueError, match=r"the bias must be \[6\]"):
        conv.conv1d(x, w, input("b", (5,)), groups=2)
    with pytest.raises(ValueError, match="output_padding 1 must be below stride 1"):
        conv.conv_transpose1d(x, input("v", (4, 2, 3)), output_padding=1)
