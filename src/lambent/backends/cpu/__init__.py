"""The CPU: tile programs to C, the Clang of the `ziglang` wheel, an own thread pool."""
