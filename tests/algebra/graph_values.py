"""Every node of a graph by native NumPy, in float64: independent of index maps and of terms."""

from __future__ import annotations

import numpy as np
from named_values import BINARY, UNARY, numpy_dtype

from lambent.graph.dim import Dim, evaluate
from lambent.graph.node import topo


def bind(x, symbols):
    if isinstance(x, tuple):
        return tuple(bind(y, symbols) for y in x)
    return evaluate(x, symbols) if isinstance(x, Dim) else x


def values_of(outputs, inputs, symbols=None):
    """{node: array} for all nodes below the outputs. inputs: by name; also by `Weight`."""
    out = {}
    with np.errstate(all="ignore"):
        for n in topo(outputs):
            shape = bind(n.shape, symbols or {})
            attr = bind(n.attr, symbols or {})
            x = _compute(n, [out[s] for s in n.srcs], attr, shape, inputs)
            out[n] = np.asarray(x, numpy_dtype(n.dtype))
            assert out[n].shape == shape, (n, out[n].shape, shape)
    return out


def _compute(n, x, attr, shape, inputs):
    if n.op == "input":
        return inputs[attr]
    if n.op == "weight":
        return inputs.get(attr, attr.array)
    if n.op == "constant":
        return np.asarray(attr, numpy_dtype(n.dtype))
    if n.op == "iota":
        return np.arange(shape[0])
    if n.op in UNARY:
        return UNARY[n.op](x[0])
    if n.op == "less_than":
        return x[0] < x[1]
    if n.op == "mul" and bool in (x[0].dtype, x[1].dtype):
        return BINARY["mask"](*(x if x[0].dtype == bool else x[::-1]))
    if n.op in BINARY:
        return BINARY[n.op](*x)
    if n.op == "contiguous":
        return x[0].astype(numpy_dtype(n.dtype))
    if n.op == "sum_reduce":
        return x[0].sum(attr, dtype=x[0].dtype)
    if n.op == "max_reduce":
        return x[0].max(attr)
    return _view(n.op, x[0], attr, shape)


def _view(op, x, attr, shape):
    if op == "permute":
        return x.transpose(attr)
    if op == "expand":
        return np.broadcast_to(x, shape)
    if op == "reshape":
        return x.reshape(shape)
    if op == "slice":
        for d, (start, step, count) in enumerate(attr):
            x = np.take(x, start + step * np.arange(count), d)
        return x
    if op == "pad":
        return np.pad(x, attr)
    assert op == "window"
    d, size, stride, dilation = attr
    x = np.lib.stride_tricks.sliding_window_view(x, (size - 1) * dilation + 1, d)
    return x[(slice(None),) * d + (slice(None, None, stride),)][..., ::dilation]


def random_inputs(outputs, seed=0, symbols=None):
    """Floats of 0.5 … 1.5 with both signs; integers of 0 … 5, bools."""
    r = np.random.default_rng(seed)
    out = {}
    for n in topo(outputs):
        if n.op != "input":
            continue
        shape = bind(n.shape, symbols or {})
        if n.dtype.kind == "b":
            out[n.attr] = r.random(shape) < 0.5
        elif n.dtype.is_float:
            out[n.attr] = r.uniform(0.5, 1.5, shape) * r.choice([-1, 1], shape)
        else:
            out[n.attr] = r.integers(0, 6, shape).astype(n.dtype.numpy)
    return out
