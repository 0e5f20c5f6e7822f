"""Rendered kernels and the code around them: one C text for candidates, one for a whole program."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from lambent.backends.base import Assembly, Place, Step, kernel_symbols
from lambent.backends.cpu.pool import RUNTIME, TIMING, size_text
from lambent.kernel.kernel import Buffer, Kernel
from lambent.kernel.tile import TileProgram

COMMON = "lp_KERNEL"  # stands for the name of a kernel while it is compared with others
Render = Callable[[TileProgram, str], str]
Span = tuple[tuple[str, int], int, float]
Memory = tuple[list[Span], list[Span]]
THREADS: Span = ("threads", 0), 0, 1


def work_text(name: str, kernel: Kernel) -> str:
    """`name_work`: about how many scalar operations a run takes (small ones wake no thread)."""
    names = kernel_symbols(kernel)
    product = [f"(double){size_text(e, names)}" for _, e in sorted(kernel.extents.items())]
    shapes = [o.buffer.shape for o in kernel.outputs] + [b.shape for b in kernel.inputs]
    elements = ["*".join(["1.0", *(f"(double){size_text(d, names)}" for d in s)]) for s in shapes]
    return (
        f"static double {name}_work(const int64_t *size) {{\n"
        f"  double a = {'*'.join(['1.0', *product])}, b = 64.0 * ({' + '.join(elements)});\n"
        "  return a < b ? a : b;\n}\n"
    )


def candidates_text(prelude: str, kernels: Sequence[tuple[str, str, Kernel]]) -> str:
    """A library of candidates, given (name, rendered text, kernel) of each."""
    parts = [prelude, RUNTIME]
    parts += [part for name, text, k in kernels for part in (text, work_text(name, k))]
    rows = ",\n".join(f"  {{{n}_tasks, {n}_run, {n}_work}}" for n, _, _ in kernels)
    parts.append(
        "static const struct { int64_t (*tasks)(const int64_t *); lp_run run;\n"
        "  double (*work)(const int64_t *); } lp_kernels[] = {\n" + rows + "};\n"
    )
    return "\n".join([*parts, TIMING])


def waves(assembly: Assembly) -> list[list[Step]]:
    """Launches: each step is in the first one behind all that it must wait for."""
    memory = [_memory(assembly, step) for step in assembly.steps]
    found: dict[int, list[int]] = {}
    for k, mine in enumerate(memory):
        rest = range(len(found), 0, -1)
        at = next((i for i in rest if any(_clash(mine, memory[n]) for n in found[i - 1])), 0)
        found.setdefault(at, []).append(k)
    return [[assembly.steps[k] for k in wave] for wave in found.values()]


def _clash(*both: Memory) -> bool:
    """Whether one writes what the other uses."""
    pairs = ((a, b) for one, other in (both, both[::-1]) for a in one[0] for b in other[1])
    return any(a[0] == b[0] and a[1] < b[2] and b[1] < a[2] for a, b in pairs)


def _memory(assembly: Assembly, step: Step) -> Memory:
    """What a step writes, and what it uses. All use the threads; a library has them for itself."""
    kernel, own = step.program.kernel, dict(step.program.schedule.options).get("library")
    used = zip(step.buffers, (*(o.buffer for o in kernel.outputs), *kernel.inputs), strict=True)
    spans = [_span(assembly.places[n], b) for n, b in used]
    return spans[: len(step.writes)] + [THREADS] * bool(own), [*spans, THREADS]


def _span(place: Place, b: Buffer) -> Span:
    """An array, and from where to where in it a buffer lies; to the end if its size varies."""
    size = b.bytes if all(isinstance(n, int) for n in b.shape) else math.inf
    return (place.kind, place.index), place.offset, place.offset + size


def program_text(prelude: str, render: Render, assembly: Assembly) -> str:
    """A program's library: equal kernels once, then `lambent_run`."""
    names: dict[str, str] = {}  # rendered text under a common name → its own name
    parts = [prelude, RUNTIME]

    def named(program: TileProgram) -> str:
        common = render(program, COMMON)
        name = names.get(common)
        if name is None:
            name = names[common] = f"lp_k{len(names)}"
            parts.extend([common.replace(COMMON, name), work_text(name, program.kernel)])
        return name

    def call(step: Step, i: int) -> tuple[str, str]:
        """The arguments of a step's kernel, and the call of it."""
        name = named(step.program)
        places = ", ".join(_pointer(assembly.places[b]) for b in step.buffers)
        sizes = [assembly.symbols.index(s) for s in kernel_symbols(step.program.kernel)]
        arguments = (
            f"    void *buf{i}[] = {{{places}}};\n"
            f"    const int64_t s{i}[] = {{{', '.join(f'size[{i}]' for i in sizes) or '0'}}};\n"
        )
        return arguments, f"{{{name}_tasks(s{i}), {name}_run, {name}_work(s{i}), buf{i}, s{i}}}"

    def launch(wave: Sequence[Step]) -> str:
        arguments, calls = zip(*(call(s, i) for i, s in enumerate(wave)), strict=True)
        rows = f"    lp_call calls[] = {{{', '.join(calls)}}};\n"
        return (
            f"  {{\n{''.join(arguments)}{rows}    lp_launch({len(wave)}, calls, threads);\n  }}\n"
        )

    run = "".join(map(launch, waves(assembly)))
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
