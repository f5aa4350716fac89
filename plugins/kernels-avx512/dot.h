/* Dot products in 16 virtual lanes of rows (F32, F16, BF16, and for attention Q8_0 and Q4_0 as in GGUF) with F32 rows:
 * tiles of rows x activations. */
#ifndef KERNELS_AVX512_DOT_H
#define KERNELS_AVX512_DOT_H

#include "simd.h"

INLINE __m512 widen_bf16(__m256i v)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
}

INLINE __m512 widen_scale(colibri_f16 d)
{
    return _mm512_cvtph_ps(_mm256_set1_epi16((short)d));
}

/* Of Q8_0, elements i .. i+15 of a row, i a multiple of 16: scale * code, which no product rounds. */
INLINE __m512 load_q8_0(const void *row, size_t i)
{
    const struct colibri_q8_0 *const b = (const struct colibri_q8_0 *)row + i / 32;
    const __m128i code = _mm_loadu_si128((const void *)(b->qs + i % 32));
    return _mm512_mul_ps(widen_scale(b->d), _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(code)));
}

/* The same of Q4_0. The 16 values that a block knows are made at once; a lookup takes the low four bits of an index. */
INLINE __m512 load_q4_0(const void *row, size_t i)
{
    const struct colibri_q4_0 *const b = (const struct colibri_q4_0 *)row + i / 32;
    const __m512 values =
        _mm512_mul_ps(widen_scale(b->d), _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7));
    const __m512i code = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)b->qs));
    return _mm512_permutexvar_ps(i % 32 ? _mm512_srli_epi32(code, 4) : code, values);
}

/* Elements i .. i+15 of a row. */
INLINE __m512 load_row(const void *row, size_t i, const uint32_t type)
{
    if (type == COLIBRI_TYPE_F32)
        return _mm512_loadu_ps((const float *)row + i);
    if (type == COLIBRI_TYPE_Q8_0)
        return load_q8_0(row, i);
    if (type == COLIBRI_TYPE_Q4_0)
        return load_q4_0(row, i);
    const __m256i v = _mm256_loadu_si256((const void *)((const uint16_t *)row + i));
    return type == COLIBRI_TYPE_F16 ? _mm512_cvtph_ps(v) : widen_bf16(v);
}

/* The same of an incomplete line: elements outside the mask are zero and are not read. */
INLINE __m512 load_row_tail(const void *row, size_t i, const uint32_t type, __mmask16 mask)
{
    if (type == COLIBRI_TYPE_F32)
        return _mm512_maskz_loadu_ps(mask, (const float *)row + i);
    const __m256i v = _mm256_maskz_loadu_epi16(mask, (const uint16_t *)row + i);
    return type == COLIBRI_TYPE_F16 ? _mm512_cvtph_ps(v) : widen_bf16(v);
}

/* Rows of these are whole blocks of 32 elements. */
INLINE int is_block_type(const uint32_t type)
{
    return type == COLIBRI_TYPE_Q8_0 || type == COLIBRI_TYPE_Q4_0;
}

/* acc[r * tile + t] = lanes of the dot product of w[r] and x[t] over n elements. */
INLINE void dot_tile(const void *const *w, const float *const *x, size_t n, const int rows, const int tile,
                     const uint32_t type, __m512 *acc)
{
    UNROLL
    for (int k = 0; k < rows * tile; k++)
        acc[k] = _mm512_setzero_ps();
    size_t i = 0;
    for (; is_block_type(type) && i < n; i += 32)
        UNROLL
    for (int r = 0; r < rows; r++) {
        const __m512 low = load_row(w[r], i, type), high = load_row(w[r], i + 16, type);
        UNROLL
        for (int t = 0; t < tile; t++) {
            acc[r * tile + t] = _mm512_fmadd_ps(low, _mm512_loadu_ps(x[t] + i), acc[r * tile + t]);
            acc[r * tile + t] = _mm512_fmadd_ps(high, _mm512_loadu_ps(x[t] + i + 16), acc[r * tile + t]);
        }
    }
    for (; i + 16 <= n; i += 16) {
        __m512 xv[4];
        UNROLL
        for (int t = 0; t < tile; t++)
            xv[t] = _mm512_loadu_ps(x[t] + i);
        UNROLL
        for (int r = 0; r < rows; r++) {
            const __m512 wv = load_row(w[r], i, type);
            UNROLL
            for (int t = 0; t < tile; t++)
                acc[r * tile + t] = _mm512_fmadd_ps(wv, xv[t], acc[r * tile + t]);
        }
    }
    if (i < n) {
        const __mmask16 mask = first16(n - i);
        UNROLL
        for (int r = 0; r < rows; r++) {
            const __m512 wv = load_row_tail(w[r], i, type, mask);
            UNROLL
            for (int t = 0; t < tile; t++)
                acc[r * tile + t] = _mm512_fmadd_ps(wv, _mm512_maskz_loadu_ps(mask, x[t] + i), acc[r * tile + t]);
        }
    }
}

/* Sums of four neighbouring rows with activation t. */
INLINE __m128 dot_sum4(const __m512 *acc, const int r, const int tile, const int t)
{
    return lanes_sum4(acc[r * tile + t], acc[(r + 1) * tile + t], acc[(r + 2) * tile + t], acc[(r + 3) * tile + t]);
}

/* colibri_lanes_sum of 16 registers, one result per lane: lane 4 * b + e has the sum of acc[b * block + e * elem]. The
 * additions are those of the tree; each level halves the number of registers by putting two into one. */
INLINE __m512 fold_lanes(const __m512 *acc, const int block, const int elem)
{
#define FOLD_HALVES(a, b) _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee))
    __m512 quad[4]; /* 128 bits per accumulator of a block */
    UNROLL
    for (int e = 0; e < 4; e++) {
        const __m512 *const g = acc + e * elem;
        const __m512 a = FOLD_HALVES(g[0], g[block]), b = FOLD_HALVES(g[2 * block], g[3 * block]);
        quad[e] = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    }
#undef FOLD_HALVES
#define FOLD_PAIRS(a, b)                                                                                               \
    _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b))),                      \
                  _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b))))
    const __m512 a = FOLD_PAIRS(quad[0], quad[1]), b = FOLD_PAIRS(quad[2], quad[3]);
#undef FOLD_PAIRS
    return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));
}

#endif
