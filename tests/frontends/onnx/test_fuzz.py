"""Damaged models: whatever is in a file, it becomes a graph or an OnnxError, quickly and in bounds.

Mutations are of bytes (flipped, deleted, doubled, cut off) and of fields (names, dims, numbers,
types, whole nodes), seeded; a third of the mutants are mutated twice. Each other one is read as
`compile_onnx` does, which leaves what it may to the host.
"""

from __future__ import annotations

import random
import resource
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from models import info, model, node
from onnx import helper

import lambent as lt
from lambent.frontends.onnx.build import imported
from lambent.frontends.onnx.errors import OnnxError

MUTANTS = 2400
ODD = (-(1 << 63), -(1 << 31), -2, -1, 0, 1, 2, 3, 7, 1 << 20, 1 << 40, (1 << 63) - 1)


def seeds() -> list[onnx.ModelProto]:
    """Small models that between them have most kinds of rows."""
    r = np.random.default_rng(0)
    image = info("x", [1, 2, 6, 6])
    body = helper.make_graph(
        [node("Add", "h,one", "t"), node("Identity", "go", "on")], "b",
        [info("i", [], 7), info("go", [], 9), info("h", [3])], [info("on", [], 9), info("t", [3])],
    )  # fmt: skip
    yes, no = (helper.make_graph([node("Neg", "x", "a")], n, [], [info("a", None)]) for n in "yn")
    return [
        model(
            [node("Conv", "x,w,b", "c", pads=[1, 1, 1, 1]), node("Relu", "c", "r"),
             node("MaxPool", "r", "p", kernel_shape=[2, 2], strides=[2, 2]),
             node("Resize", "p,,s", "y", mode="linear")],
            [image], [info("y", None)],
            {"w": r.standard_normal((3, 2, 3, 3)).astype(np.float32),
             "b": np.zeros(3, np.float32), "s": np.array([1, 1, 2, 2], np.float32)},
        ),
        model(
            [node("Shape", "x", "s"), node("Gather", "s,i", "g", axis=0),
             node("Unsqueeze", "g,z", "u"), node("Concat", "u,t", "k", axis=0),
             node("Reshape", "x,k", "v"), node("Transpose", "v", "w", perm=[0, 2, 1]),
             node("Softmax", "w", "m", axis=-1), node("ReduceSum", "m,z", "y", keepdims=0)],
            [info("x", ["n", 8])], [info("y", None)],
            {"i": np.int64(0), "z": np.array([0]), "t": np.array([2, 4])},
        ),
        model(
            [node("Loop", "n,c,x", "y", body=body)], [info("x", [3])], [info("y", [3])],
            {"n": np.int64(3), "c": np.array(True), "one": np.ones(3, np.float32)},
        ),
        model([node("If", "c", "y", then_branch=yes, else_branch=no)], [info("x", [2, 2])],
              [info("y", None)], {"c": np.array(True)}),
        model(
            [node("LSTM", "x,W,R", "y,h", hidden_size=2)], [info("x", [3, 1, 2])],
            [info("y", None), info("h", None)],
            {"W": np.ones((1, 8, 2), np.float32), "R": np.ones((1, 8, 2), np.float32)},
        ),
        model(
            [node("Slice", "x,a,b,c,d", "s"), node("Pad", "s,p", "q"), node("TopK", "q,k", "v,j"),
             node("GatherElements", "q,j", "e", axis=1), node("Tile", "e,r", "y")],
            [info("x", [4, 6])], [info("y", None)],
            {"a": np.array([0]), "b": np.array([4]), "c": np.array([1]), "d": np.array([2]),
             "p": np.array([0, 1, 0, 1]), "k": np.array([2]), "r": np.array([2, 1])},
        ),
        model(
            [node("QuantizeLinear", "x,s,z", "q"), node("DequantizeLinear", "q,s,z", "d"),
             node("Einsum", "d,d", "m", equation="ij,kj->ik"), node("CumSum", "m,o", "y")],
            [info("x", [3, 5])], [info("y", None)],
            {"s": np.float32(0.1), "z": np.uint8(3), "o": np.int64(0)},
        ),
    ]  # fmt: skip


# ---- mutations ---------------------------------------------------------------------------------


def of_bytes(data: bytes, r: random.Random) -> bytes:
    """Some bytes changed, taken out, doubled, or the end cut off."""
    out = bytearray(data)
    for _ in range(r.choice((1, 1, 2, 4))):
        at = r.randrange(len(out))
        length = r.randrange(1, 9)
        kind = r.randrange(5)
        if kind == 0:
            out[at] = r.randrange(256)
        elif kind == 1:
            out[at] ^= 1 << r.randrange(8)
        elif kind == 2:
            del out[at : at + length]
        elif kind == 3:
            out[at:at] = out[at : at + length]
        else:
            del out[at:]
        if not out:
            break
    return bytes(out)


def of_a_name(m: onnx.ModelProto, r: random.Random) -> None:
    """An operand, a result or an operator gets another one's name."""
    g = m.graph
    names = [n for x in g.node for n in (*x.input, *x.output)] + ["", "nothing"]
    x = r.choice(g.node)
    if x.input and r.random() < 0.5:
        x.input[r.randrange(len(x.input))] = r.choice(names)
    elif r.random() < 0.5:
        x.output[r.randrange(len(x.output))] = r.choice(names)
    else:
        x.op_type = r.choice([y.op_type for y in g.node] + ["Nothing", "Sum", "NonZero", "Loop"])


def of_a_number(m: onnx.ModelProto, r: random.Random) -> None:
    """A dim, an attribute, an opset or the contents of an integer array."""
    g = m.graph
    kind = r.randrange(5)
    if kind == 0 and g.initializer:
        t = r.choice(g.initializer)
        if t.dims:
            t.dims[r.randrange(len(t.dims))] = r.choice(ODD)
        else:
            t.dims.append(r.choice(ODD))
    elif kind == 1:
        dims = [d for i in g.input for d in i.type.tensor_type.shape.dim]
        if dims:
            r.choice(dims).dim_value = r.choice(ODD)
    elif kind == 2:
        m.opset_import[0].version = r.choice((*ODD, 9, 11, 13, 23, 28))
    elif kind == 3:
        whole = [t for t in g.initializer if t.data_type == 7]
        if whole:
            t = r.choice(whole)
            count = max(1, len(t.raw_data) // 8)
            t.raw_data = b"".join(
                r.choice(ODD).to_bytes(8, "little", signed=True) for _ in range(count)
            )
    else:
        attributes = [a for x in g.node for a in x.attribute]
        if attributes:
            a = r.choice(attributes)
            if a.ints:
                a.ints[r.randrange(len(a.ints))] = r.choice(ODD)
            else:
                a.i, a.f, a.s = r.choice(ODD), r.choice((0.0, 1e30, float("nan"))), b"\xff?"


def of_a_part(m: onnx.ModelProto, r: random.Random) -> None:
    """A node, an array, an input or an attribute goes, comes twice, or moves; a dtype changes."""
    g = m.graph
    rows: Any = r.choice([g.node, g.initializer, g.input, g.output, r.choice(g.node).attribute])
    if r.random() < 0.2 and g.initializer:
        r.choice(g.initializer).data_type = r.randrange(20)
    elif r.random() < 0.2:
        r.choice([*g.input, *g.output]).type.tensor_type.elem_type = r.randrange(20)
    elif len(rows):
        i = r.randrange(len(rows))
        kind = r.randrange(3)
        if kind == 0:
            del rows[i]
        elif kind == 1:
            rows.append(rows[i])
        else:
            kept = [type(x).FromString(x.SerializeToString()) for x in rows]
            r.shuffle(kept)
            del rows[:]
            rows.extend(kept)


FIELDS: list[Callable[[onnx.ModelProto, random.Random], None]] = [of_a_name, of_a_number, of_a_part]


def mutant(base: list[onnx.ModelProto], r: random.Random) -> bytes:
    m = onnx.ModelProto()
    m.CopyFrom(r.choice(base))
    for _ in range(r.choice((1, 1, 2))):
        if r.random() < 0.7 and m.graph.node:
            r.choice(FIELDS)(m, r)
        else:
            return of_bytes(m.SerializeToString(), r)
    return m.SerializeToString()


@pytest.mark.filterwarnings("ignore::lambent.frontends.onnx.errors.HostWarning")
@pytest.mark.parametrize("part", range(4))
def test_mutants(part: int) -> None:
    r, base = random.Random(part), seeds()
    for m in base:
        lt.from_onnx(m)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    taken = refused = 0
    for i in range(MUTANTS // 4):
        data = mutant(base, r)
        try:
            imported(data, None, None, None, host=i % 2 == 1)
            taken += 1
        except OnnxError as error:
            assert str(error)
            refused += 1
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before  # KiB
    assert grown < 600_000, grown
    assert taken > 20 and refused > 200, (taken, refused)
