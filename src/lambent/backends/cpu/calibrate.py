"""The device's own figures: peak arithmetic, bandwidth by cache level, cost of a step.

Everything is measured for one thread and for all, several times, and the best is kept: bounds made
from these figures are to be optimistic. Stored in the cache under the device's key.
"""

from __future__ import annotations

import ctypes
import json
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from typing import Any

from lambent.backends import cache
from lambent.backends.base import Calibration
from lambent.backends.cpu import build, features
from lambent.backends.cpu.library import aligned, open_library
from lambent.backends.cpu.pool import RUNTIME
from lambent.graph.dtypes import DTYPES

_PATIENCE = 0.12  # seconds for each figure: long enough for one moment without a busy neighbour
_CHAINS = 12  # independent accumulators: enough to hide the latency of an FMA on two ports
_STEPS = 100  # empty steps in one figure of their cost

_PEAK = r"""
typedef %(type)s v_%(name)s __attribute__((vector_size(%(bytes)d)));
static void peak_%(name)s(void *p, int64_t task) {
  v_%(name)s x[%(chains)d] = {0}, a, b;
  for (int i = 0; i < (int)(sizeof a / sizeof a[0]); i++) a[i] = (%(type)s)0.75, b[i] = (%(type)s)1;
  __asm__ volatile("" : "+%(reg)s"(a), "+%(reg)s"(b));
  for (int64_t i = 0; i < ((job *)p)->rounds; i++)
    _Pragma("unroll") for (int j = 0; j < %(chains)d; j++) x[j] = x[j] * a + b;
  for (int j = 1; j < %(chains)d; j++) x[0] += x[j];
  if ((int)x[0][0] == 12345) *(v_%(name)s *)((job *)p)->base = x[0];
}
"""

_JOB = r"""
typedef struct { char *base; int64_t bytes, rounds; } job;
typedef uint64_t v_load __attribute__((vector_size(%(bytes)d)));
static void nothing(void *p, int64_t task) {}
static void stream(void *p, int64_t task) {
  job *s = p;
  v_load sum[8] = {0};
  for (int64_t r = 0; r < s->rounds; r++) {
    const v_load *at = (const v_load *)(s->base + task * s->bytes);
    for (int64_t i = 0; i < s->bytes / (int64_t)sizeof(v_load); i += 8)
      _Pragma("unroll") for (int j = 0; j < 8; j++) sum[j] |= at[i + j];
    __asm__ volatile("" ::: "memory");
  }
  for (int j = 1; j < 8; j++) sum[0] |= sum[j];
  if (sum[0][0] == 12345) s->base[0] = 1;
}
"""

_TIMED = r"""
int64_t lambent_timed(int kind, void *base, int64_t bytes, int64_t rounds, int steps, int threads) {
  static const lp_task kinds[] = {nothing, stream, peak_f32, peak_f64, peak_i32};
  job j = {base, bytes, rounds};
  int64_t start = lp_now();
  for (int i = 0; i < steps; i++)
    if (threads == 1) kinds[kind](&j, 0);
    else lp_parallel(threads, threads, kinds[kind], &j);
  return lp_now() - start;
}
"""
_NOTHING, _STREAM = range(2)
_PEAKS = (("float32", "f32", "float"), ("float64", "f64", "double"), ("int32", "i32", "int"))
_ROUNDS = 20000  # of a peak's loop
_NARROW = (  # rates that follow from others: dtypes computed in a wide one, or in more lanes
    ("float32", ("float16", "bfloat16"), 1), ("int32", ("int64",), 1), ("int32", ("int16",), 2),
    ("int32", ("int8", "uint8", "bool"), 4),
)  # fmt: skip


def calibration(key: str, refresh: bool = False) -> Calibration:
    """The stored figures of the device `key`, or new ones; a refresh keeps the best of both."""
    name = f"calibration/{cache.digest(key)}.json"
    known = Calibration.stored(name, key)
    if known is not None and not refresh:
        return known
    found = measure_device(key)
    if known is not None:
        found = best_of(known, found)
    cache.write(name, json.dumps(found.to_json(), indent=1).encode())
    return found


def best_of(a: Calibration, b: Calibration) -> Calibration:
    """The more optimistic of two figures each."""
    pairs = (a.flops, b.flops), (a.one, b.one)
    flops, one = ({k: max(v, y.get(k, v)) for k, v in x.items()} for x, y in pairs)
    levels = tuple((n, max(x, y)) for (n, x), (_, y) in zip(a.levels, b.levels, strict=True))
    return replace(a, flops=flops, levels=levels, launch=min(a.launch, b.launch), one=one)


def measure_device(key: str) -> Calibration:
    """Measure now: about two seconds.

    Raises:
        BackendError: ziglang is missing or cannot compile.
    """
    cpu, threads = features.detect(), features.threads()
    best = _timer(cpu)
    flops, one = ({d: 0.0 for d, _, _ in _PEAKS} for _ in range(2))
    scratch = aligned(4096)
    for kind, (dtype, _, _) in enumerate(_PEAKS, _STREAM + 1):
        work = _ROUNDS * _CHAINS * 2 * cpu.vector_bytes // DTYPES[dtype].itemsize
        for count, rates in ((1, one), (threads, flops)):
            rates[dtype] = work * count / best(kind, scratch, 0, _ROUNDS, 1, count)
    for rates in (one, flops):  # neighbours only ever slow a figure down
        rates["float32"] = max(rates["float32"], 2 * rates["float64"])
    flops = {dtype: max(rate, one[dtype]) for dtype, rate in flops.items()}
    for rates in (one, flops):
        for wide, names, factor in _NARROW:
            rates |= dict.fromkeys(names, rates[wide] * factor)
        rates["bfloat16"] *= 1 + cpu.pairs
    levels, one["read"] = _levels(best, cpu, threads)
    launch, alone = (best(_NOTHING, scratch, 0, 0, _STEPS, n) / _STEPS for n in (threads, 1))
    return Calibration(key, threads, flops, levels, launch, one | {"steps": 1 / alone})


def _timer(cpu: features.Cpu) -> Callable[..., float]:
    """The C function `lambent_timed`: the least seconds of about a tenth of a second of runs."""
    register = "x" if cpu.arch == "x86_64" else "w"
    peaks = "".join(
        _PEAK % {"name": name, "type": kind, "bytes": cpu.vector_bytes, "chains": _CHAINS,
                 "reg": "v" if cpu.vector_bytes == 64 else register}
        for _, name, kind in _PEAKS
    )  # fmt: skip
    text = RUNTIME + _JOB % {"bytes": cpu.vector_bytes} + peaks + _TIMED
    path = build.place(build.build(text))
    timed = open_library(path).lambent_timed
    path.unlink(missing_ok=True)
    timed.restype = ctypes.c_int64

    def best(kind: int, memory: Any, part: int, rounds: int, steps: int, threads: int) -> float:
        base = ctypes.c_void_p(memory.ctypes.data)
        times: list[int] = []
        end = time.monotonic() + _PATIENCE
        while len(times) < 7 or time.monotonic() < end:
            numbers = ctypes.c_int64(part), ctypes.c_int64(rounds)
            times.append(timed(kind, base, *numbers, steps, threads))
        return max(1, min(times)) / 1e9

    return best


def _levels(
    best: Callable[..., float], cpu: features.Cpu, threads: int
) -> tuple[tuple[tuple[int, float], ...], float]:
    """(capacity, bytes a second) of the caches and memory for all threads; memory for one."""
    l1, l2, last = cpu.caches
    shared = max(last, l2 * threads)
    capacities = (l1 * threads, l2 * threads, shared, 1 << 62)
    parts = (l1 // 2, l2 // 2, max(shared // (2 * threads), l2), 3 * shared // threads)
    memory = aligned(parts[-1] * threads + 4096)
    memory.fill(1)

    def rate(part: int, count: int) -> float:
        part = part // 1024 * 1024
        rounds = max(1, (16 << 20) // part)
        return part * rounds * count / best(_STREAM, memory, part, rounds, 1, count)

    rates = [rate(part, threads) for part in parts]
    nearest = accumulate(reversed(rates), max)  # a nearer level is never slower
    return tuple(zip(capacities, [*nearest][::-1], strict=True)), rate(3 * shared, 1)
