"""Rendered kernels and the code around them: one C text for candidates, one for a whole program."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lambent.backends.base import Assembly, Place, Step, kernel_symbols
from lambent.backends.cpu.pool import RUNTIME, TIMING, size_text
from lambent.kernel.kernel import Kernel
from lambent.kernel.tile import TileProgram

COMMON = "lp_KERNEL"  # stands for the name of a kernel while it is compared with others
Render = Callable[[TileProgram, str], str]


def work_text(name: str, kernel: Kernel) -> str:
    """`name_work`: about how many scalar operations a run takes (small ones wake no thread)."""
    names = kernel_symbols(kernel)
    product = [f"(double){size_text(e, names)}" for _, e in sorted(kernel.extents.items())]
    shapes = [o.buffer.shape for o in kernel.outputs] + [b.shape for b in kernel.inputs]
    elements = [
        "*".join(["1.0", *(f"(double){size_text(d, names)}" for d in shape)]) for shape in shapes
    ]
    return (
        f"static double {name}_work(const int64_t *size) {{\n"
        f"  double a = {'*'.join(['1.0', *product])}, b = 64.0 * ({' + '.join(elements)});\n"
        "  return a < b ? a : b;\n}\n"
    )


def candidates_text(prelude: str, kernels: Sequence[tuple[str, str, Kernel]]) -> str:
    """A library of candidates, given (name, rendered text, kernel) of each."""
    parts = [prelude, RUNTIME]
    for name, text, kernel in kernels:
        parts += [text, work_text(name, kernel)]
    rows = ",\n".join(f"  {{{n}_tasks, {n}_run, {n}_work}}" for n, _, _ in kernels)
    parts.append(
        "static const struct { int64_t (*tasks)(const int64_t *); lp_run run;\n"
        "  double (*work)(const int64_t *); } lp_kernels[] = {\n" + rows + "};\n"
    )
    return "\n".join([*parts, TIMING])


def program_text(prelude: str, render: Render, assembly: Assembly) -> str:
    """A program's library: equal kernels once, then `lambent_run`."""
    known: dict[int, str] = {}  # program object → name: repeated segments share theirs
    names: dict[str, str] = {}  # rendered text under a common name → its own name
    parts = [prelude, RUNTIME]

    def named(program: TileProgram) -> str:
        common = render(program, COMMON)
        name = names.get(common)
        if name is None:
            name = names[common] = f"lp_k{len(names)}"
            parts.extend([common.replace(COMMON, name), work_text(name, program.kernel)])
        return name

    def launch(step: Step) -> str:
        name = known.get(id(step.program)) or named(step.program)
        known[id(step.program)] = name
        places = ", ".join(_pointer(assembly.places[b]) for b in step.buffers)
        sizes = [assembly.symbols.index(s) for s in kernel_symbols(step.program.kernel)]
        return (
            f"  {{\n    void *buf[] = {{{places}}};\n"
            f"    const int64_t s[] = {{{', '.join(f'size[{i}]' for i in sizes) or '0'}}};\n"
            f"    lp_launch({name}_tasks(s), {name}_run, {name}_work(s), buf, s, threads);\n  }}\n"
        )

    run = "".join(map(launch, assembly.steps))
    lines = [f"  int64_t block[{len(assembly.blocks) + 1}] = {{0}};\n"]
    for i, size in enumerate(assembly.blocks[:-1]):
        lines.append(f"  block[{i + 1}] = block[{i}] + {size_text(size, assembly.symbols)};\n")
    parts.append(
        "int lambent_run(void *const *input, void *const *output, void *const *weight,\n"
        "    char *arena, const int64_t *size, int threads) {\n"
        f"{''.join(lines)}{run}  return 0;\n}}\n"
    )
    return "\n".join(parts)


def _pointer(place: Place) -> str:
    if place.kind == "arena":
        return f"arena + block[{place.index}] + {place.offset}LL"
    return f"{place.kind}[{place.index}]"
