"""The table of `lambent bench --suite cuda`: work, and the share of a peer's speed we aim at."""

from __future__ import annotations

from collections.abc import Callable

from lambent.cli.cuda_layers import layer, model
from lambent.cli.cuda_training import step
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
    narrow_matmul,
    rms_norm,
    sliding,
    softmax,
    tf32_matmul,
)
from lambent.cli.suite import Row

ERROR = 1e-2
"""The norm of a bfloat16 result's difference from float32, relative to the result's."""


def row(
    least: float | None, peer: str, make: Callable[[], Work], share: float = 1.0,
    again: bool = False, *against: str,
) -> Row:  # fmt: skip
    """`share` as of Row: what a search needs, from a product to a layer."""
    return Row(make().name, make, least, ERROR, peer, again, share, against)


COMPILED = "torch.compile"
CUDA: tuple[Row, ...] = (
    row(1.05, COMPILED, lambda: layer(2048), 8.0, True, COMPILED),
    row(0.8, "copy", lambda: layer(1, held=4096), 6.0, True),
    row(1.2, "torch.compile(reduce-overhead)", model, 9.0),
    row(0.7, "FlashAttention-2", lambda: attention_backward(16, 128, 2048), 3.0),
    row(1.2, COMPILED, step, 7.5),
    row(0.85, "copy", lambda: mlp(1), 1.5),
    row(0.85, "copy", lambda: mlp(16), 1.5),
    row(1.05, COMPILED, lambda: mlp(2048), 2.0, False, COMPILED),
    row(0.55, "copy", lambda: attention(32, 128, Change(), n=16384, batch=1, kv=8, rows=1), 1.5),
    row(0.85, "copy", lambda: attention(32, 128, Change(), n=16384, batch=16, kv=8, rows=1), 1.5),
    row(0.85, "cuDNN", lambda: attention(16, 128, Change()), 1.2),
    row(0.83, "cuDNN", lambda: attention(16, 128, CAUSAL), 1.2, False, COMPILED),
    row(0.97, "cuDNN", lambda: attention(32, 64, Change()), 1.2),
    row(0.93, "cuDNN", lambda: attention(32, 64, CAUSAL), 1.2, False, COMPILED),
    row(1.3, "SDPA", lambda: biased(16, 128), 1.2),
    row(1.3, "FlexAttention", lambda: attention(16, 128, capped(50.0)), 1.2),
    row(1.3, "FlexAttention", lambda: attention(16, 128, sliding(4096, 1024)), 1.5),
    row(1.3, "FlexAttention", lambda: attention(32, 128, CAUSAL, kv=8), 1.2),
    row(1.3, "FlexAttention", lambda: attention(16, 128, CAUSAL, n=4000), 1.2),
    row(1.0, "cuBLAS", lambda: matmul(4096, 4096, 4096), 1.5),
    row(1.0, "cuBLAS", lambda: matmul(8192, 8192, 8192), 1.5),
    row(1.0, "cuBLAS", lambda: matmul(2048, 4096, 14336), 1.5),
    row(1.0, "cuBLAS", lambda: matmul(4100, 4100, 4100), 1.5),
    row(None, "cuBLAS", lambda: narrow_matmul(4096), 1.0),
    row(None, "cuBLAS", lambda: tf32_matmul(4096), 1.0),
    row(0.85, "copy", softmax, 0.8),
    row(0.85, "copy", rms_norm, 0.8),
    row(0.85, "copy", layer_norm, 0.8),
    row(0.85, "copy", gelu, 0.8),
)
