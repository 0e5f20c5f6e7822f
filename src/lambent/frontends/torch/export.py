"""from_torch: a PyTorch module as a graph of ours, through `torch.export`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node
from torch.utils import _pytree as pytree

from lambent.frontends.torch.convert import convert, input_of
from lambent.frontends.torch.decompose import decompositions
from lambent.frontends.torch.values import Unsupported, to_array
from lambent.graph.tensor import Tensor, weight


def from_torch(
    module: torch.nn.Module,
    example_inputs: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
) -> Any:
    """The graph of what a module computes, its parameters as weights that share its memory.

    Args:
        module: put it in eval mode where it has dropout or batch norms.
        example_inputs, kwargs: arguments of its `forward`, of the sizes and dtypes to be used.
        dynamic_shapes: which dims are open, as of `torch.export.export`; each becomes a `Dim`.

    Returns:
        Tensors in the structure in which `forward` returns its own. Inputs have the names of
        `forward`'s parameters: `lambent.compile(from_torch(m, (x,)))` is called with `x=…`.

    Raises:
        Unsupported: an op that we cannot compile, or a module that writes to its own buffers or to
            its inputs; `torch.compile(m, backend="lambent")` leaves such parts to PyTorch.
    """
    with torch.no_grad():
        whole = torch.export.export(
            module, tuple(example_inputs), dict(kwargs or {}), dynamic_shapes=dynamic_shapes
        )
        exported = whole.run_decompositions(decompositions())
    signature = exported.graph_signature
    written = [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]
    if written:
        raise Unsupported(
            f"from_torch: the module writes to {', '.join(written)}, and a graph only returns "
            "values; use torch.compile(m, backend='lambent')"
        )
    held = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    held |= signature.inputs_to_lifted_tensor_constants
    tensors = {**exported.constants, **exported.state_dict}

    def source(node: Node) -> Tensor:
        name = held.get(node.name)
        if node.op == "get_attr":
            return weight(node.name, to_array(getattr(exported.graph_module, str(node.target))))
        return input_of(node) if name is None else weight(name, to_array(tensors[name]))

    try:
        _, outputs = convert(exported.graph, source)
    except Unsupported as reason:
        raise Unsupported(
            f"from_torch: {reason}. torch.compile(m, backend='lambent') leaves it to PyTorch"
        ) from reason
    return pytree.tree_unflatten(outputs, exported.call_spec.out_spec)
