"""The table of `lambent bench --suite cuda`: work, and the share of a peer's speed we aim at."""

from __future__ import annotations

from collections.abc import Callable

from lambent.cli.cuda_layers import layer, model
from lambent.cli.cuda_works import (
    CAUSAL,
    Change,
    Work,
    attention,
    attention_backward,
    biased,
    capped,
    gelu,
    layer_norm,
    matmul,
    mlp,
    rms_norm,
    sliding,
    softmax,
)
from lambent.cli.suite import Row

ERROR = 1e-2
"""The norm of a bfloat16 result's difference from float32, relative to the result's."""


def row(least: float, peer: str, make: Callable[[], Work], again: bool = False) -> Row:
    return Row(make().name, make, least, ERROR, peer, again)


CUDA: tuple[Row, ...] = (
    row(1.0, "cuBLAS", lambda: matmul(4096, 4096, 4096)),
    row(1.0, "cuBLAS", lambda: matmul(8192, 8192, 8192)),
    row(1.0, "cuBLAS", lambda: matmul(2048, 4096, 14336)),
    row(1.0, "cuBLAS", lambda: matmul(4100, 4100, 4100)),
    row(0.85, "copy", softmax),
    row(0.85, "copy", rms_norm),
    row(0.85, "copy", layer_norm),
    row(0.85, "copy", gelu),
    row(0.85, "cuDNN", lambda: attention(16, 128, Change())),
    row(0.83, "cuDNN", lambda: attention(16, 128, CAUSAL)),
    row(0.97, "cuDNN", lambda: attention(32, 64, Change())),
    row(0.93, "cuDNN", lambda: attention(32, 64, CAUSAL)),
    row(1.3, "SDPA", lambda: biased(16, 128)),
    row(1.3, "FlexAttention", lambda: attention(16, 128, capped(50.0))),
    row(1.3, "FlexAttention", lambda: attention(16, 128, sliding(4096, 1024))),
    row(1.3, "FlexAttention", lambda: attention(32, 128, CAUSAL, kv=8)),
    row(1.3, "FlexAttention", lambda: attention(16, 128, CAUSAL, n=4000)),
    row(0.7, "FlashAttention-2", lambda: attention_backward(16, 128, 2048)),
    row(0.55, "copy", lambda: attention(32, 128, Change(), n=16384, batch=1, kv=8, rows=1)),
    row(0.85, "copy", lambda: attention(32, 128, Change(), n=16384, batch=16, kv=8, rows=1)),
    row(0.85, "copy", lambda: mlp(1)),
    row(0.85, "copy", lambda: mlp(16)),
    row(1.05, "torch.compile", lambda: mlp(2048)),
    row(1.05, "torch.compile", lambda: layer(2048), again=True),
    row(0.8, "copy", lambda: layer(1, held=4096), again=True),
    row(1.2, "torch.compile(reduce-overhead)", model),
)
