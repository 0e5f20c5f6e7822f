"""Work of `lambent bench --suite cuda`: naive graphs, and what PyTorch's users would pick."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from lambent.cli.examples import Arrays

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Work:
    """What a row does. `amount` is what a run does: operations, or bytes that it must move.

    build: from lambent's inputs to the output, or a dict whose first entry is checked; naive: the
    same with PyTorch, in any dtype; peers: by name, what a PyTorch user would pick instead.
    weights: inputs that are drawn with a variance of 1 / their last dim; given: makes the other
    inputs; donate and tf32: as `compile` wants them; ready: makes arrays on the device what the
    work begins with.
    """

    name: str
    unit: str
    amount: float
    shapes: Shapes
    build: Callable[[dict[str, Any]], Any]
    naive: Callable[[dict[str, Any]], Any]
    peers: dict[str, Callable[[dict[str, Any]], Any]]
    weights: frozenset[str] = frozenset()
    given: Callable[[], Arrays] = dict
    donate: Callable[[], dict[str, str]] = dict
    tf32: bool = False
    ready: Callable[[dict[str, Any]], None] = lambda arrays: None

    def options(self) -> dict[str, Any]:
        """What `compile` is told beside."""
        return {"donate": self.donate(), "tf32": self.tf32}

    def graph(self) -> Any:
        """The naive graph, on inputs of its own."""
        import lambent as lt

        inputs = {n: lt.input(n, shape, "bfloat16") for n, shape in self.shapes.items()}
        given = {n: lt.input(n, a.shape, str(a.dtype)) for n, a in self.given().items()}
        return self.build(inputs | given)


Tensors = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Change:
    """What a variant does to attention's scores: `ours` and `theirs` take scores and the places of
    queries and keys; `flex` is the score_mod or mask_mod of FlexAttention; `share`: of the scores
    that count."""

    name: str = ""
    ours: Callable[[Any, Any, Any], Any] = lambda scores, i, j: scores
    theirs: Callable[[Any, Any, Any], Any] = lambda scores, i, j: scores
    flex: tuple[str, Any] | None = None
    share: float = 1.0


def masked(name: str, share: float, seen: Callable[[Any, Any], Any]) -> Change:
    """Scores count where `seen` says so."""

    def ours(scores: Any, i: Any, j: Any) -> Any:
        import lambent as lt

        return lt.where(seen(i, j), scores, float("-inf"))

    def theirs(scores: Any, i: Any, j: Any) -> Any:
        return scores.masked_fill(~seen(i, j), float("-inf"))

    return Change(name, ours, theirs, ("mask_mod", lambda b, h, i, j: seen(i, j)), share)


def capped(limit: float) -> Change:
    """Scores are bent to lie below a limit."""

    def ours(scores: Any, i: Any, j: Any) -> Any:
        import lambent as lt

        return lt.tanh(scores / limit) * limit

    def theirs(scores: Any, i: Any, j: Any) -> Any:
        return (scores / limit).tanh() * limit

    def flex(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return (score / limit).tanh() * limit

    return Change(" soft-cap", ours, theirs, ("score_mod", flex))


CAUSAL = masked(" causal", 0.5, lambda i, j: j <= i)


def sliding(n: int, width: int) -> Change:
    share = (width * n - width * width / 2) / (n * n)
    return masked(f" window {width}", share, lambda i, j: (j <= i) & (i - j < width))


def attention(
    heads: int, d: int, change: Change, n: int = 4096, batch: int = 4, kv: int = 0, rows: int = 0
) -> Work:
    """Naive attention. `kv`: heads of keys and values; `rows`: queries, the last ones."""
    scale, kv, rows = 1 / math.sqrt(d), kv or heads, rows or n
    group = heads // kv

    def graph(t: Tensors) -> Any:
        import lambent as lt

        q = t["q"].reshape(batch, kv, group, rows, d) if group > 1 else t["q"]
        k, v = (t[x].reshape(batch, kv, 1, n, d) if group > 1 else t[x] for x in "kv")
        i, j = (lt.iota(rows) + (n - rows)).reshape(rows, 1), lt.iota(n).reshape(1, n)
        found = lt.softmax(change.ours(q @ k.mT * scale, i, j), axis=-1) @ v
        return found.reshape(batch, heads, rows, d) if group > 1 else found

    def naive(t: Tensors) -> Any:
        import torch

        k, v = (t[x].repeat_interleave(group, 1) if group > 1 else t[x] for x in "kv")
        scores = t["q"] @ k.mT * scale
        j = torch.arange(n, device=scores.device)
        return change.theirs(scores, j[n - rows :, None], j[None, :]).softmax(-1) @ v

    def fused(backend: str) -> Callable[[Tensors], Any]:
        def run(t: Tensors) -> Any:
            from torch.nn import attention, functional

            with attention.sdpa_kernel(getattr(attention.SDPBackend, backend)):
                q, k, v = (t[name] for name in "qkv")
                causal = change is CAUSAL
                more: Any = {"enable_gqa": True} if group > 1 else {}
                return functional.scaled_dot_product_attention(q, k, v, is_causal=causal, **more)

        return run

    shapes: Shapes = {"q": (batch, heads, rows, d)}
    shapes |= dict.fromkeys("kv", (batch, kv, n, d))
    size = f"h{heads}" + (f"/{kv}" if group > 1 else "")
    name = f"attention b{batch} {size} n{n} d{d}{change.name}"
    peers = {"cuDNN": fused("CUDNN_ATTENTION"), "FlashAttention-2": fused("FLASH_ATTENTION")}
    flex = {"FlexAttention": flexible(change, rows, n, group > 1)}
    if change.flex is not None and change is not CAUSAL:
        peers = flex
    elif change is CAUSAL and (group > 1 or n % 128):
        peers |= flex
    if rows == 1:
        moved = 4.0 * batch * kv * n * d
        return Work(f"decode {name}", "TB/s", moved, shapes, graph, naive, peers)
    work = 4.0 * batch * heads * rows * n * d * change.share
    return Work(name, "TFLOP/s", work, shapes, graph, naive, peers)


def attention_backward(heads: int, d: int, n: int, batch: int = 4) -> Work:
    """Causal attention and its gradients, where g is the gradient by its result."""
    forward = attention(heads, d, CAUSAL, n, batch)

    def graph(t: Tensors) -> Any:
        import lambent as lt

        out = forward.build(t)
        by_q, by_k, by_v = lt.grad((out * t["g"]).sum(), [t[name] for name in "qkv"])
        return {"by_q": by_q, "by_k": by_k, "by_v": by_v, "out": out}

    def with_grad(run: Callable[[Tensors], Any]) -> Callable[[Tensors], Any]:
        def both(t: Tensors) -> Any:
            import torch

            with torch.enable_grad():
                leaves = {name: t[name].detach().requires_grad_() for name in "qkv"}
                return torch.autograd.grad(run(leaves), [*leaves.values()], t["g"])[0]

        return both

    shapes = forward.shapes | {"g": forward.shapes["q"]}
    peers = {name: with_grad(run) for name, run in forward.peers.items()}
    name, work = f"{forward.name}, backward", 3.5 * forward.amount
    return Work(name, "TFLOP/s", work, shapes, graph, with_grad(forward.naive), peers)


def flexible(change: Change, rows: int, n: int, grouped: bool) -> Callable[[Tensors], Any]:
    """FlexAttention, compiled, with the mask's blocks made once."""
    held: dict[str, Any] = {}

    def run(t: Tensors) -> Any:
        import torch
        from torch.nn.attention import flex_attention as flex

        if not held:
            assert change.flex is not None
            kind, f = change.flex
            blocks = flex.create_block_mask(f, None, None, rows, n) if kind == "mask_mod" else f
            held["call"] = torch.compile(flex.flex_attention)
            held["more"] = {"block_mask" if kind == "mask_mod" else "score_mod": blocks}
            held["more"] |= {"enable_gqa": grouped}
        return held["call"](t["q"], t["k"], t["v"], **held["more"])

    return run


def biased(heads: int, d: int, n: int = 4096, batch: int = 4) -> Work:
    """Attention with a bias for each pair of places, the same for all of the batch."""
    plain = attention(heads, d, Change(" bias"), n, batch)
    scale = 1 / math.sqrt(d)

    def graph(t: Tensors) -> Any:
        import lambent as lt

        return lt.softmax(t["q"] @ t["k"].mT * scale + t["bias"], axis=-1) @ t["v"]

    def naive(t: Tensors) -> Any:
        return (t["q"] @ t["k"].mT * scale + t["bias"]).softmax(-1) @ t["v"]

    def sdpa(t: Tensors) -> Any:
        from torch.nn import functional

        q, k, v = (t[name] for name in "qkv")
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=t["bias"][None])

    shapes = plain.shapes | {"bias": (heads, n, n)}
    return Work(plain.name, plain.unit, plain.amount, shapes, graph, naive, {"SDPA": sdpa})


def matmul(m: int, n: int, k: int) -> Work:
    def product(t: Tensors) -> Any:
        return t["a"] @ t["b"]

    shapes: Shapes = {"a": (m, k), "b": (k, n)}
    name = f"matmul {m}×{n}×{k}"
    return Work(name, "TFLOP/s", 2.0 * m * n * k, shapes, product, product, {"cuBLAS": product})


def narrow_matmul(n: int) -> Work:
    """A square product of floats of 8 bits with a bfloat16 result, b as rows of its columns."""

    def graph(t: Tensors) -> Any:
        return (t["a"] @ t["b"].mT).astype("bfloat16")

    def naive(t: Tensors) -> Any:
        return t["a"] @ t["b"].mT

    def scaled(t: Tensors) -> Any:
        import torch

        one = torch.ones((), device=t["a"].device)
        multiply: Any = torch._scaled_mm
        return multiply(t["a"], t["b"].mT, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

    name, given = f"matmul {n}³ float8_e4m3fn", partial(drawn, "float8_e4m3fn", (n, n), (n, n))
    return Work(name, "TFLOP/s", 2.0 * n**3, {}, graph, naive, {"cuBLAS": scaled}, given=given)


def tf32_matmul(n: int) -> Work:
    """A square product of float32, which matrix units may round to TF32."""

    def product(t: Tensors) -> Any:
        return t["a"] @ t["b"]

    def rounded(t: Tensors) -> Any:
        import torch

        matmul = torch.backends.cuda.matmul
        before, matmul.allow_tf32 = matmul.allow_tf32, True
        try:
            return product(t)
        finally:
            matmul.allow_tf32 = before

    given = partial(drawn, "float32", (n, n), (n, n))
    peers: dict[str, Callable[[Tensors], Any]] = {"cuBLAS": rounded}
    name, amount = f"matmul {n}³ float32 as TF32", 2.0 * n**3
    return Work(name, "TFLOP/s", amount, {}, product, product, peers, given=given, tf32=True)


@cache
def drawn(dtype: str, *shapes: tuple[int, ...]) -> Arrays:
    """Normal numbers by the names a, b, …"""
    from lambent.graph.dtypes import DTYPES

    random, kind = np.random.default_rng(1), DTYPES[dtype].numpy
    return {
        chr(ord("a") + i): random.standard_normal(shape, np.float32).astype(kind)
        for i, shape in enumerate(shapes)
    }


def mlp(m: int, inner: int = 4096, outer: int = 14336) -> Work:
    """SwiGLU: few rows must read all weights, many must multiply."""

    def graph(t: Tensors) -> Any:
        import lambent as lt

        return (lt.silu(t["x"] @ t["gate"].mT) * (t["x"] @ t["up"].mT)) @ t["down"].mT

    def naive(t: Tensors) -> Any:
        from torch.nn import functional

        return (functional.silu(t["x"] @ t["gate"].mT) * (t["x"] @ t["up"].mT)) @ t["down"].mT

    shapes: Shapes = {"x": (m, inner), "gate": (outer, inner), "up": (outer, inner)}
    shapes["down"] = (inner, outer)
    weights = 3.0 * inner * outer
    unit, amount = ("TB/s", 2 * weights) if m < 128 else ("TFLOP/s", 2 * m * weights)
    return Work(f"SwiGLU M={m}", unit, amount, shapes, graph, naive, {"PyTorch": naive})


def rows(name: str, graph: Any, naive: Any, weights: str = "", m: int = 16384) -> Work:
    """Work on rows of 4096: it must read and write each element once. `weights`: of one row."""
    n = 4096
    shapes: Shapes = {"x": (m, n)} | dict.fromkeys(weights, (n,))
    return Work(f"{name} {m}×{n}", "TB/s", 4.0 * m * n, shapes, graph, naive, {})


def softmax() -> Work:
    def graph(t: Tensors) -> Any:
        import lambent as lt

        return lt.softmax(t["x"], axis=-1)

    return rows("softmax", graph, lambda t: t["x"].softmax(-1))


def gelu() -> Work:
    def graph(t: Tensors) -> Any:
        import lambent as lt

        return lt.gelu(t["x"].astype("float32")).astype("bfloat16")

    def naive(t: Tensors) -> Any:
        from torch.nn import functional

        return functional.gelu(t["x"])

    return rows("GELU", graph, naive)


def rms_norm() -> Work:
    def graph(t: Tensors) -> Any:
        import lambent as lt

        x = t["x"].astype("float32")
        scale = lt.rsqrt(lt.mean(x * x, axis=-1, keepdims=True) + 1e-6)
        return (x * scale * t["g"].astype("float32")).astype("bfloat16")

    def naive(t: Tensors) -> Any:
        x = t["x"].float()
        scale = (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
        return (x * scale * t["g"].float()).to(t["x"].dtype)

    return rows("RMSNorm", graph, naive, "g")


def layer_norm() -> Work:
    def graph(t: Tensors) -> Any:
        import lambent as lt

        x = t["x"].astype("float32")
        x = x - lt.mean(x, axis=-1, keepdims=True)
        scale = lt.rsqrt(lt.mean(x * x, axis=-1, keepdims=True) + 1e-5)
        g, b = (t[name].astype("float32") for name in "gb")
        return (x * scale * g + b).astype("bfloat16")

    def naive(t: Tensors) -> Any:
        from torch.nn import functional

        return functional.layer_norm(t["x"], t["g"].shape, t["g"], t["b"], 1e-5)

    return rows("LayerNorm", graph, naive, "gb")
