"""Composed ops: what NumPy and PyTorch users expect, each from the primitives, written with Tensor.

A library over `graph`, as `nn` is: the compiler never sees these functions, only the nodes that
they make. Importing it gives `Tensor` its methods and operators.
"""

from lambent.functional import methods as methods
