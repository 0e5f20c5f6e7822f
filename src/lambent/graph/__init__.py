"""What the user builds: tensors over a static graph of twelve primitives."""
