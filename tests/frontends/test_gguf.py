"""GGUF files: what is read, what is refused, and every format against the `gguf` package."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_files import gguf_bytes, mutations, small

from lambent.backends.reference.graph import evaluate
from lambent.frontends.gguf import FORMATS, Packed, Stored, dequantise, packed, read
from lambent.graph.tensor import input

Array = np.ndarray[Any, Any]


def stored(name: str, rows: int = 3, seed: int = 0) -> Stored:
    """Random blocks whose scales are ordinary numbers."""
    rng = np.random.default_rng(seed)
    form = FORMATS[name]
    count = 64 if form.block == 1 else 2
    blocks = rng.integers(0, 256, (rows, count, form.bytes), np.uint8)
    for part in form.parts.values():
        if np.dtype(part.dtype).kind not in "iu":
            size = np.dtype(part.dtype).itemsize
            shape = (rows, count, (part.stop - part.start) // size)
            numbers = rng.standard_normal(shape).astype(part.dtype)
            blocks[..., part.start : part.stop] = numbers.view(np.uint8).reshape(
                rows, count, part.stop - part.start
            )
    return Stored(name, (rows, count * form.block), name, blocks.reshape(-1))


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_over_arrays_and_in_a_graph(name: str) -> None:
    given = stored(name)
    whole = packed(given)
    assert sum(part.nbytes for part in whole.parts.values()) == given.data.nbytes
    values = dequantise(given)
    tensors = {k: input(k, v.shape, v.dtype) for k, v in whole.parts.items()}
    (graph,) = evaluate([whole.values(tensors)], dict(whole.parts))
    assert values.shape == given.shape and values.dtype == np.float32
    np.testing.assert_array_equal(graph, values)


@pytest.mark.parametrize("name", FORMATS)
def test_rows_side_by_side_are_the_same_numbers(name: str) -> None:
    given = stored(name, rows=48)
    whole = packed(given).in_panels()
    assert whole.panels == (FORMATS[name].block > 1)
    assert sum(part.nbytes for part in whole.parts.values()) == given.data.nbytes
    np.testing.assert_array_equal(np.asarray(whole.values(whole.parts)), dequantise(given))
    tensors = {k: input(k, v.shape, v.dtype) for k, v in whole.parts.items()}
    (graph,) = evaluate([whole.values(tensors)], dict(whole.parts))
    np.testing.assert_array_equal(graph, dequantise(given))
    assert not packed(stored(name, rows=7)).in_panels().panels


@pytest.mark.parametrize("panels", (False, True))
@pytest.mark.parametrize("name", [name for name in FORMATS if FORMATS[name].block > 1])
def test_a_quantised_matrix_times_vectors_and_its_rows(name: str, panels: bool) -> None:
    given = stored(name, rows=32)
    whole = packed(given).in_panels() if panels else packed(given)
    tensors = {k: input(k, v.shape, v.dtype) for k, v in whole.parts.items()}
    x = np.random.default_rng(2).standard_normal((3, given.shape[1])).astype(np.float32)
    ids = np.array([31, 0, 17, 32, 99, -1])
    outputs = [
        whole.linear(tensors, input("x", x.shape)),
        whole.rows(tensors, input("ids", ids.shape, "int64")),
    ]
    y, rows = evaluate(outputs, {**whole.parts, "x": x, "ids": ids})
    values = dequantise(given)
    np.testing.assert_allclose(y, x @ values.T, atol=3e-4 * np.abs(values).max())
    np.testing.assert_array_equal(rows, [*values[ids[:3]], *np.zeros((3, given.shape[1]))])


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_as_the_gguf_package_has_it(name: str) -> None:
    gguf = pytest.importorskip("gguf", reason="the yardstick is the package gguf")
    given = stored(name, seed=1)
    rows = given.data.reshape(given.shape[0], -1)
    want = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[name])
    np.testing.assert_array_equal(dequantise(given), want)


def test_q4_1_by_hand() -> None:
    half = np.array([0.5, -2.0], np.float16).tobytes()
    block = half + bytes(range(16, 32))  # element j: low nibble j, element 16 + j: 1
    given = Stored("w", (32,), "Q4_1", np.frombuffer(block, np.uint8))
    want = [0.5 * j - 2 for j in range(16)] + [-1.5] * 16
    np.testing.assert_array_equal(dequantise(given), np.array(want, np.float32))


def test_a_file_as_it_was_written(tmp_path: Path) -> None:
    file = read(small(tmp_path / "x.gguf"))
    assert file.metadata["general.architecture"] == "llama"
    assert file.metadata["tokens"] == ["a", "bc", "", "é"] and file.metadata["yes"] is True
    np.testing.assert_array_equal(file.metadata["scores"], [1, 2, 3])
    assert len(file.metadata["none"]) == 0
    assert {n: (t.shape, t.format) for n, t in file.tensors.items()} == {
        "a": ((3, 4), "F32"),
        "b": ((2, 64), "Q4_1"),
        "c": ((5,), "F16"),
    }
    np.testing.assert_array_equal(dequantise(file.tensors["c"]), np.ones(5))
    assert isinstance(packed(file.tensors["a"]).parts["x"].base, np.ndarray)  # mapped, no copy


ONE = struct.pack("<f", 1.0)
BAD: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "too short"),
    "magic": (b"GGML" + bytes(40), "does not start with GGUF"),
    "version": (gguf_bytes({}, {}, version=1), "version 1"),
    "big endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "version"),
    "tensors": (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), "tensors do not fit"),
    "pairs": (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**63), "metadata pairs do not fit"),
    "array": (
        gguf_bytes({"k": [1, 2]}, {}).replace(struct.pack("<Q", 2) + ONE[:1], b"?"),
        "numbers do not fit|left",
    ),
    "format": (gguf_bytes({}, {"a": ((4,), 99, bytes(16))}), "format that is not readable"),
    "block": (gguf_bytes({}, {"a": ((33,), 8, bytes(64))}), "do not divide into blocks"),
    "huge": (gguf_bytes({}, {"a": ((2**40, 2**20), 0, ONE)}), "beyond the end"),
    "overlap": (
        gguf_bytes({}, {"a": ((16,), 0, bytes(4)), "b": ((8,), 0, bytes(96))}),
        "'a' and 'b' overlap",
    ),
    "twice": (
        gguf_bytes({}, {"a": ((1,), 0, ONE), "b": ((1,), 0, ONE)}).replace(b"b", b"a"),
        "two tensors are called 'a'",
    ),
    "alignment": (gguf_bytes({"general.alignment": 3}, {}), "alignment of 3"),
    "text": (gguf_bytes({"k": "ab"}, {}).replace(b"ab", b"\xff\xff"), "utf-8"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_file_is_refused(kind: str, tmp_path: Path) -> None:
    content, message = BAD[kind]
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read(path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no file"):
        read(tmp_path / "none.gguf")


def test_damaged_files_are_read_or_refused_in_little_memory(tmp_path: Path) -> None:
    whole = small(tmp_path / "x.gguf").read_bytes()
    path, refused = tmp_path / "bad.gguf", 0
    for i, data in enumerate(mutations(whole, 2100, len(whole) - 200)):
        path.write_bytes(data)
        if i % 10 == 0:
            tracemalloc.start()
        try:
            for tensor in read(path).tensors.values():
                with np.errstate(all="ignore"):
                    assert dequantise(tensor).shape == tensor.shape
        except ValueError:
            refused += 1
        if i % 10 == 0:
            assert tracemalloc.get_traced_memory()[1] < 4 << 20
            tracemalloc.stop()
    assert 700 < refused < 2100


def test_parts_of_a_vector_without_dims() -> None:
    given = Stored("x", (), "F32", np.frombuffer(ONE, np.uint8))
    whole = packed(given)
    assert isinstance(whole, Packed) and dequantise(given).item() == 1.0
