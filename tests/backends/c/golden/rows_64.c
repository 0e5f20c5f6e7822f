static __attribute__((noinline)) void rows_body(i64 o0, f32 *restrict b0, const f32 *restrict b1, const i64 *size) {

 f32 T_1[16] __attribute__((aligned(64))); // m
  {
  vf32 r_2[4] = {(vf32)((-(f32)INFINITY)), (vf32)((-(f32)INFINITY)), (vf32)((-(f32)INFINITY)), (vf32)((-(f32)INFINITY))};
   {
   i64 k_3 = 0;
   for (; k_3 + 16 <= 20; k_3 += 16) {
    const vf32 x_6 = ld_f32(b1 + (20*(o0 + 0) + (0 + k_3)));
    r_2[0] = vmax_f32(x_6, r_2[0]);
   }
   if (k_3 < 20) {
    const i64 t_5 = 20 - k_3;
    const vf32 x_7 = ldt_f32(b1 + (20*(o0 + 0) + (0 + k_3)), t_5);
    r_2[0] = vmax_f32(((IOTA < (vi32)((i32)t_5)) ? x_7 : (vf32)((-(f32)INFINITY))), r_2[0]);
   }
  }
  const f32 x_8 = hmax_f32(vmax_f32(vmax_f32(vmax_f32(r_2[0], r_2[1]), r_2[2]), r_2[3]));
  put_f32(T_1 + 0, x_8);
 }
 f32 T_9[32] __attribute__((aligned(64))); // e
  {
  i64 l_10 = 0;
  const f32 x_12 = get_f32(T_1 + 0);
  for (; l_10 + 16 <= 20; l_10 += 16) {
   const vf32 x_11 = ld_f32(b1 + (20*(o0 + 0) + (0 + l_10)));
   const vf32 x_13 = (x_11 - (vf32)(x_12));
   const vf32 x_14 = (x_13 * (vf32)((1.4426950216293335f)));
   const vf32 x_15 = vexp2_f32(x_14);
   st_f32(T_9 + (l_10), x_15);
  }
  if (l_10 < 20) {
   const i64 t_16 = 20 - l_10;
   const vf32 x_17 = ldt_f32(b1 + (20*(o0 + 0) + (0 + l_10)), t_16);
   const vf32 x_18 = (x_17 - (vf32)(x_12));
   const vf32 x_19 = (x_18 * (vf32)((1.4426950216293335f)));
   const vf32 x_20 = vexp2_f32(x_19);
   stt_f32(T_9 + (l_10), x_20, t_16);
  }
 }
 f32 T_21[16] __attribute__((aligned(64))); // z
  {
  vf32 r_22[4] = {(vf32)((f32)0), (vf32)((f32)0), (vf32)((f32)0), (vf32)((f32)0)};
   {
   i64 k_23 = 0;
   for (; k_23 + 16 <= 20; k_23 += 16) {
    const vf32 x_26 = ld_f32(T_9 + (k_23));
    r_22[0] += x_26;
   }
   if (k_23 < 20) {
    const i64 t_25 = 20 - k_23;
    const vf32 x_27 = ld_f32(T_9 + (k_23));
    r_22[0] += ((IOTA < (vi32)((i32)t_25)) ? x_27 : (vf32)((f32)0));
   }
  }
  const f32 x_28 = hsum_f32((((r_22[0] + r_22[1]) + r_22[2]) + r_22[3]));
  put_f32(T_21 + 0, x_28);
 }
  {
  i64 l_29 = 0;
  const f32 x_31 = get_f32(T_21 + 0);
  const f32 x_32 = recip_f32(x_31);
  for (; l_29 + 16 <= 20; l_29 += 16) {
   const vf32 x_30 = ld_f32(T_9 + (l_29));
   const vf32 x_33 = (x_30 * (vf32)(x_32));
   st_f32(b0 + (20*(o0 + 0) + (0 + l_29)), x_33);
  }
  if (l_29 < 20) {
   const i64 t_34 = 20 - l_29;
   const vf32 x_35 = ld_f32(T_9 + (l_29));
   const vf32 x_36 = (x_35 * (vf32)(x_32));
   stt_f32(b0 + (20*(o0 + 0) + (0 + l_29)), x_36, t_34);
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
