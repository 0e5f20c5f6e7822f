"""Layers as users write them, and other ways to write softmax attention, from primitives."""

from __future__ import annotations

import math

import numpy as np
from random_graphs import cat, exp2, matmul, softmax, swapped, total

from lambent.functional import arithmetic as m
from lambent.functional import operands
from lambent.functional import shaping as s
from lambent.graph import tensor as t

LOG2E = 1.4426950408889634


def weight(name, *shape):
    r = np.random.default_rng(sum(map(ord, name)))
    signs = r.choice([-1, 1], shape)
    return t.weight(name, (r.uniform(0.5, 1.5, shape) * signs).astype(np.float32))


def exp(x):
    return exp2(x * LOG2E)


def log(x):
    return operands.unary("log2", x) * math.log(2)


def recip(x):
    return operands.unary("recip", x)


def sigmoid(x):
    return recip(exp2(x * -LOG2E) + 1.0)


def silu(x):
    return x * sigmoid(x)


def mean(x, axis=-1):
    return total("sum", x, axis, True) * (1.0 / x.shape[axis])


def rms(x, g, eps=1e-6):
    return x * recip(operands.unary("sqrt", mean(x * x) + eps)) * g


def layer_norm(x, g, b, eps=1e-5):
    c = x - mean(x)
    return c * recip(operands.unary("sqrt", mean(c * c) + eps)) * g + b


def attention(x, name, batch, n, c, groups, repeat, d, causal=True):
    """Merged and grouped heads, a mask from iota, an output projection."""
    heads = groups * repeat
    q = matmul(x, weight(name + "wq", c, heads * d))
    k = matmul(x, weight(name + "wk", c, groups * d))
    v = matmul(x, weight(name + "wv", c, groups * d))
    q = s.permute(s.reshape(q, batch, n, heads, d), 0, 2, 1, 3)

    def spread(y):
        y = s.permute(s.reshape(y, batch, n, groups, d), 0, 2, 1, 3)
        y = s.expand(s.reshape(y, batch, groups, 1, n, d), batch, groups, repeat, n, d)
        return s.reshape(y, batch, heads, n, d)

    scores = matmul(q, swapped(spread(k), -2)) * d**-0.5
    if causal:
        scores = m.where(causal_mask(n), scores, -math.inf)
    o = s.permute(matmul(softmax(scores), spread(v)), 0, 2, 1, 3)
    return matmul(s.reshape(o, batch, n, heads * d), weight(name + "wo", heads * d, c))


def causal_mask(n):
    i = t.iota(n)
    return m.less(s.reshape(i, 1, n), s.reshape(i, n, 1) + 1)


def swiglu(x, name, c, f):
    h = matmul(x, weight(name + "w1", c, 2 * f))
    return matmul(silu(h[..., :f]) * h[..., f:], weight(name + "w2", f, c))


def layer(x, name="", batch=2, n=4, c=3, groups=2, repeat=2, d=2, f=4):
    x = x + attention(rms(x, weight(name + "g1", c)), name, batch, n, c, groups, repeat, d)
    return x + swiglu(rms(x, weight(name + "g2", c)), name, c, f)


def one_hot(ids, n):
    return m.equal(s.reshape(ids, *ids.shape, 1), t.iota(n))


def embed(ids, table):
    hot = one_hot(ids, table.shape[0])
    return total("sum", s.reshape(hot, *hot.shape, 1) * table, -2)


def logsumexp(x, axis=-1):
    top = total("max", x, axis, True)
    inner = total("sum", exp(x - top), axis, True)
    return s.reshape(log(inner) + top, *x.shape[:axis])


def cross_entropy(logits, target):
    hot = one_hot(target, logits.shape[-1])
    picked = total("sum", hot * logits, -1)
    return mean(logsumexp(logits) - picked, 0)


def conv2d(x, w, pad=1):
    b, c, _, _ = x.shape
    o, _, kh, kw = w.shape
    y = s.window(s.window(s.pad(x, [(0, 0), (0, 0), (pad, pad), (pad, pad)]), 2, kh), 3, kw)
    y = s.permute(y, 0, 2, 3, 1, 4, 5)
    oh, ow = y.shape[1:3]
    p = s.reshape(y, b, oh, ow, 1, c, kh, kw) * s.reshape(w, 1, 1, 1, o, c, kh, kw)
    return s.permute(total("sum", s.reshape(p, b, oh, ow, o, c * kh * kw), -1), 0, 3, 1, 2)


def example_attention():
    return attention(t.input("x", (2, 4, 3)), "", 2, 4, 3, 2, 2, 2)


def example_layer():
    return layer(t.input("x", (2, 4, 3)))


def example_norm_linear():
    x = t.input("x", (4, 6))
    return matmul(layer_norm(x, weight("g", 6), weight("b", 6)), weight("w", 6, 4))


def example_conv():
    x = t.input("x", (2, 3, 4, 4))
    y = conv2d(x, weight("w1", 4, 3, 3, 3))
    return conv2d(m.less(0.0, y) * y, weight("w2", 2, 4, 3, 3))


def example_cross_entropy():
    ids, target = t.input("ids", (4,), "int32"), t.input("target", (4,), "int64")
    x = embed(ids, weight("e", 6, 3))
    return cross_entropy(matmul(x, weight("w", 3, 6)), target)


EXAMPLES = {
    "attention": example_attention,
    "layer": example_layer,
    "norm_linear": example_norm_linear,
    "conv": example_conv,
    "cross_entropy": example_cross_entropy,
}

# ---- spellings -------------------------------------------------------------------------------

B, N, C, H, D = 2, 4, 3, 4, 2


def heads_of(y, n=None):
    return s.permute(s.reshape(y, B, n or N, H, D), 0, 2, 1, 3)


def project():
    x = t.input("x", (B, N, C))
    return tuple(heads_of(matmul(x, weight(w, C, H * D))) for w in ("wq", "wk", "wv"))


def merge(o):
    o = s.reshape(s.permute(o, 0, 2, 1, 3), B, N, H * D)
    return matmul(o, weight("wo", H * D, C))


def scores(q, k, scale=0.7):
    return matmul(q, swapped(k, -2)) * scale


def tanh(x):
    return sigmoid(x * 2.0) * 2.0 - 1.0


def maximum(x):
    return total("max", x, -1, True)


def summed(x):
    return total("sum", x, -1, True)


def spell_norm_after():
    q, k, v = project()
    z = scores(q, k)
    e = exp(z - maximum(z))
    return merge(matmul(e, v) * recip(summed(e)))


def spell_base2():
    q, k, v = project()
    z = scores(q, k, 0.7 * LOG2E)
    e = exp2(z - maximum(z))
    return merge(matmul(e * recip(summed(e)), v))


def spell_scale_q():
    q, k, v = project()
    return merge(matmul(softmax(matmul(q * 0.7, swapped(k, -2))), v))


def spell_max_before_scale():
    q, k, v = project()
    z = matmul(q, swapped(k, -2))
    e = exp((z - maximum(z)) * 0.7)
    return merge(matmul(e * recip(summed(e)), v))


def spell_softcap():
    q, k, v = project()
    z = tanh(scores(q, k, 1 / 30)) * 30.0
    return merge(matmul(softmax(m.where(causal_mask(N), z, -math.inf)), v))


def spell_additive():
    q, k, v = project()
    return merge(matmul(softmax(scores(q, k) + t.input("bias", (N, N))), v))


def spell_minus1e9():
    q, k, v = project()
    return merge(matmul(softmax(m.where(causal_mask(N), scores(q, k), -1e9)), v))


def spell_pad_causal():
    q, k, v = project()
    keep = s.reshape(m.less(0.0, t.input("len", (B, N))), B, 1, 1, N)
    z = m.where(causal_mask(N), scores(q, k), -math.inf)
    return merge(matmul(softmax(m.where(keep, z, -math.inf)), v))


def spell_window():
    q, k, v = project()
    i = t.iota(N)
    near = m.less(s.reshape(i, N, 1), s.reshape(i, 1, N) + 3) * causal_mask(N)
    return merge(matmul(softmax(m.where(near, scores(q, k), -math.inf)), v))


def spell_alibi():
    q, k, v = project()
    i = operands.cast(t.iota(N), t.float32)
    bias = weight("slope", H, 1, 1) * (s.reshape(i, 1, N) - s.reshape(i, N, 1))
    return merge(matmul(softmax(scores(q, k) + bias), v))


def spell_qk_norm():
    q, k, v = project()
    z = matmul(rms(q, weight("gq", D)), swapped(rms(k, weight("gk", D)), -2))
    return merge(matmul(softmax(z), v))


def spell_log_softmax():
    q, k, v = project()
    z = scores(q, k)
    z = z - maximum(z)
    return merge(matmul(exp(z - log(summed(exp(z)))), v))


def spell_log_softmax2():
    q, k, v = project()
    z = scores(q, k)
    z = z - maximum(z)
    return merge(matmul(exp2((z - log(summed(exp(z)))) * LOG2E), v))


def spell_sink():
    q, k, v = project()
    sink = operands.broadcast_to(t.input("sink", (H, 1, 1)), (B, H, N, 1))
    p = softmax(cat([scores(q, k), sink], 3))
    return merge(matmul(p[..., :N], v))


def spell_cache():
    q, k, v = project()
    k = cat([t.input("kc", (B, H, 3, D)), k], 2)
    v = cat([t.input("vc", (B, H, 3, D)), v], 2)
    return merge(matmul(softmax(scores(q, k)), v))


def spell_linear():
    q, k, v = project()
    return merge(matmul(matmul(q, swapped(k, -2)), v))


def spell_cross():
    x, y = t.input("x", (B, N, C)), t.input("y", (B, 6, C))
    q, k, v = (matmul(a, weight(w, C, D)) for a, w in ((x, "wq"), (y, "wk"), (y, "wv")))
    return matmul(softmax(scores(q, k)), v)


def spell_packed():
    x = t.input("x", (B, N, C))
    y = s.reshape(matmul(x, weight("w", C, 3 * H * D)), B, N, 3, H, D)
    y = s.permute(y, 2, 0, 3, 1, 4)
    q, k, v = (y[i] for i in range(3))
    return merge(matmul(softmax(scores(q, k)), v))


def spell_chunks():
    x = t.input("x", (B, N, C))
    y = matmul(x, weight("w", C, 3 * H * D))
    q, k, v = (heads_of(y[..., i * H * D : (i + 1) * H * D]) for i in range(3))
    return merge(matmul(softmax(scores(q, k)), v))


SPELLINGS = {
    name.removeprefix("spell_"): make
    for name, make in list(globals().items())
    if name.startswith("spell_")
}
