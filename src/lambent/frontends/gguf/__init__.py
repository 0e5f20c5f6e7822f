"""GGUF files: `read` maps one into memory, `packed` keeps quantised matrices as they are."""

from lambent.frontends.gguf.formats import FORMATS, Packed, dequantise, packed
from lambent.frontends.gguf.reader import GGUF, Stored, read

__all__ = ["FORMATS", "GGUF", "Packed", "Stored", "dequantise", "packed", "read"]
