"""The built-in examples: each a naive graph, random inputs, and the same work for the peers.

`build` writes the graph with lambent's ops; `numpy` is the meaning, run in float64 to check results
and in float32 as a peer; `torch` holds the ways in which a PyTorch user would write it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lambent.cli.errors import choose

Array = np.ndarray[Any, np.dtype[Any]]
Arrays = dict[str, Array]
Function = Callable[[dict[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class Example:
    """One unit of work; `inputs` are given to every run, `weights` are known when compiling.

    With `native` False, `numpy` takes and returns arrays but is not what a NumPy user would run.
    `donate`: inputs that are given up, with the number of the output that each is to hold.
    """

    name: str
    shape: tuple[int, ...]
    inputs: Arrays
    build: Function
    numpy: Function
    torch: dict[str, Function]
    weights: Arrays = field(default_factory=dict)
    dtype: str = "float32"
    native: bool = True
    donate: dict[str, int] = field(default_factory=dict)

    def graph(self) -> Any:
        """The output of the naive graph, or several of one shape in a list."""
        import lambent as lt

        return self.build(
            {n: lt.input(n, a.shape, a.dtype) for n, a in self.inputs.items()}
            | {n: lt.weight(n, a) for n, a in self.weights.items()}
        )


def random(seed: int, **shapes: tuple[int, ...]) -> Arrays:
    """Standard normal float32 arrays by name."""
    rng = np.random.default_rng(seed)
    return {n: rng.standard_normal(s, dtype=np.float32) for n, s in shapes.items()}


def np_softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    out: Array = e / e.sum(-1, keepdims=True)
    return out


def attention(heads: int = 8, n: int = 1024, d: int = 64, causal: bool = False) -> Example:
    """softmax(q kᵀ / √d) v over [heads, n, d]; causal: no row sees a later key."""
    scale, keep = 1 / math.sqrt(d), np.tri(n, dtype=bool)

    def build(t: dict[str, Any]) -> Any:
        import lambent as lt

        scores = t["q"] @ t["k"].mT * scale
        if causal:
            place = lt.iota(n)
            seen = place.reshape(1, n) <= place.reshape(n, 1)
            scores = lt.where(seen, scores, float("-inf"))
        return lt.softmax(scores, axis=-1) @ t["v"]

    def with_numpy(t: dict[str, Any]) -> Any:
        scores = t["q"] @ t["k"].swapaxes(-1, -2) * t["q"].dtype.type(scale)
        return np_softmax(np.where(keep, scores, -np.inf) if causal else scores) @ t["v"]

    def with_torch(t: dict[str, Any]) -> Any:
        import torch

        scores = t["q"] @ t["k"].transpose(-1, -2) * scale
        if causal:
            scores = scores.masked_fill(~torch.ones(n, n, dtype=torch.bool).tril(), float("-inf"))
        return torch.softmax(scores, -1) @ t["v"]

    def fused(t: dict[str, Any]) -> Any:
        from torch.nn.functional import scaled_dot_product_attention as sdpa

        q, k, v = (t[name][None] for name in "qkv")  # with a batch dim: its fast kernel needs it
        return sdpa(q, k, v, is_causal=causal)[0]

    shape = (heads, n, d)
    return Example(
        "attention-causal" if causal else "attention", shape, random(1, q=shape, k=shape, v=shape),
        build, with_numpy, {"torch": with_torch, "torch.sdpa": fused},
    )  # fmt: skip


def attention_backward(heads: int = 8, n: int = 1024, d: int = 64) -> Example:
    """Attention, and its gradients by q, k and v where g is the gradient by its result."""
    forward, scale = attention(heads, n, d), 1 / math.sqrt(d)

    def build(t: dict[str, Any]) -> Any:
        import lambent as lt

        out = forward.build(t)
        return [out, *lt.grad((out * t["g"]).sum(), [t[name] for name in "qkv"])]

    def with_numpy(t: dict[str, Any]) -> Any:
        q, k, v, g = (t[name] for name in "qkvg")
        p = np_softmax(q @ k.swapaxes(-1, -2) * q.dtype.type(scale))
        by_p = g @ v.swapaxes(-1, -2)
        by_s = p * (by_p - (p * by_p).sum(-1, keepdims=True)) * q.dtype.type(scale)
        return np.stack([p @ v, by_s @ k, by_s.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ g])

    def with_torch(function: Function) -> Function:
        def both(t: dict[str, Any]) -> Any:
            import torch

            with torch.enable_grad():
                leaves = {name: t[name].detach().requires_grad_() for name in "qkv"}
                out = function(leaves)
                return (out.detach(), *torch.autograd.grad(out, list(leaves.values()), t["g"]))

        return both

    shape = (heads, n, d)
    return Example(
        "attention-backward", shape, random(1, q=shape, k=shape, v=shape, g=shape),
        build, with_numpy, {name: with_torch(f) for name, f in forward.torch.items()},
    )  # fmt: skip


def matmul(n: int = 1024) -> Example:
    """a @ b, all n × n."""

    def product(t: dict[str, Any]) -> Any:
        return t["a"] @ t["b"]

    given = random(2, a=(n, n), b=(n, n))
    return Example("matmul", (n, n, n), given, product, product, {"torch": product})


def softmax(rows: int = 4096, n: int = 1024) -> Example:
    """softmax along rows."""

    def build(t: dict[str, Any]) -> Any:
        import lambent as lt

        return lt.softmax(t["x"], axis=-1)

    def with_torch(t: dict[str, Any]) -> Any:
        return t["x"].softmax(-1)

    return Example(
        "softmax", (rows, n), random(3, x=(rows, n)), build,
        lambda t: np_softmax(t["x"]), {"torch": with_torch},
    )  # fmt: skip


def layernorm(rows: int = 4096, n: int = 1024, eps: float = 1e-5) -> Example:
    """(x − mean) / √(variance + eps) · g + b along rows."""

    def build(t: dict[str, Any]) -> Any:
        import lambent as lt

        x = t["x"]
        away = x - lt.mean(x, axis=-1, keepdims=True)
        return away * lt.rsqrt(lt.mean(away * away, axis=-1, keepdims=True) + eps) * t["g"] + t["b"]

    def with_numpy(t: dict[str, Any]) -> Any:
        away = t["x"] - t["x"].mean(-1, keepdims=True)
        return away / np.sqrt((away * away).mean(-1, keepdims=True) + eps) * t["g"] + t["b"]

    def with_torch(t: dict[str, Any]) -> Any:
        from torch.nn.functional import layer_norm

        return layer_norm(t["x"], (n,), t["g"], t["b"], eps)

    return Example(
        "layernorm", (rows, n), random(4, x=(rows, n)), build, with_numpy, {"torch": with_torch},
        random(5, g=(n,), b=(n,)),
    )  # fmt: skip


def np_gelu(x: Array) -> Array:
    one = x.dtype.type
    inner = one(math.sqrt(2 / math.pi)) * (x + one(0.044715) * x * x * x)
    out: Array = one(0.5) * x * (one(1) + np.tanh(inner))
    return out


def gelu(rows: int = 4096, n: int = 1024) -> Example:
    """GELU in its tanh form."""

    def build(t: dict[str, Any]) -> Any:
        import lambent as lt

        x = t["x"]
        return 0.5 * x * (1 + lt.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))

    def with_torch(t: dict[str, Any]) -> Any:
        from torch.nn.functional import gelu as torch_gelu

        return torch_gelu(t["x"], approximate="tanh")

    return Example(
        "gelu", (rows, n), random(6, x=(rows, n)), build, lambda t: np_gelu(t["x"]),
        {"torch": with_torch},
    )  # fmt: skip


def mlp(rows: int = 512, n: int = 768, inner: int = 3072) -> Example:
    """gelu(x w1 + b1) w2 + b2; the weights are known when compiling."""

    def build(t: dict[str, Any]) -> Any:
        y = t["x"] @ t["w1"] + t["b1"]
        return gelu(1, 1).build({"x": y}) @ t["w2"] + t["b2"]

    def with_numpy(t: dict[str, Any]) -> Any:
        return np_gelu(t["x"] @ t["w1"] + t["b1"]) @ t["w2"] + t["b2"]

    def with_torch(t: dict[str, Any]) -> Any:
        import torch

        y = torch.addmm(t["b1"], t["x"], t["w1"])
        return torch.addmm(t["b2"], torch.nn.functional.gelu(y, approximate="tanh"), t["w2"])

    weights = random(8, w1=(n, inner), b1=(inner,), w2=(inner, n), b2=(n,))
    weights = {name: a / np.float32(math.sqrt(a.shape[0])) for name, a in weights.items()}
    return Example(
        "mlp", (rows, n, inner), random(7, x=(rows, n)), build, with_numpy, {"torch": with_torch},
        weights,
    )  # fmt: skip


def conv(channels: int = 64, size: int = 56, out: int = 64) -> Example:
    """A 3 × 3 convolution with padding 1 of one image."""

    def build(t: dict[str, Any]) -> Any:
        import lambent as lt

        return lt.conv2d(t["x"], t["w"], padding=1)

    def with_numpy(t: dict[str, Any]) -> Any:
        padded = np.pad(t["x"], ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
        return np.einsum("bcyxij,ocij->boyx", windows, t["w"], optimize=True)

    def with_torch(t: dict[str, Any]) -> Any:
        from torch.nn.functional import conv2d

        return conv2d(t["x"], t["w"], padding=1)

    weights = {"w": random(10, w=(out, channels, 3, 3))["w"] / np.float32(math.sqrt(9 * channels))}
    return Example(
        "conv", (1, channels, size, size), random(9, x=(1, channels, size, size)), build,
        with_numpy, {"torch": with_torch}, weights,
    )  # fmt: skip


def minilm() -> Example:
    """The sentence encoder with its real weights: one text of 128 tokens."""
    from lambent.cli import minilm as model

    ids = np.random.default_rng(11).integers(1000, 30000, (1, 128))
    return model.example(ids, np.ones_like(ids))


EXAMPLES: dict[str, Callable[[], Example]] = {
    "attention": attention,
    "attention-causal": lambda: attention(causal=True),
    "attention-backward": attention_backward,
    "layernorm": layernorm,
    "matmul": matmul,
    "mlp": mlp,
    "softmax": softmax,
    "conv": conv,
    "minilm": minilm,
    "gelu": gelu,
}


def example(name: str) -> Example:
    """A built-in example by name.

    Raises:
        UserError: there is none; the message lists them.
    """
    return EXAMPLES[choose("example", name, EXAMPLES)]()
