"""PyTorch's own OpInfo database through our conversion: passed, refused or wrong, op by op.

    python tests/frontends/pytorch/opinfo.py [--ops NAME …] [--samples N] [--write docs/torch.md]

Each sample is a call of an op with float32 operands. It is captured as `torch.compile` captures it,
converted with `fallback=False` and evaluated by the NumPy reference, and its results are compared
with PyTorch's own: shapes, dtypes and values.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from functorch.compile import aot_function, make_boxed_func
from torch.utils import _pytree as pytree

from lambent.frontends.torch.backend import Options, compile_graph
from lambent.frontends.torch.decompose import decompositions
from lambent.frontends.torch.values import Unsupported

REFERENCE = Options(fallback=False, device="reference")
UNDEFINED = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty",
             "new_empty_strided")  # fmt: skip
"""Ops whose values are whatever the memory held: shapes and dtypes are compared."""
RTOL, ATOL = 1e-4, 2e-5


@dataclass(slots=True)
class Result:
    """How the samples of an op went; reasons are those of refusals and faults."""

    name: str
    passed: int = 0
    refused: int = 0
    wrong: int = 0
    reasons: dict[str, None] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        if self.wrong:
            return "wrong"
        if self.refused:
            return "partly" if self.passed else "refused"
        return "passed" if self.passed else "no sample"


def all_ops() -> list[Any]:
    """The ops of the database that take float32.

    Raises:
        ImportError: a package that PyTorch's test tools need is not installed.
    """
    from torch.testing._internal.common_methods_invocations import op_db

    return [op for op in op_db if torch.float32 in op.dtypes]


def name_of(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def samples(op: Any, count: int) -> Iterator[Any]:
    """At most `count` of an op's samples, spread: numbers 0, 1, 3, 6, 10, …"""
    picked = set(itertools.accumulate(range(count)))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for i, sample in enumerate(op.sample_inputs("cpu", torch.float32, requires_grad=False)):
            if i in picked:
                yield sample
            if i >= max(picked):
                return


def check(op: Any, count: int, options: Options = REFERENCE) -> Result:
    """Run an op's samples."""
    result = Result(name_of(op))
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            taken = list(samples(op, count))
        except Exception as error:
            result.refused, result.reasons = 1, {f"no samples: {error!r}"[:120]: None}
            return result
        for sample in taken:
            _one(op, sample, result, options)
    return result


def _one(op: Any, sample: Any, result: Result, options: Options) -> None:
    leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    tensors = [leaves[i] for i in at]
    faults: list[BaseException] = []

    def call(*given: Any) -> Any:
        full = list(leaves)
        for i, tensor in zip(at, given, strict=True):
            full[i] = tensor
        first, args, kwargs = pytree.tree_unflatten(full, spec)
        return op(first, *args, **kwargs)

    def ours(graph: Any, _: Any) -> Any:
        try:
            return make_boxed_func(compile_graph(graph, options))
        except Exception as error:
            faults.append(error)
            raise

    compiled = aot_function(
        call, fw_compiler=ours, decompositions=decompositions(), keep_inference_input_mutations=True
    )
    wanted, found = ([t.clone() for t in tensors] for _ in range(2))
    try:
        with torch.random.fork_rng():
            want = call(*wanted)
        got = compiled(*found)
    except Exception as error:
        foreign = not faults and _is_pytorchs(error)
        fine = isinstance(error, Unsupported) or foreign
        result.refused, result.wrong = result.refused + fine, result.wrong + (not fine)
        result.reasons[_short(error)] = None
        return
    problem = difference(got, want, result.name.partition(".")[0] in UNDEFINED)
    problem = problem or difference(found, wanted, False)
    result.passed, result.wrong = result.passed + (not problem), result.wrong + bool(problem)
    if problem:
        result.reasons[problem] = None


def _is_pytorchs(error: BaseException) -> bool:
    """Whether PyTorch could not capture the call: no file of ours is on the way."""
    trace = error.__traceback__
    while trace is not None:
        if "/lambent/" in trace.tb_frame.f_code.co_filename:
            return False
        trace = trace.tb_next
    return True


def _short(error: BaseException) -> str:
    text = str(error).removeprefix("lambent cannot compile ").partition(". With options")[0]
    return f"{type(error).__name__}: {text}".removeprefix("Unsupported: ")[:160]


def difference(got: Any, want: Any, shapes_only: bool) -> str:
    """What is not the same; nothing if all is."""
    ours, theirs = (pytree.tree_leaves(x) for x in (got, want))
    if len(ours) != len(theirs):
        return f"{len(ours)} results, not {len(theirs)}"
    for a, b in zip(ours, theirs, strict=True):
        if not isinstance(b, torch.Tensor):
            if a != b:
                return f"{a!r}, not {b!r}"
            continue
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            return f"{a.dtype}{list(a.shape)}, not {b.dtype}{list(b.shape)}"
        if shapes_only or b.numel() == 0:
            continue
        if a.is_complex() or not a.is_floating_point():
            same = torch.equal(a, b)
        else:
            same = torch.allclose(a.double(), b.double(), RTOL, ATOL, equal_nan=True)
        if not same:
            return f"values of {b.dtype}{list(b.shape)} differ"
    return ""


def table(results: Sequence[Result]) -> str:
    """The summary as Markdown."""
    groups = {v: [r for r in results if r.verdict == v] for v in VERDICTS}
    lines = ["| verdict | ops | samples |", "|---|---|---|"]
    for verdict, meaning in VERDICTS.items():
        count = sum(r.passed + r.refused + r.wrong for r in groups[verdict])
        lines.append(f"| {verdict}: {meaning} | {len(groups[verdict])} | {count} |")
    lines += ["", "Passed: " + ", ".join(f"`{r.name}`" for r in groups["passed"]) + "."]
    for verdict in ("partly", "refused", "wrong"):
        if groups[verdict]:
            lines += ["", f"| {verdict} | why |", "|---|---|"]
        for r in groups[verdict]:
            why = "; ".join(r.reasons).replace("|", "¦").replace("\n", " ")
            lines.append(f"| `{r.name}` | {why[:200]} |")
    return "\n".join(lines) + "\n"


VERDICTS = {
    "passed": "every sample equals PyTorch's",
    "partly": "some samples equal, the others refused",
    "refused": "every sample refused",
    "wrong": "a sample differs, or an error of ours",
    "no sample": "the database has none",
}
START, END = "<!-- opinfo -->\n", "<!-- /opinfo -->\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--ops", nargs="*", help="names of ops; all by default")
    parser.add_argument("--samples", type=int, default=6, help="samples of each op")
    parser.add_argument("--write", type=Path, help="put the summary between the marks of this file")
    given = parser.parse_args()
    results, start = [], time.monotonic()
    for op in all_ops():
        if given.ops and name_of(op) not in given.ops and op.name not in given.ops:
            continue
        results.append(check(op, given.samples))
        r = results[-1]
        why = "; ".join(r.reasons)[:300]
        print(f"{r.verdict:8} {r.passed}/{r.refused}/{r.wrong} {r.name} {why}", flush=True)
    counts = {v: sum(r.verdict == v for r in results) for v in VERDICTS}
    print(f"{counts} in {time.monotonic() - start:.0f} s")
    if given.write:
        text = given.write.read_text()
        before, after = text.partition(START)[0], text.partition(END)[2]
        given.write.write_text(before + START + table(results) + END + after)
    sys.exit(counts["wrong"] > 0)


if __name__ == "__main__":
    main()
