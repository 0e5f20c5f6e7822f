"""The graph as terms over named axes, in an e-graph: rules, analyses, saturation, read-out."""
