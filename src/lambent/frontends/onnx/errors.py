"""What is said about a model that cannot be imported."""

from __future__ import annotations

from collections.abc import Sequence


class OnnxError(ValueError):
    """A model that is broken, or uses something that is not supported; the message names where."""


class NeedsValue(OnnxError):
    """An operator needs to know an input when the graph is built; `inputs` are the model's."""

    def __init__(self, message: str, inputs: Sequence[str]) -> None:
        super().__init__(message)
        self.inputs = tuple(inputs)


class HostWarning(UserWarning):
    """Parts of a model run on the host, or would be quicker there; it names nodes and cost."""
