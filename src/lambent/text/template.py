"""Chat templates: jinja2 in its sandbox, in a process of its own with little time and memory.

Templates come with models, from anybody. The sandbox keeps them from Python's insides; it does not
keep them from `'a' * 10**9` or from loops without end, which the limits of a process do.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["Message", "TemplateError", "render"]

Message = Mapping[str, str]
SECONDS, MEMORY, LONGEST = 5, 1 << 29, 1 << 22  # LONGEST: characters


class TemplateError(ValueError):
    """A template that fails, asks for what it must not, or takes too much."""


def render(template: str, messages: Sequence[Message], names: Mapping[str, str]) -> str:
    """The text of a conversation, ending where the model is to answer.

    Args:
        messages: role and content of each.
        names: bos_token and eos_token, which templates use.

    Raises:
        TemplateError: see there; the message says what it did.
        ImportError: jinja2 is not installed.
    """
    work = {"template": template, "messages": list(messages), "names": dict(names)}
    path = os.pathsep.join(p for p in sys.path if p)
    try:
        done = subprocess.run(
            [sys.executable, __file__], input=json.dumps(work).encode(), capture_output=True,
            timeout=2 * SECONDS, env={**os.environ, "PYTHONPATH": path}, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise TemplateError("the chat template took too long") from None
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        raise TemplateError("the chat template took too much time or memory") from None
    if "missing" in answer:
        raise ImportError(
            "chat templates need the package jinja2: pip install 'lambent[text]'", name="jinja2"
        )
    if "error" in answer:
        raise TemplateError(f"the chat template failed: {answer['error']}")
    return str(answer["text"])


def _limited() -> None:
    try:
        import resource
    except ImportError:  # not on Windows; there the time limit remains
        return
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _rendered(work: Mapping[str, Any]) -> str:
    from datetime import datetime

    from jinja2.exceptions import TemplateError as Fault
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def fail(message: str) -> None:
        raise Fault(message)

    room = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    room.globals["raise_exception"] = fail
    room.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    made = room.from_string(work["template"])
    parts, length = [], 0
    for part in made.generate(
        messages=work["messages"], add_generation_prompt=True, tools=None, **work["names"]
    ):
        length += len(part)
        if length > LONGEST:
            raise ValueError(f"it writes more than {LONGEST} characters")
        parts.append(part)
    return "".join(parts)


def _main() -> None:
    work = json.load(sys.stdin)
    try:
        import jinja2.sandbox  # noqa: F401

        _limited()
        answer = {"text": _rendered(work)}
    except ImportError:
        answer = {"missing": "jinja2"}
    except MemoryError:
        answer = {"error": "it takes too much memory"}
    except Exception as error:  # whatever a template does is told, and nothing else happens
        answer = {"error": f"{type(error).__name__}: {str(error)[:500]}"}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    _main()
