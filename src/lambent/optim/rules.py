"""The rules: how one parameter moves, given its gradient. A row is a frozen dataclass.

`slots` names what a rule remembers of each parameter, in the parameter's shape, zeros at first.
`update(p, g, s, lr, t)` gets the parameter, its gradient, the slots and the learning rate in one
floating dtype, and t, the number of this update from 1 on (int64), and returns the new parameter
and the new slots. Formulas and defaults are PyTorch's where it has the rule.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from lambent.functional.arithmetic import maximum, sign, sqrt
from lambent.functional.mathematics import expm1
from lambent.functional.operands import cast
from lambent.graph.tensor import Tensor, describe

Slots = Mapping[str, Tensor]
Moved = tuple[Tensor, dict[str, Tensor]]


class Rule(Protocol):
    """What every row offers; see the module."""

    @property
    def slots(self) -> tuple[str, ...]: ...

    def update(self, p: Tensor, g: Tensor, s: Slots, lr: Tensor, t: Tensor) -> Moved: ...


@dataclass(frozen=True, slots=True)
class SGD:
    """p − lr · v with v = momentum · v + g; Nesterov takes g + momentum · v. Decay is part of g."""

    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    @property
    def slots(self) -> tuple[str, ...]:
        return ("v",) if self.momentum else ()

    def update(self, p: Tensor, g: Tensor, s: Slots, lr: Tensor, t: Tensor) -> Moved:
        g = g + p * self.weight_decay if self.weight_decay else g
        if not self.momentum:
            return p - lr * g, {}
        v = s["v"] * self.momentum + g
        return p - lr * (g + v * self.momentum if self.nesterov else v), {"v": v}


@dataclass(frozen=True, slots=True)
class Adam:
    """p − lr · m̂ / (√v̂ + eps) (Kingma and Ba, arXiv 1412.6980). Decay is part of g."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    @property
    def slots(self) -> tuple[str, ...]:
        return ("m", "v")

    def update(self, p: Tensor, g: Tensor, s: Slots, lr: Tensor, t: Tensor) -> Moved:
        g = g + p * self.weight_decay if self.weight_decay else g
        return _adam(self.betas, self.eps, p, g, s, lr, t)


@dataclass(frozen=True, slots=True)
class AdamW:
    """Adam after p · (1 − lr · weight_decay) (Loshchilov and Hutter, arXiv 1711.05101)."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01

    @property
    def slots(self) -> tuple[str, ...]:
        return ("m", "v")

    def update(self, p: Tensor, g: Tensor, s: Slots, lr: Tensor, t: Tensor) -> Moved:
        return _adam(self.betas, self.eps, _decayed(p, lr, self.weight_decay), g, s, lr, t)


@dataclass(frozen=True, slots=True)
class Lion:
    """p · (1 − lr · decay) − lr · sign(β₁ m + (1 − β₁) g) (Chen et al., arXiv 2302.06675)."""

    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.0

    @property
    def slots(self) -> tuple[str, ...]:
        return ("m",)

    def update(self, p: Tensor, g: Tensor, s: Slots, lr: Tensor, t: Tensor) -> Moved:
        way, keep = (s["m"] * b + g * (1 - b) for b in self.betas)
        return _decayed(p, lr, self.weight_decay) - lr * sign(way), {"m": keep}


@dataclass(frozen=True, slots=True)
class Muon:
    """Moves a matrix along its orthogonalised momentum, as `torch.optim.Muon` (Jordan, 2024).

    The fifth-order Newton-Schulz iteration runs in the dtype of the state, where PyTorch takes
    bfloat16. For matrices alone: give other parameters another rule.
    """

    momentum: float = 0.95
    nesterov: bool = True
    weight_decay: float = 0.1
    coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315)
    iterations: int = 5
    eps: float = 1e-7

    @property
    def slots(self) -> tuple[str, ...]:
        return ("m",)

    def update(self, p: Tensor, g: Tensor, s: Slots, lr: Tensor, t: Tensor) -> Moved:
        rows, columns = p.shape if p.ndim == 2 else (None, None)
        if not isinstance(rows, int) or not isinstance(columns, int):
            raise ValueError(
                f"Muon: {describe(p)} is no matrix of fixed sizes; give it another rule, as in "
                "Optimizer(lambda name, p: Muon() if p.ndim == 2 else AdamW())"
            )
        m = s["m"] * self.momentum + g * (1 - self.momentum)
        way = g * (1 - self.momentum) + m * self.momentum if self.nesterov else m
        scale = math.sqrt(max(1.0, rows / columns))
        way = self._orthogonal(way, rows > columns) * (lr * scale)
        return _decayed(p, lr, self.weight_decay) - way, {"m": m}

    def _orthogonal(self, x: Tensor, tall: bool) -> Tensor:
        a, b, c = self.coefficients
        x = x.mT if tall else x
        x = x / maximum(sqrt((x * x).sum()), self.eps)
        for _ in range(self.iterations):
            gram = x @ x.mT
            x = x * a + (gram * b + gram @ gram * c) @ x
        return x.mT if tall else x


def _decayed(p: Tensor, lr: Tensor, weight_decay: float) -> Tensor:
    return p * (1.0 - lr * weight_decay) if weight_decay else p


def _adam(
    betas: tuple[float, float], eps: float, p: Tensor, g: Tensor, s: Slots, lr: Tensor, t: Tensor
) -> Moved:
    m, v = (s[k] * b + x * (1 - b) for k, b, x in zip("mv", betas, (g, g * g), strict=True))
    # 1 − βᵗ, without the cancellation of the first steps
    first, second = (-expm1(cast(t, p.dtype) * math.log(b)) for b in betas)
    size = sqrt(v) / sqrt(second) + eps
    return p - lr / first * (m / size), {"m": m, "v": v}
