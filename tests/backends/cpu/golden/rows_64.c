static __attribute__((noinline)) void rows_body(i64 o0, f32 *restrict b0, const f32 *restrict b1, const i64 *size) {

 f32 T_1[16] __attribute__((aligned(64))); // m
  {
  vf32 r_2[4] = {(vf32)((-(f32)INFINITY)), (vf32)((-(f32)INFINITY)), (vf32)((-(f32)INFINITY)), (vf32)((-(f32)INFINITY))};
   {
   i64 k_3 = 0;
   for (; k_3 + 64 <= (20); k_3 += 64) {
    for (int u_4 = 0; u_4 < 4; u_4++) {
     const vf32 x_6 = ld_f32(b1 + (20*(o0 + 0) + (0 + (k_3 + u_4*16))));
     r_2[u_4] = vmax_f32(x_6, r_2[u_4]);
    }
   }
   for (; k_3 + 16 <= (20); k_3 += 16) {
    const vf32 x_7 = ld_f32(b1 + (20*(o0 + 0) + (0 + k_3)));
    r_2[0] = vmax_f32(x_7, r_2[0]);
   }
   if (k_3 < (20)) {
    const i64 t_5 = (20) - k_3;
    const vf32 x_8 = ldt_f32(b1 + (20*(o0 + 0) + (0 + k_3)), t_5);
    r_2[0] = vmax_f32(((IOTA < (vi32)((i32)t_5)) ? x_8 : (vf32)((-(f32)INFINITY))), r_2[0]);
   }
  }
  const f32 x_9 = hmax_f32(vmax_f32(vmax_f32(vmax_f32(r_2[0], r_2[1]), r_2[2]), r_2[3]));
  put_f32(T_1 + 0, x_9);
 }
 f32 T_10[32] __attribute__((aligned(64))); // e
  {
  i64 l_11 = 0;
  const f32 x_13 = get_f32(T_1 + 0);
  for (; l_11 + 16 <= (20); l_11 += 16) {
   const vf32 x_12 = ld_f32(b1 + (20*(o0 + 0) + (0 + l_11)));
   const vf32 x_14 = (x_12 - (vf32)(x_13));
   const vf32 x_15 = (x_14 * (vf32)((1.4426950216293335f)));
   const vf32 x_16 = vexp2_f32(x_15);
   st_f32(T_10 + (l_11), x_16);
  }
  if (l_11 < (20)) {
   const i64 t_17 = (20) - l_11;
   const vf32 x_18 = ldt_f32(b1 + (20*(o0 + 0) + (0 + l_11)), t_17);
   const vf32 x_19 = (x_18 - (vf32)(x_13));
   const vf32 x_20 = (x_19 * (vf32)((1.4426950216293335f)));
   const vf32 x_21 = vexp2_f32(x_20);
   stt_f32(T_10 + (l_11), x_21, t_17);
  }
 }
 f32 T_22[16] __attribute__((aligned(64))); // z
  {
  vf32 r_23[4] = {(vf32)((f32)0), (vf32)((f32)0), (vf32)((f32)0), (vf32)((f32)0)};
   {
   i64 k_24 = 0;
   for (; k_24 + 64 <= (20); k_24 += 64) {
    for (int u_25 = 0; u_25 < 4; u_25++) {
     const vf32 x_27 = ld_f32(T_10 + ((k_24 + u_25*16)));
     r_23[u_25] += x_27;
    }
   }
   for (; k_24 + 16 <= (20); k_24 += 16) {
    const vf32 x_28 = ld_f32(T_10 + (k_24));
    r_23[0] += x_28;
   }
   if (k_24 < (20)) {
    const i64 t_26 = (20) - k_24;
    const vf32 x_29 = ld_f32(T_10 + (k_24));
    r_23[0] += ((IOTA < (vi32)((i32)t_26)) ? x_29 : (vf32)((f32)0));
   }
  }
  const f32 x_30 = hsum_f32((((r_23[0] + r_23[1]) + r_23[2]) + r_23[3]));
  put_f32(T_22 + 0, x_30);
 }
  {
  i64 l_31 = 0;
  const f32 x_33 = get_f32(T_22 + 0);
  const f32 x_34 = recip_f32(x_33);
  for (; l_31 + 16 <= (20); l_31 += 16) {
   const vf32 x_32 = ld_f32(T_10 + (l_31));
   const vf32 x_35 = (x_32 * (vf32)(x_34));
   st_f32(b0 + (20*(o0 + 0) + (0 + l_31)), x_35);
  }
  if (l_31 < (20)) {
   const i64 t_36 = (20) - l_31;
   const vf32 x_37 = ld_f32(T_10 + (l_31));
   const vf32 x_38 = (x_37 * (vf32)(x_34));
   stt_f32(b0 + (20*(o0 + 0) + (0 + l_31)), x_38, t_36);
  }
 }
}
static i64 rows_tasks(const i64 *size) {

 return lt_max(0, (3) / 1);
}
static void rows_run(i64 task, void *const *buf, const i64 *size) {

 const i64 o0 = 0 + (task) * 1;
 rows_body(o0, (f32 *)buf[0], (const f32 *)buf[1], size);
}
