"""The chosen kernels as one executable program: memory plan, save and load."""
