"""Which kernels: enumerate, bound, choose, measure, and say what was proved."""
