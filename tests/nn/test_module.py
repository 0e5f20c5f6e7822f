"""Modules: names, state dicts with exact checks, loading, and layers against PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from lambent import nn
from lambent.backends.reference.graph import evaluate
from lambent.functional.gradient import grad
from lambent.graph.tensor import Tensor, input


class Pair(nn.Module):
    def __init__(self) -> None:
        self.blocks = [nn.Linear(3, 4), nn.Linear(4, 2, bias=False)]
        self.norm = nn.LayerNorm(2)

    def __call__(self, x: Tensor) -> Tensor:
        return self.norm(self.blocks[1](self.blocks[0](x)))


class Outer(nn.Module):
    def __init__(self) -> None:
        self.pair = Pair()


NAMES = ["blocks.0.weight", "blocks.0.bias", "blocks.1.weight", "norm.weight", "norm.bias"]


def run(module: Callable[..., Tensor], *arrays: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    xs = [input(f"x{i}", a.shape, a.dtype) for i, a in enumerate(arrays)]
    return evaluate([module(*xs)], {f"x{i}": a for i, a in enumerate(arrays)})[0]


def load(module: nn.Module, theirs: torch.nn.Module) -> None:
    module.load_state_dict({k: v.detach().numpy() for k, v in theirs.state_dict().items()})


def test_weights_are_named_by_their_path() -> None:
    pair = Pair()
    assert [name for name, _ in pair.named_parameters()] == NAMES
    assert [t.node.attr.name for _, t in pair.named_parameters()] == NAMES
    outer = Outer()
    assert [t.node.attr.name for _, t in outer.named_parameters()] == [f"pair.{n}" for n in NAMES]
    assert [name for name, _ in outer.pair.named_parameters()] == NAMES


def test_a_call_builds_a_graph_of_named_weights() -> None:
    y = Pair()(input("x", (5, 3)))
    assert isinstance(y, Tensor) and y.shape == (5, 2)


def test_state_goes_round() -> None:
    a, b = Pair(), Pair()
    b.load_state_dict(a.state_dict())
    x = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    np.testing.assert_array_equal(run(a, x), run(b, x))
    inner = Outer()
    inner.pair.load_state_dict(a.state_dict())  # keeps the names of the whole
    first = next(t for _, t in inner.named_parameters())
    assert first.node.attr.name == "pair.blocks.0.weight"
    np.testing.assert_array_equal(run(inner.pair, x), run(a, x))


def test_load_state_dict_lists_every_fault_and_changes_nothing() -> None:
    pair = Pair()
    before = {k: v.copy() for k, v in pair.state_dict().items()}
    state = dict(pair.state_dict())
    del state["norm.bias"]
    state["extra.weight"] = np.zeros(2, np.float32)
    state["blocks.0.bias"] = np.zeros(5, np.float32)
    state["blocks.1.weight"] = np.zeros((2, 4), np.float64)
    with pytest.raises(ValueError) as error:
        pair.load_state_dict(state, ignore=("other", "extra"))  # "extra" is no prefix
    text = str(error.value)
    assert "missing: norm.bias" in text
    assert "unexpected: extra.weight" in text
    assert "mismatched: blocks.0.bias is float32[5], the module has float32[4]" in text
    assert "mismatched: blocks.1.weight is float64[2, 4], the module has float32[2, 4]" in text
    assert "4 faults" in text
    for name, array in pair.state_dict().items():
        np.testing.assert_array_equal(array, before[name])
    good = pair.state_dict() | {"extra.weight": np.zeros(2, np.float32), "step": np.zeros(())}
    pair.load_state_dict(good, ignore=("extra.", "step"))


def test_initial_weights_are_seeded_and_can_be_skipped() -> None:
    nn.seed(7)
    a = nn.Linear(3, 4)
    nn.seed(7)
    b, c = nn.Linear(3, 4), nn.Linear(3, 4)
    arrays = [m.state_dict()["weight"] for m in (a, b, c)]
    np.testing.assert_array_equal(arrays[0], arrays[1])
    assert not np.array_equal(arrays[1], arrays[2])
    assert np.abs(arrays[0]).max() <= 1 / np.sqrt(3)
    with nn.skip_init():
        assert not nn.Linear(3, 4).state_dict()["weight"].any()


def test_astype_casts_floating_weights() -> None:
    pair = Pair().astype("bfloat16")
    assert {t.dtype.name for _, t in pair.named_parameters()} == {"bfloat16"}
    assert [t.node.attr.name for _, t in pair.named_parameters()] == NAMES


LAYERS: list[tuple[Callable[[], nn.Module], Callable[[], torch.nn.Module], tuple[int, ...]]] = [
    (lambda: nn.Linear(5, 3), lambda: torch.nn.Linear(5, 3), (2, 4, 5)),
    (lambda: nn.LayerNorm((4, 5)), lambda: torch.nn.LayerNorm((4, 5)), (2, 4, 5)),
    (lambda: nn.RMSNorm(5), lambda: torch.nn.RMSNorm(5), (2, 4, 5)),
    (lambda: nn.GroupNorm(2, 4), lambda: torch.nn.GroupNorm(2, 4), (2, 4, 5)),
    (
        lambda: nn.Conv1d(4, 6, 3, 2, 1, 1, 2),
        lambda: torch.nn.Conv1d(4, 6, 3, 2, 1, 1, 2),
        (2, 4, 7),
    ),
    (lambda: nn.Conv2d(2, 3, (3, 2)), lambda: torch.nn.Conv2d(2, 3, (3, 2)), (1, 2, 5, 4)),
    (lambda: nn.Conv3d(2, 3, 2, padding="same"), lambda: torch.nn.Conv3d(2, 3, 2), (1, 2, 3, 4, 3)),
]


@pytest.mark.parametrize("case", range(len(LAYERS)))
def test_layers_load_and_compute_as_pytorchs(case: int) -> None:
    make, theirs_of, shape = LAYERS[case]
    torch.manual_seed(case)
    ours, theirs = make(), theirs_of()
    load(ours, theirs)
    x = torch.randn(shape)
    want = theirs(torch.nn.functional.pad(x, (0, 1) * 3) if case == 6 else x).detach().numpy()
    np.testing.assert_allclose(run(ours, x.numpy()), want, rtol=1e-5, atol=1e-5)


def test_embedding_loads_as_pytorchs() -> None:
    ours, theirs = nn.Embedding(7, 3), torch.nn.Embedding(7, 3)
    load(ours, theirs)
    ids = np.array([[0, 6], [3, 3]])
    np.testing.assert_array_equal(run(ours, ids), theirs(torch.from_numpy(ids)).detach().numpy())


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_multi_head_attention_is_sdpa(kv_heads: int) -> None:
    nn.seed(0)
    layer = nn.MultiHeadAttention(16, 4, kv_heads)
    w = {k: torch.from_numpy(v) for k, v in layer.state_dict().items()}
    torch.manual_seed(0)
    x, context, mask = torch.randn(2, 5, 16), torch.randn(2, 7, 16), torch.rand(2, 1, 5, 7) < 0.7
    mask[..., 0] = True

    def project(name: str, y: torch.Tensor, heads: int) -> torch.Tensor:
        y = torch.nn.functional.linear(y, w[f"{name}.weight"], w[f"{name}.bias"])
        return y.unflatten(-1, (heads, 4)).transpose(1, 2)

    q = project("q_proj", x, 4)
    k, v = project("k_proj", context, kv_heads), project("v_proj", context, kv_heads)
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
    y = y.transpose(1, 2).flatten(-2)
    want = torch.nn.functional.linear(y, w["out_proj.weight"], w["out_proj.bias"])
    got = run(lambda x, c, m: layer(x, c, mask=m), x.numpy(), context.numpy(), mask.numpy())
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pre_norm", [True, False])
def test_encoder_block_is_pytorchs(pre_norm: bool) -> None:
    torch.manual_seed(0)
    theirs = torch.nn.TransformerEncoderLayer(
        16, 4, 32, activation="gelu", batch_first=True, norm_first=pre_norm
    ).eval()
    s = {k: v.numpy() for k, v in theirs.state_dict().items()}
    state = {
        "attention.out_proj.weight": s["self_attn.out_proj.weight"],
        "attention.out_proj.bias": s["self_attn.out_proj.bias"],
    }
    packed = zip(
        "qkv", *(np.split(s[f"self_attn.in_proj_{p}"], 3) for p in ("weight", "bias")), strict=True
    )
    for name, weight, bias in packed:
        state |= {f"attention.{name}_proj.weight": weight, f"attention.{name}_proj.bias": bias}
    renamed = {"linear1": "up", "linear2": "down", "norm1": "attention_norm", "norm2": "mlp_norm"}
    for their_name, name in renamed.items():
        state |= {f"{name}.{p}": s[f"{their_name}.{p}"] for p in ("weight", "bias")}
    block = nn.EncoderBlock(16, 4, 32, pre_norm=pre_norm)
    block.load_state_dict(state)
    x = torch.randn(2, 5, 16)
    with torch.no_grad():
        want = theirs(x).numpy()
    np.testing.assert_allclose(run(block, x.numpy()), want, rtol=1e-4, atol=1e-5)


def test_layer_errors() -> None:
    with pytest.raises(ValueError, match=r"Linear: weight float32\[4, 3\] for input float32\[5\]"):
        nn.Linear(3, 4)(input("x", (5,)))
    with pytest.raises(ValueError, match="do not divide"):
        nn.MultiHeadAttention(10, 3)
    with pytest.raises(ValueError, match="Conv: 2 groups do not divide 3"):
        nn.Conv1d(3, 4, 1, groups=2)


# ---- files -----------------------------------------------------------------------------------


def test_a_trainable_copy_has_inputs_for_weights() -> None:
    module = Outer()
    copy, params = module.trainable()
    assert list(params) == [path for path, _ in module.named_parameters()]
    x = input("x", (2, 3))
    a = np.random.default_rng(0).normal(size=(2, 3)).astype("float32")
    want, found = evaluate([module.pair(x), copy.pair(x)], module.state_dict() | {"x": a})
    np.testing.assert_array_equal(found, want)
    slopes = grad((copy.pair(x) ** 2).sum(), {n: p for n, p in params.items() if "pair" in n})
    assert all(g.shape == params[name].shape for name, g in slopes.items())
