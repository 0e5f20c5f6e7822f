"""Control flow that ends when the graph is built, and recurrent layers: both are unrolled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lambent as lt
from lambent.frontends.onnx.errors import OnnxError
from lambent.frontends.onnx.known import Known, Value, as_tensor, known
from lambent.frontends.onnx.node import At, Row, one
from lambent.frontends.onnx.shaping import reverse_sequence
from lambent.graph.dim import Size
from lambent.graph.tensor import Tensor

STEPS = 1024
"""Most iterations that are unrolled."""


# ---- If, Loop, Scan --------------------------------------------------------------------------


def _if(at: At, condition: Any) -> list[Value]:
    return at.run(at["then_branch" if one(condition) else "else_branch"], [])


def _loop(at: At, trips: Any, condition: Any, *carried: Value) -> list[Value]:
    body = at["body"]
    count, going = one(trips), condition is None or bool(one(condition))
    state = list(carried)
    stacks: list[list[Tensor]] = [[] for _ in body.output[1 + len(carried) :]]
    step = 0
    while going and (count is None or step < count):
        at.need(step < STEPS, f"more than {STEPS} iterations")
        going_next, *results = at.run(body, [known(step), known(going), *state])
        if not isinstance(going_next, Known):
            raise OnnxError("whether it goes on depends on data; lambent unrolls constant loops")
        going = bool(going_next.array.reshape(()))
        state = results[: len(carried)]
        for stack, value in zip(stacks, results[len(carried) :], strict=True):
            stack.append(as_tensor(value))
        step += 1
    at.need(all(stacks) or not stacks, "no iteration, so the shape of what it collects is unknown")
    return [*state, *(lt.stack(s) for s in stacks)]


def _scan(at: At, *operands: Value) -> list[Value]:
    body, count = at["body"], at["num_scan_inputs"]
    at.need(0 < count <= len(operands), f"{count} scanned operands of {len(operands)}")
    state = list(operands[: len(operands) - count])
    scanned = [as_tensor(v) for v in operands[len(operands) - count :]]
    outputs = len(body.output) - len(state)
    axes = at.get("scan_input_axes", [0] * count)
    backwards = at.get("scan_input_directions", [0] * count)
    at.need(len(axes) == len(backwards) == count, "axes or directions for other operands")
    lines = [x.moveaxis(a, 0) for x, a in zip(scanned, axes, strict=True)]
    lines = [x.flip(0) if b else x for x, b in zip(lines, backwards, strict=True)]
    steps = steps_of(at, lines[0].shape[0])
    at.need(all(x.shape[0] == steps for x in lines), "the scanned operands have different lengths")
    stacks: list[list[Tensor]] = [[] for _ in range(outputs)]
    for i in range(steps):
        results = at.run(body, [*state, *(x[i] for x in lines)])
        state = results[: len(state)]
        for stack, value in zip(stacks, results[len(state) :], strict=True):
            stack.append(as_tensor(value))
    places = at.get("scan_output_axes", [0] * outputs)
    turned = at.get("scan_output_directions", [0] * outputs)
    at.need(len(places) == len(turned) == outputs, "axes or directions for other results")
    rows = zip(stacks, places, turned, strict=True)
    return [*state, *(lt.stack(s[::-1] if back else s, axis) for s, axis, back in rows)]


def steps_of(at: At, size: Size) -> int:
    """The number of steps to unroll."""
    if not isinstance(size, int):
        raise OnnxError(f"it has {size} steps; fix the number: dims={{'{size}': 16}}")
    at.need(0 < size <= STEPS, f"{size} steps; 1 to {STEPS} are unrolled")
    return size


# ---- recurrent layers ------------------------------------------------------------------------

_Function = Callable[[Tensor, Any, Any], Tensor]
_ACTIVATIONS: dict[str, tuple[_Function, float | None, float | None]] = {
    "affine": (lambda x, a, b: x * a + b, 1.0, 0.0),
    "elu": (lambda x, a, b: lt.elu(x, a), 1.0, None),
    "hardsigmoid": (lambda x, a, b: lt.clip(x * a + b, 0.0, 1.0), 0.2, 0.5),
    "leakyrelu": (lambda x, a, b: lt.leaky_relu(x, a), 0.01, None),
    "relu": (lambda x, a, b: lt.relu(x), None, None),
    "scaledtanh": (lambda x, a, b: lt.tanh(x * b) * a, 1.0, 1.0),
    "sigmoid": (lambda x, a, b: lt.sigmoid(x), None, None),
    "softplus": (lambda x, a, b: lt.softplus(x), None, None),
    "softsign": (lambda x, a, b: x / (1.0 + abs(x)), None, None),
    "tanh": (lambda x, a, b: lt.tanh(x), None, None),
    "thresholdedrelu": (lambda x, a, b: lt.where(x > a, x, 0.0), 1.0, None),
}
"""Name → function, and the defaults of the parameters that it takes."""

Step = Callable[..., tuple[Tensor, ...]]


def _activations(at: At, direction: int, defaults: list[str]) -> list[Callable[[Tensor], Tensor]]:
    """The functions of one direction, with their parameters."""
    names = at.get("activations") or defaults * (2 if at["direction"] == "bidirectional" else 1)
    given = [list(at.get(f"activation_{p}") or []) for p in ("alpha", "beta")]
    made: list[Callable[[Tensor], Tensor]] = []
    for name in names:
        at.need(name.lower() in _ACTIVATIONS, f"the activation {name!r} is not known")
        f, *standard = _ACTIVATIONS[name.lower()]
        a, b = (
            values.pop(0) if values and usual is not None else usual
            for values, usual in zip(given, standard, strict=True)
        )
        made.append(_bound(f, a, b))
    at.need(len(made) >= len(defaults) * (direction + 1), f"activations {names}")
    return made[len(defaults) * direction :][: len(defaults)]


def _bound(f: _Function, a: float | None, b: float | None) -> Callable[[Tensor], Tensor]:
    return lambda x: f(x, a, b)


def _clipped(at: At, x: Tensor) -> Tensor:
    limit = at.get("clip")
    return x if limit is None else lt.clip(x, -limit, limit)


def _rnn_step(at: At, fs: Any, x: Tensor, r: Tensor, rb: Tensor, p: Any, h: Tensor) -> Any:
    return (fs[0](_clipped(at, x + h @ r.mT + rb)),)


def _gru_step(at: At, fs: Any, x: Tensor, r: Tensor, rb: Tensor, p: Any, h: Tensor) -> Any:
    n = r.shape[0] // 3
    xz, xr, xh = x.split([n] * 3, -1)
    rz, rr, rh = r.split([n] * 3, 0)
    bz, br, bh = rb.split([n] * 3, 0)
    z = fs[0](_clipped(at, xz + h @ rz.mT + bz))
    reset = fs[0](_clipped(at, xr + h @ rr.mT + br))
    if at["linear_before_reset"]:
        new = fs[1](_clipped(at, xh + reset * (h @ rh.mT + bh)))
    else:
        new = fs[1](_clipped(at, xh + (reset * h) @ rh.mT + bh))
    return ((1.0 - z) * new + z * h,)


def _lstm_step(
    at: At, fs: Any, x: Tensor, r: Tensor, rb: Tensor, p: Any, h: Tensor, c: Tensor
) -> Any:
    n = r.shape[0] // 4
    i, o, f, new = (x + h @ r.mT + rb).split([n] * 4, -1)
    peep = p.split([n] * 3, 0) if p is not None else None
    if peep is not None:
        i, f = i + peep[0] * c, f + peep[2] * c
    i = fs[0](_clipped(at, i))
    f = 1.0 - i if at["input_forget"] else fs[0](_clipped(at, f))
    c = f * c + i * fs[1](_clipped(at, new))
    o = o if peep is None else o + peep[1] * c
    return fs[0](_clipped(at, o)) * fs[2](c), c


def _recurrent(gates: int, defaults: list[str], step: Step, states: int) -> Callable[..., Any]:
    """A recurrent layer: x [steps, batch, …]; W, R, B of one or two directions → Y, states."""

    def build(
        at: At, x: Tensor, w: Tensor, r: Tensor, bias: Tensor | None, lengths: Tensor | None,
        *initial: Tensor | None,
    ) -> list[Tensor]:  # fmt: skip
        first = at.get("layout", 0) == 1
        x = x.moveaxis(0, 1) if first else x
        steps, batch, hidden = steps_of(at, x.shape[0]), x.shape[1], r.shape[-1]
        modes = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}
        at.need(at["direction"] in modes, f"the direction {at['direction']!r} is not known")
        backwards = modes[at["direction"]]
        at.need(w.shape[0] == len(backwards), f"weights for {w.shape[0]} directions")
        peep = initial[states] if len(initial) > states else None
        ys, ends = [], []
        for d, back in enumerate(backwards):
            fs = _activations(at, d, defaults)
            b = lt.zeros(2 * gates * hidden, dtype=x.dtype) if bias is None else bias[d]
            wb, rb = b.split([gates * hidden] * 2, 0)
            state = tuple(
                lt.zeros(batch, hidden, dtype=x.dtype)
                if s is None
                else (s.moveaxis(0, 1) if first else s)[d]
                for s in (*initial, None, None)[:states]
            )
            turned = _turned(x, lengths) if back else x
            given = turned @ w[d].mT + wb
            out: list[Tensor] = []
            for t in range(steps):
                new = step(at, fs, given[t], r[d], rb, None if peep is None else peep[d], *state)
                on = None if lengths is None else (t < lengths).unsqueeze(-1)
                out.append(new[0] if on is None else lt.where(on, new[0], 0.0))
                state = tuple(
                    n if on is None else lt.where(on, n, s) for n, s in zip(new, state, strict=True)
                )
            y = lt.stack(out)
            ys.append(_turned(y, lengths) if back else y)
            ends.append(state)
        y = lt.stack(ys, 1)  # [steps, directions, batch, hidden]
        finals = [lt.stack(parts) for parts in zip(*ends, strict=True)]
        if first:
            return [y.permute(2, 0, 1, 3), *(f.moveaxis(0, 1) for f in finals)]
        return [y, *finals]

    return build


def _turned(x: Tensor, lengths: Tensor | None) -> Tensor:
    return x.flip(0) if lengths is None else reverse_sequence(x, lengths)


_UNROLLED = f"unrolled, up to {STEPS} steps"
ROWS: dict[str, Row] = {
    "GRU": Row(_recurrent(3, ["Sigmoid", "Tanh"], _gru_step, 1), note=_UNROLLED),
    "If": Row(_if, static=(0,), until=28, note="with a condition that is known"),
    "LSTM": Row(_recurrent(4, ["Sigmoid", "Tanh", "Tanh"], _lstm_step, 2), note=_UNROLLED),
    "Loop": Row(
        _loop, values=True, static=(0, 1), until=28, note=f"with a known count; {_UNROLLED}"
    ),
    "RNN": Row(_recurrent(1, ["Tanh"], _rnn_step, 1), note=_UNROLLED),
    "Scan": Row(_scan, values=True, since=9, until=28, note=_UNROLLED),
}
