/* Template: matrix product of one format with 256-column superblocks (activations q8x256). Included once per format
 * with
 *   NAME    the format, e.g. q4_k; the superblock is struct colibri_x16_NAME
 *   CHUNKS, SUBS  the superblock is CHUNKS runs of SUBS sub-blocks of 256 / (CHUNKS * SUBS) columns
 *   DIRECT  up to how many activation rows need no panel: more where codes are cheap to make (measured)
 *   OFFSET, CHAIN, SIGNED  as in tile32.h
 *   HAS_MIN 1 if sub-blocks have minimums, which are subtracted
 *   PREFETCH 1 if a superblock's lines are not used in the order in which they lie, which hardware prefetchers follow
 *     badly: then they are asked for two superblocks ahead
 * and
 *   scales_NAME(block, half, scale[], pair[]): scale[s] of sub-block s as add_scaled takes it; pair[k] 16-bit pairs of
 *     minimums if HAS_MIN, else of scales, of the sub-blocks 2k and 2k + 1
 *   quad_NAME(block, half, chunk, k, j): codes of columns 4j..4j+3 of sub-block SUBS * chunk + k, of 8 rows; k and j,
 * and chunk unless SUBS is 1, are constants. and if SIGNED magnitudes_NAME(the same): absolute values of the codes.
 * Defines run_NAME(args). */

#define CAT_(a, b) a##b
#define CAT(a, b)  CAT_(a, b)
#define BLOCK      struct CAT(colibri_x16_, NAME)
#define BLOCK_COLS 256
#define N_SUB      (CHUNKS * SUBS)
#define N_PAIRS    (N_SUB / 2)
#define LINES      (64 / N_SUB)
#define WIDE       (SIGNED && !VNNI)
#if SIGNED && !VNNI
#define MAGNITUDES CAT(magnitudes_, NAME)(w, h, c, k, j)
#else
#define MAGNITUDES q
#endif
#define STEP     (VNNI ? LINES : CHAIN)
#define TAKE_OFF (SIGNED ? SIGNED_OFFSET : OFFSET)
#define HAS_SUMS (HAS_MIN + TAKE_OFF > 0) /* sums of activations are needed */

/* Sums of the activations of every sub-block. */
INLINE const int16_t *CAT(sub_sums_, NAME)(const struct colibri_act_q8x256 *x, int16_t sums[8])
{
    if (N_SUB == 16)
        return x->bsum;
    const __m256i s = _mm256_madd_epi16(load256(x->bsum), ones16());
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi32(s, s), 0x08);
    _mm_storeu_si128((void *)sums, _mm256_castsi256_si128(packed));
    return sums;
}

#if SUBS > 1
#define UNROLL_CHUNKS UNROLL
#else
#define UNROLL_CHUNKS
#endif

/* One group of 16 rows times `tile` activation rows from t on, straight from the packed weights. */
INLINE void CAT(tile_, NAME)(const struct colibri_matmul_args *a, uint32_t g, uint32_t t, const int tile)
{
    const BLOCK *w = (const void *)((const char *)a->w + (size_t)g * a->group_stride);
    const void *x[2];
    __m256 acc[2][2];
    gather_x(a, t, (uint32_t)tile, tile, x);
    UNROLL
    for (int i = 0; i < tile; i++)
        acc[0][i] = acc[1][i] = _mm256_setzero_ps();
    const uint32_t n_blocks = a->n_cols / 256;
    for (uint32_t b = 0; b < n_blocks; b++, w++) {
        __m256i scale[2][N_SUB], pair[2][N_PAIRS], isum[2][2];
        const struct colibri_act_q8x256 *xb[2];
        UNROLL
        for (int h = 0; h < 2; h++)
            CAT(scales_, NAME)(w, h, scale[h], pair[h]);
        MEMORY_BARRIER(scale);
        MEMORY_BARRIER(pair);
        UNROLL
        for (int i = 0; i < tile; i++) {
            xb[i] = (const struct colibri_act_q8x256 *)x[i] + b;
            isum[0][i] = isum[1][i] = _mm256_setzero_si256();
        }
        UNROLL_CHUNKS
        for (int c = 0; c < CHUNKS; c++) {
            UNROLL
            for (int k = 0; k < SUBS; k++) {
                __m256i p[2][2];
                if (PREFETCH)
                    prefetch(w + 2, sizeof(BLOCK) / N_SUB, (size_t)(c * SUBS + k));
                UNROLL
                for (int j = 0; j < LINES; j++) {
                    __m256i xq[2];
                    UNROLL
                    for (int i = 0; i < tile; i++)
                        xq[i] = broadcast32(xb[i]->q + ((c * SUBS + k) * LINES + j) * 4);
                    UNROLL
                    for (int h = 0; h < 2; h++) {
                        const __m256i q = CAT(quad_, NAME)(w, h, c, k, j), u = MAGNITUDES;
                        UNROLL
                        for (int i = 0; i < tile; i++) {
                            p[h][i] = dot_quad(p[h][i], q, xq[i], u, SIGNED, j % STEP);
                            if (j % STEP < STEP - 1)
                                continue;
                            isum[h][i] = add_scaled(isum[h][i], p[h][i], scale[h][c * SUBS + k]);
                            KEEP(isum[h][i]);
                        }
                    }
                }
            }
        }
        UNROLL
        for (int i = 0; i < tile; i++) {
            const __m256 dx = _mm256_set1_ps(xb[i]->d);
            __m256i m[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
            if (HAS_SUMS) {
                int16_t buffer[8];
                const int16_t *const sums = CAT(sub_sums_, NAME)(xb[i], buffer);
                UNROLL
                for (int k = 0; k < N_PAIRS; k++) {
                    const __m256i s = broadcast32(sums + 2 * k);
                    m[0] = madd_pair(m[0], pair[0][k], s);
                    m[1] = madd_pair(m[1], pair[1][k], s);
                }
            }
            UNROLL
            for (int h = 0; h < 2; h++) {
                const __m256i s = TAKE_OFF ? _mm256_sub_epi32(isum[h][i], times(m[h], TAKE_OFF)) : isum[h][i];
                const __m256 d = load_f16(w->d + 8 * h);
                acc[h][i] = _mm256_fmadd_ps(_mm256_mul_ps(d, dx), _mm256_cvtepi32_ps(s), acc[h][i]);
#if HAS_MIN
                const __m256 dmin = load_f16(w->dmin + 8 * h);
                acc[h][i] = _mm256_fnmadd_ps(_mm256_mul_ps(dmin, dx), _mm256_cvtepi32_ps(m[h]), acc[h][i]);
#endif
            }
        }
    }
    UNROLL
    for (int h = 0; h < 2; h++) {
        UNROLL
        for (int i = 0; i < tile; i++)
            store_rows(a, g, h, t + (uint32_t)i, acc[h][i]);
    }
}

NOINLINE void CAT(unpack_panel_, NAME)(const BLOCK *w, uint32_t cols, struct panel *p)
{
    (void)cols; /* always a superblock */
    UNROLL
    for (int h = 0; h < 2; h++) {
        __m256i scale[N_SUB], pair[N_PAIRS];
        CAT(scales_, NAME)(w, h, scale, pair);
        UNROLL
        for (int s = 0; s < N_SUB; s++)
            _mm256_storeu_si256((void *)(p->scale[s] + 8 * h), scale[s]);
        UNROLL
        for (int k = 0; k < N_PAIRS; k++)
            if (HAS_SUMS)
                _mm256_storeu_si256((void *)(p->pair[k] + 8 * h), pair[k]);
        _mm256_storeu_ps(p->d[0] + 8 * h, load_f16(w->d + 8 * h));
#if HAS_MIN
        _mm256_storeu_ps(p->m[0] + 8 * h, load_f16(w->dmin + 8 * h));
#endif
        UNROLL_CHUNKS
        for (int c = 0; c < CHUNKS; c++) {
            UNROLL
            for (int k = 0; k < SUBS; k++) {
                UNROLL
                for (int j = 0; j < LINES; j++) {
                    const int s = c * SUBS + k;
                    const __m256i q = CAT(quad_, NAME)(w, h, c, k, j);
                    if (WIDE)
                        panel_put_wide(p, s, j, h, q, load256(p->scale[s] + 8 * h));
                    else
                        panel_put(p, s * LINES + j, h, q);
                }
            }
        }
    }
}

#if WIDE
static void CAT(widen_, NAME)(const void *x, uint32_t c, uint32_t cols, int16_t *out)
{
    const struct colibri_act_q8x256 *const xb = (const struct colibri_act_q8x256 *)x + c / 256;
    for (uint32_t b = 0; b < cols / 32; b++)
        widen32(xb->q + 32 * b, out + 32 * b);
}
#endif

INLINE void CAT(panel_tile_, NAME)(struct panel_scratch *s, uint32_t g, uint32_t t, const void *const *x, uint32_t c,
                                   uint32_t cols, const int tile)
{
    const struct panel *const p = &s->w;
    float *const acc = s->acc[g][t];
    const struct colibri_act_q8x256 *xb[PANEL_TILE];
    __m256i isum[2 * PANEL_TILE];
    (void)cols;
    UNROLL
    for (int i = 0; i < tile; i++) {
        xb[i] = (const struct colibri_act_q8x256 *)x[i] + c / 256;
        isum[2 * i] = isum[2 * i + 1] = _mm256_setzero_si256();
    }
#if WIDE
    const int16_t *xw[PANEL_TILE];
    for (int b = 0; b < 8; b++) { /* scales are in the codes already */
        UNROLL
        for (int i = 0; i < tile; i++)
            xw[i] = s->wide[t + (uint32_t)i] + 32 * b;
        dot_wide(p->q[16 * b], xw, 16, tile, isum);
    }
#else
    for (int k = 0; k < N_SUB; k++) {
        const int8_t *xq[PANEL_TILE];
        const __m256i scale[2] = {load256(p->scale[k]), load256(p->scale[k] + 8)};
        UNROLL
        for (int i = 0; i < tile; i++)
            xq[i] = xb[i]->q + 4 * LINES * k;
        dot_panel(p->q[LINES * k], xq, LINES, CHAIN, tile, scale, isum);
    }
#endif
    UNROLL
    for (int i = 0; i < tile; i++) {
        const __m256 dx = _mm256_set1_ps(xb[i]->d);
        __m256i m[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
        if (HAS_SUMS) {
            int16_t buffer[8];
            const int16_t *const sums = CAT(sub_sums_, NAME)(xb[i], buffer);
            UNROLL
            for (int k = 0; k < N_PAIRS; k++) {
                const __m256i pair = broadcast32(sums + 2 * k);
                m[0] = madd_pair(m[0], load256(p->pair[k]), pair);
                m[1] = madd_pair(m[1], load256(p->pair[k] + 8), pair);
            }
        }
        UNROLL
        for (int h = 0; h < 2; h++) {
            float *const y = acc + 16 * i + 8 * h;
            panel_fma(y, _mm256_loadu_ps(p->d[0] + 8 * h), dx,
                      TAKE_OFF ? _mm256_sub_epi32(isum[2 * i + h], times(m[h], TAKE_OFF)) : isum[2 * i + h]);
#if HAS_MIN
            panel_fnma(y, _mm256_loadu_ps(p->m[0] + 8 * h), dx, m[h]);
#endif
        }
    }
}

#include "tile_run.h"

#undef LINES
#undef N_PAIRS
#undef N_SUB
#undef BLOCK
#undef BLOCK_COLS
#undef WIDE
#undef STEP
#undef MAGNITUDES
#undef UNROLL_CHUNKS
#undef TAKE_OFF
#undef HAS_SUMS
#undef CAT
#undef CAT_
#undef NAME
#undef DIRECT
#undef CHUNKS
#undef SUBS
#undef OFFSET
#undef CHAIN
#undef SIGNED
#undef HAS_MIN
#undef PREFETCH
