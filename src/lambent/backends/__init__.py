"""Tile program to source text to machine code, on each device; each backend is one folder."""
