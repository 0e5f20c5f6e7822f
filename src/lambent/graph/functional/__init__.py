"""Everything that is composed of the primitives, by family; each docstring says of what."""
