"""The CUDA backend where matrix units may take float32 operands of products as TF32."""

from __future__ import annotations

from lambent.backends.cuda.backend import CudaBackend
from lambent.backends.cuda.backend import make as exact


def make() -> CudaBackend:
    """See `backend.make`."""
    return exact(False)
