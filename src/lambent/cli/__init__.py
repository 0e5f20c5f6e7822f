"""What people start: `lambent run | explain | bench | devices | cache`."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """The entry point: runs the command in `sys.argv` and ends the process with its exit code."""
    import sys
    import warnings

    from lambent.cli.app import start

    warnings.formatwarning = lambda message, *rest, **more: f"lambent: {message}\n"
    sys.exit(start(sys.argv[1:]))
