"""What a user would run instead: PyTorch (eager, fused, compiled), onnxruntime, NumPy."""

from __future__ import annotations

import os
import signal
import threading
import tracemalloc
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from lambent.cli.errors import choose, need
from lambent.cli.examples import Array, Example, Function

PEERS = {"torch": "torch", "torch.compile": "torch", "onnxruntime": "onnxruntime", "numpy": "numpy"}
"""Names for `--against` and the module that each needs."""

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # PyTorch's profiler writes to standard error

COMPILE_LIMIT = 60.0
"""Seconds that torch.compile may take."""


@dataclass(frozen=True, slots=True)
class Peer:
    """`run` does the work once; `peak`: its peak bytes with inputs and weights, None if unknown."""

    run: Callable[[], Any]
    peak: Callable[[], int | None]


def make_peers(
    example: Example, names: Sequence[str], threads: int, say: Callable[[str], None]
) -> dict[str, Peer]:
    """The peers that work here, by name; what does not is told to `say`.

    Raises:
        UserError: an unknown name, or a library that is not installed.
    """
    for name in names:
        need(PEERS[choose("peer", name, PEERS)], PEERS[name], f"--against {name}")
    found: dict[str, Peer] = {}
    if "torch" in names or "torch.compile" in names:
        found |= _torch_peers(example, names, threads, say)
    if "onnxruntime" in names:
        need("onnx", "onnx", "--against onnxruntime")
        from lambent.cli.onnx_peer import runner

        run = runner(example, threads)
        if run is None:
            say(f"{example.name}: onnxruntime left out, there is no ONNX form of it here")
        else:
            found["onnxruntime"] = Peer(run, lambda: None)
    if "numpy" in names and example.native:
        data = example.inputs | example.weights

        def call() -> Any:
            return example.numpy(data)

        found["numpy"] = Peer(call, lambda: _held(example) + _traced_peak(call))
    return found


def _torch_peers(
    example: Example, names: Sequence[str], threads: int, say: Callable[[str], None]
) -> dict[str, Peer]:
    import torch

    torch.set_num_threads(threads)
    data = {n: to_torch(a) for n, a in (example.inputs | example.weights).items()}

    def bind(function: Function) -> Callable[[], Any]:
        def call() -> Any:
            with torch.no_grad():
                return function(data)

        return call

    calls = {n: bind(f) for n, f in example.torch.items() if "torch" in names}
    if "torch.compile" in names:
        try:
            with limit(COMPILE_LIMIT), warnings.catch_warnings(action="ignore"):
                call = bind(torch_compiled(example.torch["torch"]))
                call()
            calls["torch.compile"] = call
        except Exception as error:  # whatever it raises, it is their fault and worth a line
            say(f"{example.name}: torch.compile left out: {type(error).__name__}: {error}")

    def peak(call: Callable[[], Any]) -> Callable[[], int]:
        return lambda: _held(example) + torch_peak(call)

    return {n: Peer(call, peak(call)) for n, call in calls.items()}


def _held(example: Example) -> int:
    """Bytes of inputs and weights, which stay while the work is done."""
    return sum(a.nbytes for a in (*example.inputs.values(), *example.weights.values()))


def torch_compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function under torch.compile for fixed shapes; it compiles at its first call."""
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # no worker processes
    import torch

    torch._dynamo.reset()
    compiled: Callable[..., Any] = torch.compile(function, dynamic=False, fullgraph=True)
    return compiled


@contextmanager
def limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the body after so many seconds (in the main thread, on Unix)."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGALRM"):
        yield
        return

    def late(number: int, frame: Any) -> None:
        raise TimeoutError(f"not done within {seconds:g} seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def to_torch(array: Array) -> Any:
    """The array as a tensor of the same memory."""
    import torch

    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def to_numpy(value: Any) -> Array:
    """A peer's result as an array; bfloat16 becomes float32, several results of one shape one."""
    if isinstance(value, tuple):
        return np.stack([to_numpy(x) for x in value])
    if isinstance(value, np.ndarray):
        return value
    value = value.detach()
    return np.asarray(value.float() if str(value.dtype) == "torch.bfloat16" else value)


def torch_peak(call: Callable[[], Any]) -> int:
    """Bytes that PyTorch's allocator holds at most during a call, its result included."""
    from torch.profiler import ProfilerActivity, profile

    call()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        held = call()
    events = seen.profiler.kineto_results.events()
    steps = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
    del held
    level = peak = 0
    for _, size in sorted(steps, key=lambda step: step[0]):
        level += size
        peak = max(peak, level)
    return peak


def _traced_peak(call: Callable[[], Any]) -> int:
    """Bytes that NumPy holds at most during a call, its result included."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
