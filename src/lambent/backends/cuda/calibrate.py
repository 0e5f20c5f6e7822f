"""The device's own figures: peaks by what its processors can do in a cycle, bytes by its memory.

They are what the hardware cannot exceed: bounds made from them are optimistic. The cost of a launch
is measured.
"""

from __future__ import annotations

import json
from typing import Any

from lambent.backends import cache
from lambent.backends.base import Calibration
from lambent.backends.cuda.driver import Device

# Operations a cycle of one processor (an FMA is two) by compute capability: the matrix units'
# rate where kernels use them (float16 and bfloat16; float64 from 8.0 on; 8 bits from 8.9 on).
CYCLE: dict[int, dict[str, int]] = {
    80: {"float16": 2048, "bfloat16": 2048, "float32": 128, "float64": 128, "int32": 128},
    86: {"float16": 1024, "bfloat16": 1024, "float32": 256, "float64": 4, "int32": 128},
    89: {"float16": 1024, "bfloat16": 1024, "float32": 256, "float64": 4, "int32": 128},
    90: {"float16": 4096, "bfloat16": 4096, "float32": 256, "float64": 256, "int32": 128},
    100: {"float16": 8192, "bfloat16": 8192, "float32": 256, "float64": 128, "int32": 128},
}
EIGHT, TF32 = 2.0, 0.5  # times what matrix units do of bfloat16
NEAR = 3.0  # how much faster than memory the second-level cache is at most
HELD = 256  # places of an axis whose results one processor keeps in its registers
WIDER = {"int64": 0.5, "int16": 2.0, "int8": 4.0, "uint8": 4.0, "bool": 4.0}


def calibration(
    gpu: Device, key: str, launch: Any, refresh: bool = False, exact: bool = True
) -> Calibration:
    """The stored figures of the device `key`, or new ones. `launch` measures that of a launch."""
    name = f"calibration/{cache.digest(key)}.json"
    known = None if refresh else Calibration.stored(name, key)
    if known is not None:
        return known
    found = figures(gpu, key, launch(), exact)
    cache.write(name, json.dumps(found.to_json(), indent=1).encode())
    return found


def figures(gpu: Device, key: str, launch: float, exact: bool = True) -> Calibration:
    """exact: float32 operands of products stay float32, and not TF32."""
    processors = gpu.attribute("MULTIPROCESSOR_COUNT")
    clock = 1e3 * gpu.attribute("CLOCK_RATE")
    cycle = CYCLE[max((c for c in CYCLE if c <= gpu.capability), default=80)]
    one = {dtype: clock * rate for dtype, rate in cycle.items()}
    one |= {dtype: one["int32"] * share for dtype, share in WIDER.items()}
    memory = 2e3 * gpu.attribute("MEMORY_CLOCK_RATE") * gpu.attribute("GLOBAL_MEMORY_BUS_WIDTH") / 8
    levels = ((gpu.attribute("L2_CACHE_SIZE"), NEAR * memory), (1 << 62, memory))
    one |= dict.fromkeys(("float8_e4m3fn", "float8_e5m2"), one["bfloat16"] * EIGHT)
    flops = {dtype: processors * rate for dtype, rate in one.items()}
    flops["float32"] = flops["float32"] if exact else TF32 * flops["bfloat16"]
    one |= {"read": memory / processors}
    return Calibration(key, processors, flops, levels, launch, one, HELD)
