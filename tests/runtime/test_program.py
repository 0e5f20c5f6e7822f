"""Calling programs: right results, and clear errors for every kind of bad input."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from plans import backend, chain, random, weight, with_load

import handmade as h
import lambent
from lambent.graph.dim import Dim
from lambent.graph.dtypes import bfloat16, float32, int32
from lambent.graph.prove import assume, maximum
from lambent.kernel.kernel import Buffer
from lambent.runtime.build import assemble, build
from lambent.runtime.plan import Plan
from lambent.runtime.program import Program

S = Dim("program_s", 1, 64)
M = Dim("program_m", 8, 800, multiple=8)


@pytest.fixture(scope="module")
def program() -> Program:
    """y = 4·x·w·w of x[s, m] and w[m]."""
    return build(chain(S, M, 2), backend)


def expected(x: Any, w: Any) -> Any:
    return 2 * (2 * x * w) * w


@pytest.mark.parametrize(("n", "m"), [(1, 8), (64, 800), (7, 104)])
def test_results(program: Program, n: int, m: int) -> None:
    x, w = random(n, m), weight(m)
    np.testing.assert_allclose(program(x=x, w=w), expected(x, w), rtol=1e-6)


def test_inputs_need_not_be_contiguous_aligned_or_native(program: Program) -> None:
    x, w = random(64, 16), weight(8)
    raw = np.zeros(x.nbytes + 1, np.uint8)
    odd = raw[1:].view(np.float32).reshape(x.shape)
    odd[...] = x
    for given in (x[::2, ::2], x.T[::2, ::8].T, odd[:3, :8], x[:, :8].astype(">f4"), x[:0:-1, :8]):
        want = expected(np.asarray(given, np.float32), w)
        np.testing.assert_allclose(program(x=given, w=w), want, rtol=1e-6)
    for array in (x, w):
        array.flags.writeable = False
    np.testing.assert_allclose(program(x=x[:, :8], w=w), expected(x[:, :8], w), rtol=1e-6)


def test_dlpack(program: Program) -> None:
    torch = pytest.importorskip("torch")
    x, w = random(3, 8), weight(8)
    y = program(x=torch.from_numpy(x), w=torch.from_numpy(w))
    np.testing.assert_allclose(y, expected(x, w), rtol=1e-6)
    with pytest.raises(TypeError, match="input 'x': Tensor cannot be read through DLPack"):
        program(x=torch.from_numpy(x).requires_grad_(), w=w)
    plan = Plan((), (), {"x": Buffer("x", bfloat16, (2,))}, ("x",), ("x",), {})
    same = build(plan, backend)
    narrow = same(x=torch.tensor([1.5, -2.0], dtype=torch.bfloat16))
    assert narrow.dtype == ml_dtypes.bfloat16 and narrow.tolist() == [1.5, -2.0]


X, W = random(3, 8), weight(8)


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"x": X}, TypeError, r"missing input 'w'; the program takes x: float32\[program_s, 8\*"),
        ({"x": X, "w": W, "v": W}, TypeError, "unknown input 'v'"),
        ({"x": X, "W": W}, TypeError, "missing input 'w'; unknown input 'W'"),
        ({"x": X.astype("f8"), "w": W}, TypeError, "'x': dtype float64, expected float32"),
        ({"x": X.astype("i4"), "w": W}, TypeError, "'x': dtype int32, expected float32"),
        ({"x": X[0], "w": W}, ValueError, r"'x': shape \(8,\), expected float32\["),
        ({"x": X, "w": weight(16)}, ValueError, "'w': dim 0 is 16, expected 8 .*program_m = 8"),
        ({"x": random(3, 9), "w": weight(9)}, ValueError, "a multiple of 8"),
        ({"x": random(65, 8), "w": W}, ValueError, "program_s = 65, .*range 1 … 64"),
        ({"x": random(0, 8), "w": W}, ValueError, "program_s = 0, .*range 1 … 64"),
        ({"x": random(3, 808), "w": weight(808)}, ValueError, "program_m = 808, .*8 … 800"),
        ({"x": None, "w": W}, TypeError, "'x': dtype object"),
        ({"x": "text", "w": W}, TypeError, "'x': dtype str"),
        ({"x": [[1, 2], [3]], "w": W}, (TypeError, ValueError), "'x'"),
    ],
)
def test_bad_inputs(program: Program, given: dict[str, Any], kind: Any, message: str) -> None:
    with pytest.raises(kind, match=message):
        program(**given)


def test_numbers_and_lists_are_taken_where_their_kind_fits() -> None:
    plan = Plan(
        (), (), {"x": Buffer("x", float32, (2,)), "i": Buffer("i", int32, ())},
        ("x", "i"), ("x", "i"), {},
    )  # fmt: skip
    same = build(plan, backend)
    x, i = same(x=[1, 2.5], i=3)
    assert x.dtype == np.float32 and x.tolist() == [1, 2.5]
    assert i.dtype == np.int32 and i == 3
    with pytest.raises(TypeError, match="'i': dtype float64"):
        same(x=[1, 2], i=3.5)


def test_zero_sizes() -> None:
    n = Dim("program_zero", 0, 9)
    program = build(chain(n, 8, 3), backend)
    assert program(x=random(0, 8), w=weight(8)).shape == (0, 8)
    assert program(x=random(2, 8), w=weight(8)).shape == (2, 8)
    fixed = build(chain(0, 8, 2), backend)
    assert fixed(x=random(0, 8), w=weight(8)).shape == (0, 8)


def test_declared_facts_are_checked() -> None:
    p, q = Dim("program_p", 1, 64), Dim("program_q", 1, 64)
    assume(q - p)
    program = build(chain(p, q, 1), backend)
    program(x=random(3, 3), w=weight(3))
    with pytest.raises(ValueError, match=r"assumed .*program_q.* >= 0, .*program_p = 4 from dim 0"):
        program(x=random(4, 3), w=weight(3))


def test_weights_are_loaded_once_and_never_consumed() -> None:
    plan = with_load(S)
    program = build(plan, backend)
    given = plan.weights["w"].copy()
    v = 2 * given * given
    for n in (5, 5, 64):
        x = random(n, 100)
        np.testing.assert_allclose(program(x=x), 2 * x * v, rtol=1e-6)
    assert (plan.weights["w"] == given).all()
    assert [a.tolist() for a in program.weights] == [v.tolist()]  # w itself is no longer held


def test_many_threads_may_run_one_program() -> None:
    program = build(with_load(S), backend)
    v = 2 * weight() * weight()

    def work(number: int) -> bool:
        for n in range(1, 40):
            x = np.full((1 + (n * number) % 64, 100), number + n, np.float32)
            if not np.allclose(program(x=x), 2 * x * v, rtol=1e-5):
                return False
        return True

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(work, range(6)))


def test_arena_is_not_shared_between_running_calls() -> None:
    program = build(chain(S, 100, 6), backend)
    w = weight()

    def work(number: int) -> bool:
        x = np.full((64, 100), number + 1, np.float32)
        want = x * (2 * w) ** 6
        return all(np.allclose(program(x=x, w=w), want, rtol=1e-4) for _ in range(60))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


def test_forms_of_outputs() -> None:
    x, w = random(4, 8), weight(8)
    plan = chain(S, M, 2, ("t2", "x", "t1", "t2"))
    program = build(plan, backend)
    y, same, t, again = program(x=x, w=w)
    np.testing.assert_allclose(y, expected(x, w), rtol=1e-6)
    np.testing.assert_allclose(t, 2 * x * w, rtol=1e-6)
    assert (same == x).all() and not np.shares_memory(same, x)
    assert (again == y).all() and not np.shares_memory(again, y)
    named = build(chain(S, M, 2, ("t2", "t1")), backend, form=("a", "b"))(x=x, w=w)
    assert list(named) == ["a", "b"] and (named["a"] == y).all()
    assert isinstance(build(chain(S, M, 1), backend, form="tuple")(x=x, w=w), tuple)


def test_a_weight_may_be_an_output() -> None:
    buffers = {"w": Buffer("w", float32, (100,), weight=True)}
    program = build(Plan((), (), buffers, (), ("w",), {"w": weight()}), backend)
    first = program()
    first[:] = 0
    assert (program() == weight()).all()


def test_memory_is_reported() -> None:
    program = build(chain(S, M, 5), backend)
    assert program.arena_bytes(program_s=64, program_m=800) == 64 * 800 * 4
    io = 2 * 64 * 800 * 4 + 800 * 4
    assert program.peak_bytes(program_s=64, program_m=800) == io + 64 * 800 * 4
    assert program.peak_bytes() > 0
    loaded = build(with_load(S), backend)
    assert loaded.peak_bytes(program_s=1) == 3 * 400


def test_a_symbol_that_no_input_gives_is_refused() -> None:
    hidden = Dim("program_hidden", 1, 9)
    plan = chain(S, hidden * hidden, 1)
    with pytest.raises(ValueError, match="'program_hidden' does not follow from the shapes"):
        build(plan, backend)


def test_a_symbol_follows_from_a_sum_once_the_others_are_known() -> None:
    t = Dim("program_t", 0, 9)
    program = build(chain(S, 2 * t + S + S // 2, 1), backend)
    x, w = random(3, 12), weight(12)
    np.testing.assert_allclose(program(x=x, w=w), 2 * x * w, rtol=1e-6)
    with pytest.raises(ValueError, match=r"dim 1 is 11, so program_t = 7/2, .*range 0 … 9"):
        program(x=x[:, :11], w=w[:11])
    for size in (maximum(S, t), t * t, S * t, t // 2, t + t * S):
        with pytest.raises(ValueError, match="'program_t' does not follow"):
            build(chain(S, size, 1), backend)


def test_repr_and_explain() -> None:
    program = build(chain(S, 8, 1), backend)
    program.manifest = replace(program.manifest, explain='{"name": "scale"}')
    assert repr(program).startswith("Program(x: float32[program_s, 8], w: float32[8] → float32[")
    assert program.explain() == {"name": "scale"}


def test_kernels_of_equal_text_are_compiled_once() -> None:
    text = backend.assemble(assemble(chain(S, M, 4))).text
    assert text.count("_tasks(const int64_t *size)") == 1
    assert text.count("{lp_k0_tasks(s0), lp_k0_run") == 4


def test_one_library_per_process_is_enough_for_two_programs() -> None:
    a, b = build(chain(S, 8, 1), backend), build(chain(S, 8, 2), backend)
    x, w = random(64, 8), weight(8)
    np.testing.assert_allclose(a(x=a(x=x, w=w), w=w), b(x=x, w=w), rtol=1e-6)
    assert h.RIGHT == 0


def test_an_input_and_a_weight_of_one_name_are_refused() -> None:
    x, w = lambent.input("w", (3,)), lambent.weight("w", weight(3))
    with pytest.raises(ValueError, match="an input and a weight have the name 'w'"):
        lambent.compile(x * w)
