/* Template: matrix product of one format with 32-column blocks (activations q8x32). Included once per format with
 *   NAME    the format, e.g. q4_0; the block is struct colibri_x16_NAME
 *   DIRECT  up to how many activation rows need no panel: more where codes are cheap to make (measured)
 *   OFFSET  what quad_NAME added to every code
 *   CHAIN   products that may be added in 16 bits (codes.h)
 *   SIGNED  1 if codes are signed_codes
 *   HAS_MIN 1 if the block has minimums m[16]
 * and quad_NAME(block, half, j): codes of columns 4j..4j+3 of 8 rows; scale_NAME(block, half);
 * if SIGNED magnitudes_NAME(block, half, j): absolute values of the codes. Defines run_NAME(args). */

#define CAT_(a, b) a##b
#define CAT(a, b)  CAT_(a, b)
#define BLOCK      struct CAT(colibri_x16_, NAME)
#define BLOCK_COLS 32
#define WIDE       (SIGNED && !VNNI)
#if SIGNED && !VNNI
#define MAGNITUDES CAT(magnitudes_, NAME)(w + b, h, j)
#else
#define MAGNITUDES q
#endif
#define STEP     (VNNI ? 8 : CHAIN) /* quads until sums are widened */
#define TAKE_OFF (SIGNED ? SIGNED_OFFSET : OFFSET)

/* One group of 16 rows times `tile` activation rows from t on, from registers. */
INLINE void CAT(tile_, NAME)(const struct colibri_matmul_args *a, uint32_t g, uint32_t t, const int tile)
{
    const BLOCK *const w = (const void *)((const char *)a->w + (size_t)g * a->group_stride);
    const void *x[2];
    __m256 acc[2][2];
    gather_x(a, t, (uint32_t)tile, tile, x);
    UNROLL
    for (int i = 0; i < tile; i++)
        acc[0][i] = acc[1][i] = _mm256_setzero_ps();
    const uint32_t n_blocks = a->n_cols / 32;
    for (uint32_t b = 0; b < n_blocks; b++) {
        __m256i s[2][2], p[2][2];
        UNROLL
        for (int j = 0; j < 8; j++) {
            __m256i xq[2];
            UNROLL
            for (int i = 0; i < tile; i++)
                xq[i] = broadcast32(((const struct colibri_act_q8x32 *)x[i])[b].q + 4 * j);
            UNROLL
            for (int h = 0; h < 2; h++) {
                const __m256i q = CAT(quad_, NAME)(w + b, h, j), u = MAGNITUDES;
                UNROLL
                for (int i = 0; i < tile; i++) {
                    p[h][i] = dot_quad(p[h][i], q, xq[i], u, SIGNED, j % STEP);
                    if (j % STEP < STEP - 1)
                        continue;
                    const __m256i sum = VNNI ? p[h][i] : _mm256_madd_epi16(p[h][i], ones16());
                    s[h][i] = j < STEP ? sum : _mm256_add_epi32(s[h][i], sum);
                    KEEP(s[h][i]);
                }
            }
        }
        UNROLL
        for (int i = 0; i < tile; i++) {
            const struct colibri_act_q8x32 *const xb = (const struct colibri_act_q8x32 *)x[i] + b;
            const __m256i sum = broadcast32(&xb->sum);
            const __m256 dx = _mm256_set1_ps(xb->d);
            UNROLL
            for (int h = 0; h < 2; h++) {
                const __m256i isum = TAKE_OFF ? _mm256_sub_epi32(s[h][i], times(sum, TAKE_OFF)) : s[h][i];
                const __m256 d = CAT(scale_, NAME)(w + b, h);
                acc[h][i] = _mm256_fmadd_ps(_mm256_mul_ps(d, dx), _mm256_cvtepi32_ps(isum), acc[h][i]);
#if HAS_MIN
                const __m256 m = load_f16(w[b].m + 8 * h);
                acc[h][i] = _mm256_fmadd_ps(_mm256_mul_ps(m, dx), _mm256_cvtepi32_ps(sum), acc[h][i]);
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
    for (int b = 0; b < (int)(cols / 32); b++) {
        UNROLL
        for (int h = 0; h < 2; h++) {
            UNROLL
            for (int j = 0; j < 8; j++) {
                const __m256i q = CAT(quad_, NAME)(w + b, h, j);
                if (WIDE)
                    panel_put_wide(p, b, j, h, q, ones16());
                else
                    panel_put(p, 8 * b + j, h, q);
            }
            _mm256_storeu_ps(p->d[b] + 8 * h, CAT(scale_, NAME)(w + b, h));
#if HAS_MIN
            _mm256_storeu_ps(p->m[b] + 8 * h, load_f16(w[b].m + 8 * h));
#endif
        }
    }
}

#if WIDE
static void CAT(widen_, NAME)(const void *x, uint32_t c, uint32_t cols, int16_t *out)
{
    const struct colibri_act_q8x32 *const xb = (const struct colibri_act_q8x32 *)x + c / 32;
    for (uint32_t b = 0; b < cols / 32; b++)
        widen32(xb[b].q, out + 32 * b);
}
#endif

INLINE void CAT(panel_tile_, NAME)(struct panel_scratch *s, uint32_t g, uint32_t t, const void *const *x, uint32_t c,
                                   uint32_t cols, const int tile)
{
    const struct panel *const p = &s->w;
    float *const acc = s->acc[g][t];
    size_t at = c / 32 * sizeof(struct colibri_act_q8x32);
    for (uint32_t b = 0; b < cols / 32; b++, at += sizeof(struct colibri_act_q8x32)) {
        __m256i sums[2 * PANEL_TILE];
#if WIDE
        const int16_t *xw[PANEL_TILE];
        UNROLL
        for (int i = 0; i < tile; i++) {
            xw[i] = s->wide[t + (uint32_t)i] + 32 * b;
            sums[2 * i] = sums[2 * i + 1] = _mm256_setzero_si256();
        }
        dot_wide(p->q[16 * b], xw, 16, tile, sums);
#else
        const int8_t *xq[PANEL_TILE];
        UNROLL
        for (int i = 0; i < tile; i++)
            xq[i] = ((const struct colibri_act_q8x32 *)(const void *)((const char *)x[i] + at))->q;
        dot_panel(p->q[8 * b], xq, 8, CHAIN, tile, NULL, sums);
#endif
        UNROLL
        for (int i = 0; i < tile; i++) {
            const struct colibri_act_q8x32 *const xb = (const void *)((const char *)x[i] + at);
            const __m256i sum = broadcast32(&xb->sum);
            const __m256i off = times(sum, TAKE_OFF);
            const __m256 dx = _mm256_set1_ps(xb->d);
            UNROLL
            for (int h = 0; h < 2; h++) {
                float *const y = acc + 16 * i + 8 * h;
                panel_fma(y, _mm256_loadu_ps(p->d[b] + 8 * h), dx,
                          TAKE_OFF ? _mm256_sub_epi32(sums[2 * i + h], off) : sums[2 * i + h]);
#if HAS_MIN
                panel_fma(y, _mm256_loadu_ps(p->m[b] + 8 * h), dx, sum);
#endif
            }
        }
    }
}

#include "tile_run.h"

#undef BLOCK
#undef BLOCK_COLS
#undef WIDE
#undef STEP
#undef MAGNITUDES
#undef TAKE_OFF
#undef CAT
#undef CAT_
#undef NAME
#undef DIRECT
#undef OFFSET
#undef CHAIN
#undef SIGNED
#undef HAS_MIN
