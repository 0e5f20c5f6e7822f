"""One fused kernel: a term and its leaves, lowered to the tile program."""
