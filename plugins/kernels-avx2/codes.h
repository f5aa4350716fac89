/* Products of integer codes with activation rows: what the templates tile32.h and tile256.h are made of. Compiled with
 * and without VNNI.
 *
 * |activation code| <= 127 is part of the activation format (numerics.h), and what keeps the 16-bit sums below from
 * saturating relies on it:
 *   maddubs adds two products u * x, u an unsigned code; `chain` such results are added in 16 bits, and
 *   chain * 2 * max(u) * 127 <= 32767 holds for every use: u <= 15 chain 8 (30480), u <= 24 chain 4 (24384),
 *   u <= 31 chain 4 (31496), u <= 63 chain 2 (32004).
 * Codes of all eight bits are too wide for that. One activation row: |code| as u, and x with the sign of the code:
 * u <= 128, chain 1 (32512); x = -x is exact because x is never -128. Many: codes and activations widened to 16 bits
 * once, multiplied by madd, whose sums are 32 bits wide.
 * VNNI (vpdpbusd) adds four products u * x to 32 bits at once and needs none of this; signed codes get 128 added. */
#ifndef KERNELS_AVX2_CODES_H
#define KERNELS_AVX2_CODES_H

#include "simd.h"

/* CLB_EVEX_VNNI: the same instructions in their EVEX form, for tests on CPUs that have only those. */
#if defined(__AVXVNNI__) || defined(CLB_EVEX_VNNI)
#define VNNI 1
#else
#define VNNI 0
#endif

/* What is added to signed codes so that they are unsigned. */
#define SIGNED_OFFSET (VNNI ? 128 : 0)

/* The compiler may neither move the making of v nor regroup the sum behind it: GCC would first make all products of a
 * tile, far more than there are registers. */
#define KEEP(v) __asm__("" : "+x"(v))

/* Puts what was computed so far into the array, instead of computing it again or keeping it in registers. */
#define MEMORY_BARRIER(array) __asm__("" : "+m"(array))

#if VNNI
INLINE __m256i dpbusd(__m256i acc, __m256i u, __m256i x)
{
#ifdef CLB_EVEX_VNNI
    return _mm256_dpbusd_epi32(acc, u, x);
#else
    return _mm256_dpbusd_avx_epi32(acc, u, x);
#endif
}
#endif

/* Signed codes in the form that the products take. */
INLINE __m256i signed_codes(__m256i v)
{
    return VNNI ? _mm256_xor_si256(v, _mm256_set1_epi8(-128)) : v;
}

/* Values of 4-bit codes. */
INLINE __m128i iq4_table(void)
{
    static const int8_t values[16] = COLIBRI_IQ4_VALUES;
    const __m128i v = _mm_loadu_si128((const void *)values);
    return VNNI ? _mm_xor_si128(v, _mm_set1_epi8(-128)) : v;
}

INLINE __m256i ones16(void)
{
    return _mm256_set1_epi16(1);
}

/* v * n for a small constant n >= 0 */
INLINE __m256i times(__m256i v, const int n)
{
    switch (n) {
    case 0:
        return _mm256_setzero_si256();
    case 8:
        return _mm256_slli_epi32(v, 3);
    case 16:
        return _mm256_slli_epi32(v, 4);
    case 32:
        return _mm256_slli_epi32(v, 5);
    case 128:
        return _mm256_slli_epi32(v, 7);
    default:
        return _mm256_mullo_epi32(v, _mm256_set1_epi32(n));
    }
}

/* 32-bit lanes to 16-bit pairs (even, odd). */
INLINE __m256i pair16(__m256i even, __m256i odd)
{
    return _mm256_blend_epi16(even, _mm256_slli_epi32(odd, 16), 0xaa);
}

/* acc + even * p[0] + odd * p[1] for 16-bit pairs. */
INLINE __m256i madd_pair(__m256i acc, __m256i pair, __m256i p)
{
    return _mm256_add_epi32(acc, _mm256_madd_epi16(pair, p));
}

/* acc + scale * sum for sub-scales: 32-bit sums with VNNI, else 16-bit partial sums and pairs (scale, scale). */
INLINE __m256i add_scaled(__m256i acc, __m256i sum, __m256i scale)
{
    return _mm256_add_epi32(acc, VNNI ? _mm256_mullo_epi32(sum, scale) : _mm256_madd_epi16(sum, scale));
}

/* ---- few activation rows: one line after the other, straight from the packed weights ------------------------ */

/* Starts or continues (`go_on`) the sum of one quad: 32-bit sums with VNNI, else 16-bit partial sums. `u` are q's
 * absolute values if q is signed (never with VNNI), else q itself. */
INLINE __m256i dot_quad(__m256i s, __m256i q, __m256i xq, __m256i u, const int is_signed, const int go_on)
{
#if VNNI
    (void)u, (void)is_signed;
    s = dpbusd(go_on ? s : _mm256_setzero_si256(), q, xq);
#else
    const __m256i p = _mm256_maddubs_epi16(u, is_signed ? _mm256_sign_epi8(xq, q) : xq);
    s = go_on ? _mm256_add_epi16(s, p) : p;
#endif
    KEEP(s);
    return s;
}

/* ---- whole lines from a panel (many activation rows) ------------------------------------------------------ */

/* Half h and activation row i < tile: s[2 * i + h] += scale[h] * sum over n lines at q of code * x, or without scales
 * s[2 * i + h] = that sum. */
INLINE void dot_panel(const uint8_t *q, const int8_t *const *x, const int n, const int chain, const int tile,
                      const __m256i *scale, __m256i *s)
{
    const int step = VNNI ? n : chain;
    UNROLL
    for (int j = 0; j < n; j += step) {
        __m256i p[2 * 8];
        UNROLL
        for (int k = j; k < j + step; k++) {
            const __m256i w0 = load256(q + 64 * k), w1 = load256(q + 64 * k + 32);
            UNROLL
            for (int i = 0; i < tile; i++) {
                const __m256i xq = broadcast32(x[i] + 4 * k);
#if VNNI
                const __m256i zero = _mm256_setzero_si256();
                p[2 * i] = dpbusd(k > j ? p[2 * i] : zero, w0, xq);
                p[2 * i + 1] = dpbusd(k > j ? p[2 * i + 1] : zero, w1, xq);
#else
                const __m256i p0 = _mm256_maddubs_epi16(w0, xq), p1 = _mm256_maddubs_epi16(w1, xq);
                p[2 * i] = k > j ? _mm256_add_epi16(p[2 * i], p0) : p0;
                p[2 * i + 1] = k > j ? _mm256_add_epi16(p[2 * i + 1], p1) : p1;
#endif
                KEEP(p[2 * i]);
                KEEP(p[2 * i + 1]);
            }
        }
        UNROLL
        for (int i = 0; i < 2 * tile; i++) {
            if (scale)
                s[i] = add_scaled(s[i], p[i], scale[i % 2]);
            else if (VNNI)
                s[i] = p[i];
            else
                s[i] = j ? madd_pair(s[i], p[i], ones16()) : _mm256_madd_epi16(p[i], ones16());
            KEEP(s[i]);
        }
    }
}

/* The same for n lines of 16-bit codes, two columns in a line; s must have a value. */
INLINE void dot_wide(const uint8_t *q, const int16_t *const *x, const int n, const int tile, __m256i *s)
{
    UNROLL
    for (int k = 0; k < n; k++) {
        const __m256i w0 = load256(q + 64 * k), w1 = load256(q + 64 * k + 32);
        UNROLL
        for (int i = 0; i < tile; i++) {
            const __m256i xq = broadcast32(x[i] + 2 * k);
            s[2 * i] = madd_pair(s[2 * i], w0, xq);
            s[2 * i + 1] = madd_pair(s[2 * i + 1], w1, xq);
            KEEP(s[2 * i]);
            KEEP(s[2 * i + 1]);
        }
    }
}

/* A quad's bytes as two pairs of 16-bit numbers: columns 0 and 2 of it, and 1 and 3. */
INLINE __m256i wide_even(__m256i v)
{
    return _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8);
}

INLINE __m256i wide_odd(__m256i v)
{
    return _mm256_srai_epi16(v, 8);
}

#endif
