CALL void rows_body(i64 task, f32 *restrict b0, f32 *restrict b1, const i64 *size) {

 const i64 o0 = 0 + task % lt_max(0, 3 / 1) * 1;
 task /= lt_max(0, 3 / 1);
 f32 T_1[16] __attribute__((aligned(64))); // m
  {
  vf32 r_2 = (vf32)((-(f32)INFINITY));
  i64 j_3 = 0;
  LOOP (; j_3 + 16 <= 20; j_3 += 16) {
   const vf32 x_4 = ld_f32(b1 + (20*(o0 + 0) + (0 + j_3)));
   r_2 = vrmax_f32(x_4, r_2);
  }
  if (j_3 < 20) {
   const i64 t_5 = 20 - j_3;
   const vf32 x_6 = ldt_f32(b1 + (20*(o0 + 0) + (0 + j_3)), t_5);
   r_2 = vrmax_f32((CV(IOTA < (vi32)((i32)t_5), vi32) ? x_6 : (vf32)((-(f32)INFINITY))), r_2);
  }
  const f32 x_7 = hmax_f32(r_2);
  put_f32(T_1 + 0, x_7);
 }
 f32 T_8[32] __attribute__((aligned(64))); // e
  {
  i64 j_9 = 0;
  const f32 x_11 = get_f32(T_1 + 0);
  LOOP (; j_9 + 16 <= 20; j_9 += 16) {
   const vf32 x_10 = ld_f32(b1 + (20*(o0 + 0) + (0 + j_9)));
   const vf32 x_12 = (x_10 - (vf32)(x_11));
   const vf32 x_13 = (x_12 * (vf32)((1.4426950408889634f)));
   const vf32 x_14 = vexp2_f32(x_13);
   st_f32(T_8 + j_9, x_14);
  }
  if (j_9 < 20) {
   const i64 t_15 = 20 - j_9;
   const vf32 x_16 = ldt_f32(b1 + (20*(o0 + 0) + (0 + j_9)), t_15);
   const vf32 x_17 = (x_16 - (vf32)(x_11));
   const vf32 x_18 = (x_17 * (vf32)((1.4426950408889634f)));
   const vf32 x_19 = vexp2_f32(x_18);
   st_f32(T_8 + j_9, x_19);
  }
 }
 f32 T_20[16] __attribute__((aligned(64))); // z
  {
  vf32 r_21 = (vf32)((f32)0);
  i64 j_22 = 0;
  LOOP (; j_22 + 16 <= 20; j_22 += 16) {
   const vf32 x_23 = ld_f32(T_8 + j_22);
   r_21 += x_23;
  }
  if (j_22 < 20) {
   const i64 t_24 = 20 - j_22;
   const vf32 x_25 = ld_f32(T_8 + j_22);
   r_21 += (CV(IOTA < (vi32)((i32)t_24), vi32) ? x_25 : (vf32)((f32)0));
  }
  const f32 x_26 = hsum_f32(r_21);
  put_f32(T_20 + 0, x_26);
 }
  {
  i64 j_27 = 0;
  const f32 x_29 = get_f32(T_20 + 0);
  const f32 x_30 = recip_f32(x_29);
  LOOP (; j_27 + 16 <= 20; j_27 += 16) {
   const vf32 x_28 = ld_f32(T_8 + j_27);
   const vf32 x_31 = (x_28 * (vf32)(x_30));
   st_f32(b0 + (20*(o0 + 0) + (0 + j_27)), x_31);
  }
  if (j_27 < 20) {
   const i64 t_32 = 20 - j_27;
   const vf32 x_33 = ld_f32(T_8 + j_27);
   const vf32 x_34 = (x_33 * (vf32)(x_30));
   stt_f32(b0 + (20*(o0 + 0) + (0 + j_27)), x_34, t_32);
  }
 }
}
static i64 rows_tasks(const i64 *size) {

 return lt_max(0, 3 / 1);
}
static void rows_run(i64 task, void *const *buf, const i64 *size) {
 rows_body(task, buf[0], buf[1], size);
}
