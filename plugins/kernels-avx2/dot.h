/* Dot products in 16 virtual lanes of float rows (F32, F16, BF16) with F32 rows: tiles of rows x activations. */
#ifndef KERNELS_AVX2_DOT_H
#define KERNELS_AVX2_DOT_H

#include "simd.h"

/* Elements i .. i+7 of a row. */
INLINE __m256 load_row8(const void *row, size_t i, const uint32_t type)
{
    if (type == COLIBRI_TYPE_F32)
        return _mm256_loadu_ps((const float *)row + i);
    const __m128i v = _mm_loadu_si128((const void *)((const uint16_t *)row + i));
    if (type == COLIBRI_TYPE_F16)
        return _mm256_cvtph_ps(v);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16));
}

/* The n < 8 elements from i on, zeros behind; nothing beyond them is read. */
INLINE __m256 load_row_part(const void *row, size_t i, size_t n, const uint32_t type)
{
    if (type == COLIBRI_TYPE_F32)
        return _mm256_maskload_ps((const float *)row + i, first8(n));
    uint16_t part[8] = {0};
    memcpy(part, (const uint16_t *)row + i, n * sizeof(uint16_t));
    return load_row8(part, 0, type);
}

/* The n <= 8 elements from i on. */
INLINE __m256 load_row_upto8(const void *row, size_t i, size_t n, const uint32_t type)
{
    return n >= 8 ? load_row8(row, i, type) : n ? load_row_part(row, i, n, type) : _mm256_setzero_ps();
}

/* acc[r * tile + t] = lanes of the dot product of w[r] and x[t] over n elements. */
INLINE void dot_tile(const void *const *w, const float *const *x, size_t n, const int rows, const int tile,
                     const uint32_t type, struct lanes *acc)
{
    UNROLL
    for (int k = 0; k < rows * tile; k++)
        acc[k].lo = acc[k].hi = _mm256_setzero_ps();
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        UNROLL
        for (int half = 0; half < 2; half++) {
            __m256 wv[4];
            UNROLL
            for (int r = 0; r < rows; r++)
                wv[r] = load_row8(w[r], i + 8 * (size_t)half, type);
            UNROLL
            for (int t = 0; t < tile; t++) {
                __m256 xv = _mm256_loadu_ps(x[t] + i + 8 * (size_t)half);
                __asm__("" : "+x"(xv)); /* one load, not one per row inside of each fma */
                UNROLL
                for (int r = 0; r < rows; r++) {
                    struct lanes *const s = &acc[r * tile + t];
                    if (half)
                        s->hi = _mm256_fmadd_ps(wv[r], xv, s->hi);
                    else
                        s->lo = _mm256_fmadd_ps(wv[r], xv, s->lo);
                }
            }
        }
    }
    if (i < n) {
        const size_t left = n - i, left_hi = left > 8 ? left - 8 : 0;
        UNROLL
        for (int r = 0; r < rows; r++) {
            const __m256 lo = load_row_upto8(w[r], i, left, type), hi = load_row_upto8(w[r], i + 8, left_hi, type);
            UNROLL
            for (int t = 0; t < tile; t++) {
                struct lanes *const s = &acc[r * tile + t];
                s->lo = _mm256_fmadd_ps(lo, load_row_upto8(x[t], i, left, COLIBRI_TYPE_F32), s->lo);
                s->hi = _mm256_fmadd_ps(hi, load_row_upto8(x[t], i + 8, left_hi, COLIBRI_TYPE_F32), s->hi);
            }
        }
    }
}

/* Stores the first n <= 4 of v. */
INLINE void store_upto4(float *y, size_t n, __m128 v)
{
    if (n >= 4)
        _mm_storeu_ps(y, v);
    else
        _mm_maskstore_ps(y, _mm256_castsi256_si128(first8(n)), v);
}

#endif
