"""First guesses and moves: legal, right, of the expected shape."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from random import Random

import pytest
from kernels import CASES, SYMBOLIC, Build, batched, fold, layernorm, logsumexp, matmul, softmax
from legal import check
from test_lower import run

from lambent.backends.cpu.schedule import default_schedule, moves
from lambent.backends.roles import Structure, outermost_first
from lambent.explain.show import show
from lambent.graph.dim import axis
from lambent.kernel.kernel import Kernel
from lambent.kernel.lower import lower
from lambent.kernel.schedule import neighbours, sample
from lambent.kernel.tile import For, Schedule

EVERY = {**CASES, **SYMBOLIC}


@pytest.mark.parametrize("name", sorted(EVERY))
def test_first_guess_and_sampled_schedules_are_right(name: str) -> None:
    kernel = EVERY[name]()
    symbols = {"kernels_s": 50, "kernels_z": 33}
    first = default_schedule(kernel)
    run(kernel, first, symbols)
    run(kernel, sample(first, moves(kernel), Random(name)), symbols)


def tasks(kernel: Kernel) -> int:
    body, count = lower(kernel, default_schedule(kernel)).body, 1
    while len(body) == 1 and isinstance(body[0], For) and body[0].parallel:
        loop = body[0]
        tile = lower(kernel, default_schedule(kernel)).axes[loop.axis].tile
        count, body = count * -(-int(loop.stop) // tile), loop.body
    return count


@pytest.mark.parametrize("size", [256, 1024, 2048])
def test_products_get_enough_tasks(size: int) -> None:
    assert 4 <= tasks(matmul(m=size, n=size, k=size)) <= 1000


def test_large_buffers_are_read_ahead_and_written_past_the_caches() -> None:
    def options(rows: int) -> dict[str, int]:
        b = Build()
        i, j, k = b.axes(rows, 1024, 1024)
        total = b.sum(k, b.load("X", i, k))
        b.out("Y", b.mul(b.load("X", i, j), total), i, j)
        return dict(default_schedule(b.kernel()).options)

    assert options(4096) == {"ahead": 1, "stream": 1}
    assert options(64) == {"ahead": 1} and options(4) == {}


def test_a_short_sum_over_what_is_stored_leaves_results_in_parts() -> None:
    """z + (w·x) Σ z²: each task sums up z, where the product's sums are longer."""

    def rows(k: int) -> int:
        b = Build()
        i, lane, j = b.axes(36, 16, k)
        product = b.sum(j, b.mul(b.load("x", j), b.load("w", i, j, lane)))
        z = b.load("z", i, lane)
        b.out("y", b.add(z, b.mul(product, b.sum((i, lane), b.mul(z, z)))), i, lane)
        return dict(default_schedule(b.kernel()).tiles)[i]

    assert rows(1024) == 5 and rows(64) == 36


def test_roles_are_structural() -> None:
    assert Structure(matmul()).roles == {0: "rows", 1: "columns", 2: "contracted"}
    assert Structure(batched()).roles[0] == "batch"
    roles = Structure(fold("causal")).roles
    assert roles == {0: "batch", 1: "rows", 2: "streamed", 3: "contracted", 4: "wide"}
    assert Structure(softmax(True)).roles == {0: "row", 1: "lane", 2: "reduced"}


def closing_norm(t: int = 128, c: int = 384) -> Kernel:
    """A product and a norm over its columns in one kernel."""
    b = Build()
    i, j, k = b.axes(t, c, c)
    x = b.sum(k, b.mul(b.load("X", i, k), b.load("W", j, k)))
    square = b.mul(b.sum(j, b.mul(x, x)), b.c(Fraction(1, c)))
    b.out("Y", b.mul(x, b.un("recip", "sqrt", square)), i, j)
    return b.kernel()


def test_the_first_guess_computes_nothing_twice() -> None:
    kernel = closing_norm()
    assert show(lower(kernel, default_schedule(kernel))).count("dot(") == 1
    b = Build()  # a product of a product: the columns of the second are not cut
    i, j, k, p = b.axes(128, 384, 1536, 384)
    hidden = b.un("exp2", b.sum(p, b.mul(b.load("X", i, p), b.load("U", k, p))))
    b.out("Y", b.sum(k, b.mul(hidden, b.load("V", j, k))), i, j)
    kernel = b.kernel()
    assert Structure(kernel).roles == {0: "rows", 1: "wide", 2: "streamed", 3: "contracted"}
    assert dict(default_schedule(kernel).tiles)[1] == 384


def test_neighbours_are_legal_and_differ() -> None:
    kernel = fold("causal")
    first = default_schedule(kernel)
    found = list(neighbours(first, moves(kernel)))
    assert len(set(found)) == len(found) > 10
    for schedule in found:
        assert schedule != first
        check(lower(kernel, schedule))


def test_masked_loop_stops_at_the_diagonal() -> None:
    kernel = fold("causal", n=64, m=64)
    text = show(lower(kernel, Schedule(((1, 16), (2, 16)), (0, 1), 2)))
    assert "for a2 in range(0, " in text
    assert "min(a1+16, 64)" in text
    assert text.count("select((a2) < (a1+1)") == 1  # in the edge alone
    assert text.count("for a2") == 2


@pytest.mark.parametrize("mask", ["window", "apart"])
def test_a_window_is_entered_and_left(mask: str) -> None:
    """However its condition is written: as two comparisons, or as the distance of two places."""
    kernel = fold(mask, n=64, m=64)
    text = show(lower(kernel, Schedule(((1, 16), (2, 16)), (0, 1), 2)))
    loops = [line for line in text.splitlines() if "for a2" in line]
    assert "a1-8" in loops[0] and "a1+16" in loops[-1]
    assert not any("range(0, 64" in line for line in loops)


def test_one_load_serves_both_names_of_a_whole_axis() -> None:
    text = show(lower(layernorm(), Schedule(((0, 1),), (0,), 1)))
    assert text.count("X[") == 2  # the mean's, and the difference's that all else shares
    assert "a2" not in text


def test_logsumexp_is_one_loop_with_one_maximum() -> None:
    text = show(lower(logsumexp(), Schedule(((1, 16),), (), 0)))
    assert text.count("for a1") == 1
    assert text.count("(over a1: ") == 2  # a maximum and a sum


def test_texts_are_equal_in_every_process() -> None:
    root = Path(__file__).parents[1]
    code = (
        f"import sys; sys.path.insert(0, {str(root)!r})\n"
        "from kernel.kernels import CASES\n"
        "from lambent.kernel.lower import lower\n"
        "from lambent.backends.cpu.schedule import default_schedule\n"
        "from lambent.explain.show import show\n"
        "for name in ('fold_window', 'layernorm', 'conv', 'chain'):\n"
        "    k = CASES[name]()\n"
        "    print(show(lower(k, default_schedule(k))))\n"
    )

    def run_with(seed: str) -> str:
        env = {"PYTHONHASHSEED": seed, "PYTHONPATH": str(root.parent / "src")}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run_with("1") == run_with("2")


def test_the_axis_of_the_largest_step_is_the_outermost_whatever_its_sign() -> None:
    index = 64 * axis(3) - 32 * axis(1) + 16 * axis(2) + axis(0)
    assert outermost_first(index) == [3, 1, 2, 0]
