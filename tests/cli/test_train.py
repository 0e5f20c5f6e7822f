"""`lambent train`: its models are the peers', and mistakes are told in a line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

import lambent as lt
from lambent import nn
from lambent.backends.reference.graph import evaluate
from lambent.cli import lessons
from lambent.cli.errors import UserError
from lambent.cli.lessons import Lesson
from lambent.cli.train import train


def small_text(path: Path) -> Lesson:
    path.write_bytes(b"to be, or not to be, that is the question\n" * 4)
    return lessons.text(path, context=8, batch=3, layers=2, width=8, heads=2, steps=4, length=5)


def images() -> Lesson:
    def batches() -> Iterator[dict[str, Any]]:
        random = np.random.default_rng(0)
        yield {
            "x": random.normal(size=(3, 1, 8, 8)).astype(np.float32),
            "y": random.integers(0, 10, 3),
        }

    return Lesson("digits", lessons.Convolutions(), batches, lambda logits: {}, 1e-3, 4)


@pytest.mark.parametrize("name", ["digits", "text"])
def test_the_peer_has_the_same_loss_and_gradients(name: str, tmp_path: Path) -> None:
    import torch
    from torch.nn import functional as F

    from lambent.cli.training_peer import twin

    nn.seed(0)
    lesson = small_text(tmp_path / "text") if name == "text" else images()
    batch = next(lesson.batches())
    model, params = lesson.model.trainable()
    given = {n: lt.input(n, a.shape, str(a.dtype)) for n, a in batch.items()}
    value = lessons.loss(model, given, lt.input("step", (), "int64"))
    grads = lt.grad(value, params)
    weights = lesson.model.state_dict()
    ours = evaluate([value, *grads.values()], weights | batch)
    theirs = twin(lesson, weights)
    out = theirs(torch.from_numpy(batch["x"]))
    loss = F.cross_entropy(out.flatten(0, -2), torch.from_numpy(batch["y"]).flatten())
    loss.backward()
    assert_allclose(ours[0], loss.item(), rtol=1e-5)
    found = {n.replace("/", "."): p.grad for n, p in theirs.w.items()}
    assert set(found) == set(grads)
    for path, array in zip(grads, ours[1:], strict=True):
        assert_allclose(array, found[path].numpy(), atol=1e-5, err_msg=path)


def test_batches_are_the_same_in_every_run(tmp_path: Path) -> None:
    lesson = small_text(tmp_path / "text")
    first, second = (next(lesson.batches()) for _ in range(2))
    for name in "xy":
        np.testing.assert_array_equal(first[name], second[name])
    np.testing.assert_array_equal(first["x"][:, 1:], first["y"][:, :-1])


def test_the_end_of_a_lesson(tmp_path: Path) -> None:
    lesson = small_text(tmp_path / "text")

    def always_z(x: np.ndarray) -> np.ndarray:
        out = np.full((*x.shape, 256), -1e3, np.float32)
        out[..., ord("z")] = 0
        return out

    assert lesson.finish(always_z) == {"text": "zzzzz"}


def test_mistakes_are_told(tmp_path: Path) -> None:
    def run(what: str, path: Path | None) -> None:
        train(what, path, 1, 1.0, None, False, 0, False)

    with pytest.raises(UserError, match="give the path of a text"):
        run("shakespeare", None)
    with pytest.raises(UserError, match="cannot read"):
        run("shakespeare", tmp_path / "nothing")
    (tmp_path / "short").write_text("short")
    with pytest.raises(UserError, match="5 bytes are too few"):
        run("shakespeare", tmp_path / "short")
    with pytest.raises(UserError, match="unknown model 'chess'"):
        run("chess", None)
    assert replace(images(), steps=2).steps == 2
