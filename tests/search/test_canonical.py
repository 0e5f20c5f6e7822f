"""The canonical form: equal for equal kernels of different places, and in every process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from kernel.kernels import Build, batched, matmul
from lambent.graph.dim import Dim
from lambent.graph.dtypes import bfloat16
from lambent.kernel.kernel import Kernel
from lambent.search.canonical import canonical


def text(kernel: Kernel) -> str:
    return canonical(kernel).text


def renumbered(shift: int) -> Kernel:
    b = Build()
    b.axes(*[3] * shift)
    i, j, p = b.axes(37, 50, 45)
    x, y = b.load(f"left{shift}", i, p), b.load(f"right{shift}", p, j)
    b.out(f"out{shift}", b.sum(p, b.mul(x, y)), i, j)
    made = b.kernel()
    return Kernel(made.outputs, made.inputs, {i: n for i, n in made.extents.items() if i >= shift})


def test_the_text_ignores_names_and_numbers() -> None:
    assert text(renumbered(0)) == text(renumbered(5)) == text(matmul())
    assert text(matmul()) != text(matmul(tb=True)) != text(matmul(m=38))
    assert text(batched()) != text(batched(bfloat16))
    a, b = Dim("key_a", 1, 50), Dim("key_b", 1, 51)
    assert text(matmul(m=a)) == text(matmul(m=a)) != text(matmul(m=b))


def test_texts_are_equal_in_every_process() -> None:
    root = Path(__file__).parents[1]
    code = (
        f"import sys; sys.path.insert(0, {str(root)!r})\n"
        "from kernel.kernels import CASES\n"
        "from lambent.kernel.lower import lower\n"
        "from lambent.kernel.schedule import default_schedule\n"
        "from lambent.kernel.show import show\n"
        "from lambent.search.canonical import canonical\n"
        "for name in ('fold_window', 'layernorm', 'conv', 'chain'):\n"
        "    k = CASES[name]()\n"
        "    print(canonical(k).text); print(show(lower(k, default_schedule(k))))\n"
    )

    def run_with(seed: str) -> str:
        env = {"PYTHONHASHSEED": seed, "PYTHONPATH": str(root.parent / "src")}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run_with("1") == run_with("2")
