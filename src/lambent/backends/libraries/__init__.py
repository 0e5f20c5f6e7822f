"""Which kernels a library's routine computes: candidates of the search like any other."""
