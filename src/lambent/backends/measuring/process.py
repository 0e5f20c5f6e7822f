"""The measuring process: requests with a time limit from the parent, restarts after a crash.

Messages on the pipes are an 8-byte length and a pickle: (name, limit, arguments) to the worker,
("ok", result) or ("error", text) back. A worker is a module started with `-m` that calls `serve`.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

from lambent.backends.base import BackendError

_START_LIMIT = 60.0


class Failed(BackendError):
    """A request without a result; `status` is that of an `Outcome`."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status


class Lost(Failed):
    """The worker hung or died: timeout or crash."""


class Refused(Failed):
    """The worker reported an error and lives on: it lacks resources."""


def send(stream: Any, message: Any) -> None:
    """Write one message."""
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    rest = memoryview(len(data).to_bytes(8, "little") + data)
    while rest:
        rest = rest[stream.write(rest) :]
    stream.flush()


def serve(table: Mapping[str, Callable[..., Any]]) -> None:
    """The worker's loop: answer until the pipe closes.

    A request that outlives its limit ends the process, also when the parent is gone. The pipe is
    ours alone: what native code prints goes to standard error.
    """
    stdin: BinaryIO = sys.stdin.buffer
    stdout = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    send(stdout, "ready")
    while head := stdin.read(8):
        name, limit, arguments = pickle.loads(stdin.read(int.from_bytes(head, "little")))
        signal.setitimer(signal.ITIMER_REAL, limit + 5)
        try:
            reply: tuple[str, Any] = ("ok", table[name](*arguments))
        except (MemoryError, ValueError, OSError, RuntimeError, AttributeError) as error:
            reply = ("error", f"{type(error).__name__}: {error}")
        signal.setitimer(signal.ITIMER_REAL, 0)
        send(stdout, reply)


class WorkerProcess:
    """A worker, started on the first request. Not thread-safe: its user holds a lock.

    Args:
        module: its name, and arguments.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        atexit.register(self._end)

    def request(self, name: str, *arguments: Any, limit: float) -> Any:
        """The worker's result.

        Args:
            limit: seconds; the worker is killed when they are over.

        Raises:
            Lost: it hung or crashed; the next request starts another one.
            Refused: it answered with an error.
        """
        try:
            try:
                process = self._process or self._start()
                assert process.stdin is not None
                send(process.stdin, (name, limit, arguments))
                kind, result = self._answer(process, limit)
            except (BrokenPipeError, EOFError):
                raise Lost("crash", _death(self.close(grace=1.0))) from None
        except BaseException as error:  # also Ctrl-C: an answer may still be under way
            if not isinstance(error, Lost):
                self.close()
            raise
        if kind == "error":
            raise Refused("resources", str(result))
        return result

    def _start(self) -> subprocess.Popen[bytes]:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", *self._module.split()],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env=environment, start_new_session=True, bufsize=0,
        )  # fmt: skip
        self._answer(self._process, _START_LIMIT)
        return self._process

    def _answer(self, process: subprocess.Popen[bytes], limit: float) -> Any:
        end = time.monotonic() + limit
        head = self._read(process, 8, end, limit)
        return pickle.loads(self._read(process, int.from_bytes(head, "little"), end, limit))

    def _read(self, process: subprocess.Popen[bytes], n: int, end: float, limit: float) -> bytes:
        assert process.stdout is not None
        data = bytearray()
        while len(data) < n:
            ready, _, _ = select.select([process.stdout], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                self.close()
                raise Lost("timeout", f"did not finish within {limit:.3g} s")
            part = os.read(process.stdout.fileno(), min(n - len(data), 1 << 20))
            if not part:
                raise EOFError
            data += part
        return bytes(data)

    def _end(self) -> None:
        if os.getpid() == self._owner:  # a forked child leaves its parent's worker alone
            self.close()

    def close(self, grace: float = 0.0) -> int | None:
        """Kill the worker, if any, after `grace` seconds to end by itself. Returns its status."""
        process, self._process = self._process, None
        if process is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace)
        process.kill()
        code = process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        return code


def _death(code: int | None) -> str:
    if code is not None and code < 0:
        return f"killed by signal {signal.Signals(-code).name}"
    return f"ended with exit status {code}"
