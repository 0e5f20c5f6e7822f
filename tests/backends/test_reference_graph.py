"""The reference: exact masks, rounding, float64, sums of products, symbols."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

import lambent as lt


def one(out: lt.Tensor, **inputs: np.ndarray) -> np.ndarray:
    return lt.evaluate([out], inputs)[0]


def test_a_node_is_rounded_to_its_dtype() -> None:
    x = lt.input("x", (1,), lt.float16)
    a = np.array([1.0], np.float16)
    assert one((x + 2.0**-12) + 2.0**-12, x=a) == 1
    assert one((x.float() + 2.0**-12) + 2.0**-12, x=a) == np.float32(1 + 2.0**-11)
    b = lt.input("b", (1,), lt.bfloat16)
    found = one(b * 1.01, b=np.array([1.0], lt.bfloat16.numpy))
    assert found.dtype == lt.bfloat16.numpy
    assert float(found[0]) == 1.0078125


def test_float64_rounds_nothing_and_keeps_integers() -> None:
    x = lt.input("x", (1,), lt.float16)
    (found,) = lt.evaluate([x / 3], {"x": np.array([1 / 7])}, float64=True)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, 1 / 21, rtol=1e-15)
    i = lt.input("i", (1,), lt.int8)
    (found,) = lt.evaluate([i + 100], {"i": np.array([100], np.int8)}, float64=True)
    assert found.dtype == np.int8
    assert found == -56


def test_integers_wrap_at_their_width() -> None:
    for dtype in "int8", "uint8", "int16", "int32", "int64":
        x = lt.input("x", (), dtype)
        top = np.iinfo(dtype)
        assert one(x + 1, x=np.array(top.max)) == top.min
        assert one((x * 2).sum(), x=np.array(1)) == 2
        many = lt.full((300,), top.max, dtype).sum(dtype=dtype)
        assert one(many) == np.full(300, top.max, dtype).sum(dtype=dtype)


SPECIAL = np.array([np.inf, -np.inf, np.nan, 1e308, 2.0, 0.0])


def test_masked_sums_are_exact_whatever_they_hide() -> None:
    m, x, y = lt.input("m", (6,), bool), lt.input("x", (6,), "f8"), lt.input("y", (6,), "f8")
    rng = np.random.default_rng(0)
    for _ in range(60):
        a = {"m": rng.random(6) < 0.5, "x": rng.choice(SPECIAL, 6), "y": rng.choice(SPECIAL, 6)}
        with np.errstate(all="ignore"):
            want = [
                np.where(a["m"], a["x"], 0).sum(),
                np.where(a["m"], a["x"] * a["y"], 0).sum(),
                (np.where(a["m"], a["x"], 0) * a["y"]).sum(),
                (a["x"] * a["y"] * a["x"]).sum(),
                (a["x"] * (a["y"] * a["x"])).sum(),
            ]
        terms = m * x, m * (x * y), (m * x) * y, x * y * x, x * (y * x)
        found = lt.evaluate([t.sum() for t in terms], a)
        np.testing.assert_array_equal(found, want)


def test_contractions_of_every_pattern() -> None:
    rng = np.random.default_rng(1)
    sizes = {"a": 2, "b": 3, "c": 4, "d": 1}
    for _ in range(80):
        names = [
            "".join(c for c in "abcd" if rng.random() < 0.6) for _ in range(rng.integers(2, 4))
        ]
        used = sorted(set("".join(names)))
        if not used:
            continue
        summed = [c for c in used if rng.random() < 0.5] or used[:1]
        arrays = [rng.normal(size=[sizes[c] for c in n]) for n in names]
        masks = [rng.random() < 0.3 and i > 0 for i in range(len(names))]
        arrays = [a > 0 if mask else a for a, mask in zip(arrays, masks, strict=True)]
        spread = [
            a.reshape([sizes[c] if c in n else 1 for c in used])
            for a, n in zip(arrays, names, strict=True)
        ]
        out = lt.input("x0", spread[0].shape, "f8")
        for i, a in enumerate(spread[1:], 1):
            out = out * lt.input(f"x{i}", a.shape, a.dtype)
        out = out.broadcast_to([sizes[c] for c in used]) * 1.0
        out = out.sum(tuple(used.index(c) for c in summed))
        want = np.ones([sizes[c] for c in used])
        for a in spread:
            want = want * a
        want = want.sum(tuple(used.index(c) for c in summed))
        found = one(out, **{f"x{i}": a for i, a in enumerate(spread)})
        np.testing.assert_allclose(found, want, rtol=1e-12, atol=1e-12)


def test_case_11_a_large_product_is_not_materialised() -> None:
    n = 1024
    x, w = lt.input("x", (n, n)), lt.input("w", (n, n))
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, n, n)).astype(np.float32)
    out = (x.unsqueeze(-1) * w.unsqueeze(0)).sum(1)
    tracemalloc.start()
    found = one(out, x=a, w=b)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_allclose(found, a @ b, rtol=1e-3, atol=1e-3)
    assert peak < 1.5 * (a.nbytes + b.nbytes + found.nbytes)


def test_a_gather_written_as_a_sum_is_not_materialised() -> None:
    table, ids = lt.input("t", (5000, 32)), lt.input("i", (64,), "int64")
    hit = ids.unsqueeze(1) == lt.iota(5000)
    out = (hit.unsqueeze(2) * table.unsqueeze(0)).sum(1)
    rng = np.random.default_rng(0)
    t, i = rng.normal(size=(5000, 32)).astype(np.float32), rng.integers(0, 5000, 64)
    tracemalloc.start()
    found = one(out, t=t, i=i)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_array_equal(found, t[i])
    assert peak < 16e6


def test_symbols_come_from_shapes_or_are_given() -> None:
    s, p = lt.Dim("ref_s", 1, 64, multiple=4), lt.Dim("ref_p", 0, 9)
    x = lt.input("x", (s * 2 + 1, s))
    assert one(x.sum(0), x=np.ones((17, 8), np.float32)).shape == (8,)
    (found,) = lt.evaluate([lt.arange(p) * lt.tensor(s)], {}, symbols={"ref_p": 3, "ref_s": 8})
    np.testing.assert_array_equal(found, [0, 8, 16])


def test_inputs_that_do_not_fit() -> None:
    s = lt.Dim("ref_t", 1, 8)
    x, y = lt.input("x", (s, 2)), lt.input("y", (s, 2))
    f = np.float32
    bad = [
        ({"x": np.ones((3, 2), f)}, KeyError, "input 'y'.*missing"),
        ({"x": np.ones((3, 2), f), "y": np.ones((4, 2), f)}, ValueError, "input 'y': a dim is 4"),
        ({"x": np.ones((9, 2), f), "y": np.ones((9, 2), f)}, ValueError, "range"),
        ({"x": np.ones((3, 3), f), "y": np.ones((3, 2), f)}, ValueError, "a dim is 3, but 2"),
        ({"x": np.ones(3, f), "y": np.ones((3, 2), f)}, ValueError, "shape"),
        ({"x": np.ones((3, 2), "i8"), "y": np.ones((3, 2), "c8")}, TypeError, "dtype"),
    ]
    for inputs, kind, text in bad:
        with pytest.raises(kind, match=text):
            lt.evaluate([x + y], inputs)
    with pytest.raises(KeyError, match="ref_t"):
        lt.evaluate([lt.iota(s)], {})
