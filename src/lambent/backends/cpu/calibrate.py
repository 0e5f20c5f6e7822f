"""The device's own figures: peak arithmetic, bandwidth by cache level, cost of a step.

Everything is measured for one thread and for all, several times, and the best is kept: bounds made
from these figures are to be optimistic. Stored in the cache under the device's key.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import time
from collections.abc import Callable
from typing import Any

from lambent.backends.base import Calibration
from lambent.backends.cpu import build, cache, features
from lambent.backends.cpu.library import aligned, open_library
from lambent.backends.cpu.pool import RUNTIME

_PATIENCE = 0.12  # seconds for each figure: long enough for one moment without a busy neighbour
_CHAINS = 12  # independent accumulators: enough to hide the latency of an FMA on two ports

_PEAK = r"""
typedef %(type)s v_%(name)s __attribute__((vector_size(%(bytes)d)));
static void peak_%(name)s(void *out, int64_t task) {
  v_%(name)s x[%(chains)d] = {0}, a, b;
  for (int i = 0; i < (int)(sizeof a / sizeof a[0]); i++) a[i] = (%(type)s)0.75, b[i] = (%(type)s)1;
  __asm__ volatile("" : "+%(reg)s"(a), "+%(reg)s"(b));
  for (int64_t i = 0; i < 20000; i++)
    _Pragma("unroll") for (int j = 0; j < %(chains)d; j++) x[j] = x[j] * a + b;
  for (int j = 1; j < %(chains)d; j++) x[0] += x[j];
  if ((int)x[0][0] == 12345) *(v_%(name)s *)out = x[0];
}
"""

_STREAM = r"""
typedef uint64_t v_load __attribute__((vector_size(%(bytes)d)));
typedef struct { char *base; int64_t bytes, rounds; } stream_arg;
static void stream(void *p, int64_t task) {
  stream_arg *s = p;
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
static void nothing(void *p, int64_t task) {}
static int64_t timed(lp_task f, void *arg, int threads) {
  int64_t start = lp_now();
  if (threads == 1) f(arg, 0);
  else lp_parallel(threads, threads, f, arg);
  return lp_now() - start;
}
int64_t lambent_stream(char *base, int64_t bytes, int64_t rounds, int threads) {
  stream_arg s = {base, bytes, rounds};
  return timed(stream, &s, threads);
}
int64_t lambent_launch(int threads) {
  int64_t start = lp_now();
  for (int i = 0; i < 100; i++) lp_parallel(threads, threads, nothing, 0);
  return (lp_now() - start) / 100;
}
int64_t lambent_peak(int kind, char *out, int threads) {
  static const lp_task kinds[] = {peak_f32, peak_f64, peak_i32};
  return timed(kinds[kind], out, threads);
}
"""
_KINDS = (("float32", "f32", "float"), ("float64", "f64", "double"), ("int32", "i32", "int"))


def calibration(key: str, refresh: bool = False) -> Calibration:
    """The stored figures of the device `key`, or new ones; a refresh keeps the best of both."""
    name = f"calibration/{cache.digest(key)}.json"
    known = _stored(name, key)
    if known is not None and not refresh:
        return known
    found = measure_device(key)
    if known is not None:
        found = best_of(known, found)
    cache.write(name, json.dumps(found.to_json(), indent=1).encode())
    return found


def loosen(better: Calibration) -> None:
    """Store figures that a measurement proved too pessimistic before."""
    cache.write(
        f"calibration/{cache.digest(better.device)}.json", json.dumps(better.to_json()).encode()
    )


def _stored(name: str, key: str) -> Calibration | None:
    data = cache.read(name)
    try:
        found = Calibration.from_json(json.loads(data)) if data else None
    except (ValueError, KeyError, TypeError):
        return None
    return found if found is not None and found.device == key else None


def best_of(a: Calibration, b: Calibration) -> Calibration:
    """The more optimistic of two figures each."""
    levels = zip(a.levels, b.levels, strict=True)
    return Calibration(
        a.device,
        a.threads,
        {k: max(v, b.flops.get(k, v)) for k, v in a.flops.items()},
        tuple((size, max(x, y)) for (size, x), (_, y) in levels),
        min(a.launch, b.launch),
        {k: max(v, b.one.get(k, v)) for k, v in a.one.items()},
    )


def measure_device(key: str) -> Calibration:
    """Measure now: about two seconds.

    Raises:
        BackendError: ziglang is missing or cannot compile.
    """
    cpu, threads = features.detect(), features.threads()
    path = build.place(build.build(_text(cpu)))
    library = open_library(path)
    path.unlink(missing_ok=True)
    for entry in ("lambent_stream", "lambent_launch", "lambent_peak"):
        getattr(library, entry).restype = ctypes.c_int64
    lanes = {"float32": 4, "float64": 8, "int32": 4}
    flops: dict[str, float] = {}
    one: dict[str, float] = {}
    scratch = aligned(4096)
    for kind, (dtype, _, _) in enumerate(_KINDS):
        work = 20000 * _CHAINS * 2 * cpu.vector_bytes // lanes[dtype]
        for count, into in ((1, one), (threads, flops)):

            def peak(kind: int = kind, count: int = count) -> int:
                return int(library.lambent_peak(kind, ctypes.c_void_p(scratch.ctypes.data), count))

            into[dtype] = work * count / _best(peak)
    for rates in (one, flops):  # neighbours only ever slow a figure down
        rates["float32"] = max(rates["float32"], 2 * rates["float64"])
    flops = {dtype: max(rate, one[dtype]) for dtype, rate in flops.items()}
    levels, one["read"] = _levels(library, cpu, threads)
    launch = _best(lambda: int(library.lambent_launch(threads)))
    for narrow, wide in (("float16", "float32"), ("bfloat16", "float32"), ("int64", "int32")):
        flops[narrow], one[narrow] = flops[wide], one[wide]
    for narrow, factor in (("int8", 4), ("uint8", 4), ("bool", 4), ("int16", 2)):
        flops[narrow], one[narrow] = flops["int32"] * factor, one["int32"] * factor
    return Calibration(key, threads, flops, levels, launch, one)


def _text(cpu: features.Cpu) -> str:
    register = "x" if cpu.arch == "x86_64" else "w"
    peaks = "".join(
        _PEAK % {"name": name, "type": kind, "bytes": cpu.vector_bytes, "chains": _CHAINS,
                 "reg": "v" if cpu.vector_bytes == 64 else register}
        for _, name, kind in _KINDS
    )  # fmt: skip
    return RUNTIME + peaks + _STREAM % {"bytes": cpu.vector_bytes}


def _best(run: Callable[[], int]) -> float:
    """The least time of about a tenth of a second of runs, in seconds."""
    end, least = time.monotonic() + _PATIENCE, run()
    for done in itertools.count():
        if done >= 6 and time.monotonic() > end:
            return max(1, least) / 1e9
        least = min(least, run())
    raise AssertionError


def _levels(
    library: Any, cpu: features.Cpu, threads: int
) -> tuple[tuple[tuple[int, float], ...], float]:
    """(capacity, bytes a second) of the caches and memory for all threads; memory for one."""
    l1, l2, last = cpu.caches
    shared = max(last, l2 * threads)
    capacities = (l1 * threads, l2 * threads, shared, 1 << 62)
    parts = (l1 // 2, l2 // 2, max(shared // (2 * threads), l2), 3 * shared // threads)
    memory = aligned(parts[-1] * threads + 4096)
    memory.fill(1)
    base = memory.ctypes.data

    def rate(part: int, count: int) -> float:
        part = part // 1024 * 1024
        rounds = max(1, (16 << 20) // part)

        def read() -> int:
            return int(
                library.lambent_stream(
                    ctypes.c_void_p(base), ctypes.c_int64(part), ctypes.c_int64(rounds), count
                )
            )

        return part * rounds * count / _best(read)

    rates = [rate(part, threads) for part in parts]
    for i in range(len(rates) - 2, -1, -1):  # a nearer level is never slower
        rates[i] = max(rates[i], rates[i + 1])
    return tuple(zip(capacities, rates, strict=True)), rate(3 * shared, 1)
