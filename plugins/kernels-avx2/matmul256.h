/* The formats with 256-column superblocks, and their table. Compiled twice: matmul256.c and matmul256_vnni.c. */
#include "kernels.h"
#include "panel.h"

/* Word `word` of 8 rows. */
INLINE __m256i load_words(const uint32_t words[16], const int half)
{
    return load256(words + 8 * half);
}

/* Bytes k of every 32-bit lane as a scale for add_scaled. */
INLINE __m256i byte_scale(__m256i words, const int k)
{
    const __m256i pattern = VNNI ? _mm256_setr_epi8(0, -1, -1, -1, 4, -1, -1, -1, 8, -1, -1, -1, 12, -1, -1, -1, 0, -1,
                                                    -1, -1, 4, -1, -1, -1, 8, -1, -1, -1, 12, -1, -1, -1)
                                 : _mm256_setr_epi8(0, -1, 0, -1, 4, -1, 4, -1, 8, -1, 8, -1, 12, -1, 12, -1, 0, -1, 0,
                                                    -1, 4, -1, 4, -1, 8, -1, 8, -1, 12, -1, 12, -1);
    return _mm256_shuffle_epi8(words,
                               _mm256_add_epi8(pattern, VNNI ? _mm256_set1_epi32(k) : _mm256_set1_epi16((short)k)));
}

/* Bytes 2k and 2k + 1 of every 32-bit lane as 16-bit pair. */
INLINE __m256i byte_pair(__m256i words, const int k)
{
    const __m256i pattern = _mm256_setr_epi8(0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13, -1, 0, -1, 1, -1, 4,
                                             -1, 5, -1, 8, -1, 9, -1, 12, -1, 13, -1);
    return _mm256_shuffle_epi8(words, _mm256_add_epi8(pattern, _mm256_set1_epi16((short)(2 * k))));
}

/* A 32-bit number per row as a scale for add_scaled. */
INLINE __m256i scale_form(__m256i v)
{
    return VNNI ? v : pair16(v, v);
}

/* Q4_K and Q5_K: 8 scales and 8 minimums of 6 bits. */
INLINE void scales_6bit(const uint32_t s[3][16], const int half, __m256i *scale, __m256i *pair)
{
    const __m256i s0 = load_words(s[0], half), s1 = load_words(s[1], half), s2 = load_words(s[2], half);
    const __m256i sc[2] = {and8(s0, 63), _mm256_or_si256(low_nibbles(s2), and8(_mm256_srli_epi32(s0, 2), 48))};
    const __m256i mn[2] = {and8(s1, 63), _mm256_or_si256(high_nibbles(s2), and8(_mm256_srli_epi32(s1, 2), 48))};
    UNROLL
    for (int k = 0; k < 8; k++)
        scale[k] = byte_scale(sc[k / 4], k % 4);
    UNROLL
    for (int k = 0; k < 4; k++)
        pair[k] = byte_pair(mn[k / 2], k % 2);
}

/* Bits of bytes moved left by n, or right by -n; other bytes' bits come in, which the caller masks off. */
INLINE __m256i shifted(__m256i v, const int n)
{
    return n > 0 ? _mm256_slli_epi16(v, n) : n < 0 ? _mm256_srli_epi16(v, -n) : v;
}

INLINE void scales_q4_k(const struct colibri_x16_q4_k *w, const int half, __m256i *scale, __m256i *pair)
{
    scales_6bit(w->s, half, scale, pair);
}

INLINE __m256i quad_q4_k(const struct colibri_x16_q4_k *w, const int half, const int c, const int k, const int j)
{
    const __m256i v = load256(w->q[c][j] + 32 * half);
    return k ? high_nibbles(v) : low_nibbles(v);
}

INLINE void scales_q5_k(const struct colibri_x16_q5_k *w, const int half, __m256i *scale, __m256i *pair)
{
    scales_6bit(w->s, half, scale, pair);
}

INLINE __m256i quad_q5_k(const struct colibri_x16_q5_k *w, const int half, const int c, const int k, const int j)
{
    const __m256i v = load256(w->q[c][j] + 32 * half);
    const __m256i fifth = and8(shifted(load256(w->qh[j] + 32 * half), 4 - (2 * c + k)), 16);
    return _mm256_or_si256(k ? high_nibbles(v) : low_nibbles(v), fifth);
}

/* Signed bytes k of every 32-bit lane as a scale for add_scaled. */
INLINE __m256i signed_byte_scale(__m256i words, const int k)
{
    if (VNNI)
        return _mm256_srai_epi32(_mm256_slli_epi32(words, 24 - 8 * k), 24);
    const __m256i pattern = _mm256_setr_epi8(-128, 0, -128, 0, -128, 4, -128, 4, -128, 8, -128, 8, -128, 12, -128, 12,
                                             -128, 0, -128, 0, -128, 4, -128, 4, -128, 8, -128, 8, -128, 12, -128, 12);
    const __m256i top = _mm256_shuffle_epi8(words, _mm256_add_epi8(pattern, _mm256_set1_epi16((short)(k << 8))));
    return _mm256_srai_epi16(top, 8);
}

/* Signed bytes 2k and 2k + 1 of every 32-bit lane as 16-bit pair. */
INLINE __m256i signed_byte_pair(__m256i words, const int k)
{
    const __m256i pattern = _mm256_setr_epi8(-128, 0, -128, 1, -128, 4, -128, 5, -128, 8, -128, 9, -128, 12, -128, 13,
                                             -128, 0, -128, 1, -128, 4, -128, 5, -128, 8, -128, 9, -128, 12, -128, 13);
    const __m256i top = _mm256_shuffle_epi8(words, _mm256_add_epi8(pattern, _mm256_set1_epi16((short)(2 * k << 8))));
    return _mm256_srai_epi16(top, 8);
}

/* Bytes of 8 rows from a row of 16 as scales for add_scaled. */
INLINE __m256i row_scale(const void *bytes, const int half, const uint8_t mask)
{
    const __m128i v = _mm_and_si128(_mm_loadu_si128(bytes), _mm_set1_epi8((char)mask));
    if (VNNI)
        return _mm256_cvtepu8_epi32(half ? _mm_srli_si128(v, 8) : v);
    const __m256i pattern = _mm256_setr_epi8(0, -1, 0, -1, 1, -1, 1, -1, 2, -1, 2, -1, 3, -1, 3, -1, 4, -1, 4, -1, 5,
                                             -1, 5, -1, 6, -1, 6, -1, 7, -1, 7, -1);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(v),
                               half ? _mm256_add_epi8(pattern, _mm256_set1_epi16(8)) : pattern);
}

/* The same of signed bytes. */
INLINE __m256i signed_row_scale(const void *bytes, const int half)
{
    const __m128i v = _mm_loadu_si128(bytes);
    if (VNNI)
        return _mm256_cvtepi8_epi32(half ? _mm_srli_si128(v, 8) : v);
    const __m256i pattern = _mm256_setr_epi8(-128, 0, -128, 0, -128, 1, -128, 1, -128, 2, -128, 2, -128, 3, -128, 3,
                                             -128, 4, -128, 4, -128, 5, -128, 5, -128, 6, -128, 6, -128, 7, -128, 7);
    const __m256i mine = half ? _mm256_add_epi8(pattern, _mm256_set1_epi16(8 << 8)) : pattern;
    return _mm256_srai_epi16(_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(v), mine), 8);
}

/* Bytes of 8 rows from two rows of 16, row by row. */
INLINE __m128i row_pair(const void *even, const void *odd, const int half)
{
    const __m128i e = _mm_loadu_si128(even), o = _mm_loadu_si128(odd);
    return half ? _mm_unpackhi_epi8(e, o) : _mm_unpacklo_epi8(e, o);
}

INLINE void scales_q6_k(const struct colibri_x16_q6_k *w, const int half, __m256i *scale, __m256i *pair)
{
    UNROLL
    for (int s = 0; s < 16; s++)
        scale[s] = signed_row_scale(w->scales[s], half);
    UNROLL
    for (int k = 0; k < 8; k++)
        pair[k] = _mm256_cvtepi8_epi16(row_pair(w->scales[2 * k], w->scales[2 * k + 1], half));
}

/* Sub-block k of a half of 128 columns: columns 32 * part + 16 * (k % 2), part = k / 2. */
INLINE __m256i quad_q6_k(const struct colibri_x16_q6_k *w, const int half, const int n, const int k, const int j)
{
    const int part = k / 2, line = 4 * (k % 2) + j;
    const __m256i low = load256(w->ql[n][8 * (part % 2) + line] + 32 * half);
    const __m256i high = and8(shifted(load256(w->qh[n][line] + 32 * half), 4 - 2 * part), 48);
    return _mm256_or_si256(part < 2 ? low_nibbles(low) : high_nibbles(low), high);
}

/* 2-bit codes of Q2_K and Q3_K. */
INLINE __m256i two_bits(const uint8_t *line, const int part)
{
    return and8(shifted(load256(line), -2 * part), 3);
}

INLINE void scales_q2_k(const struct colibri_x16_q2_k *w, const int half, __m256i *scale, __m256i *pair)
{
    UNROLL
    for (int s = 0; s < 16; s++)
        scale[s] = row_scale(w->scales[s], half, 15);
    UNROLL
    for (int k = 0; k < 8; k++)
        pair[k] = _mm256_srli_epi16(_mm256_cvtepu8_epi16(row_pair(w->scales[2 * k], w->scales[2 * k + 1], half)), 4);
}

INLINE __m256i quad_q2_k(const struct colibri_x16_q2_k *w, const int half, const int n, const int k, const int j)
{
    return two_bits(w->q[n][4 * (k % 2) + j] + 32 * half, k / 2);
}

/* Scale s of 16: low nibble from byte s % 8 (high half for s >= 8), two bits from byte 8 + s % 4, minus 32. */
INLINE void scales_q3_k(const struct colibri_x16_q3_k *w, const int half, __m256i *scale, __m256i *pair)
{
    const __m256i s0 = load_words(w->s[0], half), s1 = load_words(w->s[1], half), s2 = load_words(w->s[2], half);
    const __m256i sc[4] = {
        _mm256_or_si256(low_nibbles(s0), and8(_mm256_slli_epi32(s2, 4), 48)),
        _mm256_or_si256(low_nibbles(s1), and8(_mm256_slli_epi32(s2, 2), 48)),
        _mm256_or_si256(high_nibbles(s0), and8(s2, 48)),
        _mm256_or_si256(high_nibbles(s1), and8(_mm256_srli_epi32(s2, 2), 48)),
    };
    UNROLL
    for (int i = 0; i < 4; i++) {
        const __m256i words = _mm256_sub_epi8(sc[i], _mm256_set1_epi8(32));
        UNROLL
        for (int k = 0; k < 4; k++)
            scale[4 * i + k] = signed_byte_scale(words, k);
        pair[2 * i] = signed_byte_pair(words, 0);
        pair[2 * i + 1] = signed_byte_pair(words, 1);
    }
}

/* Two bits plus 4 where the mask bit is set: code + 4 in 0..7. */
INLINE __m256i quad_q3_k(const struct colibri_x16_q3_k *w, const int half, const int n, const int k, const int j)
{
    const int part = k / 2, line = 4 * (k % 2) + j;
    const __m256i third = and8(shifted(load256(w->hmask[line] + 32 * half), 2 - (4 * n + part)), 4);
    return _mm256_or_si256(two_bits(w->q[n][line] + 32 * half, part), third);
}

INLINE void scales_iq4_xs(const struct colibri_x16_iq4_xs *w, const int half, __m256i *scale, __m256i *pair)
{
    const __m256i low = load_words(w->scales_l, half);
    const __m256i high = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)(w->scales_h + 8 * half)));
    __m256i sc[8];
    UNROLL
    for (int s = 0; s < 8; s++) {
        const __m256i l4 = _mm256_and_si256(_mm256_srli_epi32(low, 4 * s), _mm256_set1_epi32(15));
        const __m256i h2 = _mm256_and_si256(_mm256_srli_epi32(high, 2 * s), _mm256_set1_epi32(3));
        sc[s] = _mm256_sub_epi32(_mm256_or_si256(l4, _mm256_slli_epi32(h2, 4)), _mm256_set1_epi32(32));
        scale[s] = scale_form(sc[s]);
    }
    UNROLL
    for (int k = 0; k < 4; k++)
        pair[k] = pair16(sc[2 * k], sc[2 * k + 1]);
}

INLINE __m256i quad_iq4_xs(const struct colibri_x16_iq4_xs *w, const int half, int b, const int k, const int j)
{
    const __m256i v = load256(w->q[b][j % 4] + 32 * half);
    (void)k;
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(iq4_table()), j < 4 ? low_nibbles(v) : high_nibbles(v));
}

INLINE __m256i magnitudes_iq4_xs(const struct colibri_x16_iq4_xs *w, const int half, int b, const int k, const int j)
{
    const __m256i v = load256(w->q[b][j % 4] + 32 * half);
    (void)k;
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_abs_epi8(iq4_table())),
                               j < 4 ? low_nibbles(v) : high_nibbles(v));
}

#define NAME     q4_k
#define DIRECT   4
#define CHUNKS   4
#define SUBS     2
#define OFFSET   0
#define CHAIN    8
#define SIGNED   0
#define HAS_MIN  1
#define PREFETCH 0
#include "tile256.h"

#define NAME     q5_k
#define DIRECT   2
#define CHUNKS   4
#define SUBS     2
#define OFFSET   0
#define CHAIN    4
#define SIGNED   0
#define HAS_MIN  1
#define PREFETCH 0
#include "tile256.h"

#define NAME     q6_k
#define DIRECT   2
#define CHUNKS   2
#define SUBS     8
#define OFFSET   32
#define CHAIN    2
#define SIGNED   0
#define HAS_MIN  0
#define PREFETCH 1
#include "tile256.h"

#define NAME     q2_k
#define DIRECT   4
#define CHUNKS   2
#define SUBS     8
#define OFFSET   0
#define CHAIN    4
#define SIGNED   0
#define HAS_MIN  1
#define PREFETCH 0
#include "tile256.h"

#define NAME     q3_k
#define DIRECT   2
#define CHUNKS   2
#define SUBS     8
#define OFFSET   4
#define CHAIN    4
#define SIGNED   0
#define HAS_MIN  0
#define PREFETCH 0
#include "tile256.h"

#define NAME     iq4_xs
#define DIRECT   4
#define CHUNKS   8
#define SUBS     1
#define OFFSET   0
#define CHAIN    1
#define SIGNED   1
#define HAS_MIN  0
#define PREFETCH 0
#include "tile256.h"

const struct colibri_matmul TABLE[N_MATMUL256] = {
    X16_MATMUL(Q4_K, q4_k, COLIBRI_ACT_Q8X256), X16_MATMUL(Q5_K, q5_k, COLIBRI_ACT_Q8X256),
    X16_MATMUL(Q6_K, q6_k, COLIBRI_ACT_Q8X256), X16_MATMUL(Q2_K, q2_k, COLIBRI_ACT_Q8X256),
    X16_MATMUL(Q3_K, q3_k, COLIBRI_ACT_Q8X256), X16_MATMUL(IQ4_XS, iq4_xs, COLIBRI_ACT_Q8X256),
};
