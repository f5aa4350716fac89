/* Shared by the AVX-512 kernel units: loads, products of code lines, sub-scale forms, the lane tree, exp.
 *
 * One zmm register holds a line of the x16 layout: 16 rows x 4 columns; a 32-bit lane belongs to one row. Activations
 * enter as a broadcast of 4 codes. |activation code| <= 127 is part of the activation format (numerics.h), and what
 * keeps the 16-bit sums below from saturating relies on it:
 *   maddubs adds two products u * x, u an unsigned code; `chain` such results are added in 16 bits, and
 *   chain * 2 * max(u) * 127 <= 32767 holds for every use: u <= 15 chain 8 (30480), u <= 28 chain 4 (28448),
 *   u <= 31 chain 4 (31496), u <= 63 chain 2 (32004), u <= 128 (absolute values) chain 1 (32512).
 * The VNNI products go into 32 bits at once and need none of this. */
#ifndef KERNELS_AVX512_SIMD_H
#define KERNELS_AVX512_SIMD_H

#include <immintrin.h>

#include "colibri/kernel.h"
#include "colibri/numerics.h"

#define INLINE   static inline __attribute__((always_inline))
#define NOINLINE static __attribute__((noinline))
/* Tiles are unrolled so that accumulators live in registers; a sanitizer's checks would make that code endless. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define UNROLL
#elif defined(__clang__)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define UNROLL
#else
#define UNROLL _Pragma("clang loop unroll(full)")
#endif
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#ifdef __AVX512VNNI__
#define VNNI 1
#else
#define VNNI 0
#endif

/* Mask of the first n lanes, n <= 16. */
INLINE __mmask16 first16(size_t n)
{
    return (__mmask16)(n >= 16 ? 0xffffu : (1u << n) - 1u);
}

INLINE __m512i broadcast32(const void *p)
{
    int32_t v;
    memcpy(&v, p, 4);
    return _mm512_set1_epi32(v);
}

INLINE __m512 load_f16(const colibri_f16 *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)p));
}

INLINE __m512i low_nibbles(__m512i v)
{
    return _mm512_and_si512(v, _mm512_set1_epi8(15));
}

INLINE __m512i high_nibbles(__m512i v)
{
    return _mm512_and_si512(_mm512_srli_epi16(v, 4), _mm512_set1_epi8(15));
}

/* ---- products of lines with one activation row ---------------------------------------------------------- */

/* A run of lines of codes. Unsigned codes only, unless the unit is built without VNNI: then signed codes are
 * kept as absolute value and sign mask. */
struct lines {
    __m512i q[8];
#if !VNNI
    __mmask64 neg[8];
#endif
};

/* Signed codes in l->q: VNNI adds 128 (the caller takes 128 * sum of x off again), plain splits off the sign. */
INLINE void lines_signed(struct lines *l, const int n)
{
    UNROLL
    for (int j = 0; j < n; j++) {
#if VNNI
        l->q[j] = _mm512_xor_si512(l->q[j], _mm512_set1_epi8(-128));
#else
        l->neg[j] = _mm512_movepi8_mask(l->q[j]);
        l->q[j] = _mm512_abs_epi8(l->q[j]);
#endif
    }
}

/* Low nibbles are quads 0..3, high nibbles quads 4..7. */
INLINE void unpack_nibbles(const uint8_t q[4][64], struct lines *l)
{
    UNROLL
    for (int j = 0; j < 4; j++) {
        const __m512i v = _mm512_loadu_si512(q[j]);
        l->q[j] = low_nibbles(v);
        l->q[4 + j] = high_nibbles(v);
    }
}

/* Nibbles in l->q become values of a table. */
INLINE void lookup(struct lines *l, __m128i table)
{
    const __m512i t = _mm512_broadcast_i32x4(table);
    UNROLL
    for (int j = 0; j < 8; j++)
        l->q[j] = _mm512_shuffle_epi8(t, l->q[j]);
}

/* The signed codebook of IQ4_NL and IQ4_XS, in the form of lines_signed. */
INLINE void lookup_iq4(struct lines *l)
{
    static const int8_t values[16] = COLIBRI_IQ4_VALUES;
    const __m128i table = _mm_loadu_si128((const void *)values);
#if VNNI
    lookup(l, _mm_xor_si128(table, _mm_set1_epi8(-128)));
#else
    lookup(l, table);
    lines_signed(l, 8);
#endif
}

#if !VNNI
/* 16-bit partial sums of lines [j, j + chain). */
INLINE __m512i madd_lines(const struct lines *l, const int8_t *x, const int j, const int chain, const int is_signed)
{
    __m512i s = _mm512_setzero_si512();
    UNROLL
    for (int i = 0; i < chain; i++) {
        __m512i xq = broadcast32(x + 4 * (j + i));
        if (is_signed)
            xq = _mm512_mask_sub_epi8(xq, l->neg[j + i], _mm512_setzero_si512(), xq);
        const __m512i p = _mm512_maddubs_epi16(l->q[j + i], xq);
        s = i ? _mm512_add_epi16(s, p) : p;
    }
    return s;
}
#endif

#if VNNI
/* s + products of a line with the 4 codes from x on. GCC would load the broadcast with an instruction of its own: twice
 * as many in flight, and the processor sees less far ahead. */
INLINE __m512i add_line(__m512i s, __m512i line, const int8_t *x)
{
#if defined(__GNUC__) && !defined(__clang__)
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(s) : "v"(line), "m"(*(const int8_t(*)[4])x));
    return s;
#else
    return _mm512_dpbusd_epi32(s, line, broadcast32(x));
#endif
}
#endif

/* start + per row: sum over n lines of code * x, in 32 bits. */
INLINE __m512i dot_lines_from(__m512i start, const struct lines *l, const int8_t *x, const int n, const int chain,
                              const int is_signed)
{
#if VNNI
    (void)chain, (void)is_signed;
    const int two = n == 8; /* Chains this long are faster as two. */
    __m512i s = start, s2 = _mm512_setzero_si512();
    UNROLL
    for (int j = 0; j < n; j++) {
        if (two && j % 2)
            s2 = add_line(s2, l->q[j], x + 4 * j);
        else
            s = add_line(s, l->q[j], x + 4 * j);
    }
    return two ? _mm512_add_epi32(s, s2) : s;
#else
    __m512i s = start;
    UNROLL
    for (int j = 0; j < n; j += chain) {
        const __m512i p = _mm512_madd_epi16(madd_lines(l, x, j, chain, is_signed), _mm512_set1_epi16(1));
        s = _mm512_add_epi32(s, p);
    }
    return s;
#endif
}

INLINE __m512i dot_lines(const struct lines *l, const int8_t *x, const int n, const int chain, const int is_signed)
{
    return dot_lines_from(_mm512_setzero_si512(), l, x, n, chain, is_signed);
}

/* v * factor by a shift: multipliers are what products wait for, shifters are not. */
INLINE __m512i times_power_of_two(__m512i v, const uint32_t factor)
{
    return _mm512_slli_epi32(v, (unsigned)__builtin_ctz(factor));
}

/* Sub-scales: one signed value per row in 32-bit lanes, turned into the form that dot_lines_scaled takes. */
INLINE __m512i pair16(__m512i even, __m512i odd)
{
    return _mm512_mask_blend_epi16(0xaaaaaaaau, even, _mm512_slli_epi32(odd, 16));
}

INLINE __m512i scale_form(__m512i scale32)
{
#if VNNI
    return scale32;
#else
    return pair16(scale32, scale32);
#endif
}

/* v, a sum that is not to be regrouped: compilers add the addends of several sub-blocks to each other first, and run
 * out of registers for them. */
INLINE __m512i added(__m512i v)
{
    __asm__("" : "+v"(v));
    return v;
}

/* acc + scale * (start + sum over n lines of code * x); without VNNI start is zero. */
INLINE __m512i dot_lines_scaled(__m512i acc, const struct lines *l, const int8_t *x, const int n, const int chain,
                                const int is_signed, __m512i scale, __m512i start)
{
#if VNNI
    return added(_mm512_add_epi32(acc, _mm512_mullo_epi32(dot_lines_from(start, l, x, n, chain, is_signed), scale)));
#else
    (void)start;
    UNROLL
    for (int j = 0; j < n; j += chain)
        acc = added(_mm512_add_epi32(acc, _mm512_madd_epi16(madd_lines(l, x, j, chain, is_signed), scale)));
    return acc;
#endif
}

/* acc + even * p[0] + odd * p[1] for 16-bit pairs. */
INLINE __m512i madd_pair(__m512i acc, __m512i pair, const int16_t *p)
{
#if VNNI
    return _mm512_dpwssd_epi32(acc, pair, broadcast32(p));
#else
    return _mm512_add_epi32(acc, _mm512_madd_epi16(pair, broadcast32(p)));
#endif
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
    const size_t fit = (256u << 10) / (a->x_stride ? a->x_stride : 1);
    return fit < 2 * tile ? 2 * tile : fit > 240 ? 240 : (uint32_t)fit / tile * tile;
}

/* Asks the L2 cache for piece `piece` of `size` bytes from p on. */
INLINE void prefetch(const void *p, size_t size, size_t piece)
{
    const uintptr_t begin = (uintptr_t)p + piece * size;
    for (uintptr_t at = begin; at < begin + size; at += 64)
        _mm_prefetch((const void *)at, _MM_HINT_T1);
}

/* ---- 16 virtual lanes ------------------------------------------------------------------------------------ */

/* colibri_lanes_sum of four registers: additions of the same pairs in the same order, four at a time. */
INLINE __m128 lanes_sum4(__m512 a, __m512 b, __m512 c, __m512 d)
{
#define FOLD8(v) _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1))
#define FOLD4(v) _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1))
    const __m256 a8 = FOLD8(a), b8 = FOLD8(b), c8 = FOLD8(c), d8 = FOLD8(d);
    const __m128 a4 = FOLD4(a8), b4 = FOLD4(b8), c4 = FOLD4(c8), d4 = FOLD4(d8);
#undef FOLD8
#undef FOLD4
    const __m128 ab = _mm_add_ps(_mm_movelh_ps(a4, b4), _mm_movehl_ps(b4, a4)); /* a02 a13 b02 b13 */
    const __m128 cd = _mm_add_ps(_mm_movelh_ps(c4, d4), _mm_movehl_ps(d4, c4));
    return _mm_add_ps(_mm_shuffle_ps(ab, cd, 0x88), _mm_shuffle_ps(ab, cd, 0xdd));
}

INLINE float lanes_sum(__m512 a)
{
    return _mm_cvtss_f32(lanes_sum4(a, a, a, a));
}

/* The polynomial of colibri_expf; *pow2: what it is to be multiplied by. */
INLINE __m512 exp_parts(__m512 x, __m512 *pow2)
{
    const __m512 round = _mm512_set1_ps(COLIBRI_EXP_ROUND);
    const __m512 biased = _mm512_fmadd_ps(x, _mm512_set1_ps(COLIBRI_EXP_LOG2E), round);
    const __m512 n = _mm512_sub_ps(biased, round);
    __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-COLIBRI_EXP_LN2_HI), x);
    r = _mm512_fmadd_ps(n, _mm512_set1_ps(-COLIBRI_EXP_LN2_LO), r);
    __m512 p = _mm512_set1_ps(COLIBRI_EXP_C6);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(COLIBRI_EXP_C5));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(COLIBRI_EXP_C4));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(COLIBRI_EXP_C3));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(COLIBRI_EXP_C2));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(COLIBRI_EXP_C1));
    p = _mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r);
    *pow2 = _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_add_epi32(_mm512_castps_si512(biased), _mm512_set1_epi32(127)), 23));
    return _mm512_add_ps(p, _mm512_set1_ps(1.0f));
}

/* colibri_expf of x <= 0 or NaN: the comparison that decides on zero lets a NaN through. */
INLINE __m512 exp_below(__m512 x)
{
    __m512 pow2;
    const __m512 p = exp_parts(x, &pow2);
    return _mm512_maskz_mul_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(COLIBRI_EXP_MIN), _CMP_NLT_UQ), p, pow2);
}

/* colibri_expf */
INLINE __m512 exp512(__m512 x)
{
    const __m512 below = exp_below(x);
    return _mm512_mask_mov_ps(below, _mm512_cmp_ps_mask(x, _mm512_set1_ps(COLIBRI_EXP_MAX), _CMP_GT_OQ),
                              _mm512_set1_ps(INFINITY));
}

#endif
