/* Template: matrix product of one format with 256-column superblocks (activations q8x256). Included once per format
 * with
 *   NAME    the format, e.g. q4_k; the superblock is struct colibri_x16_NAME
 *   CHUNKS, SUBS  the superblock is CHUNKS runs of SUBS sub-blocks; CHUNKS * SUBS is 8 or 16
 *   OFFSET  what unpack_NAME added to every code
 *   PANEL_FROM  see tile_run.h
 *   HAS_MIN 1 if sub-blocks have minimums, which are subtracted
 *   SCALE_CODES  defined if code * scale * SCALE_CODES, the sign 1 or -1, is a signed byte: then a panel has these
 *           products instead of codes, and d takes the sign back
 * and
 *   scales_NAME(block, quarter, scale[], side[]): scale of every sub-block in 32 bits; side, in 16 bits, is what
 *     multiplies the sums of a sub-block's activations: the minimums if HAS_MIN, else (with an OFFSET) the scales
 *   unpack_NAME(block, quarter, chunk, k, struct lines *): lines of sub-block SUBS * chunk + k; k is a constant.
 * Defines run_NAME(args). */

#define CAT_(a, b) a##b
#define CAT(a, b)  CAT_(a, b)
#define BLOCK      struct CAT(colibri_x16_, NAME)
#define N_SUB      (CHUNKS * SUBS)
#define LINES      (64 / N_SUB)
#ifdef SCALE_CODES
#define KIND (HAS_MIN ? GEMM_256_S0_MIN : GEMM_256_S0)
#elif N_SUB == 16
#define KIND GEMM_256_S16
#else
#define KIND (HAS_MIN ? GEMM_256_S8_MIN : GEMM_256_S8)
#endif

static void CAT(panel_, NAME)(const void *blocks, uint32_t n_blocks, void *panel)
{
    for (uint32_t b = 0; b < n_blocks; b++) {
        for (int h = 0; h < 4; h++) {
            const BLOCK *const w = (const BLOCK *)blocks + b;
            struct weights256 *const o = (struct weights256 *)panel + (uint32_t)h * n_blocks + b;
            int32x4_t scale[N_SUB];
            int16x4_t side[N_SUB];
            CAT(scales_, NAME)(w, h, scale, side);
            NO_UNROLL
            for (int c = 0; c < CHUNKS; c++) {
                UNROLL
                for (int k = 0; k < SUBS; k++) {
                    struct lines l;
                    int8_t(*const to)[16] = o->q[0] + (c * SUBS + k) * LINES;
                    CAT(unpack_, NAME)(w, h, c, k, &l);
#ifdef SCALE_CODES
                    put_scaled_lines(to, &l, LINES, OFFSET, vmulq_n_s32(scale[c * SUBS + k], SCALE_CODES));
#else
                    put_lines(to, &l, LINES, OFFSET);
                    put_s32(o->scale[c * SUBS + k], scale[c * SUBS + k]);
#endif
                }
            }
#ifdef SCALE_CODES
            put_f32(o->d, vmulq_n_f32(load_f16(w->d + 4 * h), (float)SCALE_CODES));
#else
            put_f32(o->d, load_f16(w->d + 4 * h));
#endif
#if HAS_MIN
            put_f32(o->dmin, load_f16(w->dmin + 4 * h));
            put_mins(o->min, side, N_SUB);
#endif
        }
    }
}

#if !MMLA

/* One superblock of one quarter: adds to acc[0 .. tile). */
INLINE void CAT(superblock_, NAME)(const BLOCK *w, const int quarter, const void *const *x, uint32_t b, const int tile,
                                   float32x4_t *acc)
{
    int32x4_t scale[N_SUB], isum[4];
    int16x4_t side[N_SUB];
    CAT(scales_, NAME)(w, quarter, scale, side);
    UNROLL
    for (int i = 0; i < tile; i++)
        isum[i] = vdupq_n_s32(0);
#if CHUNKS == 4
    NO_UNROLL
#endif
    for (int c = 0; c < CHUNKS; c++) {
        UNROLL
        for (int k = 0; k < SUBS; k++) {
            struct lines l;
            CAT(unpack_, NAME)(w, quarter, c, k, &l);
            const int32x4_t sc = scale[c * SUBS + k];
            UNROLL
            for (int i = 0; i < tile; i++) {
                const struct colibri_act_q8x256 *const xb = (const struct colibri_act_q8x256 *)x[i] + b;
                const int8_t *const q = xb->q + (c * SUBS + k) * LINES * 4;
                isum[i] = vmlaq_s32(isum[i], dot_lines(vdupq_n_s32(0), &l, q, LINES), sc);
            }
        }
    }
    const float32x4_t d = load_f16(w->d + 4 * quarter);
#if HAS_MIN
    const float32x4_t dmin = load_f16(w->dmin + 4 * quarter);
#endif
    UNROLL
    for (int i = 0; i < tile; i++) {
        const struct colibri_act_q8x256 *const xb = (const struct colibri_act_q8x256 *)x[i] + b;
        int32x4_t s = isum[i];
#if HAS_MIN || OFFSET
        const int16x8_t s0 = vld1q_s16(xb->bsum), s1 = vld1q_s16(xb->bsum + 8);
        const int32x4_t m = N_SUB == 8 ? side8(vdupq_n_s32(0), side, vpaddq_s16(s0, s1))
                                       : side8(side8(vdupq_n_s32(0), side, s0), side + N_SUB - 8, s1);
        if (OFFSET)
            s = vmlsq_n_s32(s, m, OFFSET);
#else
        (void)side;
#endif
        acc[i] = vfmaq_f32(acc[i], vmulq_n_f32(d, xb->d), vcvtq_f32_s32(s));
#if HAS_MIN
        acc[i] = vfmsq_f32(acc[i], vmulq_n_f32(dmin, xb->d), vcvtq_f32_s32(m));
#endif
    }
}

/* One group of 16 rows times `tile` activation rows from t on. */
INLINE void CAT(tile_, NAME)(const struct colibri_matmul_args *a, uint32_t g, uint32_t t, const int tile)
{
    const BLOCK *const w = (const void *)((const char *)a->w + (size_t)g * a->group_stride);
    const void *x[4];
    float32x4_t acc[4][4];
    gather_x(a, t, tile, x);
    UNROLL
    for (int h = 0; h < 4; h++) {
        UNROLL
        for (int i = 0; i < tile; i++)
            acc[h][i] = vdupq_n_f32(0.0f);
    }
    const uint32_t n_blocks = a->n_cols / 256;
    for (uint32_t b = 0; b < n_blocks; b++) {
        UNROLL
        for (int h = 0; h < 4; h++)
            CAT(superblock_, NAME)(w + b, h, x, b, tile, acc[h]);
    }
    UNROLL
    for (int h = 0; h < 4; h++) {
        UNROLL
        for (int i = 0; i < tile; i++)
            store_rows(a, g, h, t + (uint32_t)i, acc[h][i]);
    }
}
#endif

#include "tile_run.h"

#undef KIND
#undef LINES
#undef N_SUB
#undef BLOCK
#undef CAT
#undef CAT_
#undef NAME
#undef CHUNKS
#undef SUBS
#undef OFFSET
#undef HAS_MIN
#undef SCALE_CODES
