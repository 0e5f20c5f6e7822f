"""View shape rules, and index maps against NumPy's own views."""

from __future__ import annotations

import inspect
import itertools
import random
import sys
from collections.abc import Callable
from math import prod
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from lambent.graph import views
from lambent.graph.dim import Dim, Refused, Size, axis, evaluate, symbols_in
from lambent.graph.ops import VIEWS
from lambent.graph.prove import Prover, assume, minimum
from lambent.graph.views import reshape_groups, view_index, view_shape

Shape = tuple[Size, ...]
Array = np.ndarray[Any, Any]


def numpy_view(op: str, x: Array, attr: Any) -> tuple[Array, Array]:
    """The view and where it is valid, by NumPy."""
    valid = np.ones(x.shape, bool)
    if op == "permute":
        return x.transpose(attr), valid.transpose(attr)
    if op == "expand":
        return np.broadcast_to(x, attr), np.ones(attr, bool)
    if op == "reshape":
        return x.reshape(attr), valid.reshape(attr)
    if op == "slice":
        for i, (start, step, count) in enumerate(attr):
            x = x.take([start + step * k for k in range(count)], axis=i)
        return x, np.ones(x.shape, bool)
    if op == "pad":
        return np.pad(x, attr), np.pad(valid, attr)
    dim, size, stride, dilation = attr
    windows = np.lib.stride_tricks.sliding_window_view(x, (size - 1) * dilation + 1, dim)
    taken = np.moveaxis(windows, dim, 0)[::stride, ..., ::dilation]
    out = np.moveaxis(taken, 0, dim)
    return out, np.ones(out.shape, bool)


def concrete(attr: Any, env: dict[str, int]) -> Any:
    """An attr (nested tuples of sizes) at given symbols."""
    if isinstance(attr, tuple):
        return tuple(concrete(a, env) for a in attr)
    return evaluate(attr, env)


def gather(index: Shape, shape: tuple[int, ...], env: dict[str, int]) -> list[Array]:
    axes = dict(enumerate(np.indices(shape)))
    return [np.broadcast_to(np.asarray(evaluate(e, env, axes)), shape) for e in index]


def check(
    op: str, source: Shape, attr: Any, env: dict[str, int] | None = None, module: Any = views
) -> None:
    """Shape, validity and every element of a view equal NumPy's."""
    env = env or {}
    shape = module.view_shape(op, source, attr)
    home = tuple(axis(i) for i in range(len(shape)))
    index, conditions = module.view_index(op, attr, source, shape, home, Prover(shape))
    assert len(index) == len(source)

    sizes, out = concrete(source, env), concrete(shape, env)
    x = np.arange(prod(sizes)).reshape(sizes) + 1
    want, valid = numpy_view(op, x, concrete(attr, env))
    assert out == want.shape, (op, source, attr, out, want.shape)
    inside = np.ones(out, bool)
    for e, n in conditions:
        (at,) = gather((e,), out, env)
        inside &= (at >= 0) & (at < evaluate(n, env))
    assert np.array_equal(inside, valid), (op, source, attr)
    where = tuple(at[inside] for at in gather(index, out, env))
    assert all((at < n).all() and (at >= 0).all() for at, n in zip(where, sizes, strict=True))
    assert np.array_equal(x[where], want[inside]), (op, source, attr)


def random_view(rng: random.Random, op: str) -> tuple[Shape, Any]:
    n = tuple(rng.choice([0, 1, 1, 2, 3, 4, 6]) for _ in range(rng.randint(1, 3)))
    if op == "permute":
        return n, tuple(rng.sample(range(len(n)), len(n)))
    if op == "expand":
        return n, tuple(rng.choice([0, 1, 3]) if k == 1 else k for k in n)
    if op == "reshape":
        factors = [f for k in n for f in {4: [2, 2], 6: [2, 3]}.get(k, [k])]
        rng.shuffle(factors)
        target: list[Size] = [1] * rng.randint(1, 3)
        for f in factors:
            target[rng.randrange(len(target))] *= f
        return n, tuple(target)
    if op == "slice":
        return n, tuple(random_part(rng, k) for k in n)
    if op == "pad":
        return n, tuple((rng.randint(0, 2), rng.randint(0, 2)) for _ in n)
    dim = rng.randrange(len(n))
    n = (*n[:dim], max(n[dim], 1), *n[dim + 1 :])
    dilation = rng.randint(1, 2)
    size = rng.randint(1, (n[dim] - 1) // dilation + 1)
    return n, (dim, size, rng.randint(1, 3), dilation)


def random_part(rng: random.Random, n: int) -> tuple[int, int, int]:
    step = rng.choice([-2, -1, 1, 2, 3])
    if n == 0:
        return rng.randint(0, 2), step, 0
    start = rng.randrange(n)
    room = (n - 1 - start) // step if step > 0 else start // -step
    return start, step, rng.randint(0, room + 1)


def fuzz(module: Any, seeds: range) -> None:
    for seed, op in itertools.product(seeds, VIEWS):
        source, attr = random_view(random.Random(f"{seed}{op}"), op)
        check(op, source, attr, module=module)


def test_constant_shapes_against_numpy() -> None:
    fuzz(views, range(150))


MUTANTS = {
    "the outer digit is taken for an inner one": ("i == dims[0]", "i == dims[-1]"),
    "the pad is added": ("e - low", "e + low"),
    "the window ignores its dilation": ("index[-1] * dilation", "index[-1]"),
    "a slice steps backwards": ("start + e * step for", "start - e * step for"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_fault_put_in_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = inspect.getsource(views)
    old, new = MUTANTS[name]
    assert source.count(old) == 1
    mutant = ModuleType("mutant_views")
    monkeypatch.setitem(sys.modules, mutant.__name__, mutant)
    exec(compile(source.replace(old, new), "mutant_views.py", "exec"), mutant.__dict__)
    with pytest.raises((AssertionError, IndexError)):
        fuzz(mutant, range(150))


# ---- symbolic sizes --------------------------------------------------------------------------

S, T, N, Z = Dim("s"), Dim("t"), Dim("n", 3, 4096), Dim("view_z", 0, 64)
P, M = Dim("view_p"), Dim("view_m")
E = Dim("view_e", 2, 64, multiple=2)

SYMBOLIC: list[tuple[str, Shape, Any]] = [
    ("permute", (S, T, 2), (2, 0, 1)),
    ("expand", (S, 1, 1), (S, T, 3)),
    ("reshape", (S, 12), (S, 3, 4)),
    ("reshape", (S, 3, 4), (S, 12)),
    ("reshape", (S, T, 6), (T, S, 6)),
    ("reshape", (S, T, 6), (3 * S, 2 * T)),
    ("reshape", (S, 1, T), (S * T,)),
    ("reshape", (S * T,), (T, 1, S)),
    ("reshape", (S, E), (S, 2, E // 2)),
    ("reshape", (4, Z), (Z, 4)),
    ("reshape", (2, Z, 3), (6, Z)),
    ("reshape", (Z * 4, S), (Z, 4 * S)),
    ("slice", (S + T, 4), ((S, 1, T), (3, -1, 4))),
    ("slice", (S + T,), ((S + T - 1, -1, S),)),
    ("slice", (S,), ((S // 2, 1, S - S // 2),)),
    ("slice", (S,), (((S + 1) // 2, 1, S // 2),)),
    ("slice", (S,), ((0, 2, (S + 1) // 2),)),
    ("slice", (S,), ((S - minimum(S, T), 1, minimum(S, T)),)),
    ("slice", (Z,), ((0, 1, Z),)),
    ("pad", (S, T), ((0, 0), (1, T))),
    ("pad", (S,), ((0, (-S) % 4),)),
    ("window", (2, N), (1, 3, 2, 1)),
    ("window", (N, 3), (0, 2, 1, 2)),
    ("window", (S + T, 2), (0, S, T, 1)),
]


@pytest.mark.parametrize(("op", "source", "attr"), SYMBOLIC)
def test_symbolic_shapes_against_numpy(op: str, source: Shape, attr: Any) -> None:
    bindings = [(1, 1, 3), (4, 4, 4), (3, 5, 7), (7, 2, 5), (1, 6, 3), (5, 1, 11)]
    names = used(source) | used(attr)
    envs = {}
    for (s, t, n), z, e in itertools.product(bindings, (0, 1, 3), (2, 6)):
        env = {"s": s, "t": t, "n": n, "view_z": z, "view_e/2": e // 2}
        kept = {name: size for name, size in env.items() if name in names}
        envs[tuple(kept.values())] = kept
    for env in envs.values():
        check(op, source, attr, env)


def used(attr: Any) -> frozenset[str]:
    if isinstance(attr, tuple):
        return frozenset[str]().union(*(used(a) for a in attr))
    return symbols_in(attr)


def test_no_masks_and_no_divisions_where_aligned() -> None:
    home = (axis(0), axis(1), axis(2))
    prover = Prover((S, 3, 4))
    assert view_index("reshape", None, (S, 12), (S, 3, 4), home, prover) == (
        (axis(0), 4 * axis(1) + axis(2)),
        (),
    )
    merged = (axis(0), 4 * axis(1) + axis(2))
    assert view_index("reshape", None, (S, 3, 4), (S, 12), merged, prover) == (home, ())
    pads = ((0, 0), (1, 0), (0, 0))
    _, conditions = view_index("pad", pads, (S, 3, 4), (S, 4, 4), home, Prover((S, 4, 4)))
    assert conditions == ((axis(1) - 1, 3),)


def test_a_slice_needs_its_fact() -> None:
    part = ((P, 1, 1),)
    with pytest.raises(Refused, match=r"slice.*view_m.*assume"):
        view_shape("slice", (M,), part)
    assume(M - P - 1)
    assert view_shape("slice", (M,), part) == (1,)


def test_reshape_groups() -> None:
    assert reshape_groups((2, 3, 4), (6, 4)) == [(0, 2, 0, 1), (2, 3, 1, 2)]
    assert reshape_groups((S, 2, T), (2 * S, T)) == [(0, 2, 0, 1), (2, 3, 1, 2)]
    assert reshape_groups((4,), (4, 1)) == [(0, 1, 0, 1), (1, 1, 1, 2)]
    assert reshape_groups((), ()) == [] and reshape_groups((), (1,)) == [(0, 0, 0, 1)]
    assert reshape_groups((3, 0, 2), (0, 7)) == [(0, 3, 0, 2)]
    with pytest.raises(Refused):
        reshape_groups((2, 3), (5,))


ILLEGAL: list[tuple[str, Shape, Any, str]] = [
    ("permute", (2, 3), (0, 0), "not a permutation"),
    ("expand", (2, 3), (2, 4), "3 is neither 1 nor 4"),
    ("expand", (S, 3), (T, 3), "s is neither 1 nor t"),
    ("expand", (3,), (1, 3), "2 dims"),
    ("reshape", (2, 3), (5,), "6 elements do not fill 5"),
    ("reshape", (S, 3), (T, 3), "do not fill"),
    ("reshape", (0, 3), (2,), "do not fill"),
    ("reshape", (6,), (-2, -3), "must be >= 0"),
    ("slice", (4,), ((0, 0, 2),), "not 0"),
    ("slice", (4,), ((1, 2, 3),), "beyond its size 4"),
    ("slice", (4,), ((1, -1, 3),), "below 0"),
    ("slice", (4, 2), ((0, 1, 4),), "1 entries for 2 dims"),
    ("slice", (4,), ((0, 1, -1),), "must be >= 0"),
    ("slice", (S,), ((0, 1, T),), "not proved"),
    ("pad", (4,), ((-1, 0),), "must be >= 0"),
    ("pad", (4,), ((S - T, 0),), "not proved"),
    ("window", (4,), (0, 5, 1, 1), "larger"),
    ("window", (S,), (0, 3, 1, 1), "not proved"),
    ("window", (4,), (0, 2, 0, 1), "stride must be >= 1"),
    ("window", (4,), (1, 2, 1, 1), "no dim 1"),
    ("window", (0,), (0, 1, 1, 1), "larger"),
    ("window", (4,), (0, 2), "unpack"),
]


@pytest.mark.parametrize(("op", "shape", "attr", "reason"), ILLEGAL)
def test_illegal_views_say_why(op: str, shape: Shape, attr: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as error:
        view_shape(op, shape, attr)
    assert str(error.value).startswith(f"{op} of shape {shape} with {attr}: ")


@pytest.mark.parametrize(
    "call",
    [
        lambda: view_shape("flip", (2,), ()),
        lambda: view_index("flip", (), (2,), (2,), (0,), Prover()),
    ],
)
def test_unknown_views(call: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="flip: not a view"):
        call()
