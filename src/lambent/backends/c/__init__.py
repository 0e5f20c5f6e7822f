"""Tile programs as C text: vectors of a target, layouts of tiles, products in registers."""
