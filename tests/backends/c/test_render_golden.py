"""The generated text of one small kernel for each vector width, and that it compiles for AArch64.

After a change that is meant: python tests/backends/c/test_render_golden.py
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from programs import attention, matmul, softmax

from lambent.backends.c.prelude import prelude
from lambent.backends.c.render import render
from lambent.backends.c.target import Target
from lambent.graph.dim import Dim

GOLDEN = Path(__file__).parent / "golden"
WIDTHS = (16, 32, 64)


def golden(width: int) -> str:
    return render(softmax(3, 20), "rows", Target(width))


@pytest.mark.parametrize("width", WIDTHS)
def test_text_is_the_golden_one(width: int) -> None:
    want = (GOLDEN / f"rows_{width}.c").read_text(encoding="utf-8")
    assert golden(width) == want, f"the text changed; if meant: python {Path(__file__).name}"


def test_text_is_deterministic() -> None:
    one, two = (render(attention(2, 100, 16, 24, 8, causal=True), "k", Target()) for _ in "12")
    assert one == two


def test_a_wrong_width_is_refused() -> None:
    with pytest.raises(ValueError, match="48 bytes"):
        Target(48)


def test_it_compiles_for_aarch64(tmp_path: Path) -> None:
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("needs ziglang")
    s = Dim("golden_s", 1, 64)
    target = Target(16)
    parts = [prelude(target)]
    programs = {"p": attention(2, s, 16, 24, 8, causal=True), "q": matmul(45, 70, 50, (30, 32, 16))}
    for name, p in programs.items():
        parts.append(render(p, name, target))
        parts.append(
            f"void run_{name}(void *const *buf, const int64_t *size) "
            f"{{ for (int64_t t = 0; t < {name}_tasks(size); t++) {name}_run(t, buf, size); }}"
        )
    (tmp_path / "k.c").write_text("\n".join(parts), encoding="utf-8")
    command = [
        sys.executable, "-m", "ziglang", "cc", "-target", "aarch64-linux-gnu", "-O1", "-std=gnu11",
        "-w", "-c", str(tmp_path / "k.c"), "-o", str(tmp_path / "k.o"),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "k.o").read_bytes()[:4] == b"\x7fELF"


if __name__ == "__main__":
    for w in WIDTHS:
        (GOLDEN / f"rows_{w}.c").write_text(golden(w), encoding="utf-8")
