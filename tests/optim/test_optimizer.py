"""Every rule against torch.optim over several steps, and what surrounds the rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import lambent as lt
from lambent import optim
from lambent.backends.base import Assembly, Step
from lambent.backends.cpu import assemble

Arrays = dict[str, np.ndarray]
RULES: dict[str, tuple[optim.Rule, Callable[[Any], torch.optim.Optimizer]]] = {
    "sgd": (optim.SGD(), lambda p: torch.optim.SGD(p, 0.1)),
    "momentum": (
        optim.SGD(0.9, weight_decay=0.1),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.1),
    ),
    "nesterov": (
        optim.SGD(0.9, nesterov=True),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    ),
    "adam": (
        optim.Adam(weight_decay=0.1),
        lambda p: torch.optim.Adam(p, 0.1, weight_decay=0.1),
    ),
    "adamw": (
        optim.AdamW((0.8, 0.95), 1e-6, 0.1),
        lambda p: torch.optim.AdamW(p, 0.1, (0.8, 0.95), 1e-6, 0.1),
    ),
}


def start(dtype: str = "float64") -> Arrays:
    rng = np.random.default_rng(0)
    return {"w": rng.normal(size=(3, 2)).astype(dtype), "b": rng.normal(size=3).astype(dtype)}


def loss_of(p: Any, x: Any) -> Any:
    """Works on tensors of ours and of PyTorch."""
    y = x @ p["w"].mT + p["b"]
    return (y * y * y).mean() + (y * y).sum()


def batches(n: int) -> list[np.ndarray]:
    return list(np.random.default_rng(1).normal(size=(n, 4, 2)))


def graph(
    optimizer: optim.Optimizer, params: Arrays, lr: Any, clip: float = 0.0
) -> dict[str, lt.Tensor]:
    """Forward, backward and step, by the names of the new parameters and state."""
    inputs = {n: lt.input(n, a.shape, a.dtype) for n, a in params.items()}
    wide = {n: p.astype(p.dtype.compute) for n, p in inputs.items()}
    loss = loss_of(wide, lt.input("x", (4, 2), wide["w"].dtype))
    grads = lt.grad(loss, inputs)
    outs = {"loss": loss}
    if clip:
        grads, outs["norm"] = optim.clip_by_global_norm(grads, clip)
    new, state = optimizer.step(inputs, grads, optimizer.state(inputs), lr)
    return outs | new | state


def run(
    optimizer: optim.Optimizer, params: Arrays, xs: list[np.ndarray], lr: Any = 0.1, **more: Any
) -> Arrays:
    outs, held = graph(optimizer, params, lr, **more), params | optimizer.start(params)
    for x in xs:
        found = lt.evaluate(list(outs.values()), held | {"x": x})
        held |= dict(zip(outs, found, strict=True))
    return held


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", RULES)
def test_rules_are_pytorchs(name: str, dtype: str) -> None:
    rule, theirs = RULES[name]
    params = start(dtype)
    held = run(optim.Optimizer(rule), params, batches(6))
    tensors = {n: torch.tensor(a, requires_grad=True) for n, a in params.items()}
    optimizer = theirs(list(tensors.values()))
    for x in batches(6):
        optimizer.zero_grad()
        loss_of(tensors, torch.tensor(x.astype(dtype))).backward()
        optimizer.step()
    assert held["optimizer:step"] == 6
    rtol = 1e-12 if dtype == "float64" else 3e-5
    for n, p in tensors.items():
        assert held[n].dtype == dtype
        np.testing.assert_allclose(held[n], p.detach().numpy(), rtol=rtol, atol=rtol)


def test_lion_is_its_formula() -> None:
    params, x = start(), batches(1)[0]
    held = run(optim.Optimizer(optim.Lion(weight_decay=0.1)), params, [x, x])
    p, m = torch.tensor(params["b"]), torch.zeros(3, dtype=torch.float64)
    w = torch.tensor(params["w"])
    mw = torch.zeros(3, 2, dtype=torch.float64)
    for _ in range(2):
        q = {"w": w.clone().requires_grad_(), "b": p.clone().requires_grad_()}
        loss_of(q, torch.tensor(x)).backward()
        g, gw = q["b"].grad, q["w"].grad
        p = p * (1 - 0.01) - 0.1 * torch.sign(0.9 * m + 0.1 * g)
        w = w * (1 - 0.01) - 0.1 * torch.sign(0.9 * mw + 0.1 * gw)
        m, mw = 0.99 * m + 0.01 * g, 0.99 * mw + 0.01 * gw
    np.testing.assert_allclose(held["b"], p, rtol=1e-12)
    np.testing.assert_allclose(held["w"], w, rtol=1e-12)


def test_muon_for_matrices_and_adamw_for_the_rest() -> None:
    """PyTorch's iteration is in bfloat16, so it agrees to some percent of a step."""

    def rule(name: str, p: lt.Tensor) -> optim.Rule:
        return optim.Muon() if p.ndim == 2 else optim.AdamW()

    params = start()
    held = run(optim.Optimizer(rule), params, batches(3))
    tensors = {n: torch.tensor(a, requires_grad=True) for n, a in params.items()}
    both = [torch.optim.Muon([tensors["w"]], 0.1), torch.optim.AdamW([tensors["b"]], 0.1)]
    for x in batches(3):
        for optimizer in both:
            optimizer.zero_grad()
        loss_of(tensors, torch.tensor(x)).backward()
        for optimizer in both:
            optimizer.step()
    np.testing.assert_allclose(held["w"], tensors["w"].detach(), atol=0.02)
    np.testing.assert_allclose(held["b"], tensors["b"].detach(), atol=0.02)
    with pytest.raises(ValueError, match=r"Muon: float64\[3\] is no matrix"):
        run(optim.Optimizer(optim.Muon()), params, [])


@pytest.mark.parametrize(
    ("ours", "name", "numbers"),
    [
        (
            optim.cosine(0.3, 6, 0.1),
            "CosineAnnealingLR",
            (6, 0.1),
        ),
        (optim.linear(0.3, 6, 0.03), "LinearLR", (1, 0.1, 6)),
        (optim.exponential(0.3, 0.9), "ExponentialLR", (0.9,)),
        (optim.stairs(0.3, 2, 0.5), "StepLR", (2, 0.5)),
    ],
)
def test_schedules_are_pytorchs(ours: optim.Schedule, name: str, numbers: Any) -> None:
    rate = ours(lt.input("t", (), "int64"))
    optimizer = torch.optim.SGD([torch.zeros(1)], 0.3)
    scheduler = getattr(torch.optim.lr_scheduler, name)(optimizer, *numbers)
    for t in range(6):
        (found,) = lt.evaluate([rate], {"t": np.int64(t)})
        np.testing.assert_allclose(found, optimizer.param_groups[0]["lr"], rtol=1e-6)
        optimizer.step()
        scheduler.step()


def test_a_schedule_with_warmup_counts_updates() -> None:
    rate = optim.warmup(optim.linear(1.0, 4), 4)(lt.input("t", (), "int64"))
    found = [float(lt.evaluate([rate], {"t": np.int64(t)})[0]) for t in range(9)]
    np.testing.assert_allclose(found, [0.25, 0.5, 0.75, 1, 1, 0.75, 0.5, 0.25, 0])
    held = run(optim.Optimizer(optim.SGD()), start(), batches(2), optim.constant(0.1))
    same = run(optim.Optimizer(optim.SGD()), start(), batches(2), 0.1)
    np.testing.assert_allclose(held["w"], same["w"], rtol=1e-6)


def test_clipping_is_pytorchs() -> None:
    params, x = start(), batches(1)[0]
    held = run(optim.Optimizer(optim.SGD()), params, [x], clip=0.7)
    tensors = {n: torch.tensor(a, requires_grad=True) for n, a in params.items()}
    loss_of(tensors, torch.tensor(x)).backward()
    norm = torch.nn.utils.clip_grad_norm_(tensors.values(), 0.7)
    np.testing.assert_allclose(held["norm"], norm, rtol=1e-12)
    moved = tensors["w"].detach() - 0.1 * tensors["w"].grad
    np.testing.assert_allclose(held["w"], moved, rtol=1e-12)


def test_gradients_of_several_calls_are_averaged() -> None:
    params, xs = start(), batches(4)
    held = run(optim.Optimizer(optim.Adam(), every=2), params, xs)
    # the loss is a mean plus a sum: of two batches joined, half the sum
    tensors = {n: torch.tensor(a, requires_grad=True) for n, a in params.items()}
    optimizer = torch.optim.Adam(list(tensors.values()), 0.1)
    for first, second in (xs[:2], xs[2:]):
        optimizer.zero_grad()
        ((loss_of(tensors, torch.tensor(first)) + loss_of(tensors, torch.tensor(second))) / 2
         ).backward()  # fmt: skip
        optimizer.step()
    assert (held["optimizer:step"], held["optimizer:part"]) == (2, 0)
    np.testing.assert_allclose(held["w"], tensors["w"].detach(), rtol=1e-12)
    waiting = run(optim.Optimizer(optim.Adam(), every=2), params, xs[:1])
    np.testing.assert_array_equal(waiting["w"], params["w"])


def test_bfloat16_weights_keep_an_exact_master() -> None:
    exact = {n: a.astype(lt.bfloat16.numpy) for n, a in start().items()}
    optimizer = optim.Optimizer(optim.AdamW())
    held = run(optimizer, exact, [batches(1)[0].astype("float32")] * 8, 1e-4)
    wide = {n: a.astype("float32") for n, a in exact.items()}
    assert held["w"].dtype == lt.bfloat16.numpy
    assert held["w:m"].dtype == held["w:master"].dtype == np.float32
    np.testing.assert_array_equal(held["w"], held["w:master"].astype(lt.bfloat16.numpy))
    # steps far below half a bfloat16 unit add up to 8 · 1e-4
    np.testing.assert_allclose(abs(held["w:master"] - wide["w"]), 8e-4, rtol=0.2)


def test_errors() -> None:
    x = lt.input("x", (2,))
    optimizer = optim.Optimizer(optim.Adam())
    with pytest.raises(ValueError, match=r"the gradient of x is missing; .*x:m is missing"):
        optimizer.step({"x": x}, {}, {}, 0.1)
    state = optimizer.state({"x": x})
    assert list(state) == ["optimizer:step", "x:m", "x:v"]
    wrong = state | {"x:v": lt.input("v", (3,))}
    with pytest.raises(ValueError, match=r"the state x:v is float32\[3\]"):
        optimizer.step({"x": x}, {"x": x}, wrong, 0.1)


def test_a_step_over_fifty_tensors_is_at_most_three_launches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All rules for all tensors, written in place; equal tensors are searched once."""
    launched: list[int] = []

    def waves(assembly: Assembly) -> list[list[Step]]:
        found = assemble_waves(assembly)
        launched.append(len(found))
        return found

    assemble_waves = assemble.waves
    monkeypatch.setattr(assemble, "waves", waves)
    params = {f"p{i}": lt.input(f"p{i}", (7, 24)) for i in range(50)}
    grads = {n: lt.input(f"{n}:grad", p.shape) for n, p in params.items()}
    optimizer = optim.Optimizer(optim.AdamW())
    new, state = optimizer.step(params, grads, optimizer.state(params), 1e-2)
    moved = new | state
    donate = {n: n for n in moved}
    program = lt.compile(moved, budget=0.1, donate=donate, progress=False)
    assert max(launched) <= 3
    assert len(program.explain()["segments"]) <= 4
    rng = np.random.default_rng(0)
    held = {n: rng.normal(size=p.shape).astype("float32") for n, p in params.items()}
    given = {f"{n}:grad": rng.normal(size=p.shape).astype("float32") for n, p in params.items()}
    held |= optimizer.start(held)
    want = lt.evaluate(list(moved.values()), held | given)
    found = program(**held, **given)
    for name, array in zip(moved, want, strict=True):
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-7)
        assert found[name] is held[name]
