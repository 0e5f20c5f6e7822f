"""lambent: a search-first ML compiler. This module is the public surface; nothing else is."""

from typing import TYPE_CHECKING, Any

from lambent.graph.dim import Dim, Refused, Undecided, assume
from lambent.graph.dtypes import (
    DType,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
)
from lambent.graph.functional.arithmetic import (
    abs,
    add,
    ceil,
    clip,
    div,
    equal,
    floor,
    floor_divide,
    greater,
    greater_equal,
    invert,
    isfinite,
    isinf,
    isnan,
    less,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    maximum,
    minimum,
    mul,
    neg,
    not_equal,
    pow,
    reciprocal,
    remainder,
    round,
    rsqrt,
    sign,
    sqrt,
    square,
    sub,
    trunc,
    where,
)
from lambent.graph.functional.conv import (
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
)
from lambent.graph.functional.creation import (
    arange,
    eye,
    full,
    full_like,
    linspace,
    ones,
    ones_like,
    tri,
    tril,
    triu,
    zeros,
    zeros_like,
)
from lambent.graph.functional.indexing import (
    embedding,
    gather,
    index_add,
    index_select,
    one_hot,
    scatter,
    scatter_add,
    take,
    take_along_axis,
)
from lambent.graph.functional.joining import chunk, concat, repeat, roll, split, stack, tile
from lambent.graph.functional.linalg import (
    attention,
    diagonal,
    dot,
    einsum,
    linear,
    matmul,
    outer,
)
from lambent.graph.functional.mathematics import (
    cos,
    elu,
    erf,
    exp,
    exp2,
    expm1,
    gelu,
    hardsigmoid,
    hardswish,
    leaky_relu,
    log,
    log1p,
    log2,
    log10,
    mish,
    relu,
    sigmoid,
    silu,
    sin,
    softplus,
    tan,
    tanh,
)
from lambent.graph.functional.norm import (
    batch_norm,
    batch_norm_train,
    group_norm,
    instance_norm,
    layer_norm,
    rms_norm,
)
from lambent.graph.functional.padding import pad
from lambent.graph.functional.pool import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_avg_pool3d,
    adaptive_max_pool1d,
    adaptive_max_pool2d,
    adaptive_max_pool3d,
    avg_pool1d,
    avg_pool2d,
    avg_pool3d,
    max_pool1d,
    max_pool2d,
    max_pool3d,
)
from lambent.graph.functional.reducing import (
    all,
    any,
    argmax,
    argmin,
    cumsum,
    log_softmax,
    logsumexp,
    max,
    mean,
    min,
    prod,
    softmax,
    std,
    sum,
    var,
)
from lambent.graph.functional.shaping import (
    expand,
    flatten,
    flip,
    moveaxis,
    permute,
    squeeze,
    transpose,
    unflatten,
    unsqueeze,
    window,
)
from lambent.graph.functional.sorting import argsort, sort, topk
from lambent.graph.tensor import (
    Tensor,
    broadcast_to,
    cast,
    constant,
    contiguous,
    input,
    iota,
    reshape,
    tensor,
    weight,
)

if TYPE_CHECKING:
    from lambent.backends.reference.graph import evaluate

_LATER = {"evaluate": "lambent.backends.reference.graph"}
"""What is imported on first use, as building a graph does not need it: name → module."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'lambent' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LATER[name]), name)
