"""Mistakes of a user: one line, no traceback."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable


class UserError(Exception):
    """Something that the user can put right; the message says how."""


def choose(kind: str, name: str, choices: Iterable[str]) -> str:
    """The name, if it is one of the choices.

    Raises:
        UserError: it is not; the message lists them.
    """
    known = list(choices)
    if name not in known:
        raise UserError(f"unknown {kind} {name!r}; choose from: {', '.join(known)}")
    return name


def need(module: str, install: str, purpose: str) -> None:
    """Check that a module can be imported.

    Raises:
        UserError: it cannot; the message names what to install.
    """
    try:
        found = importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        found = False
    if not found:
        raise UserError(
            f"{purpose} needs {module!r}, which is not installed: pip install {install}"
        )
