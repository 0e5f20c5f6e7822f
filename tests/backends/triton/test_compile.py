"""Rendered kernels compile for targets that are not here, and their text is what it should be."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction as F
from functools import partial

import pytest
from interpreted import needs_triton
from kernels import CASES, SYMBOLIC, Build

from lambent.backends.cuda.schedule import default_schedule, guesses, held
from lambent.backends.triton.compiler import GFX942, Target, compile_source, cuda, overwrites
from lambent.backends.triton.render import Rendered, render
from lambent.backends.triton.text import PRELUDE
from lambent.graph.dim import Dim, axis
from lambent.graph.dtypes import DTYPES, bfloat16, float32
from lambent.kernel.kernel import Kernel
from lambent.kernel.lower import lower
from lambent.kernel.tile import Schedule

BYTES = b"\x7fELF"  # both formats are ELF files
TARGETS = {"sm_80": cuda(80), "sm_90": cuda(90), "sm_100": cuda(100), "gfx942": GFX942}
n = Dim("triton_n", 1, 1 << 16)


def rendered(kernel: Kernel, schedule: Schedule | None = None) -> Rendered:
    return render(lower(kernel, schedule or default_schedule(kernel)))


@needs_triton
@pytest.mark.parametrize("name", ["fold_causal_sym", "casts", "batched_bf16"])
@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_compiles(name: str, target: Target) -> None:
    kernel = {**CASES, **SYMBOLIC}[name]()
    one = default_schedule(kernel)
    small = replace(one, tiles=tuple((i, min(t, 32)) for i, t in one.tiles))  # quick to compile
    r = rendered(kernel, small)
    code = compile_source(r.source, r.signature, target, {"num_warps": 4, "num_stages": 2})
    assert code.image.startswith(BYTES)
    assert code.threads == 4 * target.warp


@needs_triton
def test_what_does_not_compile_is_told() -> None:
    r = rendered(CASES["matmul"]())
    wrong = r.source.replace("tl.dot", "tl.dto")
    with pytest.raises(ValueError, match="dto"):
        compile_source(wrong, r.signature, cuda(90), {"num_warps": 4})


def product(m: int | Dim) -> Kernel:
    b = Build()
    i, j, k = b.axes(m, 4096, 4096)
    x, y = b.load("A", i, k, dtype=bfloat16), b.load("B", k, j, dtype=bfloat16)
    b.out("C", b.sum(k, b.mul(x, y)), i, j)
    return b.kernel()


def of_eight_bits(a: str, b: str) -> Kernel:
    """A product of floats of 8 bits as float32, in which each product is exact."""
    made = Build()
    i, j, k = made.axes(256, 128, 512)
    x, y = made.load("A", i, k, dtype=DTYPES[a]), made.load("B", k, j, dtype=DTYPES[b])
    x, y = (made.t.cast(t, float32) for t in (x, y))
    made.out("C", made.t.cast(made.sum(k, made.mul(x, y)), bfloat16), i, j)
    return made.kernel()


@pytest.mark.parametrize(("a", "b"), [("e4m3fn", "e4m3fn"), ("e4m3fn", "e5m2"), ("e5m2", "e5m2")])
def test_floats_of_eight_bits_are_multiplied_as_they_are(a: str, b: str) -> None:
    kernel = of_eight_bits(f"float8_{a}", f"float8_{b}")
    r = rendered(kernel)
    (line,) = (line.strip() for line in r.source.splitlines() if "tl.dot" in line)
    assert line == "acc1 = tl.dot(A_tile, tl.trans(B_tile), acc1, max_num_imprecise_acc=64)"
    assert r.signature["A"] == {"e4m3fn": "*fp8e4nv", "e5m2": "*fp8e5"}[a]


@needs_triton
@pytest.mark.parametrize(
    ("target", "a"), [("sm_90", "e4m3fn"), ("sm_100", "e4m3fn"), ("sm_80", "e5m2")]
)
def test_floats_of_eight_bits_compile(target: str, a: str) -> None:
    kernel = of_eight_bits(f"float8_{a}", "float8_e5m2")
    r = rendered(kernel, Schedule(((0, 64), (1, 64), (2, 64)), (0, 1), 2))
    code = compile_source(r.source, r.signature, TARGETS[target], {"num_warps": 4})
    assert code.image.startswith(BYTES)


def test_what_has_no_place_in_eight_bits_is_no_greatest_number() -> None:
    """The device's conversion stops there; NaN and infinities are what the reference gives."""
    b = Build()
    (i,) = b.axes(64)
    b.out("Y", b.t.cast(b.load("X", i), DTYPES["float8_e4m3fn"]), i)
    text = rendered(b.kernel()).source
    assert "> 464.0" in text and "bitcast=True" in text


def test_float32_stays_exact_unless_it_need_not() -> None:
    program = lower(CASES["matmul"](), default_schedule(CASES["matmul"]()))
    for exact, how in ((True, "ieee"), (False, "tf32")):
        assert f'input_precision="{how}"' in render(program, exact=exact).source


def test_a_product_reads_well() -> None:
    tiles = ((0, 128), (1, 256), (2, 64))
    r = rendered(product(n), Schedule(tiles, (0, 1), 2, options=(("group", 8),)))
    assert (
        r.source.removeprefix(PRELUDE)
        == """\
@triton.jit
def kernel(C, A, B, triton_n):
    pid = tl.program_id(0)
    pid_1 = pid % 16
    pid = pid // 16
    pid_0 = pid
    pid = pid_0 * 16 + pid_1
    first = pid // (16 * 8) * 8
    high = tl.minimum(((triton_n + 127) // 128) - first, 8)
    pid_0 = first + pid % (16 * 8) % high
    pid_1 = pid % (16 * 8) // high
    o0 = pid_0 * 128
    i0 = o0 + tl.arange(0, 128)
    v0 = i0 < triton_n
    o1 = pid_1 * 256
    i1 = o1 + tl.arange(0, 256)
    acc1 = tl.full((128, 256), 0.0, tl.float32)
    for o2 in range(0, 4096, 64):
        i2 = o2 + tl.arange(0, 64)
        A_tile = tl.load(A + i0[:, None] * 4096 + i2[None, :], mask=v0[:, None], other=0)
        B_tile = tl.load(B + i1[:, None] + i2[None, :] * 4096)
        acc1 = tl.dot(A_tile, tl.trans(B_tile), acc1)
    tl.store(C + i0[:, None] * 4096 + i1[None, :], acc1.to(tl.bfloat16), mask=v0[:, None])
"""
    )
    assert r.signature == {"C": "*bf16", "A": "*bf16", "B": "*bf16", "triton_n": "i32"}


def test_few_programs_do_all_tasks() -> None:
    tiles, options = ((0, 128), (1, 256), (2, 64)), (("descriptors", 1), ("persistent", 132))
    r = rendered(product(4096), Schedule(tiles, (0, 1), 2, options=options))
    assert (
        r.source.removeprefix(PRELUDE)
        == """\
@triton.jit
def kernel(C, A, B):
    A_window = tl.make_tensor_descriptor(A + 0, [4096, 4096], [4096, 1], [128, 64])
    B_window = tl.make_tensor_descriptor(B + 0, [4096, 4096], [4096, 1], [64, 256])
    C_window = tl.make_tensor_descriptor(C + 0, [4096, 4096], [4096, 1], [128, 256])
    for task in tl.range(tl.program_id(0), 512, tl.num_programs(0), flatten=True):
        pid = task
        pid_1 = pid % 16
        pid = pid // 16
        pid_0 = pid
        o0 = pid_0 * 128
        o1 = pid_1 * 256
        acc1 = tl.full((128, 256), 0.0, tl.float32)
        for o2 in range(0, 4096, 64):
            A_tile = A_window.load([o0, o2])
            B_tile = tl.trans(B_window.load([o2, o1]))
            acc1 = tl.dot(A_tile, tl.trans(B_tile), acc1)
        C_window.store([o0, o1], acc1.to(tl.bfloat16))
"""
    )
    assert r.tasks == 132


def test_what_the_copy_engine_brings_is_multiplied_as_it_is() -> None:
    """Triton's pipeline is wrong where it is first computed on, there plain loads are; or where the
    other factor comes by plain loads, as one whose rows are not aligned."""
    b = Build()
    i, j, k = b.axes(4096, 4096, 4096)
    x, z = (b.load(name, i, k, dtype=bfloat16) for name in "XZ")
    b.out("C", b.sum(k, b.mul(b.mul(x, z), b.load("B", k, j, dtype=bfloat16))), i, j)
    tiles, options = ((0, 128), (1, 256), (2, 64)), (("descriptors", 1),)
    text = rendered(b.kernel(), Schedule(tiles, (0, 1), 2, options=options)).source
    assert all(f"{name}_tile = tl.load({name}" in text for name in "XZB")
    assert "C_window.store" in text

    b = Build()
    i, j, k = b.axes(128, 128, 500)
    x, y = (b.load(n, *axes, dtype=bfloat16) for n, axes in (("X", (i, k)), ("Y", (k, j))))
    b.out("C", b.sum(k, b.mul(x, y)), i, j)
    text = rendered(b.kernel(), Schedule(tiles, (0, 1), 2, options=options)).source
    assert "X_tile = tl.load(X" in text and "Y_tile = tl.load(Y" in text and "C_window" in text


LOOP = """scf.for %i
%w = ttg.async_wait
%a = ttg.memdesc_index %tiles[%i]
%r = ttg.local_load {read} token %w
%t = ttg.memdesc_trans %b {{order = array<i32: 1, 0>}}
%d = ttng.warp_group_dot %a, %t, %acc {{isAsync = true}}
%e = ttng.warp_group_dot_wait %d, %a, %t {{pendings = {pendings} : i32}}
scf.yield %e"""


@pytest.mark.parametrize(
    ("read", "pendings", "wrong"),
    [("%a", 1, True), ("%b", 1, True), ("%c", 1, False), ("%a", 0, False)],
)
def test_a_tile_that_a_product_still_reads_is_not_overwritten(
    read: str, pendings: int, wrong: bool
) -> None:
    assert overwrites("module {" + LOOP.format(read=read, pendings=pendings)) == wrong


@needs_triton
def test_a_factor_that_is_read_elsewhere_too_is_refused() -> None:
    b = Build()
    i, j, k = b.axes(512, 128, 512)
    x, y = b.load("X", i, k, dtype=bfloat16), b.load("Y", k, j, dtype=bfloat16)
    b.out("C", b.mul(b.sum(k, b.mul(x, y)), b.sum(k, x)), i, j)
    tiles = ((0, 128), (1, 128), (2, 64))
    r = rendered(b.kernel(), Schedule(tiles, (0, 1), 2))
    with pytest.raises(ValueError, match="overwrite a tile"):
        compile_source(r.source, r.signature, cuda(90), {"num_warps": 8, "num_stages": 4})
    compile_source(r.source, r.signature, cuda(90), {"num_warps": 8, "num_stages": 1})


def test_rows_in_two_halves_have_a_corner_of_their_own() -> None:
    """Of what moves a tile's corner for one half of the warps nothing else is made."""
    kernel = CASES["fold_causal"]()
    tiles = ((0, 1), (1, 64), (2, 16), (3, 24), (4, 16))
    options = (("descriptors", 1), ("single", 1), ("specialize", 1))
    text = rendered(kernel, Schedule(tiles, (0, 1, 4), 3, options=options)).source
    assert "none = tl.num_programs(1) - 1" in text and "O_window.store([o1 + none, " in text
    assert "i1 = o1 + tl.arange(0, 64)" in text
    assert "none" not in rendered(kernel, Schedule(tiles, (0, 1, 4), 3, options=options[:2])).source


@pytest.mark.parametrize(("name", "joined"), [("product", True), ("fold", False)])
def test_only_loops_of_products_are_joined_with_that_of_tasks(name: str, joined: bool) -> None:
    kernel = {"product": partial(product, 4096), "fold": CASES["fold"]}[name]()
    one = replace(default_schedule(kernel), options=(("persistent", 4),))
    assert ("flatten=True" in rendered(kernel, one).source) == joined


def test_names_do_not_clash() -> None:
    b = Build()
    i, j = b.axes(64, 64)
    x = b.mul(b.load("i0", i, j), b.load("lambda", i, j), b.load("i0_ptr", i))
    b.out("o0", b.add(x, b.load("s.1", i)), i, j)
    head = rendered(b.kernel()).source.split("def kernel")[1].split(":")[0]
    assert head == "(o0_ptr, i0_ptr, b_lambda, i0_ptr_ptr, s_1)"


def test_large_buffers_are_indexed_in_64_bits() -> None:
    b = Build()
    i, j = b.axes(1 << 17, 1 << 15)
    b.out("Y", b.mul(b.load("X", i, j), b.c(2)), i, j)
    text = rendered(b.kernel()).source
    assert "i1.to(tl.int64)" in text and "tl.cast(o0, tl.int64) * 32768" in text


def test_a_tile_beyond_all_registers_is_refused() -> None:
    with pytest.raises(ValueError, match="a tile of 1048576 elements"):
        rendered(product(4096), Schedule(((0, 1024), (1, 1024), (2, 64)), (0, 1), 2))


def test_a_limit_is_one_operation_and_keeps_nan() -> None:
    b = Build()
    (i,) = b.axes(64)
    x, four = b.load("A", i), b.c(4)
    above = b.t.apply("less", four, x)
    inside = b.t.apply("mask", b.t.apply("not", above), x)
    b.out("C", b.add(b.c(1), b.t.apply("mask", above, four), inside), i)
    exact = "propagate_nan=tl.PropagateNan.ALL"
    assert f"1.0 + tl.minimum(4.0, A_tile, {exact})" in rendered(b.kernel()).source


def test_what_a_schedule_holds_is_known_before_it_is_compiled() -> None:
    options = (("num_stages", 4), ("num_warps", 8))
    p = lower(product(4096), Schedule(((0, 128), (1, 256), (2, 64)), (0, 1), 2, options=options))
    assert held(p) == (4 * 2 * (128 * 64 + 64 * 256), 128 * 256 // 256)


def test_products_with_few_rows_are_guessed_to_read_much_at_once() -> None:
    b = Build()
    i, j, k = b.axes(4, 4096, 4096)
    x, y = b.load("A", i, k, dtype=bfloat16), b.load("B", j, k, dtype=bfloat16)
    b.out("C", b.sum(k, b.mul(x, y)), i, j)
    assert dict(guesses(b.kernel(), 90)[0].tiles)[2] > 64  # what other products begin with


@pytest.mark.parametrize("name", ["fold", "fold_causal"])
def test_only_the_last_tile_of_a_loop_is_cut(name: str) -> None:
    tiles = ((0, 1), (1, 16), (2, 16), (3, 24), (4, 16))
    source = rendered(CASES[name](), Schedule(tiles, (0, 1, 4), 3)).source
    loops = source.split("    for o2")[1:]
    assert [" v2 = " in loop for loop in loops] == [False, True], source
    single = rendered(CASES[name](), Schedule(tiles, (0, 1, 4), 3, options=(("single", 1),)))
    assert single.source.count("for o2") == 1


def test_a_product_that_has_a_name_is_used_again() -> None:
    b = Build()
    (i,) = b.axes(64)
    x = b.un("exp2", b.load("A", i))
    square = b.mul(x, x)
    b.out("C", b.add(b.mul(b.mul(b.c(3), x), x), b.un("sqrt", square), b.un("recip", square)), i)
    text = rendered(b.kernel()).source
    (name,) = (line.split(" = ")[0].strip() for line in text.splitlines() if " * t1" in line)
    assert "t1 * t1" in text and f"3.0 * {name}" in text, text


def test_a_mask_beside_its_opposite_is_one_choice() -> None:
    b = Build()
    i, j = b.axes(64, 64)
    above = b.less(axis(i), axis(j))
    kept = b.mul(b.t.apply("mask", b.t.apply("not", above), b.load("A", i, j)), b.c(F(1, 2)))
    b.out("C", b.add(b.t.apply("mask", above, b.ninf()), kept), i, j)
    text = '0.5 * tl.where(t1, float("-inf"), A_tile)'
    assert text in rendered(b.kernel()).source
