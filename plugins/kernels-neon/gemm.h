/* Products with many activation rows: weights are unpacked once per group into a panel of signed bytes and reused for
 * all activation rows, so that one loop serves all formats of a kind and a format's unpacking hardly counts.
 *
 * Panels cover at most GEMM_COLS columns of one group; results of earlier columns wait in y, as the floats they are.
 * A panel has the blocks of quarter 0, then those of quarter 1, and so on. What a lane of a register is, depends on the
 * instruction (MMLA, simd.h):
 *   sdot   a register of codes is 4 rows x 4 columns; a unit is one activation row; sums are [row 0..3]
 *   smmla  a register of codes is 2 rows x 8 columns; a unit is a pair of activation rows; sums are two registers,
 *          [t0 row 0, t0 row 1, t1 row 0, t1 row 1] and the same of rows 2 and 3 */
#ifndef KERNELS_NEON_GEMM_H
#define KERNELS_NEON_GEMM_H

#include "simd.h"

#define N_ACC (MMLA ? 2 : 1) /* registers of sums of one unit */

enum gemm_kind {
    GEMM_32,         /* blocks of 32 columns */
    GEMM_32_MIN,     /* with minimums */
    GEMM_256_S8,     /* superblocks with 8 scales */
    GEMM_256_S8_MIN, /* with 8 minimums too */
    GEMM_256_S16,
    GEMM_256_S0,     /* the scales are in the codes */
    GEMM_256_S0_MIN, /* the same, with 16 minimums */
};

#define GEMM_COLS 1024u

/* Weights of one quarter. Codes: lines 0..7 as in struct lines. */
struct weights32 {
    int8_t q[8][16];
    float d[N_ACC][4], m[N_ACC][4];
};

struct weights256 {
    int8_t q[8][8][16];
    int32_t scale[16][N_ACC][4];
    int8_t min[4][16]; /* minimums of sub-blocks, as lines of codes */
    float d[N_ACC][4], dmin[N_ACC][4];
};

/* Turns n_blocks packed blocks of a group into a panel of 4 * n_blocks struct weights32 or weights256. */
typedef void gemm_unpack_fn(const void *blocks, uint32_t n_blocks, void *panel);

struct gemm_format {
    enum gemm_kind kind;
    size_t block_bytes;
    gemm_unpack_fn *unpack;
};

#if MMLA
#define GEMM clb_neon_i8mm_gemm
#else
#define GEMM clb_neon_dotprod_gemm
#endif

/* The whole product. */
void GEMM(const struct colibri_matmul_args *a, const struct gemm_format *f);

/* ---- for the unpack functions ------------------------------------------------------------------------------ */

/* One value per row, in 4 lanes, as it meets the sums. */
INLINE void put_f32(float out[N_ACC][4], float32x4_t v)
{
#if MMLA
    vst1q_f32(out[0], vcombine_f32(vget_low_f32(v), vget_low_f32(v)));
    vst1q_f32(out[1], vcombine_f32(vget_high_f32(v), vget_high_f32(v)));
#else
    vst1q_f32(out[0], v);
#endif
}

INLINE void put_s32(int32_t out[N_ACC][4], int32x4_t v)
{
#if MMLA
    vst1q_s32(out[0], vcombine_s32(vget_low_s32(v), vget_low_s32(v)));
    vst1q_s32(out[1], vcombine_s32(vget_high_s32(v), vget_high_s32(v)));
#else
    vst1q_s32(out[0], v);
#endif
}

/* n lines of codes, less `offset`. */
INLINE void put_lines(int8_t (*out)[16], const struct lines *l, const int n, const int offset)
{
    UNROLL
    for (int j = 0; j < n; j++)
        vst1q_s8(out[j], offset ? vsubq_s8(l->q[j], vdupq_n_s8((int8_t)offset)) : l->q[j]);
}

/* n lines of codes, less `offset`, times one byte-sized scale per row; the products must fit signed bytes. */
INLINE void put_scaled_lines(int8_t (*out)[16], const struct lines *l, const int n, const int offset, int32x4_t scale)
{
    const uint32x4_t low = vandq_u32(vreinterpretq_u32_s32(scale), vdupq_n_u32(0xff));
    uint8x16_t s[2];
    s[0] = s[1] = vreinterpretq_u8_u32(vmulq_n_u32(low, 0x01010101u)); /* 4 bytes per row, for each of two quads */
    pair_lines(&s[0], &s[1]);
    UNROLL
    for (int j = 0; j < n; j++) {
        const int8x16_t code = offset ? vsubq_s8(l->q[j], vdupq_n_s8((int8_t)offset)) : l->q[j];
        vst1q_s8(out[j], vmulq_s8(code, vreinterpretq_s8_u8(s[j % 2])));
    }
}

/* n = 8 or 16 minimums per row, each below 128. */
INLINE void put_mins(int8_t out[4][16], const int16x4_t *min, const int n)
{
    uint8x16_t v[4];
    UNROLL
    for (int j = 0; j < n / 4; j++) {
        uint32x4_t word = vmovl_u16(vreinterpret_u16_s16(min[4 * j]));
        UNROLL
        for (int k = 1; k < 4; k++)
            word = vorrq_u32(word, vshlq_u32(vmovl_u16(vreinterpret_u16_s16(min[4 * j + k])), vdupq_n_s32(8 * k)));
        v[j] = vreinterpretq_u8_u32(word);
    }
    UNROLL
    for (int j = 0; j < n / 4; j += 2) {
        pair_lines(&v[j], &v[j + 1]);
        vst1q_s8(out[j], vreinterpretq_s8_u8(v[j]));
        vst1q_s8(out[j + 1], vreinterpretq_s8_u8(v[j + 1]));
    }
}

#endif
