/* The formats with 256-column superblocks, and their table. Compiled twice: matmul256.c and matmul256_vnni.c. */
#include "kernels.h"
#include "panel.h"

/* Word `word` of 8 rows. */
INLINE __m256i load_words(const uint32_t words[16], const int half)
{
    return load256(words + 8 * half);
}

/* Byte k of every 32-bit lane as a number. */
INLINE __m256i byte32(__m256i words, const int k)
{
    return _mm256_and_si256(_mm256_srli_epi32(words, 8 * k), _mm256_set1_epi32(0xff));
}

/* Bytes k of every 32-bit lane as a scale for add_scaled. */
INLINE __m256i byte_scale(__m256i words, const int k)
{
    const __m256i pattern = VNNI ? _mm256_setr_epi8(0, -1, -1, -1, 4, -1, -1, -1, 8, -1, -1, -1, 12, -1, -1, -1, 0, -1,
                                                    -1, -1, 4, -1, -1, -1, 8, -1, -1, -1, 12, -1, -1, -1)
                                 : _mm256_setr_epi8(0, -1, 0, -1, 4, -1, 4, -1, 8, -1, 8, -1, 12, -1, 12, -1, 0, -1, 0,
                                                    -1, 4, -1, 4, -1, 8, -1, 8, -1, 12, -1, 12, -1);
    return _mm256_shuffle_epi8(words, _mm256_add_epi8(pattern, VNNI ? _mm256_set1_epi32(k) : _mm256_set1_epi16((short)k)));
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

INLINE void scales_q4_k(const struct colibri_x16_q4_k *w, const int half, __m256i *scale, __m256i *pair)
{
    scales_6bit(w->s, half, scale, pair);
}

INLINE void unpack_q4_k(const struct colibri_x16_q4_k *w, const int half, int c, const int k, struct lines *l)
{
    UNROLL
    for (int j = 0; j < 8; j++) {
        const __m256i v = load256(w->q[c][j] + 32 * half);
        l->q[j] = k ? high_nibbles(v) : low_nibbles(v);
    }
}

INLINE void scales_q5_k(const struct colibri_x16_q5_k *w, const int half, __m256i *scale, __m256i *pair)
{
    scales_6bit(w->s, half, scale, pair);
}

INLINE void unpack_q5_k(const struct colibri_x16_q5_k *w, const int half, int c, const int k, struct lines *l)
{
    const __m256i bit = _mm256_set1_epi8((char)(1 << (2 * c + k)));
    UNROLL
    for (int j = 0; j < 8; j++) {
        const __m256i v = load256(w->q[c][j] + 32 * half);
        const __m256i fifth = where_bits(load256(w->qh[j] + 32 * half), bit, 16);
        l->q[j] = _mm256_or_si256(k ? high_nibbles(v) : low_nibbles(v), fifth);
    }
}

/* 16 scales of one row per lane, and their pairs for an OFFSET. */
INLINE void scales_and_pairs(const __m256i scale32[16], __m256i *scale, __m256i *pair)
{
    UNROLL
    for (int s = 0; s < 16; s++)
        scale[s] = scale_form(scale32[s]);
    UNROLL
    for (int k = 0; k < 8; k++)
        pair[k] = pair16(scale32[2 * k], scale32[2 * k + 1]);
}

INLINE void scales_q6_k(const struct colibri_x16_q6_k *w, const int half, __m256i *scale, __m256i *pair)
{
    __m256i scale32[16];
    UNROLL
    for (int s = 0; s < 16; s++)
        scale32[s] = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)(w->scales[s] + 8 * half)));
    scales_and_pairs(scale32, scale, pair);
}

/* Sub-block k of a half of 128 columns: columns 32 * part + 16 * (k % 2), part = k / 2. */
INLINE void unpack_q6_k(const struct colibri_x16_q6_k *w, const int half, int n, const int k, struct lines *l)
{
    const int part = k / 2, first = 4 * (k % 2);
    UNROLL
    for (int j = 0; j < 4; j++) {
        const __m256i low = load256(w->ql[n][8 * (part % 2) + first + j] + 32 * half);
        const __m256i high = load256(w->qh[n][first + j] + 32 * half);
        const __m256i h = part == 0   ? _mm256_slli_epi16(high, 4)
                          : part == 1 ? _mm256_slli_epi16(high, 2)
                          : part == 2 ? high
                                      : _mm256_srli_epi16(high, 2);
        l->q[j] = _mm256_or_si256(part < 2 ? low_nibbles(low) : high_nibbles(low), and8(h, 48));
    }
}

/* 2-bit codes of Q2_K and Q3_K. */
INLINE __m256i two_bits(const uint8_t *line, const int part)
{
    return and8(_mm256_srli_epi16(load256(line), 2 * part), 3);
}

INLINE void scales_q2_k(const struct colibri_x16_q2_k *w, const int half, __m256i *scale, __m256i *pair)
{
    __m256i mn[16];
    UNROLL
    for (int s = 0; s < 16; s++) {
        const __m256i v = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)(w->scales[s] + 8 * half)));
        scale[s] = scale_form(low_nibbles(v));
        mn[s] = _mm256_srli_epi32(v, 4);
    }
    UNROLL
    for (int k = 0; k < 8; k++)
        pair[k] = pair16(mn[2 * k], mn[2 * k + 1]);
}

INLINE void unpack_q2_k(const struct colibri_x16_q2_k *w, const int half, int n, const int k, struct lines *l)
{
    UNROLL
    for (int j = 0; j < 4; j++)
        l->q[j] = two_bits(w->q[n][4 * (k % 2) + j] + 32 * half, k / 2);
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
    __m256i scale32[16];
    UNROLL
    for (int s = 0; s < 16; s++)
        scale32[s] = _mm256_sub_epi32(byte32(sc[s / 4], s % 4), _mm256_set1_epi32(32));
    scales_and_pairs(scale32, scale, pair);
}

/* Two bits plus 4 where the mask bit is set: code + 4 in 0..7. */
INLINE void unpack_q3_k(const struct colibri_x16_q3_k *w, const int half, int n, const int k, struct lines *l)
{
    const int part = k / 2, first = 4 * (k % 2);
    const __m256i bit = _mm256_set1_epi8((char)(1 << (4 * n + part)));
    UNROLL
    for (int j = 0; j < 4; j++) {
        const __m256i third = where_bits(load256(w->hmask[first + j] + 32 * half), bit, 4);
        l->q[j] = _mm256_or_si256(two_bits(w->q[n][first + j] + 32 * half, part), third);
    }
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

INLINE void unpack_iq4_xs(const struct colibri_x16_iq4_xs *w, const int half, int b, const int k, struct lines *l)
{
    static const int8_t values[16] = COLIBRI_IQ4_VALUES;
    const __m256i table = signed_codes(_mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)values)));
    (void)k;
    UNROLL
    for (int j = 0; j < 4; j++) {
        const __m256i v = load256(w->q[b][j] + 32 * half);
        l->q[j] = _mm256_shuffle_epi8(table, low_nibbles(v));
        l->q[4 + j] = _mm256_shuffle_epi8(table, high_nibbles(v));
    }
}

#define NAME     q4_k
#define CHUNKS   4
#define SUBS     2
#define OFFSET   0
#define CHAIN    8
#define SIGNED   0
#define HAS_MIN  1
#define PREFETCH 0
#include "tile256.h"

#define NAME     q5_k
#define CHUNKS   4
#define SUBS     2
#define OFFSET   0
#define CHAIN    4
#define SIGNED   0
#define HAS_MIN  1
#define PREFETCH 0
#include "tile256.h"

#define NAME     q6_k
#define CHUNKS   2
#define SUBS     8
#define OFFSET   32
#define CHAIN    2
#define SIGNED   0
#define HAS_MIN  0
#define PREFETCH 1
#include "tile256.h"

#define NAME     q2_k
#define CHUNKS   2
#define SUBS     8
#define OFFSET   0
#define CHAIN    4
#define SIGNED   0
#define HAS_MIN  1
#define PREFETCH 0
#include "tile256.h"

#define NAME     q3_k
#define CHUNKS   2
#define SUBS     8
#define OFFSET   4
#define CHAIN    4
#define SIGNED   0
#define HAS_MIN  0
#define PREFETCH 0
#include "tile256.h"

#define NAME     iq4_xs
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
