"""The training loop: it learns, resumes to the bit, and says what goes wrong."""

from __future__ import annotations

import signal
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import lambent as lt
from lambent import nn, optim
from lambent.frontends.safetensors import load_safetensors, save_safetensors
from lambent.training.records import Records, crc32c
from lambent.training.trainer import CHECKPOINT, Trainer, _whole

Batch = dict[str, np.ndarray]
TRUE = np.array([[1.0, -2.0, 0.5]], np.float32)


def batches() -> Iterator[Batch]:
    rng = np.random.default_rng(0)
    while True:
        x = rng.normal(size=(8, 3)).astype(np.float32)
        yield {"x": x, "y": x @ TRUE.T}


def loss(model: nn.Linear, batch: dict[str, lt.Tensor], step: lt.Tensor) -> lt.Tensor:
    x = batch["x"] * (1.0 - 0.01 / (1.0 + step.astype("float32")))
    return lt.mse_loss(model(x), batch["y"])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """One search for all tests; each starts from the same initial weights."""
    nn.seed(0)
    folder = tmp_path_factory.mktemp("run")
    optimizer = optim.Optimizer(optim.AdamW(weight_decay=0.0))
    trainer = Trainer(
        nn.Linear(3, 1), loss, optimizer, 0.1, next(batches()),
        clip=10.0, folder=folder, budget=2, progress=False,
    )  # fmt: skip
    trainer.save(folder / "start.safetensors")
    return trainer


@pytest.fixture
def trainer(made: Trainer) -> Trainer:
    assert made._folder is not None
    made.resume(made._folder / "start.safetensors")
    return made


def test_it_learns_and_writes_metrics(trainer: Trainer) -> None:
    losses = trainer.fit(batches(), 80, progress=False)
    assert len(losses) == 80
    assert losses[-1] < 0.05 * losses[0]
    np.testing.assert_allclose(trainer.model.state_dict()["weight"], TRUE, atol=0.2)
    rows = (trainer._folder / "metrics.csv").read_text().splitlines()  # type: ignore[operator]
    assert rows[0] == "step,loss,norm,seconds"
    assert rows[80].startswith("80,")
    assert float(rows[80].split(",")[1]) == pytest.approx(losses[-1])


def test_a_resumed_run_is_the_same_to_the_bit(trainer: Trainer, tmp_path: Path) -> None:
    whole = trainer.fit(batches(), 12, progress=False)
    end = trainer.arrays()
    trainer.resume(trainer._folder / "start.safetensors")  # type: ignore[operator]
    first = trainer.fit(batches(), 5, progress=False)
    trainer.save(tmp_path / "half")
    trainer.fit(batches(), 9, progress=False)
    trainer.resume(tmp_path / "half")
    assert first + trainer.fit(batches(), 12, progress=False) == whole
    for name, array in trainer.arrays().items():
        np.testing.assert_array_equal(array, end[name])


def test_an_interrupt_saves(trainer: Trainer) -> None:
    def interrupted() -> Iterator[Batch]:
        for i, batch in enumerate(batches()):
            if i == 3:
                raise KeyboardInterrupt
            yield batch

    with pytest.raises(KeyboardInterrupt):
        trainer.fit(interrupted(), 10, progress=False)
    saved = load_safetensors(trainer._folder / CHECKPOINT)  # type: ignore[operator]
    assert saved["trainer:calls"] == 3
    np.testing.assert_array_equal(saved["weight"], trainer.model.state_dict()["weight"])


def test_a_step_moves_the_arrays_in_place(trainer: Trainer) -> None:
    held, kept = dict(trainer._held), trainer.arrays()
    own = trainer.model.state_dict()["weight"].copy()
    trainer._step(next(batches()))
    assert trainer.calls == 1
    assert all(trainer._held[n] is a for n, a in held.items())
    assert not np.array_equal(held["weight"], kept["weight"])
    np.testing.assert_array_equal(trainer.model.state_dict()["weight"], own)
    m = trainer.program.manifest
    kinds = {name: kind for name, (kind, _) in zip(m.form, m.results, strict=True)}
    moved = ("weight", "bias", "weight:m", "bias:v")
    assert {kinds[name] for name in moved} == {"input"}  # nothing is copied back


def test_an_interrupt_waits_for_the_end_of_a_step(trainer: Trainer) -> None:
    with pytest.raises(KeyboardInterrupt), _whole():
        signal.raise_signal(signal.SIGINT)
        trainer._held["weight"] += 1.0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_is_not_finite_stops_the_run(trainer: Trainer) -> None:
    good = next(batches())
    bad = good | {"y": np.full((8, 1), np.nan, np.float32)}
    with pytest.raises(FloatingPointError, match="at batch 1 loss is not finite"):
        trainer.fit([good, bad], 2, progress=False)
    assert trainer.calls == 1
    with pytest.raises(FloatingPointError, match="at batch 1 norm is not finite"):
        trainer.fit([good, {n: a * np.float32(1e15) for n, a in good.items()}], 2, progress=False)
    trainer._held["bias"][:] = np.inf  # as a step may leave it that overflows
    with pytest.raises(FloatingPointError, match="at batch 1 bias is not finite"):
        trainer.fit([good, good], 2, progress=False)
    trainer.resume(trainer._folder / CHECKPOINT)  # type: ignore[operator]
    assert trainer.calls == 1
    assert np.isfinite(trainer.arrays()["bias"]).all()


def test_a_checkpoint_of_another_model_is_refused(trainer: Trainer, tmp_path: Path) -> None:
    arrays = load_safetensors(trainer._folder / CHECKPOINT)  # type: ignore[operator]
    wrong = {n: a for n, a in arrays.items() if n != "bias"} | {"weight": np.zeros((2, 3))}
    save_safetensors(tmp_path / "wrong", wrong)
    with pytest.raises(ValueError, match=r"bias is missing; weight is float64\[2, 3\], not float"):
        trainer.resume(tmp_path / "wrong")


def test_an_equal_trainer_starts_without_a_search(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*args: object, **options: object) -> None:
        raise AssertionError("searched again")

    monkeypatch.setattr("lambent.compiler.compile", refused)
    nn.seed(0)
    again = Trainer(
        nn.Linear(3, 1), loss, optim.Optimizer(optim.AdamW(weight_decay=0.0)), 0.1,
        next(batches()), clip=10.0, budget=2, progress=False,
    )  # fmt: skip
    assert again.fit(batches(), 3, progress=False) == trainer.fit(batches(), 3, progress=False)
    with pytest.raises(AssertionError, match="searched again"):
        Trainer(nn.Linear(3, 1), loss, optim.Optimizer(optim.SGD()), 0.1, next(batches()), budget=2)


def test_safetensors_are_the_librarys(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    rng = np.random.default_rng(0)
    arrays = {
        "a": rng.normal(size=(2, 3)), "b": np.array(3), "c": np.zeros((0, 2), np.float32),
        "d": rng.normal(size=4).astype(lt.bfloat16.numpy), "e": np.array([True, False]),
    }  # fmt: skip
    save_safetensors(tmp_path / "x", arrays)
    theirs = load_file(tmp_path / "x")
    ours = load_safetensors(tmp_path / "x")
    for name, array in arrays.items():
        for found in (theirs[name], ours[name]):
            assert (found.dtype, found.shape) == (array.dtype, array.shape)
            np.testing.assert_array_equal(found, array)
    with pytest.raises(TypeError, match="'z' is complex128"):
        save_safetensors(tmp_path / "x", {"z": np.zeros(1, complex)})
    assert set(load_safetensors(tmp_path / "x")) == set(arrays)


def test_event_files_hold_whole_records(tmp_path: Path) -> None:
    assert crc32c(b"123456789") == 0xE3069283  # the checksum's published test value
    records = Records(tmp_path)
    records.add(300, {"loss": 0.5})
    (file,) = tmp_path.glob("events.*")
    data, found = file.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        found.append(data[12 : 12 + length])
        data = data[12 + length + 4 :]
    assert b"brain.Event:2" in found[0]
    assert found[1][9:12] == b"\x10\xac\x02"  # field 2: the step 300
    assert found[1].endswith(b"\x0a\x04loss\x15" + struct.pack("<f", 0.5))
