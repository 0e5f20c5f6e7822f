"""`lambent bench --suite cuda`: naive graphs in bfloat16 against the best that PyTorch offers.

Everything is timed on the device by events, with a second-level cache that holds no operand, and
compared with the same work in float32. PyTorch makes the arrays and the streams here.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from json import dumps
from pathlib import Path
from typing import Any

from lambent.cli.output import console, number, print_json, say, table

Shapes = dict[str, tuple[int, ...]]
REPEATS = 30
ERROR = 2e-2
"""Largest error allowed: the norm of the difference over the norm of the float32 result."""


@dataclass(frozen=True, slots=True)
class Work:
    """One row. `amount` is what a run does: operations, or bytes that it must move.

    graph: from lambent's inputs to the output; naive: the same with PyTorch, in any dtype;
    peers: by name, what a PyTorch user would pick instead.
    """

    name: str
    unit: str
    amount: float
    shapes: Shapes
    graph: Callable[[dict[str, Any]], Any]
    naive: Callable[[dict[str, Any]], Any]
    peers: dict[str, Callable[[dict[str, Any]], Any]]


def attention(heads: int, d: int, causal: bool, n: int = 4096, batch: int = 4) -> Work:
    scale = 1 / math.sqrt(d)

    def graph(t: dict[str, Any]) -> Any:
        import lambent as lt

        scores = t["q"] @ t["k"].mT * scale
        if causal:
            place = lt.iota(n)
            seen = place.reshape(1, n) <= place.reshape(n, 1)
            scores = lt.where(seen, scores, float("-inf"))
        return lt.softmax(scores, axis=-1) @ t["v"]

    def naive(t: dict[str, Any]) -> Any:
        import torch

        scores = t["q"] @ t["k"].mT * scale
        if causal:
            seen = torch.ones(n, n, dtype=torch.bool, device=scores.device).tril()
            scores = scores.masked_fill(~seen, float("-inf"))
        return scores.softmax(-1) @ t["v"]

    def fused(backend: str) -> Callable[[dict[str, Any]], Any]:
        def run(t: dict[str, Any]) -> Any:
            from torch.nn import attention, functional

            with attention.sdpa_kernel(getattr(attention.SDPBackend, backend)):
                q, k, v = (t[name] for name in "qkv")
                return functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

        return run

    work = 4.0 * batch * heads * n * n * d * (0.5 if causal else 1)
    name = f"attention b{batch} h{heads} n{n} d{d}{' causal' if causal else ''}"
    shapes: Shapes = dict.fromkeys("qkv", (batch, heads, n, d))
    peers = {"cuDNN": fused("CUDNN_ATTENTION"), "FlashAttention-2": fused("FLASH_ATTENTION")}
    return Work(name, "TFLOP/s", work, shapes, graph, naive, peers)


def matmul(m: int, n: int, k: int) -> Work:
    def product(t: dict[str, Any]) -> Any:
        return t["a"] @ t["b"]

    shapes: Shapes = {"a": (m, k), "b": (k, n)}
    name = f"matmul {m}×{n}×{k}"
    return Work(name, "TFLOP/s", 2.0 * m * n * k, shapes, product, product, {"cuBLAS": product})


def rows(name: str, graph: Any, naive: Any, m: int = 16384, n: int = 4096) -> Work:
    """Work on rows: it must read and write each element once."""
    shapes: Shapes = {"x": (m, n)} | ({} if name == "softmax" else {"g": (n,)})

    def copy(t: dict[str, Any]) -> Any:
        return t["x"].clone()

    return Work(f"{name} {m}×{n}", "TB/s", 4.0 * m * n, shapes, graph, naive, {"copy": copy})


def softmax() -> Work:
    def graph(t: dict[str, Any]) -> Any:
        import lambent as lt

        return lt.softmax(t["x"], axis=-1)

    return rows("softmax", graph, lambda t: t["x"].softmax(-1))


def rms_norm() -> Work:
    def graph(t: dict[str, Any]) -> Any:
        import lambent as lt

        x = t["x"].astype("float32")
        scale = lt.rsqrt(lt.mean(x * x, axis=-1, keepdims=True) + 1e-6)
        return (x * scale * t["g"].astype("float32")).astype("bfloat16")

    def naive(t: dict[str, Any]) -> Any:
        x = t["x"].float()
        scale = (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
        return (x * scale * t["g"].float()).to(t["x"].dtype)

    return rows("RMSNorm", graph, naive)


SUITE: tuple[Callable[[], Work], ...] = (
    lambda: matmul(4096, 4096, 4096),
    softmax,
    rms_norm,
    lambda: attention(16, 128, False),
    lambda: attention(16, 128, True),
    lambda: attention(32, 64, False),
    lambda: attention(32, 64, True),
)


def bench_suite(
    names: Sequence[str], against: Sequence[str], budget: float, json: bool, save: Path | None
) -> list[dict[str, Any]]:
    """Search, check and time each row whose name has one of the given parts (all by default)."""
    found = []
    for make in SUITE:
        work = make()
        if not names or any(part in work.name for part in names):
            found.append(bench_one(work, "torch.compile" in against, budget))
            say(f"{work.name}: {found[-1]['rates']} {work.unit}, errors {found[-1]['errors']}")
            if save is not None:  # after every row: the next one may fail
                save.write_text(dumps(found, indent=1))
    if json:
        print_json(found)
    else:
        _show(found)
    return found


def bench_one(work: Work, compiled: bool, budget: float) -> dict[str, Any]:
    """One row of the JSON form; rates are in the work's unit."""
    import torch

    import lambent as lt
    from lambent.cli.progress import compile_graph

    inputs = {n: lt.input(n, shape, "bfloat16") for n, shape in work.shapes.items()}
    program = compile_graph(work.graph(inputs), work.name, "cuda", budget)
    torch.manual_seed(1)
    arrays = {
        name: torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        for name, shape in work.shapes.items()
    }
    want = work.naive({n: a.float() for n, a in arrays.items()})
    result = torch.full(want.shape, math.nan, device="cuda", dtype=torch.bfloat16)
    given = [arrays[slot.name] for slot in program.manifest.inputs]
    addresses, shapes = [a.data_ptr() for a in given], [tuple(a.shape) for a in given]

    def ours() -> Any:
        stream = torch.cuda.current_stream().cuda_stream
        program.enqueue(addresses, shapes, [result.data_ptr()], stream)
        return result

    def peer(f: Callable[[dict[str, Any]], Any]) -> Callable[[], Any]:
        return lambda: f(arrays)

    runs = {"lambent": ours} | {n: peer(f) for n, f in work.peers.items()}
    if compiled:
        runs["torch.compile"] = peer(torch.compile(work.naive))
    row: dict[str, Any] = {"work": work.name, "unit": work.unit, "rates": {}, "errors": {}}
    for name, run in runs.items():
        try:
            if name != "copy":
                off = (run().float() - want).norm() / want.norm()
                row["errors"][name] = float(off)
            row["rates"][name] = work.amount / _seconds(run) / 1e12
        except (RuntimeError, ValueError) as error:  # a peer that cannot do it here
            say(f"{work.name}: {name}: {' '.join(str(error).split())[:300]}")
            row["rates"][name] = None
    told = program.explain()
    row |= {k: told[k] for k in ("kernels", "measured", "rejected", "rejected_because", "seconds")}
    return row


def _seconds(run: Callable[[], Any]) -> float:
    """The median device time of a run."""
    import torch

    flush = torch.empty(256 << 20, dtype=torch.int8, device="cuda")
    for _ in range(3):
        run()
    event: Any = torch.cuda.Event
    pairs = [[event(enable_timing=True) for _ in range(2)] for _ in range(REPEATS)]
    for start, end in pairs:
        flush.zero_()
        start.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return float(statistics.median(start.elapsed_time(end) for start, end in pairs)) / 1e3


def _show(found: Sequence[dict[str, Any]]) -> None:
    peers = list(dict.fromkeys(name for row in found for name in row["rates"]))
    out = table("median rates by device time", "work", "unit", *peers, "our error", "kernels")
    for row in found:
        rates = [number(row["rates"].get(p)) for p in peers]
        error = row["errors"].get("lambent", math.nan)
        out.add_row(row["work"], row["unit"], *rates, f"{error:.1e}", str(len(row["kernels"])))
    console().print(out)
