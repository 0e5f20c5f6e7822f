"""The CUDA backend: tile program → Triton source → cubin → launched through the driver API."""
