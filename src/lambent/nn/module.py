"""Module: a tree of weights with names, from which a call builds a graph."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Self

import numpy as np

from lambent.graph.dtypes import DType, as_dtype, float32
from lambent.graph.tensor import Tensor, input, weight

__all__ = ["Module", "parameter", "seed", "skip_init"]

Array = np.ndarray[Any, np.dtype[Any]]

_generator: np.random.Generator = np.random.default_rng(0)
_skip: ContextVar[bool] = ContextVar("skip_init", default=False)


def seed(number: int) -> None:
    """Start the sequence of initial weights anew. A process starts with seed 0."""
    global _generator
    _generator = np.random.default_rng(number)


@contextmanager
def skip_init() -> Iterator[None]:
    """Modules made inside draw no weights, which start as zeros: they are about to be loaded."""
    token = _skip.set(True)
    try:
        yield
    finally:
        _skip.reset(token)


def parameter(
    shape: tuple[int, ...], dtype: DType = float32, *, bound: float = 0.0, fill: float = 0.0
) -> Tensor:
    """A weight drawn uniformly from fill ± bound. It gets its name where a Module takes it up."""
    if bound == 0.0 or _skip.get():
        array = np.zeros(shape, dtype.numpy)  # costs nothing until it is read
        return weight("parameter", array + dtype.numpy.type(fill) if fill else array)
    drawn = _generator.random(shape, np.float32) * (2 * bound) + (fill - bound)
    return weight("parameter", drawn.astype(dtype.numpy))


class Module:
    """Holds weights (`lt.weight` tensors) and Modules, alone or in lists, as attributes.

    A weight is named by its path from the outermost Module, as in `layers.0.norm.weight`: setting
    an attribute names everything below it. A list becomes a tuple when it is set. Weights in two
    Modules that no Module joins may have equal names, which a program refuses: join them in one.
    Calling a Module with Tensors returns Tensors, and computes nothing.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, _rebuild(value, name, _renamed))

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """(path from this Module, weight) of every weight, in the order of definition."""
        for name, value in vars(self).items():
            yield from _walk(value, name)

    def state_dict(self) -> dict[str, Array]:
        """The arrays of all weights by path from this Module; no copies."""
        return {path: _array(tensor) for path, tensor in self.named_parameters()}

    def load_state_dict(self, state: Mapping[str, Array], *, ignore: Collection[str] = ()) -> None:
        """Take the arrays of `state` as weights; either all of them or, on an error, none.

        Args:
            state: arrays by path; names, shapes and dtypes must be exactly ours.
            ignore: names, or prefixes that end in ".", which may be there and are not used.

        Raises:
            ValueError: lists every missing, unexpected and mismatched name.
        """
        given = {k: np.asarray(v) for k, v in state.items() if not _matches(k, ignore)}
        ours = dict(self.named_parameters())
        faults = [f"missing: {k}" for k in ours if k not in given]
        faults += [f"unexpected: {k}" for k in given if k not in ours]
        for path, tensor in ours.items():
            if path in given and _form(given[path]) != _form(_array(tensor)):
                want, got = _form(_array(tensor)), _form(given[path])
                faults.append(f"mismatched: {path} is {got}, the module has {want}")
        if faults:
            raise ValueError(
                f"load_state_dict of {type(self).__name__}: {len(faults)} faults\n  "
                + "\n  ".join(faults)
                + "\n(`ignore` lists names that may be skipped; `astype` changes the dtype)"
            )
        self._update(lambda path, tensor: weight(_name(tensor), given[path]))

    def astype(self, dtype: DType | str) -> Self:
        """Cast all floating weights, in place; returns the Module."""
        to = as_dtype(dtype)

        def cast(path: str, tensor: Tensor) -> Tensor:
            if not tensor.dtype.is_float:
                return tensor
            return weight(_name(tensor), _array(tensor).astype(to.numpy))

        self._update(cast)
        return self

    def trainable(self) -> tuple[Self, dict[str, Tensor]]:
        """A copy whose floating weights are inputs of a graph, and these inputs by path.

        A program that trains takes the weights and gives new ones. `state_dict` has the arrays that
        it starts with, and `load_state_dict` takes those that it ends with.
        """
        params = {
            path: input(path, tensor.shape, tensor.dtype)
            for path, tensor in self.named_parameters() if tensor.dtype.is_float
        }  # fmt: skip
        copy: Self = _copy(self, "", params)
        return copy, params

    def _update(self, change: Callable[[str, Tensor], Tensor], prefix: str = "") -> None:
        for name, value in tuple(vars(self).items()):
            object.__setattr__(self, name, _rebuild(value, prefix + name, change))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} defines no __call__")


def _rebuild(value: Any, path: str, change: Callable[[str, Tensor], Tensor]) -> Any:
    """The value with every weight below it changed: Modules in place, the rest anew."""
    if isinstance(value, Tensor):
        return change(path, value) if value.node.op == "weight" else value
    if isinstance(value, Module):
        value._update(change, f"{path}.")
    elif isinstance(value, (list, tuple)) and any(isinstance(v, (Module, Tensor)) for v in value):
        return tuple(_rebuild(v, f"{path}.{i}", change) for i, v in enumerate(value))
    return value


def _copy(value: Any, path: str, tensors: Mapping[str, Tensor]) -> Any:
    """The value with the tensors below it replaced where there is one for their path."""
    if isinstance(value, Tensor):
        return tensors.get(path, value)
    if isinstance(value, tuple):
        return tuple(_copy(v, f"{path}.{i}", tensors) for i, v in enumerate(value))
    if not isinstance(value, Module):
        return value
    new = object.__new__(type(value))
    for name, below in vars(value).items():
        object.__setattr__(new, name, _copy(below, f"{path}.{name}" if path else name, tensors))
    return new


def _walk(value: Any, path: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor) and value.node.op == "weight":
        yield path, value
    elif isinstance(value, Module):
        for name, below in vars(value).items():
            yield from _walk(below, f"{path}.{name}")
    elif isinstance(value, tuple):
        for i, below in enumerate(value):
            yield from _walk(below, f"{path}.{i}")


def _renamed(path: str, tensor: Tensor) -> Tensor:
    return weight(path, _array(tensor))


def _name(tensor: Tensor) -> str:
    return str(tensor.node.attr.name)


def _array(tensor: Tensor) -> Array:
    array: Array = tensor.node.attr.array
    return array


def _form(array: Array) -> str:
    return f"{array.dtype.name}{list(array.shape)}"


def _matches(name: str, ignore: Collection[str]) -> bool:
    return any(name == i or (i.endswith(".") and name.startswith(i)) for i in ignore)
