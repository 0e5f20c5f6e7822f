"""The backend of `torch.compile`: the graph split into regions of ours and what PyTorch runs."""

from __future__ import annotations

import dataclasses
import operator
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg
from torch.fx.passes.split_module import split_module
from torch.nn.attention import SDPBackend, sdpa_kernel

from lambent.frontends.torch.again import Again
from lambent.frontends.torch.convert import unsupported
from lambent.frontends.torch.decompose import decompositions
from lambent.frontends.torch.region import Region
from lambent.frontends.torch.values import Unsupported


class FallbackWarning(UserWarning):
    """Parts of a graph are run by PyTorch; the message names the ops and why."""


@dataclass(frozen=True, slots=True)
class Options:
    """`torch.compile(…, options={…})`.

    fallback: leave what we cannot compile to PyTorch, with a warning; False raises instead.
    freeze:   take parameters for constants, so that work on them alone is done once. A program is
              built anew when PyTorch counts a change of one (`p.data` escapes the count).
    budget, device, seed: as of `lambent.compile`; the device "reference" evaluates by NumPy.
    """

    fallback: bool = True
    freeze: bool = True
    budget: float = 60.0
    device: str = "cpu"
    seed: int = 0


def backend(
    module: GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile a graph that `torch.compile(m, backend="lambent")` captured.

    With gradients asked for, the forward pass is a graph and the backward pass another; between
    them lies what PyTorch's partitioner keeps.

    Raises:
        TypeError, ValueError: an option that there is not; a mode.
        Unsupported: with `fallback=False`, an op that we cannot compile.
    """
    known = [f.name for f in dataclasses.fields(Options)]
    if mode is not None or not set(options or ()) <= set(known):
        what = f"mode={mode!r}" if mode is not None else f"options={dict(options or {})}"
        raise ValueError(f"backend lambent: {what}; it takes options of {', '.join(known)}")
    chosen = Options(**(options or {}))
    fixed = _addresses(example_inputs) if chosen.freeze else frozenset[int]()
    again = Again(module, example_inputs, fixed, chosen)
    precompile = torch._dynamo.config.caching_precompile and hasattr(module, "_backend_id")

    def inference(graph: GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        if precompile:
            from lambent.frontends.torch import precompiled

            name = str(module._backend_id)
            written = precompiled.pickled(graph)
            if written is not None:
                again.precompiled = lambda note: precompiled.record(
                    name, written, note, example_inputs, fixed, chosen
                )
        return _boxed(compile_graph(graph, chosen, fixed, again))

    def training(graph: GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        return _boxed(compile_graph(graph, chosen))  # an optimiser changes the parameters

    def trace() -> Callable[..., Any]:
        from torch._dynamo.backends.common import aot_autograd

        compiler: Callable[..., Callable[..., Any]] = aot_autograd(
            fw_compiler=training,
            bw_compiler=training,
            inference_compiler=inference,
            decompositions=decompositions(),
            keep_inference_input_mutations=True,
        )
        if not _trained(example_inputs):
            return compiler(module, example_inputs)
        with sdpa_kernel(SDPBackend.MATH):  # with a backward pass that we can read
            return compiler(module, example_inputs)

    found = None if precompile else again.find(trace)
    if found is None:
        return trace()
    disable: Any = torch._dynamo.disable
    kept: Callable[..., Any] = disable(found, reason="a program that is kept")
    return kept


def _trained(inputs: Sequence[Any]) -> bool:
    """Whether PyTorch will want gradients."""
    wanted = any(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs)
    return wanted and torch.is_grad_enabled()


def _boxed(f: Callable[..., Any]) -> Callable[..., Any]:
    from functorch.compile import make_boxed_func

    boxed: Callable[..., Any] = make_boxed_func(f)
    return boxed


def _addresses(inputs: Sequence[Any]) -> frozenset[int]:
    """Where parameters and buffers lie, which Dynamo hands over beside the inputs."""
    held = [
        x for x in inputs
        if isinstance(x, torch.nn.Parameter) or hasattr(x, "_dynamo_static_input_type")
    ]  # fmt: skip
    plain = [x for x in held if x.device.type == "cpu" and x.layout == torch.strided]
    return frozenset(x.data_ptr() for x in plain) - {0}


def compile_graph(
    module: GraphModule,
    options: Options,
    fixed: frozenset[int] = frozenset(),
    again: Again | None = None,
) -> Callable[..., Any]:
    """A function as the graph's `forward`, with our programs in it.

    Args:
        fixed: addresses of tensors that may be taken for constants.
        again: keeps how the program is called where it is the whole graph.

    Raises:
        Unsupported: with `fallback=False`, an op that we cannot compile.
    """
    _views_last(module.graph)
    refused = unsupported(module.graph)
    _tell({n: why for n, why in refused.items() if n.op == "call_function"}, options)
    order = _in_stages(module.graph, refused.keys())
    split = split_module(module, module, order.__getitem__, keep_original_order=True)
    written = {n.args[0].name for n in module.graph.nodes if n.target in _EPILOGUES}
    for name, part in list(split.named_children()):
        if isinstance(part, GraphModule) and _is_ours(name):
            delattr(split, name)
            tell = again.note(split.graph) if again else None
            setattr(split, name, Region(part, options, fixed, written, tell))
    return split.forward


_SIZES = (torch.SymInt, torch.SymFloat, torch.SymBool)
_EPILOGUES = (torch.ops.aten.copy_.default,)
"""How a functional graph ends that writes to its inputs: PyTorch does that, and no word of it."""


def _is_ours(name: str) -> bool:
    prefix, _, stage = name.partition("_")
    return prefix == "submod" and int(stage) % 2 == 1


def _tell(refused: Mapping[Node, str], options: Options) -> None:
    reasons = {
        f"{n.target}: {why}": None
        for n, why in refused.items()
        if n.target not in (*_EPILOGUES, operator.getitem) and LAST not in n.meta
    }
    if not reasons:
        return
    told = "; ".join(reasons)
    if not options.fallback:
        raise Unsupported(
            f"lambent cannot compile {told}. With options={{'fallback': True}} PyTorch runs these"
        )
    warnings.warn(f"PyTorch runs what lambent cannot: {told}", FallbackWarning, stacklevel=2)


def _views_last(graph: Graph) -> None:
    """Views among the results are PyTorch's, of results of ours: so they share memory as there."""
    (output,) = (n for n in graph.nodes if n.op == "output")
    copies: dict[Node, Node] = {}

    def copied(node: Node) -> Node:
        base = node.args[0] if node.args else None
        if node.op != "call_function" or not isinstance(base, Node) or not _is_view(node):
            return node
        if node not in copies:
            first = copied(base)
            with graph.inserting_before(output):
                copies[node] = graph.node_copy(node, lambda n: first if n is base else n)
            copies[node].meta[LAST] = True
        return copies[node]

    output.args = map_arg(output.args, copied)
    graph.eliminate_dead_code()


LAST = "a view among the results"


def _is_view(node: Node) -> bool:
    if node.target is operator.getitem:
        return isinstance(node.args[0], Node) and _is_view(node.args[0])
    returns = node.target._schema.returns if isinstance(node.target, OpOverload) else ()
    return any(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def _in_stages(graph: Graph, refused: Collection[Node]) -> dict[Node, int]:
    """Order the nodes by stages, even for PyTorch and odd for us, that never precede an operand's.

    So all nodes of a stage run together, after those of the stages before. Writes come last.
    """
    stages: dict[Node, int] = {}
    nodes = [n for n in graph.nodes if n.op not in ("placeholder", "get_attr", "output")]
    for node in nodes:
        host = node in refused or LAST in node.meta or isinstance(node.meta.get("val"), _SIZES)
        before = max((stages.get(n, 0) for n in node.all_input_nodes), default=0)
        stages[node] = before + (before % 2 == host)
    last = max(stages.values(), default=0)
    stages |= {n: last + last % 2 for n in nodes if n.target in _EPILOGUES}
    (output,) = (n for n in graph.nodes if n.op == "output")
    for node in sorted(nodes, key=stages.__getitem__):
        output.prepend(node)
    return stages
