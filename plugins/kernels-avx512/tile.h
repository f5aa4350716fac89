/* What the templates tile32.h and tile256.h share: how activation rows are cut into tiles and passed on. */
#ifndef KERNELS_AVX512_TILE_H
#define KERNELS_AVX512_TILE_H

#include "simd.h"

#define TILE_MAX 16
/* Tiles of that many rows and more ask for the weights of the next group: it takes so long to come to them that
 * hardware prefetchers have stopped by then. (4 instead of 8: batches of 4 to 7 rows over weights in memory run 1.05 to
 * 1.6 times as fast, docs/kernels.md.) */
#define AHEAD_TILE 4

/* One tile: group `g` times the activation rows t, t+1, .. of a product. */
struct tile_args {
    const struct colibri_matmul_args *a;
    const void *w; /* first block of the group, or of the range of columns */
    uint32_t g, t;
    uint32_t n_blocks;
    size_t x_offset; /* bytes from the start of an activation row to the first block */
    /* superblocks only */
    const int32_t *side; /* prepared sums of row t in the first block (tile256.h) */
    size_t side_stride;  /* words from block to block */
    uint32_t resume;     /* 1: add to what y has */
};

/* Size of the next tile when `left` rows are left: one of 1..8, 10, 12, 14, 16. Every tile unpacks the weights anew,
 * so there are as few as possible, of similar size. An odd number takes one odd tile. */
INLINE uint32_t tile_next(uint32_t left)
{
    if (left <= 8)
        return left;
    if (left % 2)
        return left == 9 ? 5 : 7;
    const uint32_t tiles = (left + TILE_MAX - 1) / TILE_MAX;
    return ((left + tiles - 1) / tiles + 1) / 2 * 2;
}

/* Activation row i of the tile, from the first block on. */
INLINE const char *tile_row(const struct tile_args *ta, int i)
{
    const struct colibri_matmul_args *const a = ta->a;
    const uint32_t t = ta->t + (uint32_t)i;
    return (const char *)a->x + (size_t)(a->x_index ? a->x_index[t] : t) * a->x_stride + ta->x_offset;
}

/* Results of activation row i of the tile, and which of them exist. */
INLINE float *tile_y(const struct tile_args *ta, int i)
{
    return ta->a->y + (size_t)(ta->t + (uint32_t)i) * ta->a->y_stride + 16 * (size_t)ta->g;
}

INLINE __mmask16 tile_mask(const struct tile_args *ta)
{
    return first16(ta->a->n_rows - 16 * (size_t)ta->g);
}

/* ---- superblocks ------------------------------------------------------------------------------------------ */

#define SIDE_BYTES  (128u << 10) /* scratch of the products with superblocks */
#define SIDE_BLOCKS 128u         /* superblocks taken at a time: 16 rows have room then */

/* Words per activation row t0..t1 and superblock, laid out [block][row]: 4: sums of 32 columns as 16-bit pairs
 * of sub-blocks 0 and 2, 1 and 3, 4 and 6, 5 and 7;
 * 16, 8, 1: -offset times the sums of 16, 32, 256 columns. */
INLINE void fill_side(const struct tile_args *ta, uint32_t t0, uint32_t t1, const int words, const int offset)
{
    const struct colibri_matmul_args *const a = ta->a;
    for (uint32_t t = t0; t < t1; t++) {
        const char *const x = (const char *)a->x + (size_t)(a->x_index ? a->x_index[t] : t) * a->x_stride;
        const struct colibri_act_q8x256 *const xb = (const void *)(x + ta->x_offset);
        int32_t *out = (int32_t *)a->scratch + (size_t)(t - t0) * (size_t)words;
        for (uint32_t b = 0; b < ta->n_blocks; b++, out += ta->side_stride) {
            const __m256i s16 = _mm256_loadu_si256((const void *)xb[b].bsum);
            const __m256i s32 = _mm256_madd_epi16(s16, _mm256_set1_epi16(words == 4 ? 1 : (short)-offset));
            if (words == 4) {
                _mm_storeu_si128((void *)out, _mm256_cvtepi32_epi16(_mm256_shuffle_epi32(s32, 0xd8)));
            } else if (words == 8) {
                _mm256_storeu_si256((void *)out, s32);
            } else if (words == 16) {
                const __m512i each = _mm512_cvtepi16_epi32(s16);
                _mm512_storeu_si512(
                    out, _mm512_sub_epi32(_mm512_setzero_si512(), times_power_of_two(each, (uint32_t)offset)));
            } else {
                __m128i s = _mm_add_epi32(_mm256_castsi256_si128(s32), _mm256_extracti128_si256(s32, 1));
                s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
                *out = _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
            }
        }
    }
}

/* Row pointers and sums of floats of a tile. They wait in memory while integers have the registers: compilers would
 * rather keep all of this in registers and move those that the innermost loops need. */
struct tile_state {
    __m512 acc[TILE_MAX];
    const char *x[TILE_MAX];
};

/* What lies in memory has to be read again from here on. */
INLINE void forget_memory(void)
{
    __asm__ __volatile__("" : : : "memory");
}

NOINLINE void tile_begin(struct tile_state *st, const struct tile_args *ta, int tile)
{
    const __mmask16 rows = tile_mask(ta);
    for (int i = 0; i < tile; i++) {
        st->x[i] = tile_row(ta, i);
        _mm_prefetch((const void *)tile_y(ta, i),
                     _MM_HINT_T0); /* stores that miss would hold up those of the next tile */
        st->acc[i] = ta->resume ? _mm512_maskz_loadu_ps(rows, tile_y(ta, i)) : _mm512_setzero_ps();
    }
}

NOINLINE void tile_end(const struct tile_state *st, const struct tile_args *ta, int tile)
{
    const __mmask16 rows = tile_mask(ta);
    for (int i = 0; i < tile; i++)
        _mm512_mask_storeu_ps(tile_y(ta, i), rows, st->acc[i]);
}

#endif
