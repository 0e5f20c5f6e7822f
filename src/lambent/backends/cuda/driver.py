"""The CUDA driver API, as far as it is used here, through cuda-bindings."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lambent.backends.base import BackendError

EXTRA = "device 'cuda': needs the package cuda-bindings; pip install 'lambent[cuda]'"
Array = np.ndarray[Any, Any]


class CudaError(BackendError):
    """A call of the driver failed; `code` is its number."""

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"device 'cuda': {call}: {name}")
        self.code = code


OUT_OF_MEMORY, BAD_VALUE, NO_RESOURCES = 2, 1, 701
HARMLESS = (OUT_OF_MEMORY, BAD_VALUE, NO_RESOURCES)
"""Errors after which a process can go on: after others every call fails."""


@functools.cache
def api() -> Any:
    """The module of the driver, initialised.

    Raises:
        BackendError: cuda-bindings is not installed, or the machine has no CUDA driver or device.
    """
    try:
        from cuda.bindings import driver
    except ImportError:
        raise BackendError(EXTRA) from None
    try:
        code = int(driver.cuInit(0)[0])
    except Exception as error:  # what it raises where there is no libcuda differs by version
        raise BackendError(f"device 'cuda': no driver: {error}") from None
    if code:
        raise BackendError(f"device 'cuda': no GPU can be used (cuInit gives error {code})")
    return driver


def call(name: str, *args: Any) -> Any:
    """The result of a function of the driver: nothing, one value or a tuple.

    Raises:
        CudaError: it failed.
    """
    error, *values = getattr(api(), name)(*args)
    if int(error):
        raise CudaError(name, int(error), str(getattr(error, "name", error)))
    return values[0] if len(values) == 1 else tuple(values)


class Device:
    """One GPU. Contexts belong to threads: `enter` before anything that is queued or allocated."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.handle = call("cuDeviceGet", number)
        self._context: Any = None
        self._lock = threading.Lock()

    def attribute(self, name: str) -> int:
        kind = getattr(api().CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(call("cuDeviceGetAttribute", kind, self.handle))

    @functools.cached_property
    def capability(self) -> int:
        """The compute capability: 90 is sm_90."""
        parts = ("COMPUTE_CAPABILITY_MAJOR", "COMPUTE_CAPABILITY_MINOR")
        major, minor = map(self.attribute, parts)
        return 10 * major + minor

    @functools.cached_property
    def name(self) -> str:
        return bytes(call("cuDeviceGetName", 128, self.handle)).split(b"\0")[0].decode()

    def enter(self) -> None:
        """Make the device's context current in this thread."""
        with self._lock:
            if self._context is None:
                self._context = call("cuDevicePrimaryCtxRetain", self.handle)
        call("cuCtxSetCurrent", self._context)


@functools.cache
def device(number: int = 0) -> Device:
    """The device of a number."""
    if number >= call("cuDeviceGetCount"):
        raise BackendError(f"device 'cuda:{number}': this machine has no such GPU")
    return Device(number)


class Memory:
    """Bytes on the device; freed with the object."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.pointer = int(call("cuMemAlloc", max(nbytes, 16)))

    def fill(self, byte: int, stream: int = 0) -> None:
        call("cuMemsetD8Async", self.pointer, byte, max(self.nbytes, 16), stream)

    def put(self, array: Array, offset: int = 0) -> None:
        """Copy from a contiguous array."""
        if array.nbytes:
            call("cuMemcpyHtoD", self.pointer + offset, address(array), array.nbytes)

    def get(self, array: Array, offset: int = 0) -> None:
        """Copy into a contiguous array, after all that was queued."""
        if array.nbytes:
            call("cuMemcpyDtoH", address(array), self.pointer + offset, array.nbytes)

    def __del__(self) -> None:
        if hasattr(self, "pointer"):
            api().cuMemFree(self.pointer)  # an error here has been told before


class Staged(Memory):
    """Memory with as many bytes of the host beside it that the device reads and writes itself: an
    array is on its way while the next one is copied there."""

    def __init__(self, nbytes: int) -> None:
        super().__init__(nbytes)
        self._place = int(call("cuMemAllocHost", max(nbytes, 16)))
        held: Any = (ctypes.c_uint8 * max(nbytes, 16)).from_address(self._place)
        self._host: Array = np.frombuffer(held, np.uint8)

    def put(self, array: Array, offset: int = 0) -> None:
        if array.nbytes:
            self._host[: array.nbytes] = array.reshape(-1).view(np.uint8)
            call("cuMemcpyHtoDAsync", self.pointer + offset, self._place, array.nbytes, 0)

    def get(self, array: Array, offset: int = 0) -> None:
        if array.nbytes:
            call("cuMemcpyDtoHAsync", self._place, self.pointer + offset, array.nbytes, 0)
            call("cuStreamSynchronize", 0)
            array.reshape(-1).view(np.uint8)[...] = self._host[: array.nbytes]

    def __del__(self) -> None:
        super().__del__()
        if hasattr(self, "_place"):
            api().cuMemFreeHost(self._place)  # an error here has been told before


def address(array: Array) -> int:
    found: int = array.__array_interface__["data"][0]
    return found


class Function:
    """An entry of a loaded image, with what a launch needs. See `compiler.Code`.

    Launches share the scratch memory: let one end before the next on another stream. What was too
    small is kept as well, as recorded launches use it.
    """

    def __init__(
        self, image: bytes, name: str, threads: int, shared: int, scratch: int, each: int = 0
    ) -> None:
        self._module = call("cuModuleLoadData", image)
        self._entry = call("cuModuleGetFunction", self._module, name.encode())
        self._threads, self._shared, self._scratch = threads, shared, scratch
        self._each, self._held = each, [Memory(0)] if each else []
        if shared > 48 << 10:
            kind = api().CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            call("cuFuncSetAttribute", self._entry, kind, shared)

    def arguments(self, tasks: int, pointers: Sequence[int], sizes: Sequence[Any]) -> list[Any]:
        """What an entry is given, as ctypes integers; `sizes` are such."""
        given = [*map(ctypes.c_void_p, pointers), *sizes]
        given += [ctypes.c_void_p(0)] * self._scratch
        if self._held:
            if self._held[-1].nbytes < tasks * self._each:
                self._held.append(Memory(2 * tasks * self._each))
            given[-self._scratch] = ctypes.c_void_p(self._held[-1].pointer)
        return given

    def launch(self, tasks: int, given: Sequence[Any], stream: int) -> None:
        """Queue `tasks` programs, given what `arguments` made."""
        places = (ctypes.c_void_p * len(given))(*(ctypes.addressof(x) for x in given))
        if tasks:
            call(
                "cuLaunchKernel", self._entry, tasks, 1, 1, self._threads, 1, 1, self._shared,
                stream, ctypes.addressof(places), 0,
            )  # fmt: skip

    def node(self, tasks: int, given: Sequence[Any]) -> tuple[Any, Any]:
        """The parameters of a launch in a graph, and the memory that they point to."""
        places = (ctypes.c_void_p * len(given))(*(ctypes.addressof(x) for x in given))
        found = api().CUDA_KERNEL_NODE_PARAMS()
        found.func, found.gridDimX, found.blockDimX = self._entry, tasks, self._threads
        found.gridDimY = found.gridDimZ = found.blockDimY = found.blockDimZ = 1
        found.sharedMemBytes, found.kernelParams = self._shared, ctypes.addressof(places)
        return found, places

    def close(self) -> None:
        call("cuModuleUnload", self._module)


class Graph:
    """Work that `launch` queues at once; destroyed with the object."""

    def __init__(self, handle: Any) -> None:
        self._graph = handle
        self.ready = call("cuGraphInstantiate", handle, 0)

    def launch(self, stream: int) -> None:
        call("cuGraphLaunch", self.ready, stream)

    def __del__(self) -> None:
        for name, part in (("cuGraphExecDestroy", "ready"), ("cuGraphDestroy", "_graph")):
            if hasattr(self, part):
                getattr(api(), name)(getattr(self, part))  # an error here has been told before


def recorded(queue: Callable[[int], None]) -> Graph:
    """What `queue` puts on a stream."""
    kinds = api().CUstreamCaptureMode, api().CUstream_flags
    stream = call("cuStreamCreate", kinds[1].CU_STREAM_NON_BLOCKING)
    try:
        call("cuStreamBeginCapture", stream, kinds[0].CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
        try:
            queue(int(stream))
        finally:
            graph = call("cuStreamEndCapture", stream)
    finally:
        call("cuStreamDestroy", stream)
    return Graph(graph)


Launched = tuple[Function, int, list[Any]]
"""A launch: of what, how many programs, and their arguments."""


class Chain:
    """Launches one after another as one, which may be given other programs and arguments."""

    def __init__(self, launches: Sequence[Launched]) -> None:
        graph, self._nodes = call("cuGraphCreate", 0), list[Any]()
        for function, tasks, given in launches:
            params, _places = function.node(tasks, given)
            before = self._nodes[-1:]
            self._nodes += [call("cuGraphAddKernelNode", graph, before, len(before), params)]
        self._known = list(map(_numbers, launches))
        self._whole = Graph(graph)

    def launch(self, launches: Sequence[Launched], stream: int) -> None:
        for i, (function, tasks, given) in enumerate(launches):
            if (new := _numbers(launches[i])) != self._known[i]:
                params, _places = function.node(tasks, given)
                call("cuGraphExecKernelNodeSetParams", self._whole.ready, self._nodes[i], params)
                self._known[i] = new
        self._whole.launch(stream)


def _numbers(launched: Launched) -> tuple[Any, ...]:
    return launched[1], *(x.value for x in launched[2])


def captured(stream: int) -> bool:
    """Whether somebody records what is queued on the stream."""
    return bool(stream) and int(call("cuStreamIsCapturing", stream)) != 0


class Timer:
    """Device time between two places of a stream."""

    def __init__(self) -> None:
        self._ends = [call("cuEventCreate", 0) for _ in range(2)]

    def mark(self, end: int, stream: int = 0) -> None:
        call("cuEventRecord", self._ends[end], stream)

    def seconds(self) -> float:
        call("cuEventSynchronize", self._ends[1])
        return float(call("cuEventElapsedTime", *self._ends)) / 1e3

    def close(self) -> None:
        for event in self._ends:
            call("cuEventDestroy", event)


def synchronize() -> None:
    call("cuCtxSynchronize")
