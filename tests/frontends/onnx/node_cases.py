"""ONNX's own node tests, run through `from_onnx`: passed, refused or wrong, by operator.

    python tests/frontends/onnx/node_cases.py [--write docs/onnx.md]

A case counts where all its inputs and outputs are tensors of float32, bool, or integers that
lambent has, of the main domain, and its operators have to do with no sequence, optional, string or
training type. Inputs that an operator must know when the graph is built (shapes, axes) are given to
`from_onnx` as values, but never data of operators whose result's size depends on it.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import lambent as lt
from lambent.frontends.onnx.errors import NeedsValue, OnnxError
from lambent.frontends.onnx.host import HOSTED
from lambent.frontends.onnx.node import NEWEST
from lambent.frontends.onnx.read import ELEMENTS
from lambent.frontends.onnx.table import TABLE

ELEMENT_TYPES = {"float", "bool", "int8", "int16", "int32", "int64", "uint8"}
DATA_DEPENDENT = {"NonZero", "Compress", "Unique", "NonMaxSuppression"}
OTHER_TYPES = ("Optional", "Sequence", "String")


@dataclass(frozen=True)
class Case:
    """One of ONNX's node tests."""

    name: str
    operator: str
    opset: int
    model: Any
    inputs: dict[str, np.ndarray]
    outputs: list[np.ndarray]
    rtol: float
    atol: float


@dataclass(frozen=True)
class Outcome:
    """`verdict` is passed, refused or wrong; the reason is lambent's message."""

    case: Case
    verdict: str
    reason: str = ""


def cases() -> list[Case]:
    """The cases that count, by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        found = [case for test in collect_testcases() if (case := _case(test)) is not None]
    return sorted(found, key=lambda case: case.name)


def _case(test: Any) -> Case | None:
    graph = test.model.graph
    opsets = {entry.domain: entry.version for entry in test.model.opset_import}
    types = [entry.type for entry in (*graph.input, *graph.output)]
    if set(opsets) - {"", "ai.onnx"} or not all(t.HasField("tensor_type") for t in types):
        return None
    names = {ELEMENTS.get(t.tensor_type.elem_type, ("?", ""))[0] for t in types}
    operators = {node.op_type for node in graph.node}
    training = "training" in test.name
    if not names <= ELEMENT_TYPES or training or any(o.startswith(OTHER_TYPES) for o in operators):
        return None
    inputs, outputs = ([_array(a) for a in arrays] for arrays in test.data_sets[0])
    body = "_expanded" in test.name or len(graph.node) != 1
    operator = "bodies" if body else graph.node[0].op_type
    keys = [entry.name for entry in graph.input]
    return Case(
        test.name, operator, max(opsets.values()), test.model,
        dict(zip(keys, inputs, strict=True)), outputs, test.rtol, test.atol,
    )  # fmt: skip


def _array(value: Any) -> np.ndarray:
    from onnx import TensorProto, numpy_helper

    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value)


def imported(case: Case) -> dict[str, Any]:
    """The graph, with what must be known given as values."""
    values: dict[str, np.ndarray] = {}
    while True:
        try:
            return lt.from_onnx(case.model, values=values)
        except NeedsValue as reason:
            more = [name for name in reason.inputs if name not in values]
            if not more or case.operator in DATA_DEPENDENT:
                raise
            values |= {name: case.inputs[name] for name in more}


def compare(found: Iterable[np.ndarray], case: Case) -> str:
    """What differs from the expected outputs; "" where nothing does."""
    for a, b in zip(found, case.outputs, strict=True):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"{a.dtype}{list(a.shape)} instead of {b.dtype}{list(b.shape)}"
        finite = np.abs(b[np.isfinite(b)]) if b.dtype.kind == "f" else np.zeros(0)
        atol = max(case.atol, 1e-6 * float(np.max(finite, initial=0)))  # sums are reordered
        close = a == b if b.dtype.kind != "f" else np.isclose(a, b, case.rtol, atol, True)
        if not np.all(close):
            return f"{int(np.sum(~close))} of {close.size} elements differ"
    return ""


def run(case: Case) -> Outcome:
    """Import, evaluate on the NumPy reference, compare."""
    try:
        outputs = imported(case)
    except OnnxError as reason:
        return Outcome(case, "refused", str(reason))
    wrong = compare(lt.evaluate(list(outputs.values()), case.inputs), case)
    return Outcome(case, "wrong", wrong) if wrong else Outcome(case, "passed")


def ratio(outcomes: list[Outcome]) -> float:
    """The share that passed of those in an opset that lambent has."""
    own = [o for o in outcomes if o.case.opset <= NEWEST]
    return sum(o.verdict == "passed" for o in own) / len(own)


HOST = (
    "`lambent.compile_onnx` and `lambent run` leave these to NumPy, where data decides how large",
    "their results are, or where lines are long. The rest of the graph is compiled, as a program",
    "before and one after each such step; a warning names the nodes and what they cost.",
    "`from_onnx`, whose result is one graph, refuses them.",
)


def report(outcomes: list[Outcome]) -> str:
    """The page docs/onnx.md."""
    own = [o for o in outcomes if o.case.opset <= NEWEST]
    counts = {v: sum(o.verdict == v for o in own) for v in ("passed", "refused", "wrong")}
    newer = [o for o in outcomes if o.case.opset > NEWEST]
    passed = sum(o.verdict == "passed" for o in newer)
    lines = [
        "# ONNX operators",
        "",
        "Written by `python tests/frontends/onnx/node_cases.py --write docs/onnx.md`.",
        "",
        f"Of ONNX's own node tests of float32, bool and integer tensors up to opset {NEWEST}, "
        f"{counts['passed']} of {len(own)} pass ({ratio(outcomes):.1%}), {counts['refused']} are "
        f"refused and {counts['wrong']} are wrong. Of those of newer opsets {passed} of "
        f'{len(newer)} pass. Under "bodies" are operators that ONNX spells out by others.',
        "",
        "## What is refused",
        "",
        "| tests | operator | reason |",
        "|---|---|---|",
    ]
    reasons: dict[tuple[str, str], list[str]] = {}
    for o in outcomes:
        if o.verdict != "passed":
            reason = o.reason.rpartition(": ")[2] if "values=" not in o.reason else o.reason
            reason = reason.partition("; where that is")[0].rpartition(": ")[2]
            reasons.setdefault((o.case.operator, reason), []).append(o.case.name)
    for (operator, reason), names in sorted(reasons.items()):
        lines.append(f"| {len(names)} | {operator} | {reason} |")
    lines += ["", "## What the host runs", "", *HOST, "", "| operator | cost |", "|---|---|"]
    lines += [f"| {name} | {hosted.cost} |" for name, hosted in sorted(HOSTED.items())]
    lines += ["", "## Operators with a row of their own", "", "| operator | note |", "|---|---|"]
    lines += [f"| {name} | {row.note} |" for (_, name), row in sorted(TABLE.items())]
    lines += [
        "",
        "Operators that ONNX defines by others need no row: their bodies are imported.",
        "",
    ]
    return "\n".join([*lines, ""])


def main(arguments: list[str]) -> None:
    """Run all cases and say what became of them; with --write also into a file."""
    outcomes = [run(case) for case in cases()]
    table: dict[str, dict[str, int]] = {}
    for o in outcomes:
        row = table.setdefault(o.case.operator, {"passed": 0, "refused": 0, "wrong": 0})
        row[o.verdict] += 1
    for operator, row in sorted(table.items()):
        print(f"{operator:28} " + "  ".join(f"{verdict} {n}" for verdict, n in row.items()))
    for o in outcomes:
        if o.verdict != "passed":
            print(f"{o.verdict}: {o.case.name}: {o.reason}")
    print(f"{ratio(outcomes):.1%} of opsets up to {NEWEST} pass")
    if arguments[:1] == ["--write"]:
        Path(arguments[1]).write_text(report(outcomes))


if __name__ == "__main__":
    main(sys.argv[1:])
