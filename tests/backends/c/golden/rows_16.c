CALL void rows_body(i64 task, f32 *restrict b0, f32 *restrict b1, const i64 *size) {

 const i64 o0 = 0 + task % lt_max(0, 3 / 1) * 1;
 task /= lt_max(0, 3 / 1);
 f32 T_1[4] __attribute__((aligned(64))); // m
  {
  vf32 r_2 = (vf32)((-(f32)INFINITY));
  vf32 r_3 = (vf32)((-(f32)INFINITY));
  vf32 r_4 = (vf32)((-(f32)INFINITY));
  vf32 r_5 = (vf32)((-(f32)INFINITY));
  i64 j_6 = 0;
  LOOP (; j_6 + 16 <= 20; j_6 += 16) {
   const vf32 x_7 = ld_f32(b1 + (20*(o0 + 0) + (0 + j_6)));
   r_2 = vrmax_f32(x_7, r_2);
   const vf32 x_8 = ld_f32(b1 + (20*(o0 + 0) + (0 + (j_6 + 4))));
   r_3 = vrmax_f32(x_8, r_3);
   const vf32 x_9 = ld_f32(b1 + (20*(o0 + 0) + (0 + (j_6 + 8))));
   r_4 = vrmax_f32(x_9, r_4);
   const vf32 x_10 = ld_f32(b1 + (20*(o0 + 0) + (0 + (j_6 + 12))));
   r_5 = vrmax_f32(x_10, r_5);
  }
  LOOP (; j_6 + 4 <= 20; j_6 += 4) {
   const vf32 x_11 = ld_f32(b1 + (20*(o0 + 0) + (0 + j_6)));
   r_2 = vrmax_f32(x_11, r_2);
  }
  const f32 x_12 = hmax_f32(vrmax_f32(vrmax_f32(vrmax_f32(r_2, r_3), r_4), r_5));
  put_f32(T_1 + 0, x_12);
 }
 f32 T_13[20] __attribute__((aligned(64))); // e
  {
  i64 j_14 = 0;
  const f32 x_16 = get_f32(T_1 + 0);
  LOOP (; j_14 + 4 <= 20; j_14 += 4) {
   const vf32 x_15 = ld_f32(b1 + (20*(o0 + 0) + (0 + j_14)));
   const vf32 x_17 = (x_15 - (vf32)(x_16));
   const vf32 x_18 = (x_17 * (vf32)((1.4426950408889634f)));
   const vf32 x_19 = vexp2_f32(x_18);
   st_f32(T_13 + j_14, x_19);
  }
 }
 f32 T_20[4] __attribute__((aligned(64))); // z
  {
  vf32 r_21 = (vf32)((f32)0);
  vf32 r_22 = (vf32)((f32)0);
  vf32 r_23 = (vf32)((f32)0);
  vf32 r_24 = (vf32)((f32)0);
  i64 j_25 = 0;
  LOOP (; j_25 + 16 <= 20; j_25 += 16) {
   const vf32 x_26 = ld_f32(T_13 + j_25);
   r_21 += x_26;
   const vf32 x_27 = ld_f32(T_13 + (j_25 + 4));
   r_22 += x_27;
   const vf32 x_28 = ld_f32(T_13 + (j_25 + 8));
   r_23 += x_28;
   const vf32 x_29 = ld_f32(T_13 + (j_25 + 12));
   r_24 += x_29;
  }
  LOOP (; j_25 + 4 <= 20; j_25 += 4) {
   const vf32 x_30 = ld_f32(T_13 + j_25);
   r_21 += x_30;
  }
  const f32 x_31 = hsum_f32(vrsum_f32(vrsum_f32(vrsum_f32(r_21, r_22), r_23), r_24));
  put_f32(T_20 + 0, x_31);
 }
  {
  i64 j_32 = 0;
  const f32 x_34 = get_f32(T_20 + 0);
  const f32 x_35 = recip_f32(x_34);
  LOOP (; j_32 + 4 <= 20; j_32 += 4) {
   const vf32 x_33 = ld_f32(T_13 + j_32);
   const vf32 x_36 = (x_33 * (vf32)(x_35));
   st_f32(b0 + (20*(o0 + 0) + (0 + j_32)), x_36);
  }
 }
}
static i64 rows_tasks(const i64 *size) {

 return lt_max(0, 3 / 1);
}
static void rows_run(i64 task, void *const *buf, const i64 *size) {
 rows_body(task, buf[0], buf[1], size);
}
