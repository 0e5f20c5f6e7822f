"""A start without Dynamo: what PyTorch's own cache of compiled functions keeps of a graph of ours.

With `TORCH_CACHING_PRECOMPILE=1` PyTorch keeps bytecode and guards of what it traced, and asks each
backend for something that can be pickled in place of the compiled graph. Ours is how the program is
called, and the graph itself, for when the program is gone or the weights are others.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo import bytecode_transformation
from torch._dynamo.precompile_context import BackendCacheArtifact, PrecompileContext
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.fx._graph_pickler import GraphPickler, Options
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from lambent.frontends import kept
from lambent.frontends.torch.again import called
from lambent.frontends.torch.region import state
from lambent.frontends.torch.values import to_array

if TYPE_CHECKING:
    from lambent.frontends.torch.backend import Options as Chosen

Function = Callable[..., Any]


def pickled(graph: GraphModule) -> bytes | None:
    """The graph with what is known of its values; None where it holds what cannot be pickled."""
    options = Options(ops_filter=None, node_metadata_key_filter=lambda key: key == "val")
    try:
        return GraphPickler.dumps(graph, options)
    except (pickle.PicklingError, TypeError, AttributeError, AssertionError, RuntimeError):
        return None


def record(
    name: str, graph: bytes, note: Mapping[str, Any], inputs: Sequence[Any], fixed: frozenset[int],
    options: Chosen,
) -> None:  # fmt: skip
    """Hand over a graph that became one program, and have PyTorch write what it has.

    Args:
        name: PyTorch's own of this graph.
        note: how the program is called.
        inputs: arguments of the graph; `fixed`: addresses of those that are constants.
    """
    held = note["call"]["held"].values()
    content = {
        "version": _version(options.device),
        "graph": graph,
        "note": note,
        "contents": {i: kept.contents(to_array(inputs[i])) for i in held},
        "fixed": [
            i for i, x in enumerate(inputs)
            if isinstance(x, torch.Tensor) and x.data_ptr() in fixed
        ],
        "options": asdict(options),
        "names": next(bytecode_transformation._unique_id_counter),
    }  # fmt: skip
    PrecompileContext.record_artifact(Precompiled(name, pickle.dumps(content)))
    PrecompileContext.save_to_dynamo_cache()


class Precompiled(BackendCacheArtifact[Function]):
    """A compiled graph in PyTorch's cache."""

    def after_deserialization(self) -> Function:
        told = pickle.loads(self.content)
        ready: list[Function] = []

        def run(*args: Any) -> Any:
            if not ready:
                ready.append(_function(told, args))
            return ready[0](*args)

        # Dynamo numbers its globals and does not know of those in its cache: take their numbers.
        while next(bytecode_transformation._unique_id_counter) < told["names"]:
            pass
        return run


def _version(device: str) -> str:
    """Another one for another device, and after any change of our sources."""
    return kept.program_key("torch", device, ("precompiled",))


def _function(told: Mapping[str, Any], args: Sequence[Any]) -> Function:
    """The graph as a function: by its program, or compiled anew from the graph."""

    def trace() -> Function:
        from lambent.frontends.torch.backend import Options as Chosen
        from lambent.frontends.torch.backend import compile_graph

        graph = GraphPickler.loads(told["graph"], FakeTensorMode(shape_env=ShapeEnv()))
        assert isinstance(graph, GraphModule)
        fixed = frozenset(args[i].data_ptr() for i in told["fixed"])
        return compile_graph(graph, Chosen(**told["options"]), fixed)

    contents = told["contents"].items()
    same = all(kept.contents(to_array(args[i])) == is_ for i, is_ in contents)
    if same and told["version"] == _version(told["options"]["device"]):
        found = called(told["note"], args, {i: state(args[i]) for i, _ in contents}, trace)
        if found is not None:
            return found
    return trace()
