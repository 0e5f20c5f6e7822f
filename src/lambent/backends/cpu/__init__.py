"""The CPU: tile programs to C, through the Clang of the `ziglang` wheel, run by an own thread pool."""
