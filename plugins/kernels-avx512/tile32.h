/* Template: matrix product of one format with 32-column blocks (activations q8x32). Included once per format with
 *   NAME    the format, e.g. q4_0; the block is struct colibri_x16_NAME
 *   OFFSET  what unpack_NAME added to every code
 *   CHAIN   products that may be added in 16 bits (simd.h)
 *   SIGNED  1 if the codes went through lines_signed
 *   HAS_MIN 1 if the block has minimums m[16]
 * and unpack_NAME(block, struct lines *), scale_NAME(block). Defines run_NAME(args). */

#define CAT_(a, b) a##b
#define CAT(a, b)  CAT_(a, b)
#define BLOCK      struct CAT(colibri_x16_, NAME)

/* One group of 16 rows times `tile` activation rows from t on, of which `count` are stored. */
INLINE void CAT(tile_, NAME)(const struct colibri_matmul_args *a, uint32_t g, uint32_t t, uint32_t count,
                             const int tile)
{
    const BLOCK *const w = (const void *)((const char *)a->w + (size_t)g * a->group_stride);
    const void *x[12];
    __m512 acc[12];
    gather_x(a, t, count, tile, x);
    UNROLL
    for (int i = 0; i < tile; i++)
        acc[i] = _mm512_setzero_ps();
    const uint32_t n_blocks = a->n_cols / 32;
    for (uint32_t b = 0; b < n_blocks; b++) {
        struct lines l;
        CAT(unpack_, NAME)(w + b, &l);
        const __m512 d = CAT(scale_, NAME)(w + b);
#if HAS_MIN
        const __m512 m = load_f16(w[b].m);
#endif
        UNROLL
        for (int i = 0; i < tile; i++) {
            const struct colibri_act_q8x32 *const xb = (const struct colibri_act_q8x32 *)x[i] + b;
            const __m512i sum = broadcast32(&xb->sum);
            __m512i s = dot_lines(&l, xb->q, 8, CHAIN, SIGNED);
            if (OFFSET)
                s = _mm512_sub_epi32(s, _mm512_mullo_epi32(sum, _mm512_set1_epi32(OFFSET)));
            const __m512 dx = _mm512_set1_ps(xb->d);
            acc[i] = _mm512_fmadd_ps(_mm512_mul_ps(d, dx), _mm512_cvtepi32_ps(s), acc[i]);
#if HAS_MIN
            acc[i] = _mm512_fmadd_ps(_mm512_mul_ps(m, dx), _mm512_cvtepi32_ps(sum), acc[i]);
#endif
        }
    }
    const __mmask16 rows = first16(a->n_rows - 16 * (size_t)g);
    UNROLL
    for (int i = 0; i < tile; i++)
        if ((uint32_t)i < count)
            _mm512_mask_storeu_ps(a->y + (size_t)(t + (uint32_t)i) * a->y_stride + 16 * (size_t)g, rows, acc[i]);
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
