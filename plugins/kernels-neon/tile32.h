/* Template: matrix product of one format with 32-column blocks (activations q8x32). Included once per format with
 *   NAME    the format, e.g. q4_0; the block is struct colibri_x16_NAME
 *   OFFSET  what unpack_NAME added to every code
 *   PANEL_FROM  see tile_run.h
 *   HAS_MIN 1 if the block has minimums m[16]
 * and unpack_NAME(block, quarter, struct lines *), scale_NAME(block, quarter). Defines run_NAME(args). */

#define CAT_(a, b) a##b
#define CAT(a, b)  CAT_(a, b)
#define BLOCK      struct CAT(colibri_x16_, NAME)
#define KIND       (HAS_MIN ? GEMM_32_MIN : GEMM_32)

static void CAT(panel_, NAME)(const void *blocks, uint32_t n_blocks, void *panel)
{
    const BLOCK *const w = blocks;
    struct weights32 *const out = panel;
    for (uint32_t b = 0; b < n_blocks; b++) {
        UNROLL
        for (int h = 0; h < 4; h++) {
            struct weights32 *const o = out + (uint32_t)h * n_blocks + b;
            struct lines l;
            CAT(unpack_, NAME)(w + b, h, &l);
            put_lines(o->q, &l, 8, OFFSET);
            put_f32(o->d, CAT(scale_, NAME)(w + b, h));
#if HAS_MIN
            put_f32(o->m, load_f16(w[b].m + 4 * h));
#endif
        }
    }
}

#if !MMLA
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
    const uint32_t n_blocks = a->n_cols / 32;
    for (uint32_t b = 0; b < n_blocks; b++) {
        UNROLL
        for (int h = 0; h < 4; h++) {
            struct lines l;
            CAT(unpack_, NAME)(w + b, h, &l);
            const float32x4_t d = CAT(scale_, NAME)(w + b, h);
#if HAS_MIN
            const float32x4_t m = load_f16(w[b].m + 4 * h);
#endif
            UNROLL
            for (int i = 0; i < tile; i++) {
                const struct colibri_act_q8x32 *const xb = (const struct colibri_act_q8x32 *)x[i] + b;
                const int32x4_t start = vdupq_n_s32(OFFSET ? MAGIC_BITS - OFFSET * xb->sum : MAGIC_BITS);
                const int32x4_t s = dot_lines(start, &l, xb->q, 8);
                acc[h][i] = vfmaq_f32(acc[h][i], vmulq_n_f32(d, xb->d), magic_f32(s));
#if HAS_MIN
                acc[h][i] = vfmaq_f32(acc[h][i], vmulq_n_f32(m, xb->d), vdupq_n_f32((float)xb->sum));
#endif
            }
        }
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
#undef BLOCK
#undef CAT
#undef CAT_
#undef NAME
#undef OFFSET
#undef HAS_MIN
