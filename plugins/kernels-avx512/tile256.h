/* Template: matrix product of one format with 256-column superblocks (activations q8x256). Included once per format
 * with
 *   NAME    the format, e.g. q4_k; the superblock is struct colibri_x16_NAME
 *   CHUNKS, SUBS  the superblock is CHUNKS runs of SUBS sub-blocks of 256 / (CHUNKS * SUBS) columns
 *   OFFSET, CHAIN, SIGNED  as in tile32.h
 *   HAS_MIN 1 if sub-blocks have minimums, which are subtracted
 *   PREFETCH 1 if a superblock's lines are not used in the order in which they lie, which hardware prefetchers follow
 *     badly: then they are asked for two superblocks ahead
 * and
 *   scales_NAME(block, scale[], pair[8]): scale[s] of sub-block s in scale_form; pair[k] the 16-bit pairs that
 *     multiply bsum[2k], bsum[2k+1]: minimums if HAS_MIN, else (with an OFFSET) the scales
 *   unpack_NAME(block, chunk, k, struct lines *): lines of sub-block SUBS * chunk + k; k is a constant.
 * Defines run_NAME(args). */

#define CAT_(a, b) a##b
#define CAT(a, b)  CAT_(a, b)
#define BLOCK      struct CAT(colibri_x16_, NAME)
#define N_SUB      (CHUNKS * SUBS)
#define LINES      (64 / N_SUB)

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
    const uint32_t n_blocks = a->n_cols / 256;
    for (uint32_t b = 0; b < n_blocks; b++) {
        __m512i scale[N_SUB], pair[8], isum[12];
        CAT(scales_, NAME)(w + b, scale, pair);
        UNROLL
        for (int i = 0; i < tile; i++)
            isum[i] = _mm512_setzero_si512();
        for (int c = 0; c < CHUNKS; c++) {
            UNROLL
            for (int k = 0; k < SUBS; k++) {
                struct lines l;
                if (PREFETCH)
                    prefetch(w + b + 2, sizeof(BLOCK) / N_SUB, (size_t)(c * SUBS + k));
                CAT(unpack_, NAME)(w + b, c, k, &l);
                const __m512i sc = scale[c * SUBS + k];
                UNROLL
                for (int i = 0; i < tile; i++) {
                    const struct colibri_act_q8x256 *const xb = (const struct colibri_act_q8x256 *)x[i] + b;
                    isum[i] =
                        dot_lines_scaled(isum[i], &l, xb->q + (c * SUBS + k) * LINES * 4, LINES, CHAIN, SIGNED, sc);
                }
            }
        }
        const __m512 d = load_f16(w[b].d);
#if HAS_MIN
        const __m512 dmin = load_f16(w[b].dmin);
#endif
        UNROLL
        for (int i = 0; i < tile; i++) {
            const struct colibri_act_q8x256 *const xb = (const struct colibri_act_q8x256 *)x[i] + b;
            const __m512 dx = _mm512_set1_ps(xb->d);
            __m512i s = isum[i];
#if HAS_MIN || OFFSET
            __m512i m = _mm512_setzero_si512();
            UNROLL
            for (int k = 0; k < 8; k++)
                m = madd_pair(m, pair[k], xb->bsum + 2 * k);
            if (OFFSET)
                s = _mm512_sub_epi32(s, _mm512_mullo_epi32(m, _mm512_set1_epi32(OFFSET)));
#endif
            acc[i] = _mm512_fmadd_ps(_mm512_mul_ps(d, dx), _mm512_cvtepi32_ps(s), acc[i]);
#if HAS_MIN
            acc[i] = _mm512_fnmadd_ps(_mm512_mul_ps(dmin, dx), _mm512_cvtepi32_ps(m), acc[i]);
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

#undef LINES
#undef N_SUB
#undef BLOCK
#undef CAT
#undef CAT_
#undef NAME
#undef CHUNKS
#undef SUBS
#undef OFFSET
#undef CHAIN
#undef SIGNED
#undef HAS_MIN
#undef PREFETCH
