/* Template: matrix product of one format with 256-column superblocks (activations q8x256). Included once per format
 * with
 *   NAME    the format, e.g. q4_k; the superblock is struct colibri_x16_NAME
 *   CHUNKS, SUBS  the superblock is CHUNKS runs of SUBS sub-blocks of 256 / (CHUNKS * SUBS) columns
 *   OFFSET, CHAIN, SIGNED  as in tile32.h
 *   HAS_MIN 1 if sub-blocks have minimums, which are subtracted
 *   PAIRS   how many registers of 16-bit pairs multiply sums of activations: 4 (sums of 32 columns), 8 (sums of 16)
 *     or 0. They are minimums if HAS_MIN, else scales, whose product with OFFSET is taken off
 *   START   the offset comes off where sums begin instead: 1 for sub-blocks of 32 columns, 2 for 16, else 0
 *   PREFETCH 1 if a superblock's lines are not used in the order in which they lie, which hardware prefetchers follow
 *     badly: then they are asked for two superblocks ahead
 * and
 *   scales_NAME(block, scale[], pair[]): scale[s] of sub-block s in scale_form; the pairs
 *   unpack_NAME(block, chunk, k, struct lines *): lines of sub-block SUBS * chunk + k; k is a constant.
 * With FOLD 1 the lines are codes times scales already, plus FOLD_OFFSET (an unsigned byte), and
 *   folds_NAME(block, pair[]) and unpack_fold_NAME(block, pair[], chunk, k, struct lines *) take the place of those two
 * for tiles of three rows and more: the sum over the superblock is one run of products, and FOLD_OFFSET comes off once;
 *   single_NAME(args) is the tile of one row.
 * Defines run_NAME(args).
 *
 * `side` holds what the products need per activation row and superblock beyond the activation format, made once per
 * run() for all groups: sums of 32 columns as 16-bit pairs, or the start values. */

#define CAT_(a, b) a##b
#define CAT(a, b)  CAT_(a, b)
#define BLOCK      struct CAT(colibri_x16_, NAME)
#define N_SUB      (CHUNKS * SUBS)
#define LINES      (64 / N_SUB)
#define FOLD_TILE  3
#define SIDE       (FOLD && FOLD_OFFSET ? 1 : START == 2 ? 16 : START == 1 ? 8 : PAIRS == 4 ? 4 : 0) /* words */

INLINE void CAT(tile_, NAME)(const struct tile_args *ta, const int tile)
{
#if FOLD
    if (tile == 1) {
        CAT(single_, NAME)(ta);
        return;
    }
#endif
    const BLOCK *const w = ta->w;
    const uint32_t n_blocks = ta->n_blocks;
    const int32_t *side = ta->side;
    const int fold = FOLD && tile >= FOLD_TILE;
    struct tile_state state, *const st = &state;
    tile_begin(st, ta, tile);
    for (uint32_t b = 0; b < n_blocks; b++) {
        const size_t at = b * sizeof(struct colibri_act_q8x256);
        __m512i scale[N_SUB], pair[PAIRS ? PAIRS : 1], isum[TILE_MAX];
#if FOLD
        if (fold)
            CAT(folds_, NAME)(w + b, pair);
        else
#endif
            CAT(scales_, NAME)(w + b, scale, pair);
        UNROLL
        for (int i = 0; i < tile; i++)
            isum[i] = fold && FOLD_OFFSET != 0 ? broadcast32(side + i) : _mm512_setzero_si512();
        for (int c = 0; c < CHUNKS; c++) {
            UNROLL
            for (int k = 0; k < SUBS; k++) {
                if (tile > 4) /* few rows leave registers for lines that two sub-blocks share */
                    forget_memory();
                struct lines l;
                const int s = c * SUBS + k;
                if (tile >= AHEAD_TILE)
                    prefetch((const char *)(w + b) + ta->a->group_stride, sizeof(BLOCK) / N_SUB, (size_t)s);
                else if (PREFETCH)
                    prefetch(w + b + 2, sizeof(BLOCK) / N_SUB, (size_t)s);
#if FOLD
                if (fold)
                    CAT(unpack_fold_, NAME)(w + b, pair, c, k, &l);
                else
#endif
                    CAT(unpack_, NAME)(w + b, c, k, &l);
                UNROLL
                for (int i = 0; i < tile; i++) {
                    const int8_t *const q = ((const struct colibri_act_q8x256 *)(st->x[i] + at))->q + s * LINES * 4;
                    if (fold)
                        isum[i] = dot_lines_from(isum[i], &l, q, LINES, CHAIN, SIGNED);
                    else
                        isum[i] = dot_lines_scaled(isum[i], &l, q, LINES, CHAIN, SIGNED, scale[s],
                                                   START ? broadcast32(side + i * SIDE + s) : _mm512_setzero_si512());
                }
            }
        }
        const __m512 d = load_f16(w[b].d);
#if HAS_MIN
        const __m512 dmin = load_f16(w[b].dmin);
#endif
        UNROLL
        for (int i = 0; i < tile; i++) {
            const struct colibri_act_q8x256 *const xb = (const void *)(st->x[i] + at);
            const __m512 dx = _mm512_set1_ps(xb->d);
            __m512i s = isum[i];
            if (PAIRS != 0 && (HAS_MIN || !fold)) {
                __m512i m = _mm512_setzero_si512();
                UNROLL
                for (int k = 0; k < PAIRS; k++)
                    m = madd_pair(m, pair[k], PAIRS == 4 ? (const void *)(side + i * SIDE + k) : xb->bsum + 2 * k);
#if HAS_MIN
                st->acc[i] = _mm512_fmadd_ps(_mm512_mul_ps(d, dx), _mm512_cvtepi32_ps(s), st->acc[i]);
                st->acc[i] = _mm512_fnmadd_ps(_mm512_mul_ps(dmin, dx), _mm512_cvtepi32_ps(m), st->acc[i]);
                continue;
#else
                s = _mm512_sub_epi32(s, times_power_of_two(m, OFFSET));
#endif
            }
            st->acc[i] = _mm512_fmadd_ps(_mm512_mul_ps(d, dx), _mm512_cvtepi32_ps(s), st->acc[i]);
        }
        side += ta->side_stride;
        forget_memory();
    }
    tile_end(st, ta, tile);
}

#include "tile_run.h"

static void CAT(run_, NAME)(const struct colibri_matmul_args *a)
{
    const uint32_t n_blocks = a->n_cols / 256;
    const uint32_t range = n_blocks < SIDE_BLOCKS ? n_blocks : SIDE_BLOCKS; /* of superblocks, at a time */
    uint32_t step = token_block(a, TILE_MAX);
    if (SIDE && step > SIDE_BYTES / 64 / range)
        step = SIDE_BYTES / 64 / range / TILE_MAX * TILE_MAX;
    struct tile_args ta = {.a = a, .side_stride = (size_t)step * SIDE};
    for (uint32_t t0 = 0; t0 < a->n_x; t0 += step) {
        const uint32_t t1 = a->n_x - t0 < step ? a->n_x : t0 + step;
        for (uint32_t b = 0; b < n_blocks; b += range) {
            ta.n_blocks = n_blocks - b < range ? n_blocks - b : range;
            ta.x_offset = b * sizeof(struct colibri_act_q8x256);
            ta.resume = b > 0;
            if (SIDE)
                fill_side(&ta, t0, t1, SIDE, FOLD ? FOLD_OFFSET : OFFSET);
            for (ta.g = a->group_begin; ta.g < a->group_end; ta.g++) {
                ta.w = (const BLOCK *)(const void *)((const char *)a->w + (size_t)ta.g * a->group_stride) + b;
                uint32_t size;
                for (ta.t = t0; ta.t < t1; ta.t += size) {
                    size = tile_next(t1 - ta.t);
                    ta.side = SIDE ? (const int32_t *)a->scratch + (size_t)(ta.t - t0) * SIDE : NULL;
                    CAT(pick_, NAME)(&ta, size);
                }
            }
        }
    }
}

#undef FOLD_TILE
#undef SIDE
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
#undef PAIRS
#undef START
#undef FOLD
#undef FOLD_OFFSET
#undef PREFETCH
