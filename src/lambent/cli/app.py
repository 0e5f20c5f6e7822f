"""The commands and their options. Each imports what it needs when it runs: starting is quick."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from lambent.cli.errors import UserError

app = typer.Typer(
    name="lambent",
    help="A compiler that searches: naive tensor programs become measured, verified kernels.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]
Budget = Annotated[float, typer.Option(help="Seconds that a search may take.")]
Device = Annotated[str, typer.Option(help="Where the program runs; see `lambent devices`.")]
Dims = Annotated[
    list[str] | None,
    typer.Option(
        "--dim", help="A named dim of an ONNX file: name=8, name=1..4096, or name=32..960/32."
    ),
]
Shapes = Annotated[
    list[str] | None, typer.Option("--shape", help="An input's shape: name=1,batch,64.")
]
Values = Annotated[
    list[str] | None,
    typer.Option("--value", help="An input that is a constant: name=16000, or name=file.npy."),
]


@app.command()
def run(
    model: Annotated[str, typer.Argument(help="minilm, an ONNX file, or a saved program.")],
    text: Annotated[
        list[str] | None, typer.Option(help="A sentence; give it several times.")
    ] = None,
    budget: Budget = 120.0,
    device: Device = "cpu",
    fresh: Annotated[bool, typer.Option(help="Search even if a program is cached.")] = False,
    peers: Annotated[bool, typer.Option(help="Compare with PyTorch where installed.")] = True,
    dim: Dims = None,
    shape: Shapes = None,
    value: Values = None,
    input: Annotated[
        list[str] | None,
        typer.Option("--input", help="An input: name=file.npy, or random integers, name=0..255."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the inputs that are drawn.")] = 0,
    against: Annotated[str, typer.Option(help="For ONNX files: onnxruntime.")] = "",
    json: Json = False,
) -> None:
    """Compile a model by search and run it: minilm on sentences, a file on any inputs."""
    if Path(model).suffix:
        from lambent.cli.files import Sizes, run_file

        sizes = Sizes(dim or (), shape or (), value or ())
        run_file(Path(model), sizes, input or (), seed, against, budget, device, fresh, json)
        return
    from lambent.cli.run import run_model

    run_model(model, text, budget, device, fresh, peers, json)


@app.command("compile")
def compile_(
    file: Annotated[Path, typer.Argument(help="An ONNX file.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the program is saved.")],
    dim: Dims = None,
    shape: Shapes = None,
    value: Values = None,
    budget: Budget = 120.0,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Compile an ONNX file into a program that runs without the compiler."""
    from lambent.cli.files import Sizes, compile_file

    compile_file(file, out, Sizes(dim or (), shape or (), value or ()), budget, device, json)


@app.command()
def export(
    what: Annotated[str, typer.Argument(help="A built-in example, or an ONNX file.")],
    onnx: Annotated[Path, typer.Option("--onnx", help="The ONNX file to write.")],
    dim: Dims = None,
    shape: Shapes = None,
    value: Values = None,
    json: Json = False,
) -> None:
    """Write a graph as an ONNX file of plain operators."""
    from lambent.cli.files import Sizes
    from lambent.cli.files import export as export_graph

    export_graph(what, onnx, Sizes(dim or (), shape or (), value or ()), json)


@app.command()
def explain(
    name: Annotated[
        str, typer.Argument(help="A built-in example, or the file of a saved program.")
    ],
    source: Annotated[
        bool, typer.Option("--source", help="Print programs and sources too.")
    ] = False,
    html: Annotated[Path | None, typer.Option(help="Write a page to look at, here.")] = None,
    budget: Budget = 100.0,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """What the search found, how fast it is, and how far from the bound."""
    from lambent.cli.explain import explain_program

    explain_program(name, source, budget, device, json, html)


@app.command()
def bench(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Built-in examples, parts of names of the suite, or smollm2."),
    ] = None,
    suite: Annotated[str, typer.Option(help="A whole table of work: cpu, cuda.")] = "",
    against: Annotated[
        str | None,
        typer.Option(
            help="Of torch, torch.compile, onnxruntime, numpy, and llama.cpp for a language model; "
            "with commas."
        ),
    ] = None,
    threads: Annotated[int, typer.Option(min=0, help="Threads for all; 0: every core.")] = 0,
    budget: Annotated[
        float | None,
        typer.Option(help="Seconds that a search may take; 60, or 100 for a language model."),
    ] = None,
    device: Device = "cpu",
    json: Json = False,
    save: Annotated[Path | None, typer.Option(help="Write the rows here, as JSON.")] = None,
    compare: Annotated[Path | None, typer.Option(help="Show the ratios of a saved run.")] = None,
) -> None:
    """Run ours and the peers in alternation, and check the results against float64."""
    if threads:  # read when the libraries start
        os.environ["LAMBENT_THREADS"] = os.environ["OMP_NUM_THREADS"] = str(threads)
    from lambent.cli.bench import Settings
    from lambent.cli.bench import bench as run_bench
    from lambent.cli.talk import PACKAGED

    talks = [name for name in names or [] if name in PACKAGED]
    if against is None:
        against = "torch" if talks else "torch,torch.compile"
    peers = tuple(name.strip() for name in against.split(",") if name.strip())
    device = suite or device
    budget = (130.0 if talks else 60.0) if budget is None else budget
    settings = Settings(peers, threads, budget, device)
    if talks:
        from lambent.cli.bench_talk import bench as bench_talk

        bench_talk(talks[0], settings, json, save)
        return
    run_bench(names or [], suite, settings, json, save, compare)


@dataclass(frozen=True, slots=True)
class Talking:
    """The options of every command that talks."""

    temperature: Annotated[
        float, typer.Option(help="0 takes the best token; 1 draws as learned.")
    ] = 0.0
    top_k: Annotated[int, typer.Option(help="Draw from so many best; 0: from all.")] = 0
    top_p: Annotated[float, typer.Option(help="Draw from the best with this probability.")] = 1.0
    min_p: Annotated[float, typer.Option(help="Least share of the best's probability.")] = 0.0
    penalty: Annotated[
        float, typer.Option("--repetition-penalty", help="Above 1: less repetition.")
    ] = 1.0
    seed: Annotated[int, typer.Option(help="Of what is drawn.")] = 0
    stop: Annotated[
        list[str] | None, typer.Option(help="End before this text; may be repeated.")
    ] = None
    budget: Budget = 130.0
    device: Device = "cpu"
    fresh: Annotated[bool, typer.Option(help="Search even if a program is cached.")] = False
    json: Json = False


def talks(command: Callable[..., None]) -> Callable[..., None]:
    """The command as typer reads it: fields of `Talking` in place of the parameter `options`."""
    shared = inspect.signature(Talking, eval_str=True).parameters
    own = dict(inspect.signature(command, eval_str=True).parameters)
    del own["options"]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        options = Talking(**{name: given.pop(name) for name in shared})
        command(**given, options=options)

    parameters = [*own.values(), *shared.values()]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


Model = Annotated[str, typer.Argument(help="A GGUF file, a model's folder, or smollm2.")]
Tokens = Annotated[int, typer.Option("--max-tokens", min=1, help="The most of an answer.")]


@app.command()
@talks
def generate(
    model: Model,
    prompt: Annotated[str, typer.Option(help="The text to continue.")],
    max_tokens: Tokens = 128,
    *,
    options: Talking,
) -> None:
    """Continue a text with a language model."""
    from lambent.cli import talk

    talk.generate(model, prompt, max_tokens, options)


@app.command()
@talks
def chat(
    model: Model,
    system: Annotated[str | None, typer.Option(help="What the model is told first.")] = None,
    max_tokens: Tokens = 512,
    *,
    options: Talking,
) -> None:
    """Talk with a language model: a line is a question, the end of input ends it."""
    from lambent.cli import talk

    talk.chat(model, system, max_tokens, options)


@app.command()
def train(
    what: Annotated[str, typer.Argument(help="digits, or shakespeare with a text file.")],
    path: Annotated[Path | None, typer.Argument(help="The text, for shakespeare.")] = None,
    steps: Annotated[int, typer.Option(min=0, help="Batches; 0: as many as serve.")] = 0,
    budget: Budget = 120.0,
    folder: Annotated[
        Path | None, typer.Option(help="Where metrics and checkpoints are written.")
    ] = None,
    peers: Annotated[bool, typer.Option(help="Train the same in PyTorch, and compare.")] = False,
    seed: Annotated[int, typer.Option(help="Of what is drawn.")] = 0,
    json: Json = False,
) -> None:
    """Train a small model: forward, backward and step are one searched program."""
    from lambent.cli.train import train as run_training

    run_training(what, path, steps, budget, folder, peers, seed, json)


@app.command()
def devices(json: Json = False) -> None:
    """The devices of this machine and what is known of their speed."""
    from lambent.cli.machine import show_devices

    show_devices(json)


@app.command()
def cache(
    action: Annotated[str, typer.Argument(help="ls, path, clear, export or import.")] = "ls",
    file: Annotated[Path | None, typer.Argument(help="For export and import.")] = None,
    json: Json = False,
) -> None:
    """The stored measurements, calibrations and programs."""
    from lambent.cli.store import cache_action

    cache_action(action, file, json)


def start(arguments: Sequence[str]) -> int:
    """Run one command.

    Returns:
        The exit code: 0, 1 a wrong result, 2 a mistake of the user, 130 interrupted.
    """
    usage = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")
    try:
        code: Any = app(args=list(arguments), prog_name="lambent", standalone_mode=False)
        return _fail("interrupted", 130) if code == 130 else code if isinstance(code, int) else 0
    except typer.Exit as end:
        return end.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", 130)
    except BrokenPipeError:  # whoever read us has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except UserError as error:
        return _fail(str(error))
    except Exception as error:
        if isinstance(error, usage):
            return _fail(error.format_message())  # type: ignore[attr-defined]
        if _expected(error):
            return _fail(str(error))
        raise


def _expected(error: Exception) -> bool:
    """True for errors of the lower stages that say what the user can do about them."""
    if isinstance(error, ImportError):  # one of our own modules missing would be our fault
        return not (error.name or "").startswith("lambent")
    if isinstance(error, OSError):
        return True
    kinds = (
        ("lambent.backends.base", "BackendError"),
        ("lambent.frontends.onnx.errors", "OnnxError"),
        ("lambent.runtime.save", "LoadError"),
    )
    return any(
        isinstance(error, getattr(sys.modules[module], name, ()))
        for module, name in kinds
        if module in sys.modules
    )


def _fail(message: str, code: int = 2) -> int:
    print(f"lambent: {' '.join(message.split())}", file=sys.stderr)
    return code
