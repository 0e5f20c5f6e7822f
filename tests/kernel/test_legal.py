"""The oracle of legal programs: lowered ones pass, broken ones are refused with a clear word."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from kernels import Build, fold, gelu_chain, matmul
from legal import SCRATCH_LIMIT, check, problems, scratch

from lambent.graph.dim import axis
from lambent.graph.dtypes import bfloat16, bool_, float32, int64
from lambent.kernel.inplace import in_place
from lambent.kernel.lower import lower
from lambent.kernel.tile import (
    Accumulate,
    Axis,
    Dot,
    For,
    Let,
    Lit,
    Load,
    Map,
    Reduce,
    Ref,
    Schedule,
    Stmt,
    Store,
    TileProgram,
    Value,
    Var,
    operands,
    statements,
)

Rewrite = Callable[[Any], Any]


def product() -> TileProgram:
    return lower(matmul(m=40, n=48, k=64), Schedule(((0, 16), (1, 16), (2, 32)), (0, 1), 2))


def attended() -> TileProgram:
    return lower(fold("causal"), Schedule(((1, 16), (2, 16)), (0, 1), 2))


def in_values(value: Value, f: Rewrite) -> Value:
    match value:
        case Map(args=args):
            value = replace(value, args=tuple(in_values(a, f) for a in args))
        case Reduce(arg=arg):
            value = replace(value, arg=in_values(arg, f))
        case Dot(a=a, b=b):
            value = replace(value, a=in_values(a, f), b=in_values(b, f))
    new: Value = f(value)
    return new


def mutated(program: TileProgram, f: Rewrite) -> TileProgram:
    """The program with f applied to every statement and value; f gives a list to add or drop."""

    def body(stmts: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        for stmt in stmts:
            match stmt:
                case For():
                    stmt = replace(stmt, body=body(stmt.body))
                case Let() | Store() | Accumulate():
                    stmt = replace(stmt, value=in_values(stmt.value, f))
            new = f(stmt)
            out.extend(new if isinstance(new, list) else [new])
        return tuple(out)

    return replace(program, body=body(program.body))


def on(kind: type, change: Rewrite) -> Rewrite:
    return lambda x: change(x) if isinstance(x, kind) else x


def nested_sum(x: Map) -> Value:
    if x.op != "mul" or x.dtype != float32:
        return x
    return replace(x, args=(Reduce("sum", frozenset({1}), x.args[0]), x.args[1]))


MUTANTS: dict[str, tuple[Callable[[], TileProgram], Rewrite, str]] = {
    "a name never given": (product, on(Var, lambda v: []), "not in scope|not a Var"),
    "a Ref of other axes": (
        product,
        on(Ref, lambda r: replace(r, axes=r.axes | {2})),
        "has axes",
    ),
    "a Ref of another dtype": (product, on(Ref, lambda r: replace(r, dtype=bool_)), "acc1 is"),
    "a Var that is narrow": (product, on(Var, lambda v: replace(v, dtype=bfloat16)), "narrower"),
    "a Var without an axis": (
        product,
        on(Var, lambda v: replace(v, axes=v.axes[:1])),
        "gets a value over",
    ),
    "a store dropped": (product, on(Store, lambda s: []), "stored 0 times"),
    "a store doubled": (product, on(Store, lambda s: [s, s]), "stored 2 times"),
    "a store elsewhere": (
        product,
        on(Store, lambda s: replace(s, index=s.index[::-1])),
        "no such output",
    ),
    "a store to an input": (product, on(Store, lambda s: replace(s, buffer="A")), "no such output"),
    "a loop that starts late": (
        product,
        on(For, lambda f: replace(f, start=16) if f.axis == 0 else f),
        "not once",
    ),
    "a loop that stops early": (
        product,
        on(For, lambda f: replace(f, stop=32) if f.axis == 1 else f),
        "not once",
    ),
    "a start between tiles": (
        product,
        on(For, lambda f: replace(f, start=axis(0) + 8) if f.axis == 2 else f),
        "not a multiple",
    ),
    "a bound of an axis that is not open": (
        product,
        on(For, lambda f: replace(f, stop=axis(2)) if f.axis == 2 else f),
        "open loops",
    ),
    "a loop in its own loop": (
        product,
        on(For, lambda f: replace(f, body=(f,)) if f.axis == 2 else f),
        "inside of its own",
    ),
    "a parallel loop inside": (
        product,
        on(For, lambda f: replace(f, parallel=True)),
        "must stand alone",
    ),
    "an axis out of its loop": (
        product,
        on(For, lambda f: list(f.body) if f.axis == 2 else f),
        "does not cover|not here",
    ),
    "an accumulator inside of its loop": (
        product,
        on(
            For,
            lambda f: (
                replace(f, body=(Var("acc9", (0, 1, 2), float32, 0.0), *f.body))
                if f.axis == 1
                else f
            ),
        ),
        "not here",
    ),
    "a load of no input": (product, on(Load, lambda x: replace(x, buffer="Z")), "not an input"),
    "a load of another rank": (
        product,
        on(Load, lambda x: replace(x, index=x.index[:1])),
        "of rank 2",
    ),
    "a load of another dtype": (
        product,
        on(Load, lambda x: replace(x, dtype=bfloat16)),
        "of rank 2",
    ),
    "an unknown accumulation": (
        product,
        on(Accumulate, lambda a: replace(a, op="min")),
        "no accumulation",
    ),
    "a mistyped map": (attended, on(Map, lambda m: replace(m, dtype=bool_)), "cannot be"),
    "an unknown map": (attended, on(Map, lambda m: replace(m, op="cosh")), "cannot be"),
    "a map of one operand": (
        attended,
        on(Map, lambda m: replace(m, args=m.args[:1])),
        "cannot be",
    ),
    "a select of float": (
        attended,
        on(
            Map,
            lambda m: replace(m, args=(Lit(1.0, float32), *m.args[1:])) if m.op == "select" else m,
        ),
        "cannot be",
    ),
    "a Dot of an expression": (
        product,
        on(Dot, lambda d: replace(d, a=Map("add", (d.a, d.a), float32))),
        "must be a Load or a Ref",
    ),
    "a Dot over an axis of one side": (
        product,
        on(Dot, lambda d: replace(d, axes=frozenset({2, 0}))),
        "an operand lacks",
    ),
    "a Reduce over nothing": (
        attended,
        on(Reduce, lambda r: replace(r, axes=frozenset())),
        "an operand lacks",
    ),
    "an unknown reduction": (attended, on(Reduce, lambda r: replace(r, op="mean")), "no reduction"),
    "a sum inside an expression": (
        lambda: lower(gelu_chain(), Schedule(((0, 4),), (0,), 1)),
        on(Map, nested_sum),
        "directly under",
    ),
    "a name given twice": (attended, on(Let, lambda x: [x, x]), "named twice"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_refused(name: str) -> None:
    make, change, word = MUTANTS[name]
    program = make()
    check(program)
    broken = mutated(program, change)
    assert broken != program
    with pytest.raises(ValueError, match=word):
        check(broken)


def test_operands_of_every_value_are_checked() -> None:
    dot = next(s.value for s in _statements(product().body) if isinstance(s, Accumulate))
    assert len(operands(dot)) == 2


def _statements(body: tuple[Stmt, ...]) -> list[Stmt]:
    return [
        s
        for stmt in body
        for s in ([stmt, *_statements(stmt.body)] if isinstance(stmt, For) else [stmt])
    ]


def test_unknown_and_uncovered_axes_are_refused() -> None:
    program = product()
    axes = {i: a for i, a in program.axes.items() if i != 2}
    assert any("unknown" in p for p in problems(replace(program, axes=axes)))
    whole = lower(matmul(), Schedule())
    short = {**whole.axes, 2: Axis(whole.axes[2].extent, 8)}
    assert any("does not cover" in p for p in problems(replace(whole, axes=short)))


def test_scratch_is_bounded() -> None:
    program = lower(gelu_chain(), Schedule())
    assert 0 < scratch(program) < SCRATCH_LIMIT
    huge = lower(fold("", 1, 4096, 4096, 16), Schedule())
    with pytest.raises(ValueError, match="scratch tiles of"):
        check(huge)


def test_a_program_in_place_is_legal() -> None:
    b = Build()
    i, j = b.axes(64, 8)
    b.buffer("pos", (1,), int64)
    here = b.t.apply("eq", b.t.val(axis(i)), b.at("pos", 0))
    new = b.t.apply("mask", here, b.load("new", j))
    old = b.t.apply("mask", b.t.apply("not", here), b.load("cache", i, j))
    b.out("out", b.add(new, old), i, j)
    program = in_place(lower(b.kernel(), Schedule(((i, 16), (j, 8)), (i, j), 1)), "out", "cache")
    check(program)
    assert [s.start for s in statements(program.body) if isinstance(s, For)] != [0]
