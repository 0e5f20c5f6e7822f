"""The CUDA backend: compiled tile programs loaded, launched and timed through the driver API."""
