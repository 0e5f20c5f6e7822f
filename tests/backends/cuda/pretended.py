"""A pretended driver: memory is the host's, time stands still, and a launch computes in NumPy.

What runs is the tile program's meaning, given by the reference interpreter: so all that lies
between a backend's caller and the device is tested on a machine without one.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import numpy as np


class _Names:
    def __getattr__(self, name: str) -> str:
        return name


class Result(IntEnum):
    SUCCESS = 0
    OUT_OF_MEMORY = 2


ATTRIBUTES = {
    "COMPUTE_CAPABILITY_MAJOR": 9, "COMPUTE_CAPABILITY_MINOR": 0, "L2_CACHE_SIZE": 1 << 20,
    "MULTIPROCESSOR_COUNT": 132, "CLOCK_RATE": 1980000, "MEMORY_CLOCK_RATE": 3201000,
    "GLOBAL_MEMORY_BUS_WIDTH": 6144, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232448,
}  # fmt: skip


class Pretended:
    """Stands in for `cuda.bindings.driver`; `launched`: (tasks, threads, shared, addresses)."""

    CUDA_KERNEL_NODE_PARAMS = SimpleNamespace
    CUdevice_attribute = _Names()
    CUfunction_attribute = _Names()
    CUstreamCaptureMode = _Names()
    CUstream_flags = _Names()

    def __init__(self, run: Any = None) -> None:
        self.held: dict[int, Any] = {}
        self.launched: list[tuple[int, int, int, list[int]]] = []
        self.run = run
        self.recorded: list[list[list[int]]] = []  # graphs: the addresses of each launch
        self.changed: list[Any] = []  # nodes of graphs that were given other arguments
        self.replayed: list[int] = []  # graphs, as they were launched
        self.recording = False
        self.capturing: set[int] = set()  # streams that a caller records

    def __getattr__(self, name: str) -> Any:
        """Calls that do nothing: contexts, events, modules."""
        if not name.startswith("cu"):
            raise AttributeError(name)
        return lambda *args: (Result.SUCCESS, len(args))

    def cuDeviceGetAttribute(self, name: str, device: int) -> Any:
        return Result.SUCCESS, ATTRIBUTES[name.removeprefix("CU_DEVICE_ATTRIBUTE_")]

    def cuDeviceGetName(self, size: int, device: int) -> Any:
        return Result.SUCCESS, b"pretended\0\0"

    def cuDeviceGetCount(self) -> Any:
        return Result.SUCCESS, 1

    def cuDeviceTotalMem(self, device: int) -> Any:
        return Result.SUCCESS, 1 << 30

    def cuEventElapsedTime(self, a: Any, b: Any) -> Any:
        return Result.SUCCESS, 0.5

    def cuMemAlloc(self, nbytes: int) -> Any:
        if nbytes > 1 << 40:
            return (Result.OUT_OF_MEMORY,)
        block = np.empty(nbytes, np.uint8)
        self.held[block.ctypes.data] = block
        return Result.SUCCESS, block.ctypes.data

    def cuMemFree(self, pointer: int) -> Any:
        del self.held[pointer]
        return (Result.SUCCESS,)

    def cuMemcpyHtoD(self, to: int, source: int, nbytes: int) -> Any:
        ctypes.memmove(to, source, nbytes)
        return (Result.SUCCESS,)

    cuMemcpyDtoH = cuMemcpyHtoD
    cuMemAllocHost, cuMemFreeHost = cuMemAlloc, cuMemFree

    def cuMemcpyHtoDAsync(self, to: int, source: int, nbytes: int, stream: int) -> Any:
        return self.cuMemcpyHtoD(to, source, nbytes)

    cuMemcpyDtoHAsync = cuMemcpyHtoDAsync

    def cuMemsetD8Async(self, pointer: int, byte: int, nbytes: int, stream: int) -> Any:
        ctypes.memset(pointer, byte, nbytes)
        return (Result.SUCCESS,)

    def cuModuleGetFunction(self, module: Any, name: bytes) -> Any:
        return Result.SUCCESS, name

    def cuLaunchKernel(self, entry: Any, x: int, y: int, z: int, threads: int, *more: Any) -> Any:
        shared, places = more[2], more[4]
        addresses = self._addresses(places)
        if self.recording:
            self.recorded[-1].append(addresses)
            return (Result.SUCCESS,)
        self.launched.append((x, threads, shared, addresses))
        self.run(addresses)
        return (Result.SUCCESS,)

    def cuStreamIsCapturing(self, stream: int) -> Any:
        return Result.SUCCESS, int(stream in self.capturing)

    def cuStreamBeginCapture(self, stream: int, mode: str) -> Any:
        self.recording = True
        self.recorded.append([])
        return (Result.SUCCESS,)

    def cuStreamEndCapture(self, stream: int) -> Any:
        self.recording = False
        return Result.SUCCESS, len(self.recorded) - 1

    def cuGraphCreate(self, flags: int) -> Any:
        self.recorded.append([])
        return Result.SUCCESS, len(self.recorded) - 1

    def cuGraphAddKernelNode(self, graph: int, before: list[Any], count: int, params: Any) -> Any:
        assert len(self.recorded[graph]) == count + (before[0][1] if before else 0)
        self.recorded[graph].append(self._addresses(params.kernelParams))
        return Result.SUCCESS, (graph, len(self.recorded[graph]) - 1)

    def cuGraphExecKernelNodeSetParams(self, graph: int, node: Any, params: Any) -> Any:
        self.changed.append(node)
        self.recorded[graph][node[1]] = self._addresses(params.kernelParams)
        return (Result.SUCCESS,)

    def _addresses(self, places: int) -> list[int]:
        pointers = ctypes.cast(places, ctypes.POINTER(ctypes.c_void_p))
        found = (ctypes.c_void_p.from_address(pointers[i]).value for i in range(self.run.count))
        return [address or 0 for address in found]

    def cuGraphInstantiate(self, graph: int, flags: int) -> Any:
        return Result.SUCCESS, graph

    def cuGraphLaunch(self, graph: int, stream: int) -> Any:
        self.replayed.append(graph)
        for addresses in self.recorded[graph]:
            self.run(addresses)
        return (Result.SUCCESS,)
