/* One activation row times Q2_K and Q3_K with VNNI. Their codes are so small that unpacking them, not reading them,
 * takes the time: here codes are multiplied where they lie in their bytes, times 1, 4, 16 or 64. Sums of like factors
 * are scaled and added apart, and shifted down once per superblock; they are multiples of their factor. */
#ifndef KERNELS_AVX512_SINGLE256_H
#define KERNELS_AVX512_SINGLE256_H

#include "tile.h"

INLINE __m512 single_begin(const struct tile_args *ta)
{
    return ta->resume ? _mm512_maskz_loadu_ps(tile_mask(ta), tile_y(ta, 0)) : _mm512_setzero_ps();
}

INLINE __m512i add_scaled(__m512i sum, __m512i s, __m512i scale)
{
    return _mm512_add_epi32(sum, _mm512_mullo_epi32(s, scale));
}

/* Four lines of 16 bytes, one byte per row, to words of four bytes per row. */
INLINE __m512i words_of_rows(const uint8_t lines[4][16])
{
    const __m512i quads = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m128i bytes = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_shuffle_epi8(_mm512_permutexvar_epi32(quads, _mm512_loadu_si512(lines)),
                               _mm512_broadcast_i32x4(bytes));
}

INLINE void single_q2_k(const struct tile_args *ta)
{
    const struct colibri_x16_q2_k *w = ta->w;
    const struct colibri_act_q8x256 *x = (const void *)tile_row(ta, 0);
    __m512 acc = single_begin(ta);
    for (uint32_t b = 0; b < ta->n_blocks; b++, w++, x++) {
        __m512i scales[4], sum[4], m = _mm512_setzero_si512();
        /* sums of sub-blocks 0 and 2, 1 and 3, .. side by side, as the minimums come out of their words */
        int16_t bsum[16];
        const __m256i sums = _mm256_loadu_si256((const void *)x->bsum);
        _mm256_storeu_si256((void *)bsum, _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(sums, 0xd8), 0xd8));
        forget_memory(); /* shuffling them out of a register takes longer */
        UNROLL
        for (int k = 0; k < 4; k++) {
            const __m512i words = words_of_rows(&w->scales[4 * k]), mins = high_nibbles(words);
            scales[k] = low_nibbles(words);
            m = madd_pair(m, _mm512_and_si512(mins, _mm512_set1_epi16(0xff)), bsum + 4 * k);
            m = madd_pair(m, _mm512_srli_epi16(mins, 8), bsum + 4 * k + 2);
        }
        UNROLL
        for (int p = 0; p < 4; p++)
            sum[p] = _mm512_setzero_si512();
        UNROLL
        for (int half = 0; half < 4; half++) { /* of a half of 128 columns */
            const int n = half / 2, first = 4 * (half % 2);
            __m512i v[4];
            UNROLL
            for (int j = 0; j < 4; j++)
                v[j] = _mm512_loadu_si512(w->q[n][first + j]);
            UNROLL
            for (int p = 0; p < 4; p++) {
                const int sub = 8 * n + 2 * p + half % 2;
                __m512i s = _mm512_setzero_si512();
                UNROLL
                for (int j = 0; j < 4; j++)
                    s = add_line(s, and8(v[j], (char)(3 << 2 * p)), x->q + 16 * sub + 4 * j);
                sum[p] = add_scaled(sum[p], s, byte32(scales[sub / 4], sub % 4));
            }
        }
        const __m512i low = _mm512_add_epi32(sum[0], _mm512_srai_epi32(sum[1], 2));
        const __m512i high = _mm512_add_epi32(_mm512_srai_epi32(sum[2], 4), _mm512_srai_epi32(sum[3], 6));
        const __m512 dx = _mm512_set1_ps(x->d);
        acc = _mm512_fmadd_ps(_mm512_mul_ps(load_f16(w->d), dx), _mm512_cvtepi32_ps(_mm512_add_epi32(low, high)), acc);
        acc = _mm512_fnmadd_ps(_mm512_mul_ps(load_f16(w->dmin), dx), _mm512_cvtepi32_ps(m), acc);
    }
    _mm512_mask_storeu_ps(tile_y(ta, 0), tile_mask(ta), acc);
}

/* Codes of part p of half n in place, the third bit above the two: times 1, 4, 16, and again 16 for part 3, whose two
 * bits are moved down to make room. v: two-bit codes of the line; h: its third bits. */
INLINE __m512i in_place_q3_k(__m512i v, __m512i h, const int n, const int p)
{
    const int at = p == 3 ? 4 : 2 * p;
    const __m512i two = p == 3 ? _mm512_srli_epi16(v, 2) : v;
    const __m512i third = n == 0   ? _mm512_slli_epi16(h, p == 0   ? 2
                                                          : p == 2 ? 4
                                                                   : 3)
                          : p == 2 ? h
                                   : _mm512_srli_epi16(h, p == 0 ? 2 : 1);
    return _mm512_ternarylogic_epi32(and8(third, (char)(4 << at)), two, _mm512_set1_epi8((char)(3 << at)),
                                     0xf8); /* a | (b & c) */
}

INLINE void single_q3_k(const struct tile_args *ta)
{
    const struct colibri_x16_q3_k *w = ta->w;
    const struct colibri_act_q8x256 *x = (const void *)tile_row(ta, 0);
    __m512 acc = single_begin(ta);
    for (uint32_t b = 0; b < ta->n_blocks; b++, w++, x++) {
        __m512i sc[4], sum[3];
        int32_t start[16]; /* takes off the codes' offset of 4, times their factor */
        const __m512i bsum = _mm512_cvtepi16_epi32(_mm256_loadu_si256((const void *)x->bsum));
        const __m512i shift = _mm512_setr_epi32(2, 2, 4, 4, 6, 6, 6, 6, 2, 2, 4, 4, 6, 6, 6, 6);
        _mm512_storeu_si512(start, _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_sllv_epi32(bsum, shift)));
        forget_memory(); /* shuffling them out of a register takes longer */
        scale_bytes_q3_k(w, sc);
        UNROLL
        for (int k = 0; k < 4; k++)
            sc[k] = _mm512_sub_epi8(sc[k], _mm512_set1_epi8(32));
        UNROLL
        for (int p = 0; p < 3; p++)
            sum[p] = _mm512_setzero_si512();
        UNROLL
        for (int half = 0; half < 2; half++) {
            __m512i s[8];
            UNROLL
            for (int i = 0; i < 8; i++)
                s[i] = broadcast32(start + 8 * (i / 4) + 2 * (i % 4) + half);
            UNROLL
            for (int j = 0; j < 4; j++) {
                prefetch(w + 4, sizeof(*w) / 8,
                         (size_t)(4 * half + j)); /* see PREFETCH in tile256.h; two were too few */
                const __m512i h = _mm512_loadu_si512(w->hmask[4 * half + j]);
                UNROLL
                for (int i = 0; i < 8; i++) {
                    const int n = i / 4, p = i % 4;
                    const __m512i v = _mm512_loadu_si512(w->q[n][4 * half + j]);
                    s[i] = add_line(s[i], in_place_q3_k(v, h, n, p), x->q + 16 * (8 * n + 2 * p + half) + 4 * j);
                }
            }
            UNROLL
            for (int i = 0; i < 8; i++) {
                const int p = i % 4 < 2 ? i % 4 : 2, sub = 8 * (i / 4) + 2 * (i % 4) + half;
                const __m512i top = _mm512_slli_epi32(sc[sub / 4], (unsigned)(24 - 8 * (sub % 4)));
                sum[p] = add_scaled(sum[p], s[i], _mm512_srai_epi32(top, 24));
            }
        }
        const __m512i isum =
            _mm512_add_epi32(sum[0], _mm512_add_epi32(_mm512_srai_epi32(sum[1], 2), _mm512_srai_epi32(sum[2], 4)));
        const __m512 dx = _mm512_set1_ps(x->d);
        acc = _mm512_fmadd_ps(_mm512_mul_ps(load_f16(w->d), dx), _mm512_cvtepi32_ps(isum), acc);
    }
    _mm512_mask_storeu_ps(tile_y(ta, 0), tile_mask(ta), acc);
}

#endif
