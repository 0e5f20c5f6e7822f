CALL void rows_body(i64 task, f32 *restrict b0, f32 *restrict b1, const i64 *size) {

 const i64 o0 = 0 + task % lt_max(0, 3 / 1) * 1;
 task /= lt_max(0, 3 / 1);
 f32 T_1[8] __attribute__((aligned(64))); // m
  {
  vf32 r_2 = (vf32)((-(f32)INFINITY));
  vf32 r_3 = (vf32)((-(f32)INFINITY));
  i64 j_4 = 0;
  LOOP (; j_4 + 16 <= 20; j_4 += 16) {
   const vf32 x_5 = ld_f32(b1 + (20*(o0 + 0) + (0 + j_4)));
   r_2 = vrmax_f32(x_5, r_2);
   const vf32 x_6 = ld_f32(b1 + (20*(o0 + 0) + (0 + (j_4 + 8))));
   r_3 = vrmax_f32(x_6, r_3);
  }
  if (j_4 < 20) {
   const i64 t_7 = 20 - j_4;
   const vf32 x_8 = ldt_f32(b1 + (20*(o0 + 0) + (0 + j_4)), t_7);
   r_2 = vrmax_f32((CV(IOTA < (vi32)((i32)t_7), vi32) ? x_8 : (vf32)((-(f32)INFINITY))), r_2);
  }
  const f32 x_9 = hmax_f32(vrmax_f32(r_2, r_3));
  put_f32(T_1 + 0, x_9);
 }
 f32 T_10[24] __attribute__((aligned(64))); // e
  {
  i64 j_11 = 0;
  const f32 x_13 = get_f32(T_1 + 0);
  LOOP (; j_11 + 8 <= 20; j_11 += 8) {
   const vf32 x_12 = ld_f32(b1 + (20*(o0 + 0) + (0 + j_11)));
   const vf32 x_14 = (x_12 - (vf32)(x_13));
   const vf32 x_15 = (x_14 * (vf32)((1.4426950408889634f)));
   const vf32 x_16 = vexp2_f32(x_15);
   st_f32(T_10 + j_11, x_16);
  }
  if (j_11 < 20) {
   const i64 t_17 = 20 - j_11;
   const vf32 x_18 = ldt_f32(b1 + (20*(o0 + 0) + (0 + j_11)), t_17);
   const vf32 x_19 = (x_18 - (vf32)(x_13));
   const vf32 x_20 = (x_19 * (vf32)((1.4426950408889634f)));
   const vf32 x_21 = vexp2_f32(x_20);
   st_f32(T_10 + j_11, x_21);
  }
 }
 f32 T_22[8] __attribute__((aligned(64))); // z
  {
  vf32 r_23 = (vf32)((f32)0);
  vf32 r_24 = (vf32)((f32)0);
  i64 j_25 = 0;
  LOOP (; j_25 + 16 <= 20; j_25 += 16) {
   const vf32 x_26 = ld_f32(T_10 + j_25);
   r_23 += x_26;
   const vf32 x_27 = ld_f32(T_10 + (j_25 + 8));
   r_24 += x_27;
  }
  if (j_25 < 20) {
   const i64 t_28 = 20 - j_25;
   const vf32 x_29 = ld_f32(T_10 + j_25);
   r_23 += (CV(IOTA < (vi32)((i32)t_28), vi32) ? x_29 : (vf32)((f32)0));
  }
  const f32 x_30 = hsum_f32(vrsum_f32(r_23, r_24));
  put_f32(T_22 + 0, x_30);
 }
  {
  i64 j_31 = 0;
  const f32 x_33 = get_f32(T_22 + 0);
  const f32 x_34 = recip_f32(x_33);
  LOOP (; j_31 + 8 <= 20; j_31 += 8) {
   const vf32 x_32 = ld_f32(T_10 + j_31);
   const vf32 x_35 = (x_32 * (vf32)(x_34));
   st_f32(b0 + (20*(o0 + 0) + (0 + j_31)), x_35);
  }
  if (j_31 < 20) {
   const i64 t_36 = 20 - j_31;
   const vf32 x_37 = ld_f32(T_10 + j_31);
   const vf32 x_38 = (x_37 * (vf32)(x_34));
   stt_f32(b0 + (20*(o0 + 0) + (0 + j_31)), x_38, t_36);
  }
 }
}
static i64 rows_tasks(const i64 *size) {

 return lt_max(0, 3 / 1);
}
static void rows_run(i64 task, void *const *buf, const i64 *size) {
 rows_body(task, buf[0], buf[1], size);
}
