"""`lambent run FILE`, `compile FILE` and `export`: ONNX files and saved programs."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import typer

from lambent.backends.measuring.turns import alternate
from lambent.cli.errors import UserError, choose, need
from lambent.cli.examples import Array, Arrays
from lambent.cli.output import console, number, print_json, say, size, table
from lambent.cli.progress import compile_graph

SECONDS = 4.0
"""How long a program and its peer are timed."""

TOLERANCE = 1e-3
"""Largest error allowed, relative to the largest magnitude of the peer's results."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a model's file leaves open, as given on the command line: texts `name=…`."""

    dims: Sequence[str] = ()
    shapes: Sequence[str] = ()
    values: Sequence[str] = ()

    def graph(self, file: Path) -> Any:
        """The outputs of an ONNX file by name.

        Raises:
            UserError: the file is missing, or one of the texts is malformed.
        """
        return self.read(file, host=False)[0]

    def read(self, file: Path, host: bool) -> tuple[Any, Any]:
        """The outputs of an ONNX file by name, and what the host is to run, if it may.

        Raises:
            UserError: the file is missing, or one of the texts is malformed.
        """
        need("onnx", "'lambent[onnx]'", f"reading {file}")
        if not file.is_file():
            raise UserError(f"no file {file}")
        from lambent.frontends.onnx.build import imported

        return imported(
            file,
            {name: _dim(name, text) for name, text in _pairs("--dim", self.dims)},
            {name: _shape(text) for name, text in _pairs("--shape", self.shapes)},
            {name: _value(name, text) for name, text in _pairs("--value", self.values)},
            host,
        )


def _pairs(option: str, texts: Sequence[str]) -> list[tuple[str, str]]:
    pairs = [text.partition("=") for text in texts]
    for name, _, value in pairs:
        if not name or not value:
            raise UserError(f"{option} {name!r}: give it as name=…")
    return [(name, value) for name, _, value in pairs]


def _dim(name: str, text: str) -> int | tuple[int, ...]:
    """A number, a range low..high, or one of multiples: low..high/multiple."""
    span, slash, multiple = text.partition("/")
    low, dots, high = span.partition("..")
    parts = [low, *([high] if dots else []), *([multiple] if slash else [])]
    if not all(part.isdecimal() for part in parts) or (slash and not dots):
        raise UserError(f"--dim {name}={text}: give a number, or a range such as 1..4096")
    return tuple(map(int, parts)) if dots else int(low)


def _shape(text: str) -> list[int | str]:
    return [int(part) if part.isdecimal() else part for part in text.split(",")]


def _value(name: str, text: str) -> Array:
    """An array from a .npy file, or numbers with commas between."""
    if text.endswith(".npy"):
        return _file(text)
    try:
        numbers = [float(part) if "." in part else int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"--value {name}={text}: give numbers, or a .npy file") from None
    return np.array(numbers[0] if "," not in text else numbers)


def _file(path: str) -> Array:
    try:
        array: Array = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is no readable .npy file: {error}") from None
    return array


# ---- the commands ------------------------------------------------------------------------------


def compile_file(
    file: Path, out: Path, sizes: Sizes, budget: float, device: str, json: bool
) -> None:
    """Compile an ONNX file and save the program."""
    start = time.perf_counter()
    program = compile_graph(sizes.graph(file), file.stem, device, budget)
    program.save(out)
    told: dict[str, Any] = {
        "file": str(file), "program": str(out), "bytes": out.stat().st_size, "device": device,
        "seconds": time.perf_counter() - start,
        "inputs": [_slot(s) for s in program.manifest.inputs],
        "outputs": [
            _slot(s) | {"name": name}
            for s, name in zip(program.manifest.outputs, _names(program), strict=False)
        ],
    }  # fmt: skip
    if json:
        print_json(told)
        return
    _show_slots("inputs", told["inputs"])
    _show_slots("outputs", told["outputs"])
    console().print(f"{out}: {size(told['bytes'])}, after {told['seconds']:.1f} s")


def run_file(
    file: Path, sizes: Sizes, given: Sequence[str], seed: int, against: str,
    budget: float, device: str, fresh: bool, json: bool,
) -> None:  # fmt: skip
    """Compile an ONNX file (or load a saved program) and run it once, on given or random inputs.

    Raises:
        typer.Exit: with code 1 when a result differs from the peer's.
    """
    start = time.perf_counter()
    is_onnx = file.suffix == ".onnx"
    if against:
        choose("peer", against, ["onnxruntime"])
        need("onnxruntime", "onnxruntime", "--against onnxruntime")
    if is_onnx:
        program = _program(file, sizes, budget, device, fresh)
    elif against or sizes != Sizes():
        raise UserError(f"{file} is compiled: --against and sizes are for .onnx files")
    else:
        program = _loaded(file)
    arrays = inputs_of(program, dict(_pairs("--input", given)), seed)
    results = dict(zip(_names(program), _tuple(program(**arrays)), strict=True))
    told: dict[str, Any] = {
        "file": str(file), "device": device, "seconds_to_first": time.perf_counter() - start,
        "inputs": [_array(n, a) for n, a in arrays.items()],
        "outputs": [_array(n, a) for n, a in results.items()],
        "ours_ms": None, "peers": {}, "ratio_best": None, "error": None,
    }  # fmt: skip
    if against:
        told |= _against(file, sizes, program, arrays, results)
    if json:
        print_json(told)
    else:
        _show_run(told)
    if against and not told["error"] <= TOLERANCE:
        say(f"lambent: wrong result: an error of {told['error']:.1e}, above {TOLERANCE:g}")
        raise typer.Exit(1)


def _program(file: Path, sizes: Sizes, budget: float, device: str, fresh: bool) -> Any:
    """The program of an ONNX file; several, where the host must run operators between them."""
    outputs, calls = sizes.read(file, host=True)
    from lambent.frontends.onnx.staged import staged

    def compile(graph: Any, share: float) -> Any:
        return compile_graph(graph, file.stem, device, budget * share, fresh=fresh)

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        program = staged(outputs, calls, compile)
    for warning in told:
        say(f"lambent: {warning.message}")
    return program


def export(what: str, out: Path, sizes: Sizes, json: bool) -> None:
    """Write the graph of a built-in example or of an ONNX file as an ONNX file of primitives."""
    import lambent
    from lambent.cli.examples import example

    need("onnx", "'lambent[onnx]'", "lambent export")
    if what.endswith(".onnx"):
        graph = sizes.graph(Path(what))
    elif Path(what).is_file():
        raise UserError(f"{what} has no graph any more; export the model that it came from")
    else:
        graph = example(what).graph()
    model = lambent.to_onnx(graph, out)
    told = {"file": str(out), "bytes": out.stat().st_size, "nodes": len(model.graph.node),
            "opset": model.opset_import[0].version}  # fmt: skip
    if json:
        print_json(told)
    else:
        console().print(
            f"{out}: {told['nodes']} nodes, opset {told['opset']}, {size(told['bytes'])}"
        )


# ---- inputs ------------------------------------------------------------------------------------


def inputs_of(program: Any, given: Mapping[str, str], seed: int) -> Arrays:
    """Every input: from a .npy file, or random: standard normal, or integers in a range.

    A symbol's size is what an array from a file says, else its hint.

    Args:
        given: by name a file, or the range `low..high` (inclusive); by default integers are 0 or 1.
    """
    slots = program.manifest.inputs
    for name in given:
        choose("input", name, [slot.name for slot in slots])
    arrays = {name: _file(text) for name, text in given.items() if text.endswith(".npy")}
    ranges = {name: _range(name, text) for name, text in given.items() if name not in arrays}
    symbols = {s.name: s.hint for s in program.manifest.symbols}
    for slot in slots:
        if slot.name in arrays and arrays[slot.name].ndim == len(slot.shape):
            pairs = zip(slot.shape, arrays[slot.name].shape, strict=True)
            symbols |= {text: n for text, n in pairs if text in symbols}
    rng = np.random.default_rng(seed)
    for slot in slots:
        if slot.name not in arrays:
            shape = slot.at(symbols)
            if slot.name in ranges or "float" not in slot.dtype:
                low, high = ranges.get(slot.name, (0, 1))
                arrays[slot.name] = rng.integers(low, high + 1, shape).astype(slot.dtype)
            else:
                arrays[slot.name] = rng.standard_normal(shape).astype(slot.dtype)
    return {slot.name: arrays[slot.name] for slot in slots}


def _range(name: str, text: str) -> tuple[int, int]:
    low, _, high = text.partition("..")
    if not low.isdecimal() or not high.isdecimal() or int(low) > int(high):
        raise UserError(f"--input {name}={text}: give a .npy file, or a range such as 0..255")
    return int(low), int(high)


def _loaded(file: Path) -> Any:
    import lambent

    if not file.is_file():
        raise UserError(f"no file {file}")
    return lambent.load(file)


def _names(program: Any) -> list[str]:
    form = program.manifest.form
    if isinstance(form, str):
        return [f"output_{i}" for i in range(len(program.manifest.results))]
    return list(form)


def _tuple(results: Any) -> tuple[Array, ...]:
    if isinstance(results, Mapping):
        return tuple(results.values())
    return results if isinstance(results, tuple) else (results,)


# ---- the peer ----------------------------------------------------------------------------------


def _against(
    file: Path, sizes: Sizes, program: Any, arrays: Arrays, results: Arrays
) -> dict[str, Any]:
    """Error and times against ONNX Runtime on the same inputs and threads."""
    import onnxruntime

    from lambent.backends.cpu.features import threads

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    fixed = {name: _value(name, text) for name, text in _pairs("--value", sizes.values)}
    feed = {}
    for entry in session.get_inputs():
        if entry.name in fixed:
            kind = np.int64 if "int64" in entry.type else np.float32
            feed[entry.name] = fixed[entry.name].astype(kind)
        elif entry.name in arrays:
            feed[entry.name] = arrays[entry.name]
        else:
            raise UserError(f"--against: the program reads no input {entry.name!r}; give --value")
    names = list(results)
    theirs = session.run(names, feed)
    times = alternate(
        {"": lambda: program(**arrays), "peer": lambda: session.run(names, feed)}, SECONDS
    )
    ours, peer = times[""] * 1e3, times["peer"] * 1e3
    return {
        "ours_ms": ours, "peers": {"onnxruntime": peer}, "ratio_best": peer / ours,
        "error": max(map(_error, results.values(), theirs)),
    }  # fmt: skip


def _error(found: Array, reference: Array) -> float:
    """The largest difference, relative to the largest magnitude, or to 1 where that is larger."""
    if found.shape != reference.shape:
        return float("inf")
    if found.size == 0:
        return 0.0
    difference = np.abs(found.astype(np.float64) - reference.astype(np.float64))
    return float(np.max(difference) / max(1.0, float(np.max(np.abs(reference)))))


# ---- what is printed ---------------------------------------------------------------------------


def _slot(slot: Any) -> dict[str, Any]:
    return {"name": slot.name, "dtype": slot.dtype, "shape": list(slot.shape)}


def _array(name: str, array: Array) -> dict[str, Any]:
    found: dict[str, Any] = {"name": name, "dtype": str(array.dtype), "shape": list(array.shape)}
    if array.size and array.dtype != bool:
        wide = array.astype(np.float64)
        found |= {"least": wide.min(), "mean": wide.mean(), "greatest": wide.max()}
    return found


def _show_slots(title: str, slots: Any) -> None:
    out = table(title, "name", "dtype", "shape")
    for slot in slots:
        out.add_row(slot["name"], slot["dtype"], "×".join(map(str, slot["shape"])) or "scalar")
    console().print(out)


def _show_run(told: dict[str, Any]) -> None:
    screen = console()
    for title in ("inputs", "outputs"):
        out = table(title, "name", "dtype", "shape", "least", "mean", "greatest")
        for a in told[title]:
            numbers = (number(a.get(key)) for key in ("least", "mean", "greatest"))
            shape = "×".join(map(str, a["shape"])) or "scalar"
            out.add_row(a["name"], a["dtype"], shape, *numbers)
        screen.print(out)
    screen.print(f"first result after {told['seconds_to_first']:.1f} s")
    for peer, ms in told["peers"].items():
        screen.print(
            f"{number(told['ours_ms'])} ms; {peer} {number(ms)} ms, {told['ratio_best']:.2f} times "
            f"as long; largest error {told['error']:.1e}"
        )
