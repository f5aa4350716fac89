/* Template: matrix product of one format with 32-column blocks (activations q8x32). Included once per format with
 *   NAME    the format, e.g. q4_0; the block is struct colibri_x16_NAME
 *   OFFSET  what unpack_NAME added to every code
 *   CHAIN   products that may be added in 16 bits (simd.h)
 *   SIGNED  1 if codes are signed
 *   HAS_MIN 1 if the block has minimums m[16]
 * and unpack_NAME(block, half, struct lines *), scale_NAME(block, half). Defines run_NAME(args). */

#define CAT_(a, b) a##b
#define CAT(a, b)  CAT_(a, b)
#define BLOCK      struct CAT(colibri_x16_, NAME)

/* `halves` halves from `half0` on of one group of 16 rows, times `tile` activation rows from t on, of which `count`
 * are stored. */
INLINE void CAT(tile_, NAME)(const struct colibri_matmul_args *a, uint32_t g, const int half0, uint32_t t,
                             uint32_t count, const int halves, const int tile)
{
    const BLOCK *const w = (const void *)((const char *)a->w + (size_t)g * a->group_stride);
    const void *x[4];
    __m256 acc[2][4];
    gather_x(a, t, count, tile, x);
    UNROLL
    for (int h = 0; h < halves; h++) {
        UNROLL
        for (int i = 0; i < tile; i++)
            acc[h][i] = _mm256_setzero_ps();
    }
    const uint32_t n_blocks = a->n_cols / 32;
    for (uint32_t b = 0; b < n_blocks; b++) {
        UNROLL
        for (int h = 0; h < halves; h++) {
            struct lines l;
            CAT(unpack_, NAME)(w + b, half0 + h, &l);
            const __m256 d = CAT(scale_, NAME)(w + b, half0 + h);
#if HAS_MIN
            const __m256 m = load_f16(w[b].m + 8 * (half0 + h));
#endif
            UNROLL
            for (int i = 0; i < tile; i++) {
                const struct colibri_act_q8x32 *const xb = (const struct colibri_act_q8x32 *)x[i] + b;
                const __m256i sum = broadcast32(&xb->sum);
                const __m256i init =
                    OFFSET ? _mm256_mullo_epi32(sum, _mm256_set1_epi32(-OFFSET)) : _mm256_setzero_si256();
                const __m256i s = dot_lines_scaled(init, &l, xb->q, 8, CHAIN, SIGNED, _mm256_set1_epi16(1));
                const __m256 dx = _mm256_set1_ps(xb->d);
                acc[h][i] = _mm256_fmadd_ps(_mm256_mul_ps(d, dx), _mm256_cvtepi32_ps(s), acc[h][i]);
#if HAS_MIN
                acc[h][i] = _mm256_fmadd_ps(_mm256_mul_ps(m, dx), _mm256_cvtepi32_ps(sum), acc[h][i]);
#endif
            }
        }
    }
    UNROLL
    for (int h = 0; h < halves; h++) {
        UNROLL
        for (int i = 0; i < tile; i++)
            if ((uint32_t)i < count)
                store_rows(a, g, half0 + h, t + (uint32_t)i, acc[h][i]);
    }
}

#include "tile_run.h"

#undef BLOCK
#undef CAT
#undef CAT_
#undef NAME
#undef OFFSET
#undef CHAIN
#undef SIGNED
#undef HAS_MIN
