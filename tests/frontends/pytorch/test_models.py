"""Whole models by torch.compile(backend="lambent"): results equal eager's."""

from __future__ import annotations

import pytest
import torch
from whole_models import MODELS, Made, make

from lambent.frontends.torch import backend

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def made(name: str) -> Made:
    try:
        return make(name)
    except ImportError as error:
        pytest.skip(f"{name} needs a package that is not installed: {error}")


@pytest.mark.parametrize("name", MODELS)
def test_a_model_equals_eager(name: str) -> None:
    """By the reference: the whole model is one graph, and nothing in it falls back."""
    torch._dynamo.reset()
    model, arguments = made(name)
    options = {"device": "reference", "fallback": False}
    with torch.no_grad():
        want = model(**arguments)
        got = torch.compile(model, backend=backend, options=options, fullgraph=True)(**arguments)
    assert (got - want).abs().max() <= 1e-4 * want.abs().max()
