static __attribute__((noinline)) void rows_body(i64 o0, f32 *restrict b0, const f32 *restrict b1, const i64 *size) {

 f32 T_1[4] __attribute__((aligned(64))); // m
  {
  vf32 r_2[4] = {(vf32)((-(f32)INFINITY)), (vf32)((-(f32)INFINITY)), (vf32)((-(f32)INFINITY)), (vf32)((-(f32)INFINITY))};
   {
   i64 k_3 = 0;
   for (; k_3 + 16 <= 20; k_3 += 16) {
    for (int u_4 = 0; u_4 < 4; u_4++) {
     const vf32 x_6 = ld_f32(b1 + (20*(o0 + 0) + (0 + (k_3 + u_4*4))));
     r_2[u_4] = vmax_f32(x_6, r_2[u_4]);
    }
   }
   for (; k_3 + 4 <= 20; k_3 += 4) {
    const vf32 x_7 = ld_f32(b1 + (20*(o0 + 0) + (0 + k_3)));
    r_2[0] = vmax_f32(x_7, r_2[0]);
   }
  }
  const f32 x_8 = hmax_f32(vmax_f32(vmax_f32(vmax_f32(r_2[0], r_2[1]), r_2[2]), r_2[3]));
  put_f32(T_1 + 0, x_8);
 }
 f32 T_9[24] __attribute__((aligned(64))); // e
  {
  i64 l_10 = 0;
  const f32 x_12 = get_f32(T_1 + 0);
  for (; l_10 + 4 <= 20; l_10 += 4) {
   const vf32 x_11 = ld_f32(b1 + (20*(o0 + 0) + (0 + l_10)));
   const vf32 x_13 = (x_11 - (vf32)(x_12));
   const vf32 x_14 = (x_13 * (vf32)((1.4426950216293335f)));
   const vf32 x_15 = vexp2_f32(x_14);
   st_f32(T_9 + (l_10), x_15);
  }
 }
 f32 T_16[4] __attribute__((aligned(64))); // z
  {
  vf32 r_17[4] = {(vf32)((f32)0), (vf32)((f32)0), (vf32)((f32)0), (vf32)((f32)0)};
   {
   i64 k_18 = 0;
   for (; k_18 + 16 <= 20; k_18 += 16) {
    for (int u_19 = 0; u_19 < 4; u_19++) {
     const vf32 x_21 = ld_f32(T_9 + ((k_18 + u_19*4)));
     r_17[u_19] += x_21;
    }
   }
   for (; k_18 + 4 <= 20; k_18 += 4) {
    const vf32 x_22 = ld_f32(T_9 + (k_18));
    r_17[0] += x_22;
   }
  }
  const f32 x_23 = hsum_f32((((r_17[0] + r_17[1]) + r_17[2]) + r_17[3]));
  put_f32(T_16 + 0, x_23);
 }
  {
  i64 l_24 = 0;
  const f32 x_26 = get_f32(T_16 + 0);
  const f32 x_27 = recip_f32(x_26);
  for (; l_24 + 4 <= 20; l_24 += 4) {
   const vf32 x_25 = ld_f32(T_9 + (l_24));
   const vf32 x_28 = (x_25 * (vf32)(x_27));
   st_f32(b0 + (20*(o0 + 0) + (0 + l_24)), x_28);
  }
 }
}
static i64 rows_tasks(const i64 *size) {

 return lt_max(0, 3 / 1);
}
static void rows_run(i64 task, void *const *buf, const i64 *size) {

 const i64 o0 = 0 + (task) * 1;
 rows_body(o0, (f32 *)buf[0], (const f32 *)buf[1], size);
}
