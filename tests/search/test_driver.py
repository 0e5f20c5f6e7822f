"""The search itself, on a device whose times are a function of the program's text."""

from __future__ import annotations

import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from graphs import GRAPHS, attention, matmul, mlp

import lambent as lt
from lambent.algebra.egraph import saturate
from lambent.algebra.term import walk
from lambent.backends.base import Calibration, Outcome
from lambent.backends.cpu.schedule import default_schedule, moves
from lambent.backends.measuring.model import likely
from lambent.explain.show import show
from lambent.kernel.kernel import Kernel
from lambent.kernel.tile import Schedule, TileProgram
from lambent.runtime.finish import variants
from lambent.search.bound import Bounder
from lambent.search.database import Database
from lambent.search.driver import HOPE, Found, Progress, Work, _region, remembered, search
from lambent.search.tuning import Bench, Clock

CAL = Calibration("d", 1, {"float32": 1e9}, ((1000, 4e9), (10000, 2e9), (1 << 60, 1e9)), 1e-7)


def least(program: TileProgram) -> float:
    return Bounder(CAL, program.kernel.extents).bound(program.kernel)


def steady(program: TileProgram) -> Outcome:
    """1.1 to 3 times the bound, by the text of the program."""
    factor = 1.1 + (zlib.crc32(show(program).encode()) % 1000) / 526
    seconds = least(program) * factor
    return Outcome("ok", seconds=seconds, best=seconds, spread=0.01)


class Batch:
    def __init__(self, programs: Sequence[TileProgram]) -> None:
        self.programs = tuple(programs)

    def close(self) -> None:
        self.programs = ()


class Device:
    """A backend that only pretends. `judge` says what becomes of a program."""

    name = "pretended"
    lanes = 1
    apart = False

    def __init__(self, judge: Callable[[TileProgram], Outcome] = steady) -> None:
        self.judge, self.asked = judge, 0

    def calibrate(self) -> Calibration:
        return CAL

    default_schedule = staticmethod(default_schedule)
    moves = staticmethod(moves)
    likely = staticmethod(likely)

    def guesses(self, kernel: Kernel) -> list[Schedule]:
        return [default_schedule(kernel)]

    def compile(self, programs: Sequence[TileProgram]) -> Batch:
        return Batch(programs)

    def measure(
        self, batch: Batch, symbols: Any, *, repeats: int, only: Any = None, **more: Any
    ) -> list[Outcome]:
        chosen = range(len(batch.programs)) if only is None else only
        self.asked += bool(repeats) * len(chosen)
        found = [Outcome("unmeasured")] * len(batch.programs)
        for i in chosen:
            found[i] = self.judge(batch.programs[i])
            if not repeats and found[i].status == "ok":
                found[i] = Outcome("ok")
        return found


def run(
    graph: Any, device: Device, db: Database | None = None, rent: float = 0.0, **more: Any
) -> Found:
    work = Work(saturate([graph.node]), rent=rent)
    db = db or Database(None, "d", "v")
    return search([work], device, db=db, **{"budget": 60.0, **more})


def text(found: Found) -> list[str]:
    return [show(k.program) for k in found.regions[0][0].kernels]


@pytest.mark.parametrize("name", ["matmul", "softmax", "mlp", "attention"])
def test_ends_with_a_proved_gap(name: str) -> None:
    states: list[Progress] = []
    found = run(GRAPHS[name](), Device(), progress=states.append)
    assert found.gap is not None and found.gap <= 0.05 and not found.void
    best = found.regions[0][0]
    assert best.seconds == pytest.approx(sum(k.seconds for k in best.kernels))
    assert (
        found.told["candidates"] >= found.told["measured"] > 0
        and found.told["schedules"] >= found.told["measured"]
    )
    assert states[-1].best == pytest.approx(best.seconds)
    assert set(found.told["seconds"]) == {
        "saturate", "enumerate", "cover", "lower", "compile", "verify", "measure", "rest",
    }  # fmt: skip


def test_with_a_rent_less_is_stored() -> None:
    def judge(program: TileProgram) -> Outcome:
        """Slow where a value is computed again."""
        terms = walk(*(o.term for o in program.kernel.outputs))
        seconds = least(program) * (10.0 if sum(t.op == "sum" for t in terms) > 1 else 1.1)
        return Outcome("ok", seconds=seconds, best=seconds, spread=0.01)

    stored = []
    for rent in (0.0, 1e-3):
        found = run(mlp(), Device(judge), rent=rent)
        kernels = found.regions[0][0].kernels
        stored.append(sum(k.entry.form.buffers[0].bytes for k in kernels))
        assert found.gap is not None and found.gap < 0.2
    assert stored[1] < 0.5 * stored[0]


def test_a_disturbed_first_look_does_not_decide() -> None:
    """What is far slower than the model says may be as fast as that, until tuning fails."""
    bench = Bench(Device(), Database(None, "d", "v"), {}, Clock(), 0, partial(likely, rates=CAL))
    entry = _region(Work(saturate([attention().node])), CAL, bench).entries[0]
    modelled = bench.likely(entry.tuned)
    seconds = 10 * modelled / HOPE
    entry.tuned.outcomes["first"] = Outcome("ok", seconds=seconds, best=seconds, spread=0.01)
    assert entry.bound < 1.5 * modelled == entry.estimate(1.5, 1.0)
    entry.tuned.stale = 1
    assert entry.estimate(1.5, 1.0) == entry.time == seconds


def test_a_second_search_measures_nothing_it_knows(tmp_path: Path) -> None:
    first, again = Device(), Device()
    one = run(mlp(), first, Database(tmp_path, "d", "v"))
    two = run(mlp(), again, Database(tmp_path, "d", "v"))
    assert again.asked < first.asked
    assert two.regions[0][0].seconds <= one.regions[0][0].seconds


def test_what_a_busy_moment_chose_again_competes_with_what_was_chosen_before(
    tmp_path: Path,
) -> None:
    """Of a search that goes on, times are not comparable with those of the first: only whole
    programs, side by side, decide."""

    def quicker(program: TileProgram) -> Outcome:
        seconds = 0.9 * least(program)
        return Outcome("ok", seconds=seconds, best=seconds, spread=0.01)

    one = run(mlp(), Device(), Database(tmp_path, "d", "v"), budget=0.2)
    assert not one.before
    known = remembered([choices[0] for choices in one.regions])
    two = run(mlp(), Device(quicker), Database(tmp_path, "d", "v"), known=known)
    assert remembered(two.before) == known != remembered([two.regions[0][0]])
    assert [o["s"] for o in variants(two, ["s"])[:2]] == [two.regions[0][0], two.before[0]]
    same = run(mlp(), Device(), Database(tmp_path, "d", "v"), known=known, settled=True)
    assert remembered(same.regions[0]) == known and not same.before


@pytest.mark.parametrize("apart", [False, True])
def test_the_next_are_compiled_while_some_are_measured_where_that_is_no_disturbance(
    apart: bool,
) -> None:
    class Watched(Device):
        begun, most = 0, 0

        def compile(self, programs: Sequence[TileProgram]) -> Batch:
            self.begun += 1
            return super().compile(programs)

        def measure(self, batch: Batch, symbols: Any, **more: Any) -> list[Outcome]:
            end = time.monotonic() + 0.2
            while not self.asked and self.begun <= 2 and time.monotonic() < end:
                time.sleep(0.001)
            self.most = max(self.most, 0 if self.asked else self.begun)
            return super().measure(batch, symbols, **more)

    device = Watched()
    device.apart = apart
    bench = Bench(device, Database(None, "d", "v"), {}, Clock(), 0, partial(likely, rates=CAL))
    [product] = _region(Work(saturate([matmul(64).node])), CAL, bench).entries
    bench.measure([(product.tuned, 40)], 1.0)
    assert (device.most > 2) == apart and len(product.tuned.outcomes) == 40


def test_what_served_one_size_is_tried_second_at_another() -> None:
    """And the model is taken to be as far off as it was."""
    tried: list[Schedule] = []

    def judge(program: TileProgram) -> Outcome:
        tried.append(program.schedule)
        seconds = least(program) * (1.1 if program.schedule.block == (5, 2) else 40.0)
        return Outcome("ok", seconds=seconds, best=seconds, spread=0.01)

    def product(m: int, n: int, k: int) -> lt.Tensor:
        return lt.input("a", (m, k)) @ lt.input("b", (k, n))

    db = Database(None, "d", "v")
    run(product(96, 64, 640), Device(judge), db, seed=1)
    assert {(6, 2), (5, 2)} <= {s.block for s in tried}
    tried.clear()
    run(product(480, 320, 32), Device(judge), db)
    first, second, *_ = dict.fromkeys(tried)
    assert first.block != (5, 2) == second.block
    assert all(tile <= 480 for _, tile in second.tiles)


SCRIPT = """
import sys
sys.path[:0] = sys.argv[1:]
from test_driver import Device, attention, run, text
print("\\n".join(text(run(attention(), Device()))))
"""


def test_two_processes_choose_equal_programs() -> None:
    here = str(Path(__file__).parent)
    command = [sys.executable, "-c", SCRIPT, here]
    runs = [
        subprocess.run(command, capture_output=True, text=True, check=True, env=environment(seed))
        for seed in "12"
    ]
    assert runs[0].stdout == runs[1].stdout != ""


def environment(seed: str) -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(p for p in sys.path if p)}


def test_interrupted_it_keeps_what_it_measured(tmp_path: Path) -> None:
    def judge(program: TileProgram) -> Outcome:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        return steady(program)

    left = 3
    with pytest.raises(KeyboardInterrupt):
        run(attention(), Device(judge), Database(tmp_path, "d", "v"))
    left = 40
    found = run(attention(), Device(judge), Database(tmp_path, "d", "v"))
    assert found.regions[0][0].kernels  # interrupted later: the best so far
    again = Device()
    run(attention(), again, Database(tmp_path, "d", "v"), budget=1e-9)
    assert again.asked == 0


def test_a_budget_ends_it_with_a_whole_program() -> None:
    found = run(GRAPHS["layer"](), Device(), budget=1e-9)
    outputs = {b.name for k in found.regions[0][0].kernels for b in k.entry.form.buffers[:1]}
    assert "out0" in outputs


def test_the_budget_is_kept() -> None:
    """By a clock that only measuring moves, the search ends within a tenth of its budget."""
    device = Device()

    class Measured(Clock):
        def elapsed(self) -> float:
            return 0.1 * device.asked

    run(GRAPHS["layer"](), device, budget=6.0, clock=Measured(), stop_gap=0.0)
    assert 6.0 <= 0.1 * device.asked <= 6.6


def test_failures_are_reported_and_avoided() -> None:
    """Whatever fuses a fold is said to crash: the search goes on without it."""

    def judge(program: TileProgram) -> Outcome:
        if "exp2" in show(program) and "dot" in show(program):
            return Outcome("crash", message="segmentation fault")
        return steady(program)

    found = run(attention(), Device(judge))
    assert (
        found.told["rejected"]["crash"] > 0
        and found.told["rejected_because"]["crash"] == "segmentation fault"
    )
    assert not any("exp2" in t and "dot" in t for t in text(found))


def test_nothing_works() -> None:
    with pytest.raises(RuntimeError, match="off by one"):
        run(mlp(), Device(lambda program: Outcome("wrong", message="off by one")))


def test_a_measurement_below_its_bound_voids_the_certificate() -> None:
    def fast(program: TileProgram) -> Outcome:
        return Outcome("ok", seconds=least(program) / 2, spread=0.0)

    found = run(mlp(), Device(fast))
    assert found.void and found.gap is None
    assert all(k.entry.bound <= k.seconds for k in found.regions[0][0].kernels)
