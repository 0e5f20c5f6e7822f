"""Small graphs as a user writes them, for the tests of the search."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import lambent as lt
from lambent.graph.tensor import Tensor


def weight(name: str, *shape: int) -> Tensor:
    """Random values with signs, by name."""
    random = np.random.default_rng(sum(map(ord, name)))
    return lt.weight(name, random.standard_normal(shape, np.float32) * 0.5)


def matmul(n: int = 6) -> Tensor:
    return lt.input("x", (n, 5)) @ lt.input("y", (5, 7))


def softmax(n: int = 6) -> Tensor:
    return lt.softmax(lt.input("x", (n, 9)), axis=-1)


def layer_norm(x: Tensor, name: str) -> Tensor:
    centred = x - x.mean(-1, keepdims=True)
    scale = lt.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)
    return centred * scale * weight(name + "g", *x.shape[-1:]) + weight(name + "b", *x.shape[-1:])


def norm() -> Tensor:
    return layer_norm(lt.input("x", (5, 8)), "n") @ weight("w", 8, 6)


def mlp(n: int = 6) -> Tensor:
    h = lt.input("x", (n, 5)) @ weight("w1", 5, 8)
    return (h * lt.sigmoid(h)) @ weight("w2", 8, 4)


def attention(n: int = 6, heads: int = 2, causal: bool = False, d: int = 4) -> Tensor:
    q, k, v = (lt.input(name, (heads, n, d)) for name in "qkv")
    s = q @ k.mT / d**0.5
    if causal:
        i = lt.arange(n)
        s = lt.where(i.reshape(1, n) <= i.reshape(n, 1), s, float("-inf"))
    return lt.softmax(s, axis=-1) @ v


def layer(n: int = 4, c: int = 8, heads: int = 2) -> Tensor:
    """A small encoder layer with self-attention from one input."""
    x = lt.input("x", (n, c))

    def split(name: str) -> Tensor:
        return (x @ weight(name, c, c)).reshape(n, heads, c // heads).permute(1, 0, 2)

    q, k, v = map(split, ("wq", "wk", "wv"))
    mixed = lt.softmax(q @ k.mT / 2, axis=-1) @ v
    x1 = layer_norm(x + mixed.permute(1, 0, 2).reshape(n, c) @ weight("wo", c, c), "l1")
    h = x1 @ weight("w1", c, 2 * c) + weight("b1", 2 * c)
    return layer_norm(x1 + (h * lt.sigmoid(h)) @ weight("w2", 2 * c, c), "l2")


def embedding() -> Tensor:
    ids = lt.input("ids", (4,), "int32")
    return lt.embedding(ids, weight("table", 6, 5)) * 2.0


def residuals(n: int = 2, c: int = 8) -> Tensor:
    """Two residual blocks, each behind a norm: the sum after the first goes on in the second."""
    x = lt.input("x", (n, c))
    for name in "ab":
        y = lt.rms_norm(x, c, weight(f"{name}g", c)) @ weight(f"{name}1", c, 2 * c)
        x = x + (y * lt.sigmoid(y)) @ weight(f"{name}2", 2 * c, c)
    return x


def two_readers() -> Tensor:
    """One product that is read at two places, once with renamed axes."""
    y = lt.input("x", (5, 4)) @ weight("w", 4, 5)
    return y + y.mT


def conv(x: Tensor, name: str, **how: int) -> Tensor:
    return lt.conv2d(x, weight(name, 4, x.shape[1], 3, 3), **how)


def convs() -> Tensor:
    """Windows over what elementwise work made, of windows with gaps."""
    x = conv(lt.input("x", (1, 3, 9, 8)) + 1.0, "a", padding=2, dilation=2)
    return conv(lt.relu(x), "b", padding=1, stride=2)


def rows_of_images(n: Any = 6) -> Tensor:
    return lt.conv1d(lt.input("x", (2, 3, n)), weight("w", 4, 3, 3), padding=1)


GRAPHS: dict[str, Callable[[], Tensor]] = {
    "conv": lambda: conv(lt.input("x", (1, 3, 7, 6)), "w", padding=1),
    "convs": convs,
    "conv1d": rows_of_images,
    "matmul": matmul,
    "softmax": softmax,
    "norm": norm,
    "mlp": mlp,
    "attention": attention,
    "causal": lambda: attention(causal=True),
    "layer": layer,
    "embedding": embedding,
    "two readers": two_readers,
    "residuals": residuals,
}
