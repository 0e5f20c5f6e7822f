"""What this CPU is: vendor and model, the instructions that generated code may use, cache sizes."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MEBI = 1 << 20
_CPUS = "/sys/devices/system/cpu"


@dataclass(frozen=True, slots=True)
class Cpu:
    """`arch` is x86_64 or aarch64; `features` are names as Linux lists them, sorted.

    caches: bytes of (L1 data of a core, L2 of a core, last level of all cores).
    """

    arch: str
    system: str
    model: str
    features: tuple[str, ...]
    caches: tuple[int, int, int]

    @property
    def key(self) -> str:
        return f"{self.system}-{self.arch} {self.model} [{' '.join(self.features)}]"

    @property
    def vector_bytes(self) -> int:
        """Width of a vector register that arithmetic runs on at full speed."""
        if self.arch == "x86_64":
            return 64 if "avx512f" in self.features else 32 if "avx2" in self.features else 16
        return 16

    @property
    def pairs(self) -> bool:
        """Whether it multiplies bfloat16 in pairs (see `c.prelude`)."""
        return not {"avx512_bf16", "bf16"}.isdisjoint(self.features)


# What the compiler uses on its own, or the renderer asks for; the rest does not matter to code.
_RELEVANT = """
    ssse3 sse4_1 sse4_2 sse4a avx avx2 avx_vnni f16c fma fma4 xop tbm bmi1 bmi2 abm adx popcnt movbe
    gfni vpclmulqdq avx512f avx512bw avx512cd avx512dq avx512vl avx512ifma avx512vbmi avx512_vbmi2
    avx512_vnni avx512_bitalg avx512_vpopcntdq avx512_bf16 avx512_fp16 amx_tile amx_bf16 amx_int8
    asimd asimdhp asimddp fphp sve sve2 bf16 i8mm atomics
"""


@functools.cache
def detect() -> Cpu:
    """The CPU that this process runs on."""
    arch = {"amd64": "x86_64", "arm64": "aarch64"}.get(
        platform.machine().lower(), platform.machine().lower()
    )
    if platform.system() == "Darwin":
        return _darwin(arch)
    fields = _cpuinfo()
    found = fields.get("flags", fields.get("features", "")).split()
    model = fields.get("model name") or " ".join(
        fields.get(name, "?") for name in ("cpu implementer", "cpu part")
    )
    features = _relevant(found)
    identity = " ".join([model, *(fields.get(n, "") for n in ("cpu family", "model", "stepping"))])
    return Cpu(arch, platform.system(), identity.strip(), features, _linux_caches())


def _relevant(features: list[str]) -> tuple[str, ...]:
    return tuple(sorted(set(_RELEVANT.split()).intersection(features)))


def _read(path: str) -> str:
    """The stripped text of a file of the system, or "" where it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _cpuinfo() -> dict[str, str]:
    first = _read("/proc/cpuinfo").split("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _linux_caches() -> tuple[int, int, int]:
    sizes: dict[int, int] = {}
    for index in sorted(Path(f"{_CPUS}/cpu0/cache").glob("index*")):
        level, size = _read(f"{index}/level"), _read(f"{index}/size")
        number = size.rstrip("KMG")
        if _read(f"{index}/type") != "Instruction" and level.isdigit() and number.isdigit():
            sizes[int(level)] = int(number) << {"K": 10, "M": 20, "G": 30}.get(size[-1], 0)
    return sizes.get(1, 32 << 10), sizes.get(2, 512 << 10), max([8 * MEBI, *sizes.values()])


def _darwin(arch: str) -> Cpu:
    def ask(name: str) -> str:
        done = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, check=False)
        return done.stdout.strip()

    features = "asimd atomics asimddp asimdhp fphp"
    if arch == "x86_64":
        features = f"{ask('machdep.cpu.features')} {ask('machdep.cpu.leaf7_features')}".lower()
    l1, l2 = (int(ask(f"hw.{name}") or 0) for name in ("l1dcachesize", "l2cachesize"))
    return Cpu(
        arch, "Darwin", ask("machdep.cpu.brand_string"), _relevant(features.split()),
        (l1 or 64 << 10, l2 or 4 * MEBI, max(l2, 8 * MEBI)),
    )  # fmt: skip


def requires() -> tuple[str, ...]:
    """What code compiled here needs of a CPU; the first is `system-arch`."""
    cpu = detect()
    return (f"{cpu.system}-{cpu.arch}", *cpu.features)


def missing(wanted: Sequence[str]) -> list[str]:
    """The required features that this CPU lacks."""
    return [name for name in wanted if name not in requires()]


def threads() -> int:
    """Threads that a program uses: LAMBENT_THREADS, else all cores.

    Raises:
        ValueError: LAMBENT_THREADS is not a positive integer.
    """
    wanted = os.environ.get("LAMBENT_THREADS", "")
    if wanted:
        if not wanted.isdigit() or int(wanted) < 1:
            raise ValueError(f"LAMBENT_THREADS={wanted!r}: must be a positive integer")
        return min(int(wanted), 1024)
    return cores()


def cores() -> int:
    """The physical cores that this process may run on.

    A container's CPU quota (cgroup v2) counts, too.
    """
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    allowed = sorted(os.sched_getaffinity(0))
    cores = {_read(f"{_CPUS}/cpu{i}/topology/thread_siblings_list") or str(i) for i in allowed}
    quota, _, period = _read("/sys/fs/cgroup/cpu.max").partition(" ")
    if quota.isdigit() and period.isdigit():
        return max(1, min(len(cores), -(-int(quota) // int(period))))
    return len(cores)
