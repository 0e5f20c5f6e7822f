"""`lambent devices`: what there is to run on, and the calibration that bounds are made from."""

from __future__ import annotations

import json as json_text
from typing import Any

from lambent.cli.output import console, print_json, size, table


def describe_devices() -> list[dict[str, Any]]:
    """A description of each backend; `calibration` is None until something was searched."""
    from lambent.backends import base

    found: list[dict[str, Any]] = []
    for name in base.BACKENDS:
        entry: dict[str, Any] = {"name": name, "available": True, "reason": None}
        try:
            entry |= {"key": base.get(name).device_key(), "calibration": stored_calibration(name)}
        except (base.BackendError, ImportError) as error:
            entry |= {"available": False, "reason": str(error), "key": None, "calibration": None}
        found.append(entry)
    return found


def stored_calibration(name: str) -> dict[str, Any] | None:
    """The figures that a search has stored for a device; nothing is measured here."""
    from lambent.backends import base, cache

    key = base.get(name).device_key()
    data = cache.read(f"calibration/{cache.digest(key)}.json")
    try:
        found = json_text.loads(data) if data else None
    except ValueError:
        return None
    return found if isinstance(found, dict) and found.get("device") == key else None


def show_devices(json: bool) -> None:
    """Print the devices."""
    found = describe_devices()
    if json:
        print_json(found)
        return
    screen = console()
    for device in found:
        screen.print(device["name"], style="bold")
        screen.print(device["key"] or f"not usable: {device['reason']}")
        figures = device["calibration"]
        if figures is None:
            screen.print("no calibration yet: the first search measures it")
            continue
        out = table(f"best rates seen, {figures['threads']} threads", "what", "rate")
        for dtype, rate in figures["flops"].items():
            out.add_row(f"arithmetic, {dtype}", f"{rate / 1e9:.1f} GFLOP/s")
        for capacity, rate in figures["levels"]:
            where = f"reading within {size(capacity)}" if capacity < 1 << 50 else "reading memory"
            out.add_row(where, f"{rate / 1e9:.1f} GB/s")
        out.add_row("launch of a kernel", f"{figures['launch'] * 1e6:.2f} µs")
        screen.print(out)
