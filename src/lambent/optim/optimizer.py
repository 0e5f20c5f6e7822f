"""Optimizer: one step as graph, from parameters, gradients and state to the next of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lambent.functional.arithmetic import equal, minimum, remainder, sqrt, where
from lambent.functional.operands import as_tensor, cast
from lambent.graph.dtypes import DType, as_dtype, int64
from lambent.graph.tensor import Tensor, describe, input
from lambent.optim.rules import Rule
from lambent.optim.schedules import Schedule

Array = np.ndarray[Any, Any]
Tensors = dict[str, Tensor]
STEP, PART = "optimizer:step", "optimizer:part"
"""Updates made, and gradients added since the last: int64 of shape ()."""


@dataclass(frozen=True, slots=True)
class Optimizer:
    """How a set of named parameters moves.

    The state is a flat dict: `optimizer:step`, and `name:slot` for what is remembered of a
    parameter, in float32 where that is narrower (in float64 for float64). A parameter narrower than
    float32 has a slot `master`, the exact value that it is rounded from.

    Args:
        rule: for all parameters, or a function of (name, parameter) that chooses one: this is how
            groups differ in weight decay, or matrices move by Muon and the rest by AdamW.
        every: gradients of so many calls are averaged before the parameters move.
    """

    rule: Rule | Callable[[str, Tensor], Rule]
    every: int = 1

    def state(self, params: Mapping[str, Tensor]) -> Tensors:
        """The state as inputs of a graph."""
        return {name: input(name, shape, dtype) for name, shape, dtype, _ in self._slots(params)}

    def start(self, params: Mapping[str, Array]) -> dict[str, Array]:
        """The arrays of the state at the start, for the arrays of the parameters."""
        inputs = {n: input(n, a.shape, a.dtype) for n, a in params.items()}
        return {
            name: np.zeros(shape, dtype.numpy) if of is None
            else np.asarray(params[of]).astype(dtype.numpy)
            for name, shape, dtype, of in self._slots(inputs)
        }  # fmt: skip

    def step(
        self,
        params: Mapping[str, Tensor],
        grads: Mapping[str, Tensor],
        state: Mapping[str, Tensor],
        lr: Tensor | float | Schedule,
    ) -> tuple[Tensors, Tensors]:
        """The parameters and the state after one step.

        Args:
            grads: of `lambent.grad`, by the names of the params.
            lr: the learning rate, or a schedule, which gets the number of updates made.

        Raises:
            ValueError: gradients or state that do not belong to the parameters.
        """
        self._check(params, grads, state)
        made, due = state[STEP], as_tensor(True)
        rate = lr(made) if callable(lr) else lr
        out, after = {}, {}
        if self.every > 1:
            after[PART] = remainder(state[PART] + 1, self.every)
            due = equal(after[PART], 0)
        after = {STEP: made + cast(due, int64)} | after
        for name, p in params.items():
            wide, rule = p.dtype.compute, self._rule(name, p)
            g = cast(grads[name], wide)
            old = {slot: state[f"{name}:{slot}"] for slot in rule.slots}
            w = state[f"{name}:master"] if wide != p.dtype else p
            if self.every > 1:
                total = state[f"{name}:sum"] + g
                g, after[f"{name}:sum"] = total / self.every, where(due, 0.0, total)
            new, slots = rule.update(w, g, old, cast(as_tensor(rate, wide), wide), made + 1)
            if self.every > 1:
                new = where(due, new, w)
                slots = {k: where(due, v, old[k]) for k, v in slots.items()}
            if wide != p.dtype:
                after[f"{name}:master"] = new
            after |= {f"{name}:{slot}": v for slot, v in slots.items()}
            out[name] = cast(new, p.dtype)
        return out, after

    def _rule(self, name: str, p: Tensor) -> Rule:
        return self.rule(name, p) if callable(self.rule) else self.rule

    def _slots(
        self, params: Mapping[str, Tensor]
    ) -> Iterator[tuple[str, tuple[Any, ...], DType, str | None]]:
        """(name, shape, dtype, the parameter that it starts as, if not as zeros)."""
        yield STEP, (), int64, None
        if self.every > 1:
            yield PART, (), int64, None
        for name, p in params.items():
            wide = p.dtype.compute
            if wide != p.dtype:
                yield f"{name}:master", p.shape, wide, name
            for slot in (*self._rule(name, p).slots, *(("sum",) if self.every > 1 else ())):
                yield f"{name}:{slot}", p.shape, wide, None

    def _check(
        self,
        params: Mapping[str, Tensor],
        grads: Mapping[str, Tensor],
        state: Mapping[str, Tensor],
    ) -> None:
        wrong = [
            f"the gradient of {n} is {describe(grads[n]) if n in grads else 'missing'}"
            for n, p in params.items() if n not in grads or grads[n].shape != p.shape
        ]  # fmt: skip
        wrong += [f"the gradient of {n} belongs to no parameter" for n in grads if n not in params]
        slots = {name: (shape, as_dtype(dtype)) for name, shape, dtype, _ in self._slots(params)}
        wrong += [
            f"the state {n} is {describe(state[n]) if n in state else 'missing'}"
            for n, form in slots.items()
            if n not in state or (state[n].shape, state[n].dtype) != form
        ]
        if wrong:
            more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
            raise ValueError(f"Optimizer.step: {'; '.join(wrong[:5])}{more}")


def clip_by_global_norm(grads: Mapping[str, Tensor], limit: float) -> tuple[Tensors, Tensor]:
    """Gradients scaled so that the norm of all together is at most `limit`, and the norm before.

    As `torch.nn.utils.clip_grad_norm_`: a factor min(1, limit / (norm + 1e-6)).
    """
    squares = [(cast(g, g.dtype.compute) * cast(g, g.dtype.compute)).sum() for g in grads.values()]
    norm = sqrt(sum(squares[1:], squares[0]))
    scale = minimum(limit / (norm + 1e-6), 1.0)
    return {n: g * cast(scale, g.dtype) for n, g in grads.items()}, norm
