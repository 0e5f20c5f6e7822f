"""Rows of `lambent bench --suite cuda` that are layers and models: decoders."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lambent.cli.cuda_works import Shapes, Tensors, Work
from lambent.cli.errors import UserError
from lambent.cli.examples import Arrays
from lambent.cli.output import say
from lambent.nn.decoder import DecoderConfig, cache_shape, decode, weight_shapes
from lambent.nn.rotary import Rotary

EPS = 1e-5
MATRICES = frozenset(("wq", "wk", "wv", "wo", "gate", "up", "down"))


class Sizes(NamedTuple):
    """Of a decoder layer. `groups`: heads of keys and values; `width`: of a head."""

    hidden: int
    heads: int
    groups: int
    width: int
    inner: int


LLAMA3 = Sizes(4096, 32, 8, 128, 14336)


def layer(rows: int, held: int = 0, sizes: Sizes = LLAMA3) -> Work:
    """A layer of the shape of Llama-3-8B. With `held` the caches have so many tokens, and the new
    one takes the place of the last."""
    hidden, heads, groups, width, inner = sizes
    places = held or rows

    def graph(t: Tensors) -> Any:
        import lambent as lt

        def norm(x: Any, g: Any) -> Any:
            return lt.rms_norm(x, hidden, g, EPS)

        def split(x: Any, count: int) -> Any:
            return x.reshape(rows, count, width).permute(1, 0, 2)

        def turned(x: Any) -> Any:
            cos, sin, halves = (y.unflatten(-1, (2, width // 2)) for y in (t["cos"], t["sin"], x))
            sign = (lt.iota(2) * 2 - 1).astype(x.dtype).unsqueeze(-1)
            return (halves * cos + halves.flip(-2) * (sin * sign)).flatten(-2)

        def at_hand(new: Any, old: str) -> Any:
            last = (lt.iota(places) == places - 1).unsqueeze(-1)
            return lt.where(last, new, t[old]) if held else new

        y = norm(t["x"], t["g1"])
        q = turned(split(y @ t["wq"].mT, heads)).reshape(groups, heads // groups, rows, width)
        k = at_hand(turned(split(y @ t["wk"].mT, groups)), "keys").unsqueeze(1)
        v = at_hand(split(y @ t["wv"].mT, groups), "values").unsqueeze(1)
        scores = q @ k.mT * (1 / math.sqrt(width))
        if not held:
            place = lt.iota(rows)
            seen = place.reshape(1, rows) <= place.reshape(rows, 1)
            scores = lt.where(seen, scores, float("-inf"))
        mixed = (lt.softmax(scores, axis=-1) @ v).reshape(heads, rows, width)
        x = t["x"] + mixed.permute(1, 0, 2).reshape(rows, hidden) @ t["wo"].mT
        y = norm(x, t["g2"])
        return x + (lt.silu(y @ t["gate"].mT) * (y @ t["up"].mT)) @ t["down"].mT

    def naive(t: Tensors) -> Any:
        import torch
        from torch.nn import functional as f

        def split(x: Any, count: int) -> Any:
            return x.view(rows, count, width).transpose(0, 1)

        def turned(x: Any) -> Any:
            a, b = x.chunk(2, -1)
            return x * t["cos"] + torch.cat([-b, a], -1) * t["sin"]

        def at_hand(new: Any, old: str) -> Any:
            if held:
                t[old][:, -1:] = new
            return t[old] if held else new

        y = f.rms_norm(t["x"], (hidden,), t["g1"], EPS)
        q = turned(split(y @ t["wq"].mT, heads))
        k = at_hand(turned(split(y @ t["wk"].mT, groups)), "keys")
        v = at_hand(split(y @ t["wv"].mT, groups), "values")
        mixed = f.scaled_dot_product_attention(
            q[None], k[None], v[None], is_causal=not held, enable_gqa=True
        )[0]
        x = t["x"] + mixed.transpose(0, 1).reshape(rows, hidden) @ t["wo"].mT
        y = f.rms_norm(x, (hidden,), t["g2"], EPS)
        return x + (f.silu(y @ t["gate"].mT) * (y @ t["up"].mT)) @ t["down"].mT

    shapes: Shapes = {"x": (rows, hidden), "cos": (rows, width), "sin": (rows, width)}
    shapes |= {"g1": (hidden,), "g2": (hidden,), "wq": (hidden, hidden), "wo": (hidden, hidden)}
    shapes |= dict.fromkeys(("wk", "wv"), (groups * width, hidden))
    shapes |= dict.fromkeys(("gate", "up"), (inner, hidden)) | {"down": (hidden, inner)}
    if held:
        shapes |= dict.fromkeys(("keys", "values"), (groups, held, width))
    weights = 2.0 * hidden * hidden + 2.0 * groups * width * hidden + 3.0 * hidden * inner
    if held:
        amount, unit = 2 * (weights + 2 * groups * held * width), "TB/s"
    else:
        amount, unit = 2 * rows * weights + 2.0 * heads * rows * rows * width, "TFLOP/s"
    name = f"decoder layer, {f'1 token after {held}' if held else f'{rows} tokens'}"
    return Work(name, unit, amount, shapes, graph, naive, {"PyTorch": naive}, weights=MATRICES)


SMOLLM2 = DecoderConfig(
    layers=30, hidden=576, heads=9, kv_heads=3, head_dim=64, intermediate=1536, vocabulary=49152,
    context=2048, eps=1e-5, scale=0.125, rotary=Rotary(100000.0),
)  # fmt: skip


def model(c: DecoderConfig = SMOLLM2, capacity: int = 512) -> Work:
    """One new token of SmolLM2-135M, the last row of whose caches it is.

    Its weights are the real ones where the package that brings them is installed.
    """
    must, _ = weight_shapes(c)
    caches = {f"{n}{i}": cache_shape(c, capacity) for i in range(c.layers) for n in "kv"}
    file = packaged() if c == SMOLLM2 else None
    shapes: Shapes = {**(must if file is None else {}), **caches}  # type: ignore[dict-item]

    def given() -> Arrays:
        return {"ids": np.array([17])} | (real_weights(file, c) if file else {})

    def graph(t: Tensors) -> Any:
        held = [(t[f"k{i}"], t[f"v{i}"]) for i in range(c.layers)]
        scores, kept = decode(c, t, t["ids"], held)
        flat = {
            f"{n}{i}": x for i, pair in enumerate(kept) for n, x in zip("kv", pair, strict=True)
        }
        return {"scores": scores} | flat

    def naive(t: Tensors) -> Any:
        return torch_decode(c, t)

    def ready(t: Tensors) -> None:
        """The caches hold what the model said before, in PyTorch; it goes on from there."""
        for i in range(capacity - 1 if file else 0):
            seen = {n: t[n][: i + 1] for n in caches}
            t["ids"] = torch_decode(c, t | seen).argmax(-1)

    def static(t: Tensors) -> Any:
        return graphed(c)(t)

    peers: dict[str, Callable[[Tensors], Any]] = {
        "PyTorch": naive, "torch.compile(reduce-overhead)": static
    }  # fmt: skip
    return Work(
        f"SmolLM2-135M, a token{'' if file else ' (random weights)'}",
        "tokens/s",
        1.0,
        shapes,
        graph,
        naive,
        peers,
        weights=frozenset(n for n in must if "blk" in n and len(must[n]) == 2),
        given=given,
        donate=lambda: {n: n for n in caches},
        ready=ready,
    )


def packaged() -> Path | None:
    """The file of SmolLM2-135M-Instruct, where its package is installed."""
    from lambent.cli.talk import locate

    try:
        return locate("smollm2")
    except UserError:
        return None


@cache
def real_weights(file: Path, c: DecoderConfig) -> Arrays:
    """The file's weights as bfloat16, of the sizes of `c`."""
    from lambent.frontends.language import load_language_model
    from lambent.graph.dtypes import bfloat16

    weights = load_language_model(file).weights
    if {n: w.shape for n, w in weights.items()} != weight_shapes(c)[0]:
        raise UserError(f"{file}: its weights are of other shapes than SmolLM2-135M's")
    say(f"weights of {file}")
    return {n: w.values(w.parts).astype(bfloat16.numpy) for n, w in weights.items()}


def torch_decode(c: DecoderConfig, t: Tensors) -> Any:
    """Scores of one token by PyTorch, as its users write it with caches of a fixed size."""
    import torch
    from torch.nn import functional as f

    dtype, device = t["token_embd.weight"].dtype, t["ids"].device
    past = torch.full_like(t["ids"], t["k0"].shape[0] - 1)
    frequencies = torch.arange(0, c.head_dim, 2, device=device) / c.head_dim
    angle = past[:, None] * (c.rotary.base if c.rotary else 1.0) ** -frequencies
    cos, sin = (torch.cat([x, x], -1).to(dtype) for x in (angle.cos(), angle.sin()))

    def turned(x: Any) -> Any:
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat([-b, a], -1) * sin

    x = t["token_embd.weight"][t["ids"]]
    for i in range(c.layers):

        def w(name: str, i: int = i) -> Any:
            return t[f"blk.{i}.{name}.weight"]

        y = f.rms_norm(x, (c.hidden,), w("attn_norm"), c.eps)
        q, k, v = (
            (y @ w(f"attn_{n}").mT).view(1, -1, c.head_dim).transpose(0, 1) for n in ("q", "k", "v")
        )
        keys, values = t[f"k{i}"], t[f"v{i}"]
        keys.index_copy_(0, past, turned(k).transpose(0, 1))
        values.index_copy_(0, past, v.transpose(0, 1))
        mixed = f.scaled_dot_product_attention(
            turned(q)[None],
            keys.transpose(0, 1)[None],
            values.transpose(0, 1)[None],
            scale=c.scale,
            enable_gqa=True,
        )
        x = x + mixed.transpose(1, 2).reshape(1, -1) @ w("attn_output").mT
        y = f.rms_norm(x, (c.hidden,), w("ffn_norm"), c.eps)
        x = x + (f.silu(y @ w("ffn_gate").mT) * (y @ w("ffn_up").mT)) @ w("ffn_down").mT
    return f.rms_norm(x, (c.hidden,), t["output_norm.weight"], c.eps) @ t["token_embd.weight"].mT


@cache
def graphed(c: DecoderConfig) -> Callable[[Tensors], Any]:
    """The same compiled, with CUDA graphs: arrays keep their places."""
    import torch

    def step(t: Tensors) -> Any:
        return torch_decode(c, t)

    fast: Any = torch.compile(step, mode="reduce-overhead")

    def run(t: Tensors) -> Any:
        for x in t.values():
            torch._dynamo.mark_static_address(x)
        return fast(t).clone()

    return run
