"""Kernels with hand-written C in place of the renderer's, so that these tests need no renderer."""

from __future__ import annotations

from typing import Any

import numpy as np

from lambent.algebra.term import Terms
from lambent.backends.cpu.backend import CpuBackend
from lambent.graph.dim import Size, axis
from lambent.graph.dtypes import DType, float32
from lambent.kernel.kernel import Buffer, Kernel, Output
from lambent.kernel.tile import Axis, Schedule, TileProgram

terms = Terms()
RIGHT, WRONG, HANG, CRASH, NO_C, OVERRUN, SILENT, SPOILS, EVEN = range(9)


def scale(n: Size, m: Size, variant: int = RIGHT, dtype: DType = float32) -> TileProgram:
    """y[i, j] = 2·x[i, j]·w[j] for n rows of m; a task is a row. Variants are faults."""
    a, b = axis(0), axis(1)
    x = terms.load("x", (a, b), dtype)
    w = terms.load("w", (b,), dtype)
    two = terms.const(2, dtype)
    term = terms.apply("mul", two, terms.apply("mul", x, w))
    out = Output(Buffer("y", dtype, (n, m)), (a, b), term)
    kernel = Kernel((out,), (Buffer("x", dtype, (n, m)), Buffer("w", dtype, (m,))), {0: n, 1: m})
    return TileProgram(
        kernel, {0: Axis(n, 1), 1: Axis(m, 8)}, (), Schedule(options=(("v", variant),))
    )


def scale_numpy(x: np.ndarray[Any, Any], w: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return 2 * x * w


BODY = {
    RIGHT: "for (int64_t j = 0; j < m; j++) y[j] = 2*x[j]*w[j];",
    WRONG: "for (int64_t j = 0; j < m; j++) y[j] = 2*x[j]*w[0];",
    HANG: "for (volatile int i = 1; i; ) ;",
    CRASH: "*(volatile int *)8 = 1;",
    NO_C: "this is no C;",
    OVERRUN: "for (int64_t j = 0; j <= m; j++) y[j] = 2*x[j]*w[j];",
    SILENT: "",
    EVEN: "for (int64_t j = 0; j < m / 8 * 8; j++) y[j] = 2*x[j]*w[j];",
    SPOILS: "for (int64_t j = 0; j < m; j++) { y[j] = 2*x[j]*w[j]; if (!t) w[j] = 0; }",
}


class Handmade:
    """Renders the programs of `scale`."""

    def prelude(self) -> str:
        return "#include <math.h>\n#include <stdint.h>\n"

    def render(self, program: TileProgram, name: str) -> str:
        from lambent.backends.base import kernel_symbols
        from lambent.backends.cpu.pool import size_text

        names = kernel_symbols(program.kernel)
        n, m = (size_text(program.kernel.extents[i], names) for i in (0, 1))
        variant = dict(program.schedule.options)["v"]
        c = {"float32": "float", "float64": "double"}[program.kernel.outputs[0].buffer.dtype.name]
        return (
            f"static int64_t {name}_tasks(const int64_t *size) {{ return {n}; }}\n"
            f"static void {name}_run(int64_t t, void *const *buf, const int64_t *size) {{\n"
            f"  int64_t m = {m}; {c} *y = ({c} *)buf[0] + t*m, *x = ({c} *)buf[1] + t*m, "
            f"*w = buf[2];\n  {BODY[variant]}\n}}\n"
        )


def backend() -> CpuBackend:
    return CpuBackend(Handmade())
