/* Template: matrix product of one format with 32-column blocks (activations q8x32). Included once per format with
 *   NAME    the format, e.g. q4_0; the block is struct colibri_x16_NAME
 *   OFFSET  what unpack_NAME added to every code
 *   HAS_MIN 1 if the block has minimums m[16]
 * and unpack_NAME(block, quarter, struct lines *), scale_NAME(block, quarter). Defines run_NAME(args). */

#define CAT_(a, b) a##b
#define CAT(a, b)  CAT_(a, b)
#define BLOCK      struct CAT(colibri_x16_, NAME)

/* One group of 16 rows times `tile` activation rows from t on, of which `count` are stored. */
INLINE void CAT(tile_, NAME)(const struct colibri_matmul_args *a, uint32_t g, uint32_t t, uint32_t count,
                             const int tile)
{
    const BLOCK *const w = (const void *)((const char *)a->w + (size_t)g * a->group_stride);
    const void *x[4];
    float32x4_t acc[4][4];
    gather_x(a, t, count, tile, x);
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
                int32x4_t s = dot_lines(&l, xb->q, 8);
                if (OFFSET)
                    s = vsubq_s32(s, vdupq_n_s32(OFFSET * xb->sum));
                acc[h][i] = vfmaq_f32(acc[h][i], vmulq_n_f32(d, xb->d), vcvtq_f32_s32(s));
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
            if ((uint32_t)i < count)
                store_rows(a, g, h, t + (uint32_t)i, acc[h][i]);
    }
}

#include "tile_run.h"

#undef BLOCK
#undef CAT
#undef CAT_
#undef NAME
#undef OFFSET
#undef HAS_MIN
