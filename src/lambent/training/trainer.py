"""Trainer: compiles one program of forward, backward and step, and feeds it batches."""

from __future__ import annotations

import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress, TaskID

from lambent.frontends.kept import compiled
from lambent.frontends.safetensors import load_safetensors, save_safetensors
from lambent.functional.arithmetic import isfinite, where
from lambent.functional.gradient import grad
from lambent.functional.operands import cast
from lambent.graph.dtypes import as_dtype
from lambent.graph.tensor import Tensor, input
from lambent.nn.module import Module
from lambent.optim.optimizer import PART, STEP, Optimizer, Tensors, clip_by_global_norm
from lambent.optim.schedules import Schedule
from lambent.training.records import Records

Array = np.ndarray[Any, Any]
Loss = Callable[[Any, Mapping[str, Tensor], Tensor], Tensor]
CALLS = "trainer:calls"
CHECKPOINT = "checkpoint.safetensors"


class Trainer:
    """Trains a Module by a loss.

    A step is one call of one program, which is given the parameters and the state and moves them in
    place; where the loss (or with `clip` the norm) is not finite it leaves them as they are.

    Args:
        model: its floating weights are the parameters; they change when `fit` returns.
        loss: gets the model, the batch by name, and the number of updates made (int64, shape (), to
            be the `step` of `lambent.random`), and returns a scalar.
        optimizer, lr: see `lambent.optim`.
        batch: an example of a batch: arrays by name. All batches have these shapes and dtypes.
        clip: the most that the norm of all gradients together may be.
        folder: where metrics and checkpoints go; without it there are none.
        options: of `lambent.compile`. The program is kept: an equal Trainer needs no search.

    Raises:
        ValueError, TypeError: what `grad`, `Optimizer.step` and `compile` refuse.
    """

    def __init__(
        self,
        model: Module,
        loss: Loss,
        optimizer: Optimizer,
        lr: Tensor | float | Schedule,
        batch: Mapping[str, Array],
        *,
        clip: float | None = None,
        folder: str | Path | None = None,
        **options: Any,
    ) -> None:
        copy, params = model.trainable()
        given = {n: input(n, a.shape, as_dtype(a.dtype)) for n, a in batch.items()}
        state = optimizer.state(params)
        value = loss(copy, given, state[STEP])
        grads = grad(value, params)
        metrics, sound = {"loss": value}, isfinite(value)
        if clip is not None:
            grads, metrics["norm"] = clip_by_global_norm(grads, clip)
            sound = isfinite(value + metrics["norm"])
        new, after = optimizer.step(params, grads, state, lr)
        old = params | state
        moved = {n: where(sound, x, old[n]) for n, x in _by_parameter(params, new | after)}
        if shared := sorted({*metrics, *given} & {*moved}):
            raise ValueError(f"Trainer: parameters and batch share the names {', '.join(shared)}")
        self.model, self._every = model, optimizer.every
        self._params, self._metrics = list(params), list(metrics)
        arrays = {n: a.copy() for n, a in model.state_dict().items() if n in params}
        self._held: dict[str, Array] = arrays | optimizer.start(arrays)
        self._folder = None if folder is None else Path(folder)
        told = {n: cast(x, "float32") for n, x in metrics.items()}
        self.program = compiled(told | moved, donate={n: n for n in moved}, **options)

    @property
    def calls(self) -> int:
        """Batches seen."""
        return int(self._held[STEP]) * self._every + int(self._held.get(PART, 0))

    def fit(
        self,
        batches: Iterable[Mapping[str, Array]],
        steps: int,
        *,
        every: int = 0,
        progress: bool = True,
    ) -> list[float]:
        """Train until so many batches were seen, those before a `resume` included.

        Args:
            batches: from the first on; a resumed run skips those that it has seen, so equal batches
                give equal results to the last bit.
            every: batches between checkpoints; one is written at the end in any case, and at
                Ctrl-C, which then goes on as KeyboardInterrupt.

        Returns:
            The losses of this run.

        Raises:
            FloatingPointError: the loss, or a parameter that an earlier step moved, is not finite:
                names the step and the first bad value. What is kept and saved is what was before
                that step; with a bad parameter it is the last checkpoint.
            TypeError, ValueError: a batch that the program refuses.
        """
        losses = []
        records = Records(self._folder) if self._folder else None
        try:
            with _bar(steps, progress) as show:
                for batch in itertools.islice(batches, self.calls, steps):
                    start = time.perf_counter()
                    metrics = self._step(batch)
                    losses.append(metrics["loss"])
                    seconds = {"seconds": time.perf_counter() - start}
                    if records:
                        records.add(self.calls, metrics | seconds)
                    show(self.calls, metrics)
                    if self._folder and every and self.calls % every == 0:
                        self._keep()
        except FloatingPointError:
            if self._bad() is None:
                self._keep()
            raise
        except BaseException:
            self._keep()
            raise
        self._keep()
        return losses

    def arrays(self) -> dict[str, Array]:
        """The parameters as they are now, by path."""
        return {n: self._held[n].copy() for n in self._params}

    def save(self, path: str | Path) -> None:
        """Write parameters, state and the number of batches seen into one safetensors file."""
        save_safetensors(path, self._held | {CALLS: np.array(self.calls, np.int64)})

    def resume(self, path: str | Path) -> None:
        """Go on from a file of `save`, to the last bit.

        Raises:
            FileNotFoundError, ValueError: no such file; a damaged one; one of another model or
                optimizer, with the first names that differ.
        """
        found = {n: np.array(a) for n, a in load_safetensors(path).items()}
        calls = found.pop(CALLS, None)
        faults = [f"{n} is missing" for n in self._held if n not in found]
        faults += [f"{n} is unknown" for n in found if n not in self._held]
        faults += [
            f"{n} is {found[n].dtype}{list(found[n].shape)}, not {a.dtype}{list(a.shape)}"
            for n, a in self._held.items()
            if n in found and (found[n].dtype, found[n].shape) != (a.dtype, a.shape)
        ]
        if calls is None or faults:
            why = "; ".join(faults[:5]) or f"it has no {CALLS}"
            raise ValueError(f"{path} is no checkpoint of this model and optimizer: {why}")
        self._held = found
        self.model.load_state_dict(self.model.state_dict() | self.arrays())

    def _keep(self) -> None:
        """Give the model what it learned, and write a checkpoint."""
        if bad := self._bad():
            raise self._fault(bad)
        self.model.load_state_dict(self.model.state_dict() | self.arrays())
        if self._folder:
            self.save(self._folder / CHECKPOINT)

    def _bad(self) -> str | None:
        """The first parameter, or array of the state, that is not finite."""
        return next((n for n, a in self._held.items() if not np.isfinite(a).all()), None)

    def _fault(self, name: str) -> FloatingPointError:
        return FloatingPointError(
            f"Trainer: at batch {self.calls} {name} is not finite; what was sound last is kept. A "
            "smaller learning rate, `clip`, or a look at this batch may help"
        )

    def _step(self, batch: Mapping[str, Array]) -> dict[str, float]:
        """The metrics of a step. Ctrl-C waits until it is whole."""
        with _whole():
            out = self.program(**self._held, **batch)
        metrics = {n: float(out[n]) for n in self._metrics}
        if bad := next((n for n, x in metrics.items() if not np.isfinite(x)), None):
            raise self._fault(self._bad() or bad)
        return metrics


def _by_parameter(params: Iterable[str], moved: Tensors) -> Iterator[tuple[str, Tensor]]:
    """What is moved, each parameter beside its state: few values cross from one to the next."""
    place = {n: i for i, n in enumerate(params)}
    of = {n: n if n in place else n.rpartition(":")[0] for n in moved}
    yield from sorted(moved.items(), key=lambda item: place.get(of[item[0]], -1))


@contextmanager
def _whole() -> Iterator[None]:
    """Ctrl-C is told of at the end, and once: what is moved in place is never left half way."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pending: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: pending.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pending:
        raise KeyboardInterrupt


@contextmanager
def _bar(steps: int, shown: bool) -> Iterator[Callable[[int, Mapping[str, float]], None]]:
    """A progress bar on standard error."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not shown) as bar:
        task: TaskID = bar.add_task("train", total=steps)

        def show(done: int, metrics: Mapping[str, float]) -> None:
            told = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
            bar.update(task, completed=done, description=told)

        yield show
