"""Arrays on a GPU, taken and given without copies; here the GPU's memory is the host's."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lambent.frontends import dlpack
from lambent.runtime.program import Slot

HOST = 1  # DLPack's number of the CPU


class Memory:
    """Bytes of the host."""

    def __init__(self, nbytes: int) -> None:
        self.array = np.zeros(nbytes, np.uint8)
        self.pointer = self.array.ctypes.data


class Array:
    """A NumPy array, as one on a GPU would be given."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array, self.streams = array, list[int]()

    def __dlpack_device__(self) -> tuple[int, int]:
        return HOST, 0

    def __dlpack__(self, *, stream: int) -> Any:
        self.streams.append(stream)
        return self.array.__dlpack__()


class Negated:
    """A program: the result is −x, and y is written in place of an input."""

    def __init__(self, form: Any = "one") -> None:
        x = Slot("x", "float32", ("n", 3))
        results = [("output", 0)] if form == "one" else [("output", 0), ("input", 0)]
        self.manifest = SimpleNamespace(inputs=[x], outputs=[x], results=results, form=form)
        self.streams = list[int]()

    def _at(self, *shapes: Sequence[int]) -> Any:
        return self, (), list(shapes), 0

    def enqueue(self, inputs: Any, shapes: Any, outputs: Any, stream: int) -> None:
        self.streams.append(stream)
        x, y = (
            np.frombuffer((ctypes.c_float * int(np.prod(shapes[0]))).from_address(a), np.float32)
            for a in (inputs[0], outputs[0])
        )
        y[...] = -x


@pytest.fixture(autouse=True)
def _host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dlpack, "CUDA", HOST)
    monkeypatch.setattr(dlpack, "Memory", Memory)


def test_a_result_has_the_memory_that_was_written() -> None:
    program: Any = Negated()
    x = Array(np.arange(6, dtype=np.float32).reshape(2, 3))
    y = dlpack.on_device(program, x=x, stream=7)
    assert (y.shape, y.dtype, x.streams, program.streams) == ((2, 3), "float32", [7], [7])
    found = np.from_dlpack(y)
    np.testing.assert_array_equal(found, -x.array)
    assert found.ctypes.data == y.memory.pointer
    del y
    gc.collect()
    assert len(dlpack._given) == 1
    np.testing.assert_array_equal(found, -x.array)  # it is held by who took it
    del found
    gc.collect()
    assert not dlpack._given


def test_what_nobody_takes_is_forgotten() -> None:
    made = dlpack.DeviceArray((4,), "bfloat16", Memory(8))  # type: ignore[arg-type]
    capsule = made.__dlpack__()
    assert len(dlpack._given) == 1
    del capsule
    gc.collect()
    assert not dlpack._given


def test_results_are_returned_as_by_a_call() -> None:
    x = Array(np.ones((1, 3), np.float32))
    program: Any = Negated(("y", "x"))
    found = dlpack.on_device(program, x=x)
    assert list(found) == ["y", "x"] and found["x"] is x and x.streams == [1]


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"x": Array(np.ones((2, 3)))}, TypeError, "input 'x': its dtype is not float32"),
        ({"x": [1.0]}, TypeError, "input 'x': list is no array on the GPU"),
        ({"z": 1}, TypeError, "inputs z were given, the program has: x"),
        (
            {"x": Array(np.ones((3, 2), np.float32).T)},
            ValueError,
            "input 'x': not contiguous; give a copy",
        ),
    ],
)
def test_other_arrays_are_refused(given: Any, error: type[Exception], message: str) -> None:
    program: Any = Negated()
    with pytest.raises(error, match=message):
        dlpack.on_device(program, **given)
