"""C text that every rendered file starts with: vector types, loads and stores, vector functions.

Every vector has LANES elements whatever its dtype (Clang splits the wide ones), so that all values
of a loop advance together. A bool is an int (type m) 0 or −1. Names: `op_T`
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

CODES: dict[str, str] = {
    "float32": "f32", "float64": "f64", "int8": "i8", "int16": "i16", "int32": "i32",
    "int64": "i64", "uint8": "u8", "float16": "h", "bfloat16": "bf", "bool": "b",
}  # fmt: skip
# storage code: (C type in memory, type computed in)
STORAGE: dict[str, tuple[str, str]] = {c: (c, c) for c in CODES.values()} | {
    "h": ("_Float16", "f32"), "bf": ("u16", "f32"), "b": ("u8", "m"),
}  # fmt: skip
FLOATS = ("f32", "f64")
_HEAD = r"""
#include <stdint.h>
#include <math.h>
typedef float f32; typedef double f64; typedef int8_t i8; typedef int16_t i16; typedef int32_t i32;
typedef int64_t i64; typedef uint8_t u8; typedef uint16_t u16; typedef uint32_t u32; typedef int m;
#define LANES %(lanes)d
#define FN static inline __attribute__((always_inline, unused))
#define LOOP [[clang::code_align(64)]] for
#define CALL static __attribute__((noinline, unused))
#define VECTOR(T) typedef T v##T __attribute__((ext_vector_type(LANES)));
VECTOR(f32) VECTOR(f64) VECTOR(i8) VECTOR(i16) VECTOR(i32) VECTOR(i64)
typedef _Bool bit; VECTOR(u8) VECTOR(u16) VECTOR(u32) VECTOR(bit)
typedef vi32 vm; typedef _Float16 vh __attribute__((ext_vector_type(LANES)));
#define CV(x, T) __builtin_convertvector(x, T)
#define EACH(V, N, PARAMS, X) \
  CALL V N PARAMS { V r; for (int i = 0; i < LANES; i++) r[i] = X; return r; }
#define MAXN(x, y) ((x) != (x) ? (x) : (x) > (y) ? (x) : (y))
#define FMAX(x, y) ((y) != (y) ? (x) : (x) > (y) ? (x) : (y))
#define MAXI(x, y) ((x) > (y) ? (x) : (y))
#define ADD(x, y) ((x) + (y))
#define OR(x, y) ((x) | (y))
static const vi32 IOTA = {%(iota)s};
FN i64 lt_min(i64 a, i64 b) { return a < b ? a : b; }
FN i64 lt_max(i64 a, i64 b) { return a > b ? a : b; }
FN i64 lt_div(i64 a, i64 b) { i64 q = a / b; return q - ((a %% b != 0) & ((a < 0) != (b < 0))); }
FN u16 to_bf(f32 x) { u32 u; __builtin_memcpy(&u, &x, 4);
  return x != x ? (u16)(u >> 16 | 64) : (u16)((u + 0x7fff + (u >> 16 & 1)) >> 16); }
FN f32 from_bf(u16 x) { u32 u = (u32)x << 16; f32 y; __builtin_memcpy(&y, &u, 4); return y; }
FN vu16 vto_bf(vf32 x) { vu32 u = (vu32)x;
  return CV(x != x ? (vi32)(u >> 16 | 64) : (vi32)((u + 0x7fff + (u >> 16 & 1)) >> 16), vu16); }
FN vf32 vfrom_bf(vu16 x) { return (vf32)(CV(x, vu32) << 16); }
// Two neighbours of bfloat16, as the bits of a float; both products of two such pairs are added.
FN vf32 ld_pair(const u32 *p) { vf32 x; __builtin_memcpy(&x, p, sizeof x); return x; }
FN f32 get_pair(const u32 *p) { f32 x; __builtin_memcpy(&x, p, sizeof x); return x; }
FN vf32 vdot_pair(vf32 r, vf32 x, vf32 y) {
#if defined(__AVX512BF16__) && LANES == 16
  typedef __bf16 vp __attribute__((vector_size(64)));
  return __builtin_ia32_dpbf16ps_512(r, (vp)x, (vp)y);
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC) && LANES == 4
  __asm__("bfdot %%0.4s, %%1.8h, %%2.8h" : "+w"(r) : "w"(x), "w"(y));
  return r;
#else
  vu32 a = (vu32)x, b = (vu32)y;
  r += (vf32)(a << 16) * (vf32)(b << 16);
  return r + (vf32)(a & 0xffff0000u) * (vf32)(b & 0xffff0000u);
#endif
}
#define BOTH(N, T, X) FN T N##_##T(T x) { return X; } FN v##T v##N##_##T(v##T x) { return X; }
BOTH(recip, f32, 1.f / x) BOTH(sqrt, f32, __builtin_elementwise_sqrt(x))
BOTH(recip, f64, 1. / x) BOTH(sqrt, f64, __builtin_elementwise_sqrt(x))
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
EACH(vf32, vsin_far, (vf32 x), sinf(x[i]))
FN vf32 vsin_f32(vf32 x) {
  vf32 t = x * 0.318309886f + 12582912.f, k = t - 12582912.f;
  vf32 r = x - k * 3.140625f; r = r - k * 0.00096750259399f; r = r - k * 1.5099580e-7f;
  vf32 z = r * r, p = (vf32)(-2.4097174e-8f);
  p = p * z + 2.7537435e-6f; p = p * z - 1.9841105e-4f; p = p * z + 0.00833333284f;
  p = p * z - 0.166666672f; r = r + r * (z * p);
  r = (vf32)((vi32)r ^ (((vi32)t & 1) << 31));
  vi32 far = ~((x < 1e4f) & (x > -1e4f));
  return __builtin_reduce_or(far) ? far ? vsin_far(x) : r : r; }
FN vf32 vround_h(vf32 x) { return CV(CV(x, vh), vf32); }
FN vf32 vround_bf(vf32 x) { return vfrom_bf(vto_bf(x)); }
FN f32 round_h(f32 x) { return (f32)(_Float16)x; }
FN f32 round_bf(f32 x) { return from_bf(to_bf(x)); }
FN i64 to_int(f64 x) { // truncated; NaN is 0, what i64 cannot hold its least value
  return x != x ? 0 : x >= 9223372036854775808. || x < -9223372036854775808. ? INT64_MIN : (i64)x; }
EACH(vi64, vto_int, (vf64 x), to_int(x[i])) EACH(vi32, vto_int_far, (vf32 x), (i32)to_int(x[i]))
FN vi32 vto_int_f32(vf32 x) {
  vi32 near = (x < 2147483648.f) & (x >= -2147483648.f);
  return __builtin_reduce_and(near) ? CV(x, vi32) : vto_int_far(x); }
#define FLOAT_MOD(T, F) FN T mod_##T(T a, T b) { T r = fmod##F(a, b); \
  return r == 0 ? copysign##F(0, b) : (r < 0) != (b < 0) ? r + b : r; }
FLOAT_MOD(f32, f) FLOAT_MOD(f64, )
#define LIBM(N) FN f32 N##_f32(f32 x) { return N##f(x); } \
  FN f64 N##_f64(f64 x) { return N(x); } EACH(vf64, v##N##_f64, (vf64 x), N(x[i]))
LIBM(exp2) LIBM(log2) LIBM(sin)
// Floored, as NumPy: the sign of the divisor, and 0 where the divisor is 0.
#define INT_MOD(T) FN T mod_##T(T a, T b) { if (b == 0 || b + 1 == 0) return 0; \
  T r = a %% b; return r != 0 && (r < 0) != (b < 0) ? r + b : r; }
INT_MOD(i8) INT_MOD(i16) INT_MOD(i32) INT_MOD(i64) INT_MOD(u8)
// Of two elements or two vectors; r…(x, y) where y is what a reduction had and, of fmax, no NaN.
#define PAIR(N, T, F) FN T N##_##T(T x, T y) { return F(x, y); } \
  FN v##T v##N##_##T(v##T x, v##T y) { return F(x, y); }
// Of all lanes of a vector, by halves.
#define ALL4(F, v) ({ __auto_type v4 = F(v.lo, v.hi); F(v4.x, v4.y); })
#define ALL8(F, v) ({ __auto_type v8 = F(v.lo, v.hi); ALL4(F, v8); })
#define ALL16(F, v) ({ __auto_type v16 = F(v.lo, v.hi); ALL8(F, v16); })
#define REDUCE(N, T, F) PAIR(r##N, T, F) FN T h##N##_##T(v##T x) { return ALL%(lanes)d(F, x); }
#define NUMBER(T, MAX, FM) EACH(v##T, vmod_##T, (v##T a, v##T b), mod_##T(a[i], b[i])) \
  PAIR(max, T, MAX) PAIR(fmax, T, FM) REDUCE(sum, T, ADD) REDUCE(max, T, MAX) REDUCE(fmax, T, MAXI)
NUMBER(f32, MAXN, FMAX) NUMBER(f64, MAXN, FMAX) NUMBER(i8, MAXI, MAXI) NUMBER(i16, MAXI, MAXI)
NUMBER(i32, MAXI, MAXI) NUMBER(i64, MAXI, MAXI) NUMBER(u8, MAXI, MAXI)
#define ANY(N) PAIR(r##N, m, OR) FN m h##N##_m(vm x) { return __builtin_reduce_or(x); }
ANY(sum) ANY(max) ANY(fmax)
#define LIVE(n) CV(IOTA < (vi32)((i32)(n)), vbit)
// Of a storage code: loads and stores of vectors, past the caches, of the first n lanes, of one;
// ldc: p[e], p[e + 1], …, the nearest of p[0] to p[n - 1] for those that are not among them.
#define ACCESS(FEW, C, M, V, T, LOAD, STORE, GET, PUT) \
  typedef V w##C __attribute__((aligned(sizeof(M)), may_alias)); \
  FN v##T ld_##C(const M *p) { V x = *(const w##C *)p; return LOAD; } \
  FEW v##T ldt_##C(const M *p, i64 n) { \
    V x = __builtin_masked_load(LIVE(n), p, (V)0); return LOAD; } \
  FEW v##T ldc_##C(const M *p, i64 e, i64 n) { \
    if (e >= 0 && e + LANES <= n) return ld_##C(p + e); \
    e = lt_max(-LANES, lt_min(e, n)); vi64 z = CV(IOTA, vi64) + e; \
    V y = __builtin_masked_load(CV((z >= 0) & (z < n), vbit), p + e, (V)p[0]); \
    V x = CV(z >= n, vbit) ? (V)p[n - 1] : y; return LOAD; } \
  FN void st_##C(M *p, v##T x) { *(w##C *)p = STORE; } \
  FN void stn_##C(M *p, v##T x) { if ((uintptr_t)p %% sizeof(V)) return st_##C(p, x); \
    __builtin_nontemporal_store(STORE, (V *)p); } \
  FEW void stt_##C(M *p, v##T x, i64 n) { __builtin_masked_store(LIVE(n), STORE, p); } \
  FN T get_##C(const M *p) { return GET; } FN void put_##C(M *p, T x) { *p = PUT; }
#define PLAIN(FEW, T) ACCESS(FEW, T, T, v##T, T, x, x, *p, x)
PLAIN(FN, f32) PLAIN(FN, f64) PLAIN(FN, i32) PLAIN(FN, i64) PLAIN(CALL, i8) PLAIN(CALL, i16)
ACCESS(CALL, h, _Float16, vh, f32, CV(x, vf32), CV(x, vh), (f32)*p, (_Float16)x)
ACCESS(CALL, bf, u16, vu16, f32, vfrom_bf(x), vto_bf(x), from_bf(*p), to_bf(x))
ACCESS(CALL, b, u8, vu8, m, CV(x, vi32) != 0, CV(x & 1, vu8), -(*p != 0), x & 1) PLAIN(CALL, u8)
"""


def _transpose(lanes: int) -> str:
    """A square of float32 lanes, in place, by log2(LANES) rounds of two-vector shuffles."""
    lines = ""
    for step in (1 << n for n in range(lanes.bit_length() - 1)):
        low = ", ".join(str(j if not j & step else lanes + j - step) for j in range(lanes))
        high = ", ".join(str(j + step if not j & step else lanes + j) for j in range(lanes))
        lines += f"""
  for (int i = 0; i < LANES; i++) if (!(i & {step})) {{ vf32 a = r[i], b = r[i + {step}];
    r[i] = __builtin_shufflevector(a, b, {low});
    r[i + {step}] = __builtin_shufflevector(a, b, {high}); }}"""
    return f"\nFN void transpose(vf32 *r) {{{lines} }}\n"


@functools.cache
def prelude(target: Target) -> str:
    """The C text for a target; once a file, before the kernels."""
    lanes = target.lanes
    head = _HEAD % {"lanes": lanes, "iota": ", ".join(map(str, range(lanes)))}
    return head + _transpose(lanes)
