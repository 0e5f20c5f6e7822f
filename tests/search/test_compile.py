"""From a graph to a program that runs, on this machine's CPU: few, small, whole."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from graphs import attention, mlp, two_readers, weight

import lambent as lt
from lambent.graph.node import topo
from lambent.graph.tensor import Tensor
from lambent.request import check_dtypes
from lambent.search.tuning import Tuned


def compiled(*what: Any, budget: float = 1.0, **more: Any) -> Any:
    return lt.compile(*what, budget=budget, progress=False, **more)


def inputs(outputs: list[Tensor], **sizes: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    found = {}
    for n in topo([o.node for o in outputs]):
        if n.op == "input":
            shape = [d if isinstance(d, int) else sizes[str(d)] for d in n.shape]
            x = random.integers(0, 4, shape) if n.dtype.is_integer else random.normal(0, 1, shape)
            found[n.attr] = x.astype(n.dtype.numpy)
    return found


def check(outputs: list[Tensor], program: Any, **sizes: int) -> None:
    given = inputs(outputs, **sizes)
    got = program(**given)
    got = [got] if isinstance(got, np.ndarray) else list(got)
    wanted = lt.evaluate(outputs, given, float64=True)
    assert len(got) == len(wanted)
    for a, b, o in zip(got, wanted, outputs, strict=True):
        assert a.dtype == o.dtype.numpy and a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


ODD: dict[str, Callable[[], list[Tensor]]] = {
    "an input itself, and twice one value": lambda: [
        (x := lt.input("x", (3, 4))), x + 1.0, x + 1.0,
    ],
    "constants and weights": lambda: [
        lt.full((3, 2), 7.0), (w := weight("w", 3, 4)), w * 2.0, lt.input("x", (2,)) * 3.0,
    ],
    "no elements": lambda: [lt.input("x", (0, 4)) * 2.0, lt.input("x", (0, 4)).sum(0)],
    "integers and bools": lambda: [
        lt.input("i", (5,), "int32") * 3 % 4, lt.input("x", (3, 4)) > 0.0,
    ],
    "a scalar": lambda: [lt.input("x", (3, 4)).sum()],
    "read at two places": lambda: [two_readers()],
    "products": lambda: [mlp()],
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_odd_outputs(name: str) -> None:
    outputs = ODD[name]()
    check(outputs, compiled(outputs))


def test_forms_of_graph_and_result() -> None:
    x = lt.input("x", (3,))
    given = {"x": np.arange(3, dtype=np.float32)}
    assert isinstance(compiled(x * 2.0)(**given), np.ndarray)
    assert list(compiled({"a": x * 2.0, "b": x * 3.0})(**given)) == ["a", "b"]
    assert len(compiled(lambda y: (y * 2.0, y * 3.0), x)(**given)) == 2
    with pytest.raises(TypeError, match="expected a Tensor"):
        compiled(3)
    with pytest.raises(ValueError, match="budget"):
        compiled(x * 2.0, budget=0)
    with pytest.raises(ValueError, match="two weights have the name 'w'"):
        compiled([weight("w", 3) * 2.0, weight("w", 3) * 3.0])
    with pytest.raises(ValueError, match="two inputs have the name 'x'"):
        compiled([x, lt.input("x", (4,))])


def test_what_was_found_is_told() -> None:
    out = attention(96, d=16)
    program = compiled(out)
    check([out], program)
    told = program.explain()
    assert told["candidates"] > told["measured"] > 0 and told["saturated"]
    assert told["kernels"][0]["source"] and "fold" not in told["kernels"][0]["tile_program"]
    assert sum(told["seconds"].values()) > 0 and told["programs"] > 1


def test_a_search_that_was_interrupted_goes_on_the_next_time() -> None:
    """What an ended one chose is taken as it is; both give right results."""

    def interrupt(state: Any) -> None:
        if state.best is not None:
            raise KeyboardInterrupt

    out = (lt.input("x", (24, 40)) @ weight("w", 40, 24)).exp()
    first = lt.compile(out, budget=1.5, progress=interrupt)
    check([out], first)
    assert first.explain()["interrupted"]
    again = compiled(out, budget=1.5)
    assert again.explain()["progress"] and not again.explain()["interrupted"]
    ended = compiled(out, budget=1.5)
    check([out], ended)
    assert not ended.explain()["progress"]
    assert compiled(out, budget=1.5, stop_gap=0.5).explain()["progress"]
    names = [[k["tile_program"] for k in p.explain()["kernels"]] for p in (again, ended)]
    assert names[0] == names[1]


def test_symbolic_sizes() -> None:
    n = lt.Dim("compile_n", 1, 64)
    out = lt.softmax(lt.input("x", (4, n)) * 2.0, axis=-1)
    program = compiled(out)
    for size in (1, 17, 64):
        check([out], program, compile_n=size)


def test_weights_are_laid_out_in_panels_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Square weights, one of them transposed; default schedules alone."""
    monkeypatch.setattr(Tuned, "proposals", lambda tuned, count: tuned.guesses[:1])
    random = np.random.default_rng(0)
    u, v, w = (random.standard_normal((32, 32)).astype(np.float32) for _ in range(3))
    given = random.standard_normal((20, 32)).astype(np.float32)
    x, a, b, c = (
        lt.input("x", (20, 32)),
        *(lt.weight(n, t) for n, t in zip("abc", (u, v, w), strict=True)),
    )
    program = compiled(lt.relu(lt.relu(x @ a) @ b.mT) @ c)
    names = [slot.name for slot in program.manifest.weights]
    assert any("in panels" in name for name in names)
    want = np.maximum(np.maximum(given @ u, 0) @ v.T, 0) @ w
    for _ in range(2):
        np.testing.assert_allclose(program(x=given), want, rtol=1e-4, atol=1e-4)


def test_a_dtype_that_the_device_lacks_is_refused_when_it_is_asked_for() -> None:
    x = lt.input("x", (4, 8), "float8_e4m3fn")
    with pytest.raises(TypeError, match=r"device 'cpu' \(cpu\) has no float8_e4m3fn.*float16"):
        lt.compile((x @ x.mT).astype("float32"))


@pytest.mark.parametrize(
    ("capability", "lacks"), [(80, True), (86, True), (89, False), (90, False)]
)
def test_older_gpus_lack_floats_of_eight_bits(capability: int, lacks: bool) -> None:
    key = f"cuda NVIDIA sm_{capability} driver=13000"
    backend: Any = SimpleNamespace(name="cuda", device_key=lambda: key)
    for dtype in ("float8_e4m3fn", "float8_e5m2"):
        x = lt.input("x", (4, 8)).astype(dtype).astype("float32")
        if lacks and dtype == "float8_e4m3fn":
            with pytest.raises(TypeError, match=rf"'cuda' \(sm_{capability}\) has no {dtype}"):
                check_dtypes([x.node], backend)
        else:
            check_dtypes([x.node], backend)
