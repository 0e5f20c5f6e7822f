"""PyTorch's door: `torch.compile(m, backend="lambent")`, and `from_torch` for a graph to keep."""

from lambent.frontends.torch.backend import FallbackWarning, backend
from lambent.frontends.torch.export import from_torch
from lambent.frontends.torch.values import Unsupported

__all__ = ["FallbackWarning", "Unsupported", "backend", "from_torch"]
