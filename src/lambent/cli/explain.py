"""`lambent explain`: what the search found for an example or in a saved program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lambent.backends.cache import write_atomic
from lambent.cli.errors import UserError
from lambent.cli.examples import EXAMPLES, example
from lambent.cli.output import console, number, print_json, say, size, table
from lambent.cli.page import page
from lambent.cli.progress import compile_graph

FORM = (
    "device", "e_classes", "e_nodes", "rounds", "saturated", "rules", "programs", "candidates",
    "measured", "gap", "noise", "additivity_error", "stored", "kernels", "arena_bytes", "seconds",
    # what was added later stands behind
    "ms", "certificate_void", "segments", "instances", "progress", "roofline",
)  # fmt: skip


def explain_program(
    name: str, source: bool, budget: float, device: str, json: bool, html: Path | None
) -> None:
    """Print what is known of a program, or write it as a page.

    Raises:
        UserError: the name is neither an example nor a file; the page cannot be written.
    """
    if html is not None and not html.parent.is_dir():  # known before the search
        raise UserError(f"--html {html}: there is no folder {html.parent}")
    if name in EXAMPLES:
        program = compile_graph(example(name).graph(), name, device, budget)
    elif Path(name).is_file():
        from lambent.runtime import save

        program = save.load(name)
    else:
        raise UserError(
            f"{name!r} is neither a file nor an example; examples: {', '.join(EXAMPLES)}"
        )
    found = form(name, program)
    if html is not None:
        write_atomic(html, page(found).encode())
        say(f"wrote {html}")
    if json:
        print_json(found)
    elif html is None:
        show(found, source)


def form(name: str, program: Any) -> dict[str, Any]:
    """The JSON form: the same keys for every program, None where something is not known."""
    told = program.explain()
    return {"name": name} | {key: told.get(key) for key in FORM}


def show(found: dict[str, Any], source: bool) -> None:
    """The human form."""
    screen = console()
    done = "saturated" if found["saturated"] else "stopped at a limit"
    screen.print(f"{found['name']} on {found['device']}", style="bold")
    screen.print(
        f"e-graph: {count(found['e_nodes'])} e-nodes in {count(found['e_classes'])} e-classes, "
        f"{count(found['rounds'])} rounds, {done}; it holds {count(found['programs'])} programs"
    )
    screen.print(
        f"search: {count(found['candidates'])} candidate kernels, {count(found['measured'])} "
        f"measured; gap {percent(found['gap'])}, "
        f"timing noise {percent(found['noise'])}, "
        f"additivity error {percent(found['additivity_error'])}\n"
    )
    rules = table("rules", "rule", "new equalities")
    for rule, number_found in sorted((found["rules"] or {}).items(), key=lambda r: (-r[1], r[0])):
        if number_found:
            rules.add_row(rule, count(number_found))
    screen.print(rules)
    stored = found["stored"] or []
    if stored:
        out = table("\nstored intermediates", "name", "shape", "dtype", "size")
        for row in stored:
            shape = "×".join(map(str, row["shape"])) or "scalar"
            out.add_row(row["name"], shape, row["dtype"], size(row["bytes"]))
        screen.print(out)
    else:
        screen.print("\nstored intermediates: none")
    _show_kernels(screen, found["kernels"] or [])
    screen.print(f"\narena: {size(found['arena_bytes'])}")
    phases = table("\nseconds by phase", *(found["seconds"] or {}))
    phases.add_row(*(number(s) for s in (found["seconds"] or {}).values()))
    screen.print(phases)
    if source:
        for kernel in found["kernels"] or []:
            for part in ("tile_program", "source"):
                print(f"\n---- {kernel['name']}: {part.replace('_', ' ')}\n{kernel[part]}")
    else:
        say("(--source prints the tile programs and sources)")


def _show_kernels(screen: Any, kernels: list[dict[str, Any]]) -> None:
    total = sum((k["ms"] or 0) * (k["count"] or 1) for k in kernels)
    out = table("\nkernels", "kernel", "times", "ms", "bound ms", "bound / ms", "share")
    for kernel in kernels:
        ms, bound = kernel["ms"], kernel["bound_ms"]
        reached = bound / ms if ms and bound is not None else None
        share = ms * (kernel["count"] or 1) / total if ms and total else None
        out.add_row(
            kernel["name"], count(kernel["count"]), number(ms), number(bound), percent(reached),
            percent(share),
        )  # fmt: skip
    screen.print(out)


def count(value: Any) -> str:
    """A whole number, however large; `-` where it is not known."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}" if value < 10**9 else f"about 10^{len(str(value)) - 1}"
    return "-" if value is None else str(value)


def percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
