"""C text → shared library, through the Clang in the `ziglang` wheel; results are cached on disk."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import os
import re
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from lambent.backends import cache
from lambent.backends.base import BackendError
from lambent.backends.cpu.features import detect

FLAGS = (
    "-O3", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-fwrapv",
    "-fno-strict-aliasing", "-fno-sanitize=all", "-fno-stack-protector", "-fPIC", "-shared",
    "-g0", "-s", "-w", "-std=gnu11",
)  # fmt: skip
# Helpers of Clang's own run-time library, which is linked only where one of them is needed:
# building it takes the wheel's compiler some seconds, once.
_HELPER = re.compile(
    rb"\0__(?:trunc|extend|fix|float|u?div|u?mod|mul|add|sub|pow)\w*[sdhtbx][fi]\w*\0"
)
_serial = itertools.count()


class BuildError(BackendError):
    """The C compiler refused a text, crashed or ran out of time."""


@functools.cache
def compiler_version() -> str:
    """The version of the `ziglang` package.

    Raises:
        BackendError: it is not installed.
    """
    if importlib.util.find_spec("ziglang") is None:
        raise BackendError(
            "device 'cpu': compiling needs the package ziglang, which is not installed; "
            "pip install 'lambent[cpu]' (a saved program runs without it)"
        )
    return metadata.version("ziglang")


def flags() -> tuple[str, ...]:
    """The compiler flags for this CPU."""
    return (*FLAGS, "-march=native" if detect().arch == "x86_64" else "-mcpu=native")


def build(text: str, *, limit: float = 120.0, keep: bool = True) -> bytes:
    """The bytes of a shared library made of the C text; from the disk cache where it is known.

    Args:
        limit: seconds that the compiler may take.
        keep: read and write the disk cache.

    Raises:
        BuildError: with what the compiler printed, which shows the line that it complains of.
        BackendError: ziglang is not installed.
    """
    name = f"objects/{cache.digest(compiler_version(), ' '.join(flags()), detect().key, text)}.so"
    known = cache.read(name) if keep else None
    if known and cache.checksum(known[32:]) == known[:32]:  # else damaged: build again
        return known[32:]
    image = _compile(text, ("-nostdlib",) if detect().system == "Linux" else (), limit)
    if detect().system == "Linux" and _HELPER.search(image):
        image = _compile(text, (), limit)
    if keep:
        cache.write(name, cache.checksum(image) + image)
    return image


def _compile(text: str, extra: tuple[str, ...], limit: float) -> bytes:
    source = place(text.encode(), ".c")
    target = source.with_suffix(".so")
    command = [
        sys.executable, "-m", "ziglang", "cc", *flags(), *extra, "-o", str(target), str(source),
        *(() if extra else ("-lm", "-lpthread")),
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=limit, check=False,
            env=os.environ | _zig_caches(), stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        if done.returncode or not target.exists():
            raise BuildError(_complaint(done.returncode, done.stdout + done.stderr))
        return target.read_bytes()
    except subprocess.TimeoutExpired:
        raise BuildError(f"the C compiler took longer than {limit:g} s") from None
    finally:
        source.unlink(missing_ok=True)
        target.unlink(missing_ok=True)


@functools.cache
def _zig_caches() -> dict[str, str]:
    """Where the compiler keeps its own files: in our cache, or a temporary directory."""
    place = cache.cache_dir() / "zig"
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place) as probe:
            probe.write(b"x" * 4096)
    except OSError:
        place = cache.work_dir() / "zig"
        place.mkdir(exist_ok=True)
    local = cache.work_dir() / "local"  # objects of single texts, of no use later
    return {"ZIG_GLOBAL_CACHE_DIR": str(place), "ZIG_LOCAL_CACHE_DIR": str(local)}


def _complaint(code: int, printed: str) -> str:
    lines = [line for line in printed.splitlines() if line.strip()]
    return f"the C compiler failed (exit status {code}):\n" + "\n".join(lines[:12])


def place(data: bytes, suffix: str = ".so") -> Path:
    """A file with a name of its own (a library's path that is loaded twice returns old code)."""
    try:
        path = cache.work_dir() / f"k{os.getpid()}_{next(_serial)}{suffix}"
        path.write_bytes(data)
    except OSError as error:
        raise BackendError(
            f"device 'cpu': cannot write temporary files: {error}; set TMPDIR to a place with room"
        ) from None
    return path
