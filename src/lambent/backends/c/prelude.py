"""C text that every rendered file starts with: vector types, loads and stores, vector functions.

Every vector has LANES elements whatever its dtype (Clang splits the wide ones), so that all values
of a loop advance together. A bool is an int 0 or 1, as a vector a `vi32` of 0 and −1. Names: `op_T`
on scalars, `vop_T` on vectors, T one of f32 f64 i8 i16 i32 i64 u8; the storage codes are these and
h (float16), bf (bfloat16), b (bool).

Largest errors of the float32 vector functions, measured over all binades (tests/backends/cpu):
    exp2   1 ulp; results below 2^-125.5 are 0; exp2(−inf) = 0
    log2   2 ulp; also of subnormals; log2(0) = −inf, of a negative NaN
    sin    2 ulp where |sin x| > 1e-3, else 1e-10 absolute; |x| > 1e4 goes through sinf
    sqrt, recip, and all float64 functions: as the hardware and libm do
"""

from __future__ import annotations

import functools

from lambent.backends.c.target import Target

# storage code: (C type in memory, type computed in)
STORAGE: dict[str, tuple[str, str]] = {
    "f32": ("f32", "f32"), "f64": ("f64", "f64"), "i8": ("i8", "i8"), "i16": ("i16", "i16"),
    "i32": ("i32", "i32"), "i64": ("i64", "i64"), "u8": ("u8", "u8"),
    "h": ("_Float16", "f32"), "bf": ("u16", "f32"), "b": ("u8", "m"),
}  # fmt: skip
CODES: dict[str, str] = {
    "float32": "f32", "float64": "f64", "int8": "i8", "int16": "i16", "int32": "i32",
    "int64": "i64", "uint8": "u8", "float16": "h", "bfloat16": "bf", "bool": "b",
}  # fmt: skip
_BYTES = {
    "f64": 8, "i64": 8, "f32": 4, "i32": 4, "i16": 2, "u16": 2, "_Float16": 2, "i8": 1, "u8": 1,
}  # fmt: skip
FLOATS = ("f32", "f64")
NUMBERS = ("f32", "f64", "i8", "i16", "i32", "i64", "u8")

_HEAD = r"""
#include <stdint.h>
#include <math.h>
typedef float f32; typedef double f64; typedef int8_t i8; typedef int16_t i16; typedef int32_t i32;
typedef int64_t i64; typedef uint8_t u8; typedef uint16_t u16; typedef uint32_t u32; typedef int m;
#define LANES %(lanes)d
#define FN static inline __attribute__((always_inline, unused))
#define CALL static __attribute__((noinline, unused))
#define VECTOR(T) typedef T v##T __attribute__((ext_vector_type(LANES)));
VECTOR(f32) VECTOR(f64) VECTOR(i8) VECTOR(i16) VECTOR(i32) VECTOR(i64)
VECTOR(u8) VECTOR(u16) VECTOR(u32)
typedef vi32 vm; typedef _Float16 vh __attribute__((ext_vector_type(LANES)));
#define CV(x, T) __builtin_convertvector(x, T)
#define MAXN(x, y) ((x) != (x) ? (x) : (x) > (y) ? (x) : (y))
#define FMAX(x, y) ((y) != (y) ? (x) : (x) > (y) ? (x) : (y))
#define MAXI(x, y) ((x) > (y) ? (x) : (y))
static const vi32 IOTA = {%(iota)s};
FN i64 lt_min(i64 a, i64 b) { return a < b ? a : b; }
FN i64 lt_max(i64 a, i64 b) { return a > b ? a : b; }
FN i64 lt_div(i64 a, i64 b) { i64 q = a / b; return q - ((a %% b != 0) & ((a < 0) != (b < 0))); }
FN i64 lt_clamp(i64 a, i64 top) { a = a > top ? top : a; return a < 0 ? 0 : a; }
FN u16 to_bf(f32 x) { u32 u; __builtin_memcpy(&u, &x, 4);
  return x != x ? (u16)(u >> 16 | 64) : (u16)((u + 0x7fff + (u >> 16 & 1)) >> 16); }
FN f32 from_bf(u16 x) { u32 u = (u32)x << 16; f32 y; __builtin_memcpy(&y, &u, 4); return y; }
FN vu16 vto_bf(vf32 x) { vu32 u = (vu32)x;
  return CV(x != x ? (vi32)(u >> 16 | 64) : (vi32)((u + 0x7fff + (u >> 16 & 1)) >> 16), vu16); }
FN vf32 vfrom_bf(vu16 x) { return (vf32)(CV(x, vu32) << 16); }
FN f32 recip_f32(f32 x) { return 1.f / x; }
FN f64 recip_f64(f64 x) { return 1. / x; }
FN vf32 vrecip_f32(vf32 x) { return 1.f / x; }
FN vf64 vrecip_f64(vf64 x) { return 1. / x; }
FN f32 sqrt_f32(f32 x) { return __builtin_sqrtf(x); }
FN f64 sqrt_f64(f64 x) { return __builtin_sqrt(x); }
FN vf32 vsqrt_f32(vf32 x) { return __builtin_elementwise_sqrt(x); }
FN vf64 vsqrt_f64(vf64 x) { return __builtin_elementwise_sqrt(x); }
FN vf32 vexp2_f32(vf32 x) {
  x = -126.f > x ? (vf32)(-126.f) : x; x = 129.f < x ? (vf32)(129.f) : x;
  vf32 t = x + 12582912.f, f = x - (t - 12582912.f), p = (vf32)(3.0691616e-4f);
  p = p * f + 2.6799864e-3f; p = p * f + 0.019236978143f; p = p * f + 0.11100657284f;
  p = p * f + 0.48045292497f; p = p * f + 1.3862943649f; p = p * f + 2.f;
  return p * (vf32)(((vi32)t + 126) << 23); }
FN vf32 vlog2_f32(vf32 x) {
  vi32 tiny = x < 1.17549435e-38f; vf32 y = tiny ? x * 8388608.f : x;
  vi32 e = ((vi32)y - 0x3f3504f3) >> 23;
  vf32 f = (vf32)((vi32)y - (e << 23)) - 1.f, p = (vf32)(-0.10994816571f);
  p = p * f + 0.1861743331f; p = p * f - 0.19106301665f; p = p * f + 0.20460075140f;
  p = p * f - 0.23961739242f; p = p * f + 0.28856739402f; p = p * f - 0.36069664359f;
  p = p * f + 0.48089823127f; p = p * f - 0.721347332f; p = p * f + 1.4426950216f;
  vf32 r = p * f + CV(tiny ? e - 23 : e, vf32);
  r = x < INFINITY ? r : x; r = x == 0.f ? (vf32)(-INFINITY) : r;
  return x < 0.f ? (vf32)(NAN) : r; }
CALL vf32 vsin_far(vf32 x, vf32 r, vi32 far) {
  for (int i = 0; i < LANES; i++) if (far[i]) r[i] = sinf(x[i]);
  return r; }
FN vf32 vsin_f32(vf32 x) {
  vf32 t = x * 0.318309886f + 12582912.f, k = t - 12582912.f;
  vf32 r = x - k * 3.140625f; r = r - k * 0.00096750259399f; r = r - k * 1.5099580e-7f;
  vf32 z = r * r, p = (vf32)(-2.4097174e-8f);
  p = p * z + 2.7537435e-6f; p = p * z - 1.9841105e-4f; p = p * z + 0.00833333284f;
  p = p * z - 0.166666672f; r = r + r * (z * p);
  r = (vf32)((vi32)r ^ (((vi32)t & 1) << 31));
  vi32 far = ~((x < 1e4f) & (x > -1e4f));
  return __builtin_reduce_or(far) ? vsin_far(x, r, far) : r; }
FN vf32 vround_h(vf32 x) { return CV(CV(x, vh), vf32); }
FN vf32 vround_bf(vf32 x) { return vfrom_bf(vto_bf(x)); }
FN f32 round_h(f32 x) { return (f32)(_Float16)x; }
FN f32 round_bf(f32 x) { return from_bf(to_bf(x)); }
FN i64 to_int(f64 x) { // truncated; NaN is 0, what i64 cannot hold its least value
  return x != x ? 0 : x >= 9223372036854775808. || x < -9223372036854775808. ? INT64_MIN : (i64)x; }
CALL vi32 vto_int_far(vf32 x, vi32 r, vi32 near) {
  for (int i = 0; i < LANES; i++) if (!near[i]) r[i] = (i32)to_int(x[i]);
  return r; }
FN vi32 vto_int_f32(vf32 x) {
  vi32 near = (x < 2147483648.f) & (x >= -2147483648.f), r = CV(near ? x : (vf32)(0.f), vi32);
  return __builtin_reduce_or(~near) ? vto_int_far(x, r, near) : r; }
FN f32 mod_f32(f32 a, f32 b) { f32 r = fmodf(a, b);
  return r == 0 ? copysignf(0, b) : (r < 0) != (b < 0) ? r + b : r; }
FN f64 mod_f64(f64 a, f64 b) { f64 r = fmod(a, b);
  return r == 0 ? copysign(0, b) : (r < 0) != (b < 0) ? r + b : r; }
"""
# Python's names of the libm functions: (ours, float32, float64)
_LIBM = (("exp2", "exp2f", "exp2"), ("log2", "log2f", "log2"), ("sin", "sinf", "sin"))


def _access(code: str, memory: str, t: str) -> str:
    """Loads and stores of one storage code: whole vectors, the first n lanes, one element."""
    vector = {"_Float16": "vh"}.get(memory, f"v{memory}")
    size = _BYTES[memory]
    load, store, get, put = {
        "h": ("CV(x, vf32)", "CV(x, vh)", "(f32)*p", "(_Float16)x"),
        "bf": ("vfrom_bf(x)", "vto_bf(x)", "from_bf(*p)", "to_bf(x)"),
        "b": ("CV(x, vi32) != 0", "CV(x & 1, vu8)", "*p != 0", "x != 0"),
    }.get(code, ("x", "x", "*p", "x"))
    return f"""
typedef {vector} w{code} __attribute__((aligned({size}), may_alias));
FN v{t} ld_{code}(const {memory} *p) {{ {vector} x = *(const w{code} *)p; return {load}; }}
CALL v{t} ldt_{code}(const {memory} *p, i64 n) {{ {vector} x = 0;
  for (int i = 0; i < LANES; i++) if (i < n) x[i] = p[i]; return {load}; }}
FN void st_{code}({memory} *p, v{t} x) {{ *(w{code} *)p = {store}; }}
CALL void stt_{code}({memory} *p, v{t} x, i64 n) {{ {vector} y = {store};
  for (int i = 0; i < LANES; i++) if (i < n) p[i] = y[i]; }}
FN {t} get_{code}(const {memory} *p) {{ return {get}; }}
FN void put_{code}({memory} *p, {t} x) {{ *p = {put}; }}"""


def _horizontal(t: str, lanes: int) -> str:
    """Reductions over the lanes of one vector, by halves."""
    maxima = ("MAXN", "FMAX") if t in FLOATS else ("MAXI", "MAXI")
    out = ""
    for name, macro in (("sum", "{0} + {1}"), ("max", maxima[0] + "({0}, {1})"),
                        ("fmax", maxima[1] + "({0}, {1})")):  # fmt: skip
        steps, x, n = "", "x", lanes
        while n > 1:
            steps += f"__auto_type {x}{n} = {macro.format(f'{x}.lo', f'{x}.hi')}; "
            x, n = f"{x}{n}", n // 2
        out += f"\nFN {t} h{name}_{t}(v{t} x) {{ {steps}return {x}; }}"
        if name != "sum":
            out += f"\nFN {t} {name}_{t}({t} x, {t} y) {{ return {macro.format('x', 'y')}; }}"
            out += f"\nFN v{t} v{name}_{t}(v{t} x, v{t} y) {{ return {macro.format('x', 'y')}; }}"
    return out


def _integer_mod(t: str) -> str:
    """Floored, as NumPy: the sign of the divisor, and 0 where the divisor is 0."""
    return f"""
FN {t} mod_{t}({t} a, {t} b) {{ if (b == 0 || b == ({t})-1) return 0;
  {t} r = a % b; return r != 0 && (r < 0) != (b < 0) ? r + b : r; }}"""


def _each(name: str, t: str, arity: int) -> str:
    """A vector function that calls the scalar one lane by lane."""
    params = ", ".join(f"v{t} {x}" for x in "ab"[:arity])
    args = ", ".join(f"{x}[i]" for x in "ab"[:arity])
    return (
        f"\nCALL v{t} v{name}_{t}({params}) {{ v{t} r; for (int i = 0; i < LANES; i++) "
        f"r[i] = {name}_{t}({args}); return r; }}"
    )


def _transpose(lanes: int) -> str:
    """A square of float32 lanes, in place, by log2(LANES) rounds of two-vector shuffles."""
    lines, step = "", 1
    while step < lanes:
        low = ", ".join(str(j if not j & step else lanes + j - step) for j in range(lanes))
        high = ", ".join(str(j + step if not j & step else lanes + j) for j in range(lanes))
        lines += f"""
  for (int i = 0; i < LANES; i++) if (!(i & {step})) {{ vf32 a = r[i], b = r[i + {step}];
    r[i] = __builtin_shufflevector(a, b, {low});
    r[i + {step}] = __builtin_shufflevector(a, b, {high}); }}"""
        step *= 2
    return f"\nFN void transpose(vf32 *r) {{{lines} }}\n"


@functools.cache
def prelude(target: Target) -> str:
    """The C text for a target; once a file, before the kernels."""
    lanes = target.lanes
    parts = [_HEAD % {"lanes": lanes, "iota": ", ".join(map(str, range(lanes)))}]
    parts += [_access(code, *types) for code, types in STORAGE.items()]
    parts += [_horizontal(t, lanes) for t in NUMBERS]
    for name, single, double in _LIBM:
        parts.append(f"\nFN f32 {name}_f32(f32 x) {{ return {single}(x); }}")
        parts.append(f"\nFN f64 {name}_f64(f64 x) {{ return {double}(x); }}")
        parts.append(_each(name, "f64", 1))
    parts.append("""
CALL vi64 vto_int(vf64 x) { vi64 r;
  for (int i = 0; i < LANES; i++) r[i] = to_int(x[i]); return r; }""")
    parts += [_integer_mod(t) for t in NUMBERS if t not in FLOATS]
    parts += [_each("mod", t, 2) for t in NUMBERS]
    return "".join([*parts, _transpose(lanes)])
