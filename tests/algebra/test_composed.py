"""Composed ops are written so that their e-graphs stay small where they follow a contraction."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import lambent as lt
from lambent.algebra.egraph import saturate

FUNCTIONS: dict[str, Callable[[lt.Tensor], lt.Tensor]] = {
    "gelu": lt.gelu,
    "gelu_tanh": lambda x: lt.gelu(x, "tanh"),
    "silu": lt.silu,
    "elu": lt.elu,
    "mish": lt.mish,
    "softplus": lt.softplus,
    "hardswish": lt.hardswish,
    "softcap": lambda x: (x / 30).tanh() * 30,
    "log1p_expm1": lambda x: lt.log1p(lt.expm1(x)),
    "round": lt.round,
    "floor_divide": lambda x: x // 3,
    "power": lambda x: x**1.5,
    "logsumexp": lambda x: x - lt.logsumexp(x, -1, keepdims=True),
    "norm": lambda x: lt.layer_norm(x, 96),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_saturation_ends(name: str) -> None:
    x, w, b = lt.input("x", (64, 48)), lt.input("w", (96, 48)), lt.input("b", (96,))
    out = lt.linear(FUNCTIONS[name](lt.linear(x, w, b)), lt.input("v", (32, 96)))
    stats = saturate([out.node], limit=2000, seconds=10).stats
    assert stats.saturated
    assert stats.e_nodes < 1000


@pytest.mark.parametrize("name", ["softcap", "round"])
def test_one_pass_survives_what_is_done_to_the_scores(name: str) -> None:
    q, k, v = (lt.input(n, (2, 64, 16)) for n in "qkv")
    scores = FUNCTIONS[name](q @ k.mT / 4)
    found = saturate([(lt.softmax(scores) @ v).node], limit=5000, seconds=10)
    assert any(n.op == "fold" for c in found.classes.values() for n in c.nodes)
    assert found.stats.saturated
