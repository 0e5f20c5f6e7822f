"""Modules, written with Tensor alone."""
