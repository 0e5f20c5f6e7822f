"""Which functions are methods and operators of `Tensor`: the one place that says so.

`Methods` is a table: for a type checker it is the base of Tensor, and at run time each row is set
on Tensor. (The functions need Tensor, so Tensor cannot name them itself.)
"""

from __future__ import annotations

from collections.abc import Callable

from lambent.functional import arithmetic as ar
from lambent.functional import (
    creation,
    indexing,
    joining,
    linalg,
    operands,
    padding,
    pool,
    shaping,
    sorting,
)
from lambent.functional import mathematics as ma
from lambent.functional import reducing as re
from lambent.functional import trigonometry as tr
from lambent.graph import dtypes
from lambent.graph import tensor as core
from lambent.graph.tensor import Tensor


def _casting(dtype: dtypes.DType) -> Callable[[Tensor], Tensor]:
    return lambda x: operands.cast(x, dtype)


class Methods:
    """The rows: method name = function whose first parameter is the tensor."""

    __getitem__ = shaping.getitem
    __len__ = shaping.length
    __iter__ = shaping.iterate
    __add__ = __radd__ = add = ar.add
    __sub__ = sub = ar.sub
    __rsub__ = ar.rsub
    __mul__ = __rmul__ = mul = ar.mul
    __truediv__ = div = ar.div
    __rtruediv__ = ar.rdiv
    __floordiv__ = floor_divide = ar.floor_divide
    __rfloordiv__ = ar.rfloordiv
    __mod__ = remainder = ar.remainder
    __rmod__ = ar.rmod
    __pow__ = pow = ar.pow
    __rpow__ = ar.rpow
    __matmul__ = matmul = linalg.matmul
    __rmatmul__ = linalg.rmatmul
    __neg__ = neg = ar.neg
    __abs__ = abs = ar.abs
    __lt__ = ar.less
    __le__ = ar.less_equal
    __gt__ = ar.greater
    __ge__ = ar.greater_equal
    __eq__ = ar.equal  # type: ignore[assignment]  # elementwise, where object says bool
    __ne__ = ar.not_equal  # type: ignore[assignment]
    __and__ = __rand__ = ar.bitwise_and
    __or__ = __ror__ = ar.bitwise_or
    __xor__ = __rxor__ = ar.bitwise_xor
    __invert__ = ar.invert

    logical_not = ar.logical_not
    logical_and = ar.logical_and
    logical_or = ar.logical_or
    logical_xor = ar.logical_xor
    isnan = ar.isnan
    isinf = ar.isinf
    isfinite = ar.isfinite
    reciprocal = ar.reciprocal
    sign = ar.sign
    maximum = ar.maximum
    minimum = ar.minimum
    clip = clamp = ar.clip
    floor = ar.floor
    ceil = ar.ceil
    trunc = ar.trunc
    round = ar.round
    sqrt = ar.sqrt
    rsqrt = ar.rsqrt
    square = ar.square

    exp2 = ma.exp2
    exp = ma.exp
    expm1 = ma.expm1
    log2 = ma.log2
    log = ma.log
    log10 = ma.log10
    log1p = ma.log1p
    sin = ma.sin
    cos = ma.cos
    tan = ma.tan
    tanh = ma.tanh
    acos = tr.acos
    acosh = tr.acosh
    asin = tr.asin
    asinh = tr.asinh
    atan = tr.atan
    atanh = tr.atanh
    cosh = tr.cosh
    sinh = tr.sinh
    erf = ma.erf
    sigmoid = ma.sigmoid
    relu = ma.relu
    gelu = ma.gelu
    silu = ma.silu
    softplus = ma.softplus

    sum = re.sum
    mean = re.mean
    var = re.var
    std = re.std
    max = re.max
    min = re.min
    prod = re.prod
    argmax = re.argmax
    argmin = re.argmin
    any = re.any
    all = re.all
    logsumexp = re.logsumexp
    softmax = re.softmax
    log_softmax = re.log_softmax
    cumsum = re.cumsum

    dot = linalg.dot
    outer = linalg.outer
    diagonal = linalg.diagonal
    tril = creation.tril
    triu = creation.triu

    take = indexing.take
    take_along_axis = indexing.take_along_axis
    gather = indexing.gather
    index_select = indexing.index_select
    index_add = indexing.index_add
    scatter = indexing.scatter
    scatter_add = indexing.scatter_add
    sort = sorting.sort
    argsort = sorting.argsort
    topk = sorting.topk

    split = joining.split
    chunk = joining.chunk
    repeat = joining.repeat
    tile = joining.tile
    roll = joining.roll

    contiguous = core.contiguous
    broadcast_to = operands.broadcast_to
    expand = shaping.expand
    permute = shaping.permute
    transpose = shaping.transpose
    moveaxis = shaping.moveaxis
    reshape = shaping.reshape
    flatten = shaping.flatten
    unflatten = shaping.unflatten
    squeeze = shaping.squeeze
    unsqueeze = shaping.unsqueeze
    flip = shaping.flip
    pad = padding.pad
    window = shaping.window
    unfold = pool.unfold
    mT = property(shaping.mT)
    T = property(shaping.T)

    astype = to = operands.cast
    half = _casting(dtypes.float16)
    bfloat16 = _casting(dtypes.bfloat16)
    float = _casting(dtypes.float32)
    double = _casting(dtypes.float64)
    int = _casting(dtypes.int32)
    long = _casting(dtypes.int64)
    bool = _casting(dtypes.bool_)


for _name, _function in vars(Methods).items():
    if callable(_function) or isinstance(_function, property):
        setattr(Tensor, _name, _function)
