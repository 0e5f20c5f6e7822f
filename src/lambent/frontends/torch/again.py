"""A second start: what Dynamo captured, found with its program before AOTAutograd reads it.

Where the whole of a graph became one program, a note in the cache tells how that is called. Its
name is a hash of the graph as text, of what is known of its inputs, of the contents of its
parameters and of PyTorch's settings, so that a wrong hit is impossible. A graph with anything in it
that its text does not tell (open sizes, functions of others, subgraphs) is traced each time.
"""

from __future__ import annotations

import contextlib
import json
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, GraphModule, Node
from torch.overrides import resolve_name

from lambent.backends import cache
from lambent.frontends import kept
from lambent.frontends.torch.region import ENGINES, Call, Region, state
from lambent.frontends.torch.values import Unsupported, refuse_foreign, to_array

if TYPE_CHECKING:
    from lambent.frontends.torch.backend import Options


class Again:
    """The file of one graph of Dynamo's.

    Args:
        fixed: addresses of tensors that may be taken for constants.
    """

    def __init__(
        self, module: GraphModule, inputs: Sequence[Any], fixed: frozenset[int], options: Options
    ) -> None:
        self.inputs, self.budget = inputs, options.budget
        self.states: dict[int, tuple[Any, ...]] = {}
        self.key: str | None = None
        self.precompiled: Callable[[Mapping[str, Any]], None] | None = None
        if options.device not in ENGINES:
            with contextlib.suppress(_Untold):
                told = [self._input(i, x, fixed) for i, x in enumerate(inputs)]
                what = (str(replace(options, budget=0)), _settings(), told, _text(module))
                self.key = kept.program_key("torch", options.device, what, kind="json")
        (output,) = (n for n in module.graph.nodes if n.op == "output")
        self.results = len(output.args[0])

    def _input(self, i: int, x: Any, fixed: frozenset[int]) -> tuple[object, ...]:
        """What is known of an input; of a parameter also its contents."""
        if not _is_plain(x) or (x.requires_grad and torch.is_grad_enabled()):
            raise _Untold
        told = str(x.dtype), _plain(x.shape), _plain(x.stride()), x.requires_grad
        if isinstance(x, FakeTensor) or x.data_ptr() not in fixed:
            return told
        if x.is_inference():
            raise _Untold
        self.states[i] = state(x)
        return *told, kept.contents(to_array(x))

    def find(self, trace: Callable[[], Callable[..., Any]]) -> Callable[..., Any] | None:
        """The graph as a function by the program that is kept for it; None if there is none.

        Args:
            trace: makes the function anew, for when a parameter changes.
        """
        note = cache.read(self.key) if self.key else None
        if note is None:
            return None
        told = json.loads(note)
        if told["budget"] < self.budget:
            return None
        return called(told, self.inputs, self.states, trace)

    def note(self, graph: Graph) -> Callable[[Region, str], None] | None:
        """What keeps the call of the only region in a graph of stages; None where there is more."""
        given = [n for n in graph.nodes if n.op == "placeholder"]
        (output,) = (n for n in graph.nodes if n.op == "output")
        wanted = list(output.args[0])
        steps = [
            n for n in graph.nodes
            if n.op not in ("placeholder", "output") and n.target is not operator.getitem
        ]  # fmt: skip
        if [n.op for n in steps] != ["call_module"]:
            return None
        (region,) = steps
        numbers = {region: 0} | {n: n.args[1] for n in region.users if n.op == "call_function"}
        whole = (len(given), len(wanted)) == (len(self.inputs), self.results)
        if not whole or not all(n in numbers for n in wanted):
            return None
        places = [given.index(n) for n in region.args]

        def built(made: Region, program: str) -> None:
            here = made.call
            reads, held = ({n: places[i] for n, i in m.items()} for m in (here.reads, here.held))
            if made.builds > 1:
                return
            call = asdict(replace(here, reads=reads, held=held))
            results = [numbers[n] for n in wanted]
            told = {"program": program, "call": call, "results": results, "budget": self.budget}
            if self.key and self.states.keys() >= set(held.values()):
                cache.write(self.key, json.dumps(told).encode())
            if self.precompiled:
                self.precompiled(told)

        return built


def called(
    told: Mapping[str, Any], inputs: Sequence[Any], states: Mapping[int, tuple[Any, ...]],
    trace: Callable[[], Callable[..., Any]],
) -> Callable[..., Any] | None:  # fmt: skip
    """A graph as a function by its program, as a note tells; None where that is no longer there.

    Args:
        inputs: arguments of the graph, of which the note may hold some as constants.
        states: of those as they were when they were looked at.
        trace: makes the function anew, for when a constant changes.
    """
    call = Call(**told["call"])
    given = {name: to_array(inputs[i]) for name, i in call.held.items()}
    program = kept.load_program(told["program"], given)
    if program is None:
        return None
    held = {i: states[i] for i in call.held.values()}
    traced: list[Callable[..., Any]] = []

    def run(*args: Any) -> Any:
        if not traced:
            if all(state(args[i]) == s for i, s in held.items()):
                results = call(program, args)
                return tuple(results[i] for i in told["results"])
            traced.append(trace())
        return traced[0](*args)

    return run


class _Untold(Exception):
    """Something that the text of a graph does not tell."""


def _is_plain(x: Any) -> bool:
    if type(x) not in (FakeTensor, torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        return False
    try:
        refuse_foreign(x)
    except Unsupported:
        return False
    return not (x.is_conj() or x.is_neg())


def _settings() -> tuple[object, ...]:
    """What PyTorch's tracing depends on beside the graph."""
    sdp: Any = torch.backends.cuda
    return (
        torch.__version__, torch.is_grad_enabled(), torch.is_inference_mode_enabled(),
        str(torch.get_default_dtype()), torch.is_autocast_enabled("cpu"),
        str(torch.get_autocast_dtype("cpu")), torch.are_deterministic_algorithms_enabled(),
        torch.backends.mkldnn.enabled, sdp.flash_sdp_enabled(), sdp.math_sdp_enabled(),
        sdp.mem_efficient_sdp_enabled(),
    )  # fmt: skip


def _text(module: GraphModule) -> list[object]:
    """The graph, node by node.

    Raises:
        _Untold: there is more to it.
    """
    return [
        (n.op, n.name, _target(module, n), _plain(n.args), _plain(n.kwargs))
        for n in module.graph.nodes
    ]  # fmt: skip


def _target(module: GraphModule, node: Node) -> object:
    target: Any = node.target
    if node.op in ("placeholder", "output", "call_method"):
        return target
    if node.op == "get_attr":
        held = operator.attrgetter(target)(module)
        if not _is_plain(held) or isinstance(held, FakeTensor):
            raise _Untold
        return target, str(held.dtype), tuple(held.shape), kept.contents(to_array(held))
    name = resolve_name(target) if node.op == "call_function" else None
    if isinstance(target, torch._ops.OpOverload) and target.namespace in ("aten", "prims"):
        return str(target)
    if name is not None and name.startswith("torch.") and not name.startswith("torch.ops."):
        return name
    if getattr(target, "__module__", None) in _MODULES:
        return target.__module__, target.__qualname__
    raise _Untold


_MODULES = ("_operator", "operator", "math", "builtins", "torch._C._nn", "torch.nn.functional")
_SCALARS = (
    bool, int, float, str, torch.dtype, torch.device, torch.layout, torch.memory_format,
    type(None), type(...),
)  # fmt: skip


def _plain(x: Any) -> object:
    """An argument as text, or parts that are."""
    if isinstance(x, Node):
        return f"%{x.name}"
    if isinstance(x, (tuple, list)):
        return type(x).__name__, [_plain(v) for v in x]
    if isinstance(x, Mapping):
        return [(str(k), _plain(v)) for k, v in x.items()]
    if isinstance(x, slice):
        return "slice", [_plain(v) for v in (x.start, x.stop, x.step)]
    if type(x) in _SCALARS:
        return type(x).__name__, repr(x)
    raise _Untold
