"""Triton source → machine code, for an explicit target: no GPU is needed.

Started in several processes as `python -m lambent.backends.triton.compiler`; see
`measuring.process`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lambent.backends.base import BackendError
from lambent.backends.measuring.process import serve

EXTRA = "compiling for a GPU needs Triton; pip install 'lambent[cuda]'"
FUSED = {"enable_fp_fusion": True}
ALIGNED = 16  # bytes: every array starts at a multiple


@dataclass(frozen=True, slots=True)
class Target:
    """What code is compiled for: cuda with a compute capability (90), or hip with a name."""

    kind: str
    arch: int | str
    warp: int


def cuda(capability: int) -> Target:
    return Target("cuda", capability, 32)


GFX942 = Target("hip", "gfx942", 64)


@dataclass(frozen=True, slots=True)
class Code:
    """Compiled code of one kernel: `image` is a cubin (or hsaco), `name` its entry.

    threads: of a program; shared: bytes of dynamic shared memory; scratch: pointers that the
    entry takes after the kernel's own parameters, the first of them to `each` bytes a program.
    """

    image: bytes
    name: str
    threads: int
    shared: int
    scratch: int
    each: int = 0


def compile_source(
    source: str, signature: Mapping[str, str], target: Target, options: Mapping[str, int]
) -> Code:
    """Compile the function `kernel` of a source text.

    Args:
        signature: types of its parameters by name.
        options: num_warps and num_stages.

    Raises:
        BackendError: Triton is not installed.
        ValueError: it does not compile; the message is the compiler's.
    """
    try:
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource
    except ImportError:
        raise BackendError(EXTRA) from None
    with _module(source) as module:
        attributes = {
            (i,): [["tt.divisibility", ALIGNED]]
            for i, kind in enumerate(signature.values())
            if kind.startswith("*")
        }
        given = ASTSource(module.kernel, dict(signature), {}, attributes)
        goal = GPUTarget(target.kind, target.arch, target.warp)
        try:
            done = triton.compile(given, target=goal, options={**options, **FUSED})
        except Exception as error:  # its compiler raises whatever its stages raise
            raise ValueError(f"{type(error).__name__}: {error}") from error
    if overwrites(done.asm.get("ttgir", "")):
        raise ValueError("Triton would overwrite a tile that a product still reads")
    meta, text = done.metadata, done.asm.get("ptx", "")
    entry = re.search(r"\.entry\s+\w+\((.*?)\)", text, re.DOTALL)
    params = entry.group(1).count(".param") if entry else len(signature)
    image = done.asm["cubin" if target.kind == "cuda" else "hsaco"]
    each = int(getattr(meta, "global_scratch_size", 0) or 0)
    threads = meta.num_warps * target.warp
    return Code(image, meta.name, threads, meta.shared, params - len(signature), each)


def overwrites(text: str) -> bool:
    """Whether a loop loads into a tile that a product is still reading.

    Triton 3.6 gives a factor that is read elsewhere too one place less than others, and waits for
    the product before the last one alone.
    """
    for loop in text.split("scf.for")[1:]:
        body = loop.split("scf.yield")[0]
        turned = dict(re.findall(r"(%[\w#]+) = ttg\.memdesc_trans (%[\w#]+)", body))
        pairs = re.findall(r"warp_group_dot (%[\w#]+), (%[\w#]+)", body)
        factors = {turned.get(x, x) for pair in pairs for x in pair}
        others = set(re.findall(r"local_load (%[\w#]+)", body))
        if factors & others and "pendings = 0" not in body:
            return True
    return False


@contextlib.contextmanager
def _module(source: str) -> Any:
    """The source as a module: Triton reads the text of a function from its file."""
    with tempfile.TemporaryDirectory(prefix="lambent-") as folder:
        path = Path(folder) / "rendered.py"
        path.write_text(source)
        spec = importlib.util.spec_from_file_location("rendered", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module


if __name__ == "__main__":
    from lambent.backends.triton import compiler  # whose Code others know

    serve({"compile": compiler.compile_source})
