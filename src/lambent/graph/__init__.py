"""What the user builds: tensors over a static graph of twelve primitives."""

from lambent.graph import methods

__all__ = ["methods"]
