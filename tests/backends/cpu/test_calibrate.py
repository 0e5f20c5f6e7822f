"""Calibration: plausible figures, kept in the cache, the best of several."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from lambent.backends.base import Calibration
from lambent.backends.cpu import calibrate, features

KEY = "cpu test"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Calibration:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("xdg")))
        start = time.monotonic()
        found = calibrate.measure_device(KEY)
        assert time.monotonic() - start < 15  # two seconds on a machine of its own
    return found


def test_figures_are_plausible(measured: Calibration) -> None:
    assert measured.threads == features.threads()
    for dtype, rate in measured.flops.items():
        assert 1e8 < rate < 1e15, dtype
        assert measured.one[dtype] <= rate
    assert measured.flops["float32"] >= 2 * measured.flops["float64"]
    capacities, rates = zip(*measured.levels, strict=True)
    assert list(capacities) == sorted(capacities) and capacities[-1] > 1 << 50
    assert list(rates) == sorted(rates, reverse=True)
    assert 1e8 < rates[-1] < 1e13
    assert 1e-9 < measured.launch < 1e-3


def test_json_keeps_every_figure(measured: Calibration) -> None:
    text = json.dumps(measured.to_json())
    assert Calibration.from_json(json.loads(text)) == measured


def test_stored_figures_are_used_and_a_refresh_keeps_the_best(
    measured: Calibration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    slow = replace(measured, flops={k: v / 2 for k, v in measured.flops.items()}, launch=1.0)
    fast = replace(measured, launch=measured.launch / 2)
    queue = [slow, fast]
    monkeypatch.setattr(calibrate, "measure_device", lambda key: queue.pop(0))
    assert calibrate.calibration(KEY) == slow
    assert calibrate.calibration(KEY) == slow and len(queue) == 1
    best = calibrate.calibration(KEY, refresh=True)
    assert best.flops == measured.flops and best.launch == fast.launch
    assert calibrate.calibration(KEY) == best


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"device": "other"}'])
def test_a_damaged_file_is_measured_anew(
    measured: Calibration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(calibrate, "measure_device", lambda key: measured)
    calibrate.calibration(KEY)
    (file,) = (tmp_path / "lambent" / "calibration").iterdir()
    file.write_bytes(content)
    assert calibrate.calibration(KEY) == measured


def test_another_device_is_a_miss(
    measured: Calibration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(calibrate, "measure_device", lambda key: replace(measured, device=key))
    assert calibrate.calibration("a").device == "a"
    assert calibrate.calibration("b").device == "b"
