/* Template: matrix product of one format with 256-column superblocks (activations q8x256). Included once per format
 * with
 *   NAME    the format, e.g. q4_k; the superblock is struct colibri_x16_NAME
 *   CHUNKS, SUBS  the superblock is CHUNKS runs of SUBS sub-blocks of 256 / (CHUNKS * SUBS) columns
 *   OFFSET, CHAIN, SIGNED  as in tile32.h
 *   HAS_MIN 1 if sub-blocks have minimums, which are subtracted
 *   PREFETCH 1 if a superblock's lines are not used in the order in which they lie, which hardware prefetchers follow
 *     badly: then they are asked for two superblocks ahead
 * and
 *   scales_NAME(block, half, scale[], pair[8]): scale[s] of sub-block s as 16-bit pairs (s, s); pair[k] the pairs that
 *     multiply bsum[2k], bsum[2k+1]: minimums if HAS_MIN, else (with an OFFSET) the scales
 *   unpack_NAME(block, half, chunk, k, struct lines *): lines of sub-block SUBS * chunk + k; k is a constant.
 * Defines run_NAME(args). */

#define CAT_(a, b) a##b
#define CAT(a, b)  CAT_(a, b)
#define BLOCK      struct CAT(colibri_x16_, NAME)
#define N_SUB      (CHUNKS * SUBS)
#define LINES      (64 / N_SUB)

/* One superblock of one half: adds to acc[0 .. tile). */
INLINE void CAT(superblock_, NAME)(const BLOCK *w, const int half, const void *const *x, uint32_t b, const int tile,
                                   __m256 *acc)
{
    __m256i scale[N_SUB], pair[8], isum[4];
    CAT(scales_, NAME)(w, half, scale, pair);
    UNROLL
    for (int i = 0; i < tile; i++)
        isum[i] = _mm256_setzero_si256();
    for (int c = 0; c < CHUNKS; c++) {
        UNROLL
        for (int k = 0; k < SUBS; k++) {
            struct lines l;
            if (PREFETCH && half == 0)
                prefetch(w + 2, sizeof(BLOCK) / N_SUB, (size_t)(c * SUBS + k));
            CAT(unpack_, NAME)(w, half, c, k, &l);
            const __m256i sc = scale[c * SUBS + k];
            UNROLL
            for (int i = 0; i < tile; i++) {
                const struct colibri_act_q8x256 *const xb = (const struct colibri_act_q8x256 *)x[i] + b;
                isum[i] = dot_lines_scaled(isum[i], &l, xb->q + (c * SUBS + k) * LINES * 4, LINES, CHAIN, SIGNED, sc);
            }
        }
    }
    const __m256 d = load_f16(w->d + 8 * half);
#if HAS_MIN
    const __m256 dmin = load_f16(w->dmin + 8 * half);
#endif
    UNROLL
    for (int i = 0; i < tile; i++) {
        const struct colibri_act_q8x256 *const xb = (const struct colibri_act_q8x256 *)x[i] + b;
        const __m256 dx = _mm256_set1_ps(xb->d);
        __m256i s = isum[i];
#if HAS_MIN || OFFSET
        __m256i m = _mm256_setzero_si256();
        UNROLL
        for (int k = 0; k < 8; k++)
            m = madd_pair(m, pair[k], xb->bsum + 2 * k);
        if (OFFSET)
            s = _mm256_sub_epi32(s, _mm256_mullo_epi32(m, _mm256_set1_epi32(OFFSET)));
#endif
        acc[i] = _mm256_fmadd_ps(_mm256_mul_ps(d, dx), _mm256_cvtepi32_ps(s), acc[i]);
#if HAS_MIN
        acc[i] = _mm256_fnmadd_ps(_mm256_mul_ps(dmin, dx), _mm256_cvtepi32_ps(m), acc[i]);
#endif
    }
}

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
    const uint32_t n_blocks = a->n_cols / 256;
    for (uint32_t b = 0; b < n_blocks; b++) {
        UNROLL
        for (int h = 0; h < halves; h++)
            CAT(superblock_, NAME)(w + b, half0 + h, x, b, tile, acc[h]);
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
