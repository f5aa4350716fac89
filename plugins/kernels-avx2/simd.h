/* Shared by the AVX2 kernel units: loads, rows, the lane tree, exp.
 *
 * A 64-byte line of the x16 layout (16 rows x 4 columns) is two ymm registers: half 0 has rows 0..7, half 1 rows
 * 8..15; a 32-bit lane belongs to one row. Activations enter as a broadcast of 4 codes. */
#ifndef KERNELS_AVX2_SIMD_H
#define KERNELS_AVX2_SIMD_H

#include <immintrin.h>

#include "colibri/kernel.h"
#include "colibri/numerics.h"

#define INLINE   static inline __attribute__((always_inline))
#define NOINLINE static __attribute__((noinline))
/* Tiles are unrolled so that accumulators live in registers; a sanitizer's checks would make that code endless. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define UNROLL
#ifndef __clang__ /* that the first round of a loop sets what the next ones read shows only when unrolled */
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#elif defined(__clang__)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define UNROLL
#else
#define UNROLL _Pragma("clang loop unroll(full)")
#endif
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

INLINE __m256i load256(const void *p)
{
    return _mm256_loadu_si256(p);
}

INLINE __m256i broadcast32(const void *p)
{
    int32_t v;
    memcpy(&v, p, 4);
    return _mm256_set1_epi32(v);
}

INLINE __m256 load_f16(const colibri_f16 *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const void *)p));
}

INLINE __m256i and8(__m256i v, char mask)
{
    return _mm256_and_si256(v, _mm256_set1_epi8(mask));
}

INLINE __m256i low_nibbles(__m256i v)
{
    return and8(v, 15);
}

INLINE __m256i high_nibbles(__m256i v)
{
    return and8(_mm256_srli_epi16(v, 4), 15);
}

/* `value` in the bytes of v that have any bit of `bits` set, else zero. */
INLINE __m256i where_bits(__m256i v, __m256i bits, char value)
{
    return and8(_mm256_cmpeq_epi8(_mm256_and_si256(v, bits), bits), value);
}

/* ---- rows ------------------------------------------------------------------------------------------------ */

/* Activation rows t, t+1, .. of a product; beyond `count` the last one again, so that a tile is always full. */
INLINE void gather_x(const struct colibri_matmul_args *a, uint32_t t, uint32_t count, const int tile, const void **x)
{
    for (int i = 0; i < tile; i++) {
        const uint32_t ti = t + ((uint32_t)i < count ? (uint32_t)i : count - 1);
        x[i] = (const char *)a->x + (size_t)(a->x_index ? a->x_index[ti] : ti) * a->x_stride;
    }
}

/* How many activation rows to take over all groups before the next ones: they stay in the L2 cache meanwhile. */
INLINE uint32_t token_block(const struct colibri_matmul_args *a, uint32_t tile)
{
    const size_t fit = (192u << 10) / (a->x_stride ? a->x_stride : 1);
    return fit < 2 * tile ? 2 * tile : fit > 240 ? 240 : (uint32_t)fit / tile * tile;
}

/* Mask of the first n lanes, n <= 8, for maskload and maskstore. */
INLINE __m256i first8(size_t n)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n < 8 ? (int)n : 8), lane);
}

/* Stores the rows of half `half` that exist. */
INLINE void store_rows(const struct colibri_matmul_args *a, uint32_t g, const int half, uint32_t t, __m256 v)
{
    const size_t row = 16 * (size_t)g + 8 * (size_t)half;
    float *const y = a->y + (size_t)t * a->y_stride + row;
    if (row + 8 <= a->n_rows)
        _mm256_storeu_ps(y, v);
    else if (row < a->n_rows)
        _mm256_maskstore_ps(y, first8(a->n_rows - row), v);
}

/* Asks the L2 cache for piece `piece` of `size` bytes from p on. */
INLINE void prefetch(const void *p, size_t size, size_t piece)
{
    const uintptr_t begin = (uintptr_t)p + piece * size;
    for (uintptr_t at = begin; at < begin + size; at += 64)
        _mm_prefetch((const void *)at, _MM_HINT_T1);
}

/* ---- 16 virtual lanes: lo has lanes 0..7, hi lanes 8..15 -------------------------------------------------- */

struct lanes {
    __m256 lo, hi;
};

INLINE __m128 lanes_fold4(struct lanes v)
{
    const __m256 t = _mm256_add_ps(v.lo, v.hi);
    return _mm_add_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1));
}

/* colibri_lanes_sum of four: additions of the same pairs in the same order, four at a time. */
INLINE __m128 lanes_sum4(struct lanes a, struct lanes b, struct lanes c, struct lanes d)
{
    const __m128 a4 = lanes_fold4(a), b4 = lanes_fold4(b), c4 = lanes_fold4(c), d4 = lanes_fold4(d);
    const __m128 ab = _mm_add_ps(_mm_movelh_ps(a4, b4), _mm_movehl_ps(b4, a4)); /* a02 a13 b02 b13 */
    const __m128 cd = _mm_add_ps(_mm_movelh_ps(c4, d4), _mm_movehl_ps(d4, c4));
    return _mm_add_ps(_mm_shuffle_ps(ab, cd, 0x88), _mm_shuffle_ps(ab, cd, 0xdd));
}

INLINE float lanes_sum(struct lanes a)
{
    const __m128 t4 = lanes_fold4(a);
    const __m128 t2 = _mm_add_ps(t4, _mm_movehl_ps(t4, t4));
    return _mm_cvtss_f32(_mm_add_ss(t2, _mm_movehdup_ps(t2)));
}

/* colibri_expf of x <= 0 or NaN: the comparison that decides on zero is false for a NaN, whose p is a NaN already. */
INLINE __m256 exp_below(__m256 x)
{
    const __m256 round = _mm256_set1_ps(COLIBRI_EXP_ROUND);
    const __m256 biased = _mm256_fmadd_ps(x, _mm256_set1_ps(COLIBRI_EXP_LOG2E), round);
    const __m256 n = _mm256_sub_ps(biased, round);
    __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-COLIBRI_EXP_LN2_HI), x);
    r = _mm256_fmadd_ps(n, _mm256_set1_ps(-COLIBRI_EXP_LN2_LO), r);
    __m256 p = _mm256_set1_ps(COLIBRI_EXP_C6);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(COLIBRI_EXP_C5));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(COLIBRI_EXP_C4));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(COLIBRI_EXP_C3));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(COLIBRI_EXP_C2));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(COLIBRI_EXP_C1));
    p = _mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r);
    p = _mm256_add_ps(p, _mm256_set1_ps(1.0f));
    const __m256i pow2 = _mm256_slli_epi32(_mm256_add_epi32(_mm256_castps_si256(biased), _mm256_set1_epi32(127)), 23);
    p = _mm256_mul_ps(p, _mm256_castsi256_ps(pow2));
    return _mm256_andnot_ps(_mm256_cmp_ps(x, _mm256_set1_ps(COLIBRI_EXP_MIN), _CMP_LT_OQ), p);
}

/* colibri_expf */
INLINE __m256 exp256(__m256 x)
{
    return _mm256_blendv_ps(exp_below(x), _mm256_set1_ps(INFINITY),
                            _mm256_cmp_ps(x, _mm256_set1_ps(COLIBRI_EXP_MAX), _CMP_GT_OQ));
}

#endif
