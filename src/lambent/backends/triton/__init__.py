"""Tile program → Triton source → machine code of a GPU: what the backends of GPUs share."""
