"""The built-in examples: every way of writing one has the same value."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lambent.backends.measuring import turns
from lambent.cli import bench, examples
from lambent.cli.errors import UserError
from lambent.cli.peers import Peer, make_peers, to_numpy

NAMES = ("attention", "attention-causal", "layernorm", "matmul", "mlp", "softmax", "conv", "gelu")


@pytest.mark.parametrize("name", NAMES)
def test_peers_agree_with_float64(small: dict[str, examples.Example], name: str) -> None:
    work = small[name]
    remarks: list[str] = []
    peers = make_peers(work, ["torch", "onnxruntime", "numpy"], 1, remarks.append)
    assert not remarks
    assert {"torch", "onnxruntime", "numpy"} <= set(peers)
    assert ("torch.sdpa" in peers) == name.startswith("attention")
    for peer in peers.values():
        assert bench.error(to_numpy(peer.run()), bench.in_float64(work)) < 1e-5


def test_gradients_are_those_of_the_peers(small: dict[str, examples.Example]) -> None:
    work = small["attention-backward"]
    peers = make_peers(work, ["torch", "numpy"], 1, print)
    assert list(peers) == ["torch", "torch.sdpa", "numpy"]
    for peer in peers.values():
        assert bench.error(to_numpy(peer.run()), bench.in_float64(work)) < 1e-5


def test_peak_bytes_count_what_is_allocated(small: dict[str, examples.Example]) -> None:
    work = examples.matmul(128)
    matrix = 128 * 128 * 4
    peers = make_peers(work, ["torch", "numpy"], 1, print)
    for name in ("torch", "numpy"):
        peak = peers[name].peak()
        assert peak is not None
        assert 3 * matrix <= peak <= 3 * matrix + 20_000, name
    naive = make_peers(examples.attention(2, 256, 16), ["torch"], 1, print)
    eager, fused = naive["torch"].peak(), naive["torch.sdpa"].peak()
    assert eager is not None and fused is not None
    assert eager > 2 * 256 * 256 * 4 > fused


def test_a_missing_onnx_form_is_a_remark() -> None:
    work = examples.matmul(8)
    other = examples.Example("nothing", (8,), work.inputs, work.build, work.numpy, work.torch)
    remarks: list[str] = []
    assert make_peers(other, ["onnxruntime"], 1, remarks.append) == {}
    assert "nothing" in remarks[0]


def test_a_peer_that_cannot_compile_is_a_remark(monkeypatch: pytest.MonkeyPatch) -> None:
    from lambent.cli import peers

    def broken(function: object) -> object:
        raise RuntimeError("no C++ compiler")

    monkeypatch.setattr(peers, "torch_compiled", broken)
    remarks: list[str] = []
    found = make_peers(examples.matmul(8), ["torch", "torch.compile"], 1, remarks.append)
    assert list(found) == ["torch"]
    assert "no C++ compiler" in remarks[0]


def test_limit_ends_a_call() -> None:
    from lambent.cli.peers import limit

    with pytest.raises(TimeoutError, match=r"0\.05"), limit(0.05):
        while True:
            math.sqrt(2.0)


def test_error_is_relative_to_the_largest_value() -> None:
    reference = np.array([1.0, -200.0])
    assert bench.error(np.array([1.0, -199.0]), reference) == pytest.approx(1 / 200)
    assert bench.error(np.zeros(3), reference) == math.inf
    assert not bench.error(np.array([np.nan, 1.0]), reference) <= 1.0


def test_unknown_example_lists_the_choices() -> None:
    with pytest.raises(UserError, match="softmax"):
        examples.example("nope")


def test_alternation_takes_turns() -> None:
    order: list[str] = []
    times = turns.alternate(
        {name: lambda name=name: order.append(name) for name in "ab"}, 0.0, (2, 2)
    )
    assert set(times) == {"a", "b"} and all(t > 0 for t in times.values())
    taken = [name for i, name in enumerate(order) if i == 0 or order[i - 1] != name]
    assert taken == ["a", "b", "a"]  # a b, then b a: the order rotates


def test_peer_is_data() -> None:
    assert Peer(lambda: 1, lambda: None).peak() is None


def test_graphs_mean_what_numpy_says() -> None:
    import lambent as lt

    for work in (
        examples.attention(2, 16, 8),
        examples.attention(2, 16, 8, causal=True),
        examples.layernorm(4, 16),
        examples.matmul(16),
        examples.mlp(4, 8, 16),
        examples.softmax(4, 16),
        examples.conv(2, 6, 3),
        examples.gelu(4, 16),
    ):
        [found] = lt.evaluate([work.graph()], work.inputs, float64=True)
        assert bench.error(found, bench.in_float64(work)) < 1e-6, work.name
