CALL void rows_body(i64 task, f32 *restrict b0, f32 *restrict b1, const i64 *size) {

 const i64 o0 = 0 + task % lt_max(0, 3 / 1) * 1;
 task /= lt_max(0, 3 / 1);
 f32 T_1[8] __attribute__((aligned(64))); // m
  {
  vf32 r_2 = (vf32)((-(f32)INFINITY));
  vf32 r_3 = (vf32)((-(f32)INFINITY));
  vf32 r_4 = (vf32)((-(f32)INFINITY));
  vf32 r_5 = (vf32)((-(f32)INFINITY));
  i64 j_6 = 0;
  LOOP (; j_6 + 8 <= 20; j_6 += 8) {
   const vf32 x_7 = ld_f32(b1 + (20*(o0 + 0) + (0 + j_6)));
   r_2 = vrmax_f32(x_7, r_2);
  }
  if (j_6 < 20) {
   const i64 t_8 = 20 - j_6;
   const vf32 x_9 = ldt_f32(b1 + (20*(o0 + 0) + (0 + j_6)), t_8);
   r_2 = vrmax_f32((CV(IOTA < (vi32)((i32)t_8), vi32) ? x_9 : (vf32)((-(f32)INFINITY))), r_2);
  }
  const f32 x_10 = hmax_f32(vrmax_f32(vrmax_f32(vrmax_f32(r_2, r_3), r_4), r_5));
  put_f32(T_1 + 0, x_10);
 }
 f32 T_11[24] __attribute__((aligned(64))); // e
  {
  i64 j_12 = 0;
  const f32 x_14 = get_f32(T_1 + 0);
  LOOP (; j_12 + 8 <= 20; j_12 += 8) {
   const vf32 x_13 = ld_f32(b1 + (20*(o0 + 0) + (0 + j_12)));
   const vf32 x_15 = (x_13 - (vf32)(x_14));
   const vf32 x_16 = (x_15 * (vf32)((1.4426950408889634f)));
   const vf32 x_17 = vexp2_f32(x_16);
   st_f32(T_11 + j_12, x_17);
  }
  if (j_12 < 20) {
   const i64 t_18 = 20 - j_12;
   const vf32 x_19 = ldt_f32(b1 + (20*(o0 + 0) + (0 + j_12)), t_18);
   const vf32 x_20 = (x_19 - (vf32)(x_14));
   const vf32 x_21 = (x_20 * (vf32)((1.4426950408889634f)));
   const vf32 x_22 = vexp2_f32(x_21);
   st_f32(T_11 + j_12, x_22);
  }
 }
 f32 T_23[8] __attribute__((aligned(64))); // z
  {
  vf32 r_24 = (vf32)((f32)0);
  vf32 r_25 = (vf32)((f32)0);
  vf32 r_26 = (vf32)((f32)0);
  vf32 r_27 = (vf32)((f32)0);
  i64 j_28 = 0;
  LOOP (; j_28 + 8 <= 20; j_28 += 8) {
   const vf32 x_29 = ld_f32(T_11 + j_28);
   r_24 += x_29;
  }
  if (j_28 < 20) {
   const i64 t_30 = 20 - j_28;
   const vf32 x_31 = ld_f32(T_11 + j_28);
   r_24 += (CV(IOTA < (vi32)((i32)t_30), vi32) ? x_31 : (vf32)((f32)0));
  }
  const f32 x_32 = hsum_f32(vrsum_f32(vrsum_f32(vrsum_f32(r_24, r_25), r_26), r_27));
  put_f32(T_23 + 0, x_32);
 }
  {
  i64 j_33 = 0;
  const f32 x_35 = get_f32(T_23 + 0);
  const f32 x_36 = recip_f32(x_35);
  LOOP (; j_33 + 8 <= 20; j_33 += 8) {
   const vf32 x_34 = ld_f32(T_11 + j_33);
   const vf32 x_37 = (x_34 * (vf32)(x_36));
   st_f32(b0 + (20*(o0 + 0) + (0 + j_33)), x_37);
  }
  if (j_33 < 20) {
   const i64 t_38 = 20 - j_33;
   const vf32 x_39 = ld_f32(T_11 + j_33);
   const vf32 x_40 = (x_39 * (vf32)(x_36));
   stt_f32(b0 + (20*(o0 + 0) + (0 + j_33)), x_40, t_38);
  }
 }
}
static i64 rows_tasks(const i64 *size) {

 return lt_max(0, 3 / 1);
}
static void rows_run(i64 task, void *const *buf, const i64 *size) {
 rows_body(task, buf[0], buf[1], size);
}
