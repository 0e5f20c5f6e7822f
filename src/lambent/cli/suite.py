"""The benchmark suite of the CPU: a table of work, each with the ratio that we want to reach.

A row that falls short of its ratio is shown as such, it is no error; a wrong result is one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lambent.cli import examples
from lambent.cli.examples import Array, Arrays, Example, Function, random


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a suite.

    make:      its work, made when it is its turn.
    least:     the ratio of a peer's time to ours that should be reached, if any.
    tolerance: largest error, relative to the magnitude of the result.
    peer:      the one that `least` speaks of; by default the best.
    again:     whether the search is timed a second time, with what the first one found.
    share:     how many times the seconds that are given for each row its search takes.
    against:   peers of this row alone.
    """

    name: str
    make: Callable[[], Any]
    least: float | None = None
    tolerance: float = 1e-4
    peer: str = ""
    again: bool = True
    share: float = 1.0
    against: tuple[str, ...] = ()


def work(
    name: str, shape: tuple[int, ...], inputs: Arrays, build: Function, torch: Function,
    weights: Arrays | None = None, dtype: str = "float32", fused: Function | None = None,
) -> Example:  # fmt: skip
    """An example whose meaning in float64 is what PyTorch computes in float64."""

    def meaning(t: Arrays) -> Array:
        from torch import from_numpy

        return np.asarray(torch({n: from_numpy(a) for n, a in t.items()}))

    ways = {"torch": torch} | ({"torch.sdpa": fused} if fused else {})
    return Example(name, shape, inputs, build, meaning, ways, weights or {}, dtype, native=False)


def product(m: int, n: int, k: int, transposed: bool = False) -> Example:
    """a @ b with a [m, k], or stored as [k, m]: the product of a weight's gradient."""
    given = random(2, a=(k, m) if transposed else (m, k), b=(k, n))

    def build(t: dict[str, Any]) -> Any:
        return (t["a"].mT if transposed else t["a"]) @ t["b"]

    return work("matmul-t" if transposed else "matmul", (m, n, k), given, build, build)


def windowed(heads: int, n: int, d: int, window: int) -> Example:
    """Causal attention in which a row sees the last `window` keys."""
    shape, scale = (heads, n, d), 1 / math.sqrt(d)

    def build(t: dict[str, Any]) -> Any:
        import lambent as lt

        place = lt.iota(n)
        back = place.reshape(n, 1) - place.reshape(1, n)
        seen = (back >= 0) & (back < window)
        scores = lt.where(seen, t["q"] @ t["k"].mT * scale, float("-inf"))
        return lt.softmax(scores, axis=-1) @ t["v"]

    def mask() -> Any:
        import torch

        place = torch.arange(n)
        back = place[:, None] - place[None]
        return (back >= 0) & (back < window)

    def naive(t: dict[str, Any]) -> Any:
        import torch

        scores = (t["q"] @ t["k"].transpose(-1, -2) * scale).masked_fill(~mask(), float("-inf"))
        return torch.softmax(scores, -1) @ t["v"]

    def fused(t: dict[str, Any]) -> Any:
        from torch.nn.functional import scaled_dot_product_attention as sdpa

        q, k, v = (t[name][None] for name in "qkv")
        return sdpa(q, k, v, attn_mask=kept)[0]

    kept = mask()
    given = random(1, q=shape, k=shape, v=shape)
    return work("attention-window", shape, given, build, naive, fused=fused)


def biased(heads: int, n: int, d: int) -> Example:
    """Attention with a bias [heads, n, n] added to the scores."""
    shape, scale = (heads, n, d), 1 / math.sqrt(d)

    def build(t: dict[str, Any]) -> Any:
        import lambent as lt

        return lt.softmax(t["q"] @ t["k"].mT * scale + t["bias"], axis=-1) @ t["v"]

    def naive(t: dict[str, Any]) -> Any:
        import torch

        return torch.softmax(t["q"] @ t["k"].transpose(-1, -2) * scale + t["bias"], -1) @ t["v"]

    def fused(t: dict[str, Any]) -> Any:
        from torch.nn.functional import scaled_dot_product_attention as sdpa

        q, k, v, bias = (t[name][None] for name in ("q", "k", "v", "bias"))
        return sdpa(q, k, v, attn_mask=bias)[0]

    given = random(1, q=shape, k=shape, v=shape, bias=(heads, n, n))
    return work("attention-bias", shape, given, build, naive, fused=fused)


def rmsnorm(rows: int, n: int, eps: float = 1e-6) -> Example:
    """x / √(mean of squares + eps) · g along rows."""

    def build(t: dict[str, Any]) -> Any:
        import lambent as lt

        x = t["x"]
        return x * lt.rsqrt(lt.mean(x * x, axis=-1, keepdims=True) + eps) * t["g"]

    def with_torch(t: dict[str, Any]) -> Any:
        from torch.nn.functional import rms_norm

        return rms_norm(t["x"], (n,), t["g"], eps)

    return work("rmsnorm", (rows, n), random(4, x=(rows, n)), build, with_torch, random(5, g=(n,)))


def nll(rows: int, n: int) -> Example:
    """The mean over rows of −log softmax(x) at the target."""
    targets = np.random.default_rng(6).integers(0, n, rows)

    def build(t: dict[str, Any]) -> Any:
        import lambent as lt

        places = t["y"].reshape(rows, 1)
        return -lt.mean(lt.take_along_axis(lt.log_softmax(t["x"], axis=-1), places, axis=-1))

    def with_torch(t: dict[str, Any]) -> Any:
        from torch.nn.functional import log_softmax, nll_loss

        return nll_loss(log_softmax(t["x"], -1), t["y"])

    given = random(3, x=(rows, n)) | {"y": targets}
    return work("nll", (rows, n), given, build, with_torch)


def vector(n: int, k: int, kind: str) -> Example:
    """x [1, k] times w [k, n]: float32, bfloat16, or int8 with a scale a column."""
    import ml_dtypes

    data = random(12, x=(1, k), w=(k, n))
    x, w = data["x"], data["w"] / np.float32(math.sqrt(k))
    if kind == "int8":
        scale = np.abs(w).max(0) / np.float32(127)
        weights: Arrays = {"w": np.rint(w / scale).astype(np.int8), "scale": scale}
    else:
        weights = {"w": w.astype(ml_dtypes.bfloat16) if kind == "bfloat16" else w}
        x = x.astype(weights["w"].dtype)

    def build(t: dict[str, Any]) -> Any:
        if kind == "int8":
            return t["x"] @ t["w"].astype("float32") * t["scale"]
        return t["x"] @ t["w"]

    def exact(t: dict[str, Any]) -> Any:
        return t["x"] @ t["w"].to(t["x"].dtype) * t["scale"] if kind == "int8" else t["x"] @ t["w"]

    def rounded(t: dict[str, Any]) -> Any:
        """What a PyTorch user has for int8 weights: the same weights in bfloat16."""
        import torch

        if "kept" not in cache:
            w = (t["w"].to(torch.float32) * t["scale"]).to(torch.bfloat16)
            cache["kept"] = w.t().contiguous().t()
        return (t["x"].to(torch.bfloat16) @ cache["kept"]).to(torch.float32)

    cache: dict[str, Any] = {}
    made = work(f"matvec-{kind}", (1, n, k), {"x": x}, build, exact, weights, kind)
    return replace(made, torch={"torch": rounded}) if kind == "int8" else made


def swiglu(rows: int, n: int, inner: int) -> Example:
    """(silu(x w1) · (x w3)) w2; the weights are known when compiling."""

    def build(t: dict[str, Any]) -> Any:
        import lambent as lt

        return (lt.silu(t["x"] @ t["w1"]) * (t["x"] @ t["w3"])) @ t["w2"]

    def with_torch(t: dict[str, Any]) -> Any:
        from torch.nn.functional import silu

        return (silu(t["x"] @ t["w1"]) * (t["x"] @ t["w3"])) @ t["w2"]

    weights = _scaled(random(8, w1=(n, inner), w3=(n, inner), w2=(inner, n)))
    given = random(7, x=(rows, n))
    return work("swiglu", (rows, n, inner), given, build, with_torch, weights)


def layer(rows: int, n: int, heads: int) -> Example:
    """A pre-norm transformer layer: attention of all heads, then a feed-forward part of 4 n."""
    d = n // heads

    def build(t: dict[str, Any]) -> Any:
        import lambent as lt

        def norm(x: Any) -> Any:
            away = x - lt.mean(x, axis=-1, keepdims=True)
            return away * lt.rsqrt(lt.mean(away * away, axis=-1, keepdims=True) + 1e-5)

        def split(x: Any) -> Any:
            return x.reshape(rows, heads, d).permute(1, 0, 2)

        y = norm(t["x"])
        q, k, v = (split(y @ t[name]) for name in ("wq", "wk", "wv"))
        mixed = lt.softmax(q @ k.mT / math.sqrt(d), axis=-1) @ v
        x = t["x"] + mixed.permute(1, 0, 2).reshape(rows, n) @ t["wo"]
        return x + lt.gelu(norm(x) @ t["w1"], approximate="tanh") @ t["w2"]

    def with_torch(t: dict[str, Any]) -> Any:
        from torch.nn.functional import gelu, layer_norm
        from torch.nn.functional import scaled_dot_product_attention as sdpa

        y = layer_norm(t["x"], (n,))
        q, k, v = (
            (y @ t[name]).view(1, rows, heads, d).transpose(1, 2) for name in ("wq", "wk", "wv")
        )
        x = t["x"] + sdpa(q, k, v).transpose(1, 2).reshape(rows, n) @ t["wo"]
        return x + gelu(layer_norm(x, (n,)) @ t["w1"], approximate="tanh") @ t["w2"]

    square = dict.fromkeys(("wq", "wk", "wv", "wo"), (n, n))
    weights = _scaled(random(8, **square, w1=(n, 4 * n), w2=(4 * n, n)))
    return work("layer", (rows, n), random(7, x=(rows, n)), build, with_torch, weights)


def depthwise(channels: int, size: int) -> Example:
    """A 3 × 3 convolution of each channel by itself, padding 1."""

    def build(t: dict[str, Any]) -> Any:
        import lambent as lt

        return lt.conv2d(t["x"], t["w"], padding=1, groups=channels)

    def with_torch(t: dict[str, Any]) -> Any:
        from torch.nn.functional import conv2d

        return conv2d(t["x"], t["w"], padding=1, groups=channels)

    given = random(9, x=(1, channels, size, size))
    weights = random(10, w=(channels, 1, 3, 3))
    return work("depthwise", (1, channels, size, size), given, build, with_torch, weights)


def bottleneck(channels: int, inner: int, size: int) -> Example:
    """relu(x + 1×1(relu(3×3(relu(1×1(x)))))), each with a bias."""
    sizes = {"1": (inner, channels, 1), "2": (inner, inner, 3), "3": (channels, inner, 1)}

    def steps(t: dict[str, Any], conv: Function, relu: Callable[[Any], Any]) -> Any:
        y = t["x"]
        for name in sizes:
            y = conv({"x": y, "w": t[f"w{name}"], "b": t[f"b{name}"], "pad": sizes[name][2] // 2})
            y = relu(y + t["x"] if name == "3" else y)
        return y

    def build(t: dict[str, Any]) -> Any:
        import lambent as lt

        return steps(t, lambda c: lt.conv2d(c["x"], c["w"], c["b"], padding=c["pad"]), lt.relu)

    def with_torch(t: dict[str, Any]) -> Any:
        from torch.nn.functional import conv2d, relu

        return steps(t, lambda c: conv2d(c["x"], c["w"], c["b"], padding=c["pad"]), relu)

    shapes = {f"w{n}": (o, i, k, k) for n, (o, i, k) in sizes.items()}
    weights = random(10, **shapes)
    weights = {n: w / np.float32(math.sqrt(w[0].size)) for n, w in weights.items()}
    weights |= random(11, **{f"b{n}": (o,) for n, (o, _, _) in sizes.items()})
    shape = (1, channels, size, size)
    return work("bottleneck", shape, random(9, x=shape), build, with_torch, weights)


def adamw(count: int, shape: tuple[int, ...], made: int = 5) -> Example:
    """A step of AdamW over so many weights, in place, after `made` others."""
    rate, decay, betas, eps = 1e-3, 0.1, (0.9, 0.999), 1e-8
    given = random(13, **{f"{s}{i}": shape for s in "pgmv" for i in range(count)})
    given |= {n: np.abs(a) for n, a in given.items() if n[0] == "v"}

    def build(t: dict[str, Any]) -> Any:
        from lambent import optim

        optimizer = optim.Optimizer(optim.AdamW(betas, eps, decay))
        params, grads = ({f"p{i}": t[f"{s}{i}"] for i in range(count)} for s in "pg")
        state = {n: t[n[-1] + n[1:-2]] for n in optimizer.state(params) if n[0] == "p"}
        new, after = optimizer.step(params, grads, state | {"optimizer:step": t["made"]}, rate)
        return [*new.values(), *(after[f"p{i}:{s}"] for s in "mv" for i in range(count))]

    def meaning(t: Arrays) -> Array:
        g, m, v, p = (np.stack([t[f"{s}{i}"] for i in range(count)]) for s in "gmvp")
        m, v = m * betas[0] + g * (1 - betas[0]), v * betas[1] + g * g * (1 - betas[1])
        first, second = (1 - b ** (made + 1) for b in betas)
        p = p * (1 - rate * decay) - rate * (m / first) / (np.sqrt(v / second) + eps)
        return np.concatenate([p, m, v])

    def with_torch(fused: bool) -> Function:
        held: dict[str, Any] = {}

        def run(t: dict[str, Any]) -> Any:
            import torch

            if not held:
                p, g, m, v = ([t[f"{s}{i}"].clone() for i in range(count)] for s in "pgmv")
                held["step"] = torch.optim.AdamW(p, rate, betas, eps, decay, fused=fused)
                for x, grad, m1, m2 in zip(p, g, m, v, strict=True):
                    x.grad, step = grad, torch.tensor(float(made))
                    held["step"].state[x] = {"step": step, "exp_avg": m1, "exp_avg_sq": m2}
                held["moved"] = (*p, *m, *v)
            held["step"].step()
            return held["moved"]

        return run

    return Example(
        "adamw", (count, *shape), given | {"made": np.array(made)}, build, meaning,
        {"torch": with_torch(False), "torch.fused": with_torch(True)}, native=False,
        donate={f"{s}{i}": k * count + i for k, s in enumerate("pmv") for i in range(count)},
    )  # fmt: skip


def encoder(batch: int) -> Example:
    from lambent.cli import minilm

    ids = np.random.default_rng(11).integers(1000, 30000, (batch, 128))
    return minilm.example(ids, np.ones_like(ids))


def _scaled(weights: Arrays) -> Arrays:
    return {name: a / np.float32(math.sqrt(a.shape[0])) for name, a in weights.items()}


CPU: tuple[Row, ...] = (
    Row("matmul 512³", lambda: product(512, 512, 512), 1.0),
    Row("matmul 1024³", lambda: product(1024, 1024, 1024), 1.0),
    Row("matmul 2048³", lambda: product(2048, 2048, 2048), 1.0),
    Row("matmul 1000×1111×777", lambda: product(1000, 1111, 777), 1.0),
    Row("xᵀ·dy 512×1024×1024", lambda: product(1024, 1024, 512, transposed=True), 1.0),
    Row("attention full", lambda: examples.attention(8, 2048, 64), 1.03),
    Row("attention causal", lambda: examples.attention(8, 2048, 64, causal=True), 1.1),
    Row("attention window 256", lambda: windowed(8, 2048, 64, 256), 3.0),
    Row("attention bias", lambda: biased(8, 2048, 64), 1.03),
    Row("attention causal d128", lambda: examples.attention(4, 4096, 128, causal=True), 1.1),
    Row("softmax", examples.softmax, 1.5),
    Row("gelu tanh", examples.gelu, 3.0),
    Row("rmsnorm", lambda: rmsnorm(4096, 1024), 1.0),
    Row("layernorm", examples.layernorm, 1.0),
    Row("log-softmax + nll", lambda: nll(4096, 1024), 1.5),
    Row("matvec float32", lambda: vector(11008, 4096, "float32"), 1.5),
    Row("matvec bfloat16", lambda: vector(11008, 4096, "bfloat16"), 3.0, 1e-2),
    Row("matvec int8", lambda: vector(11008, 4096, "int8"), 3.0, 1e-2),
    Row("swiglu 256×1024→4096", lambda: swiglu(256, 1024, 4096), 1.05),
    Row("layer 128×768", lambda: layer(128, 768, 12), 1.15),
    Row("conv 3×3 64→64 56²", examples.conv, 0.9),
    Row("depthwise 3×3 256 28²", lambda: depthwise(256, 28), 1.0),
    Row("bottleneck 256→64 56²", lambda: bottleneck(256, 64, 56), 0.9),
    Row("AdamW 50×512×256", lambda: adamw(50, (512, 256)), None),
    Row("minilm 1×128", lambda: encoder(1), 1.2),
    Row("minilm 8×128", lambda: encoder(8), 1.1),
)
