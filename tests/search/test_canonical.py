"""The canonical form: equal for equal kernels of different places, and in every process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from lambent.algebra.term import Buffer, Terms
from lambent.graph.dim import Dim, Size, axis
from lambent.graph.dtypes import DType, bfloat16, float32
from lambent.kernel.kernel import Kernel, Output
from lambent.search.canonical import Canonical, canonical


def text(
    first: int = 0, name: str = "", m: Size = 37, turned: bool = False, dtype: DType = float32
) -> str:
    """The text of a product with axes from `first` on, and `name` in the names of its buffers."""
    return form(first, name, m, turned, dtype).text


def form(
    first: int = 0, name: str = "", m: Size = 37, turned: bool = False, dtype: DType = float32
) -> Canonical:
    t = Terms()
    i, j, p = (axis(first + n) for n in range(3))
    right = (j, p) if turned else (p, j)
    x, y = t.load(f"x{name}", (i, p), dtype), t.load(f"y{name}", right, dtype)
    total = t.reduce("sum", (first + 2,), t.apply("mul", x, y))
    shapes = ((m, 45), (50, 45) if turned else (45, 50))
    inputs = tuple(Buffer(f"{b}{name}", dtype, n) for b, n in zip("xy", shapes, strict=True))
    output = Output(Buffer(f"out{name}", dtype, (m, 50)), (i, j), total)
    extents = {first: m, first + 1: 50, first + 2: 45}
    return canonical(Kernel((output,), inputs, extents))


def test_the_text_ignores_names_and_numbers() -> None:
    assert text(0) == text(5, "other")
    assert text() != text(turned=True) != text(m=38)
    assert text() != text(dtype=bfloat16)
    narrow, wide = Dim("key_narrow", 1, 50), Dim("key_wide", 1, 51)
    assert text(m=narrow) == text(3, "other", m=narrow) != text(m=wide)


def test_the_kind_ignores_sizes_too() -> None:
    assert form(m=38).kind == form().kind == form(3, "other", m=Dim("kind_s", 1, 50)).kind
    assert form().kind != form(dtype=bfloat16).kind


def test_what_is_left_of_a_term_is_renamed_once() -> None:
    """Names that are exchanged, and a sum that becomes one of its operands."""
    t = Terms()
    x, y = (t.load(name, (axis(0),), float32) for name in ("i1", "i0"))
    total = t.apply("sub", t.make("add", (), (x, t.const(0, float32)), float32), y)
    inputs = tuple(Buffer(name, float32, (7,)) for name in ("i0", "i1"))
    output = Output(Buffer("o0", float32, (7,)), (axis(0),), total)
    kernel = canonical(Kernel((output,), inputs, {0: 7})).kernel
    (made,) = (o.term for o in kernel.outputs)
    assert made.op == "sub" and [k.args[0] for k in made.kids] == ["i0", "i1"]


def test_texts_are_equal_in_every_process() -> None:
    here = Path(__file__).parent

    def run_with(seed: str) -> str:
        env = {"PYTHONHASHSEED": seed, "PYTHONPATH": f"{here.parents[1] / 'src'}:{here}"}
        code = "from test_canonical import text; print(text(5), text(m=38))"
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run_with("1") == run_with("2") == f"{text()} {text(m=38)}\n"
