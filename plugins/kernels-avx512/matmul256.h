/* The formats with 256-column superblocks, and their table. Compiled twice: matmul256.c and matmul256_vnni.c. */
#include "kernels.h"
#include "simd.h"
#include "tile.h"

INLINE __m512i and8(__m512i v, char mask)
{
    return _mm512_and_si512(v, _mm512_set1_epi8(mask));
}

/* Byte k of every 32-bit lane as a number. */
INLINE __m512i byte32(__m512i words, int k)
{
    return _mm512_and_si512(_mm512_srli_epi32(words, (unsigned)(8 * k)), _mm512_set1_epi32(0xff));
}

/* Q4_K and Q5_K: 8 scales and 8 minimums of 6 bits. */
INLINE void scales_6bit(const uint32_t s[3][16], __m512i *scale, __m512i *pair)
{
    const __m512i s0 = _mm512_loadu_si512(s[0]), s1 = _mm512_loadu_si512(s[1]), s2 = _mm512_loadu_si512(s[2]);
    const __m512i sc[2] = {and8(s0, 63), _mm512_or_si512(low_nibbles(s2), and8(_mm512_srli_epi32(s0, 2), 48))};
    const __m512i mn[2] = {and8(s1, 63), _mm512_or_si512(high_nibbles(s2), and8(_mm512_srli_epi32(s1, 2), 48))};
    UNROLL
    for (int k = 0; k < 8; k++)
        scale[k] = scale_form(byte32(sc[k / 4], k % 4));
    UNROLL
    for (int k = 0; k < 4; k++) /* bytes 0 and 2, or 1 and 3: as fill_side pairs sums */
        pair[k] = _mm512_and_si512(k % 2 ? _mm512_srli_epi16(mn[k / 2], 8) : mn[k / 2], _mm512_set1_epi32(0x00ff00ff));
}

INLINE void scales_q4_k(const struct colibri_x16_q4_k *w, __m512i *scale, __m512i *pair)
{
    scales_6bit(w->s, scale, pair);
}

INLINE void unpack_q4_k(const struct colibri_x16_q4_k *w, int c, const int k, struct lines *l)
{
    UNROLL
    for (int j = 0; j < 8; j++) {
        const __m512i v = _mm512_loadu_si512(w->q[c][j]);
        l->q[j] = k ? high_nibbles(v) : low_nibbles(v);
    }
}

INLINE void scales_q5_k(const struct colibri_x16_q5_k *w, __m512i *scale, __m512i *pair)
{
    scales_6bit(w->s, scale, pair);
}

INLINE void unpack_q5_k(const struct colibri_x16_q5_k *w, int c, const int k, struct lines *l)
{
    const __m512i bit = _mm512_set1_epi8((char)(1 << (2 * c + k)));
    UNROLL
    for (int j = 0; j < 8; j++) {
        const __m512i v = _mm512_loadu_si512(w->q[c][j]);
        const __m512i q = k ? high_nibbles(v) : low_nibbles(v);
        const __mmask64 fifth = _mm512_test_epi8_mask(_mm512_loadu_si512(w->qh[j]), bit);
        l->q[j] = _mm512_mask_add_epi8(q, fifth, q, _mm512_set1_epi8(16));
    }
}

/* 16 scales of one row per lane; their pairs for an OFFSET. */
INLINE void scales_and_pairs(const __m512i scale32[16], __m512i *scale, __m512i *pair)
{
    UNROLL
    for (int s = 0; s < 16; s++)
        scale[s] = scale_form(scale32[s]);
    UNROLL
    for (int k = 0; k < 8; k++)
        pair[k] = pair16(scale32[2 * k], scale32[2 * k + 1]);
}

INLINE void scales_q6_k(const struct colibri_x16_q6_k *w, __m512i *scale, __m512i *pair)
{
    __m512i scale32[16];
    UNROLL
    for (int s = 0; s < 16; s++)
        scale32[s] = _mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)w->scales[s]));
#if VNNI
    (void)pair;
    memcpy(scale, scale32, sizeof(scale32));
#else
    scales_and_pairs(scale32, scale, pair);
#endif
}

/* Sub-block k of a half: columns 32 * part + 16 * (k % 2), part = k / 2. */
INLINE void unpack_q6_k(const struct colibri_x16_q6_k *w, int n, const int k, struct lines *l)
{
    const int part = k / 2, first = 4 * (k % 2);
    UNROLL
    for (int j = 0; j < 4; j++) {
        const __m512i low = _mm512_loadu_si512(w->ql[n][8 * (part % 2) + first + j]);
        const __m512i high = _mm512_loadu_si512(w->qh[n][first + j]);
        const __m512i h = part < 2 ? _mm512_slli_epi16(high, part ? 2 : 4) : _mm512_srli_epi16(high, part == 3 ? 2 : 0);
        l->q[j] = _mm512_or_si512(part < 2 ? low_nibbles(low) : high_nibbles(low), and8(h, 48));
    }
}

/* 2-bit codes of Q2_K and Q3_K. */
INLINE __m512i two_bits(const uint8_t line[64], const int part)
{
    const __m512i v = _mm512_loadu_si512(line);
    return and8(part == 0   ? v
                : part == 1 ? _mm512_srli_epi16(v, 2)
                : part == 2 ? _mm512_srli_epi16(v, 4)
                            : _mm512_srli_epi16(v, 6),
                3);
}

#if VNNI
/* Columns of a line in a table of four bytes per row: rows lie at 0, 4, 8, 12 of each 16 bytes. */
INLINE __m512i row_tables(void)
{
    return _mm512_broadcast_i32x4(_mm_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c));
}

/* Two-bit codes of a line as indices of row_tables. */
INLINE __m512i two_bits_index(const uint8_t line[64], const int part)
{
    const __m512i v = _mm512_loadu_si512(line);
    const __m512i low = part == 0 ? v : _mm512_srli_epi16(v, part == 1 ? 2 : part == 2 ? 4 : 6);
    return _mm512_ternarylogic_epi32(low, _mm512_set1_epi8(3), row_tables(), 0xea); /* (a & b) | c */
}
#endif

/* Pairs of minimums. */
INLINE void mins_q2_k(const struct colibri_x16_q2_k *w, __m512i *pair)
{
    UNROLL
    for (int k = 0; k < 8; k++) {
        const __m512i even = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)w->scales[2 * k]));
        const __m512i odd = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)w->scales[2 * k + 1]));
        pair[k] = _mm512_srli_epi16(_mm512_or_si512(even, _mm512_slli_epi32(odd, 16)), 4);
    }
}

INLINE void scales_q2_k(const struct colibri_x16_q2_k *w, __m512i *scale, __m512i *pair)
{
    UNROLL
    for (int s = 0; s < 16; s++)
        scale[s] = scale_form(low_nibbles(_mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)w->scales[s]))));
    mins_q2_k(w, pair);
}

INLINE void unpack_q2_k(const struct colibri_x16_q2_k *w, int n, const int k, struct lines *l)
{
    UNROLL
    for (int j = 0; j < 4; j++)
        l->q[j] = two_bits(w->q[n][4 * (k % 2) + j], k / 2);
}

#if VNNI
INLINE void folds_q2_k(const struct colibri_x16_q2_k *w, __m512i *pair)
{
    mins_q2_k(w, pair);
}

/* scale * code <= 45, from a table of the four products. */
INLINE void unpack_fold_q2_k(const struct colibri_x16_q2_k *w, const __m512i *pair, int n, const int k, struct lines *l)
{
    (void)pair;
    const __m512i scale = low_nibbles(_mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)w->scales[8 * n + k])));
    const __m512i table = _mm512_mullo_epi32(scale, _mm512_set1_epi32(0x03020100));
    UNROLL
    for (int j = 0; j < 4; j++)
        l->q[j] = _mm512_shuffle_epi8(table, two_bits_index(w->q[n][4 * (k % 2) + j], k / 2));
}
#endif

/* Scale s of 16, plus 32, is byte s % 4 of lanes of sc[s / 4]: low nibble from byte s % 8 (high half for s >= 8), two
 * bits from byte 8 + s % 4. */
INLINE void scale_bytes_q3_k(const struct colibri_x16_q3_k *w, __m512i sc[4])
{
    const __m512i s0 = _mm512_loadu_si512(w->s[0]), s1 = _mm512_loadu_si512(w->s[1]), s2 = _mm512_loadu_si512(w->s[2]);
    sc[0] = _mm512_or_si512(low_nibbles(s0), and8(_mm512_slli_epi32(s2, 4), 48));
    sc[1] = _mm512_or_si512(low_nibbles(s1), and8(_mm512_slli_epi32(s2, 2), 48));
    sc[2] = _mm512_or_si512(high_nibbles(s0), and8(s2, 48));
    sc[3] = _mm512_or_si512(high_nibbles(s1), and8(_mm512_srli_epi32(s2, 2), 48));
}

INLINE void scales_q3_k(const struct colibri_x16_q3_k *w, __m512i *scale, __m512i *pair)
{
    __m512i sc[4], scale32[16];
    scale_bytes_q3_k(w, sc);
    UNROLL
    for (int s = 0; s < 16; s++)
        scale32[s] = _mm512_sub_epi32(byte32(sc[s / 4], s % 4), _mm512_set1_epi32(32));
    scales_and_pairs(scale32, scale, pair);
}

/* Two bits plus 4 where the mask bit is set: code + 4 in 0..7. */
INLINE void unpack_q3_k(const struct colibri_x16_q3_k *w, int n, const int k, struct lines *l)
{
    const int part = k / 2, first = 4 * (k % 2);
    const __m512i bit = _mm512_set1_epi8((char)(1 << (4 * n + part)));
    UNROLL
    for (int j = 0; j < 4; j++) {
        const __m512i q = two_bits(w->q[n][first + j], part);
        const __mmask64 third = _mm512_test_epi8_mask(_mm512_loadu_si512(w->hmask[first + j]), bit);
        l->q[j] = _mm512_mask_add_epi8(q, third, q, _mm512_set1_epi8(4));
    }
}

#if VNNI
/* The scales (plus 32) take the place of the pairs. */
INLINE void folds_q3_k(const struct colibri_x16_q3_k *w, __m512i *pair)
{
    scale_bytes_q3_k(w, pair);
}

/* scale * code + 127: -4..3 times -32..31 is -124..128. With u = scale + 32 the products u * {0, 1, 2, 3} fit bytes,
 * and what u has too much is the same for all rows. */
INLINE void unpack_fold_q3_k(const struct colibri_x16_q3_k *w, const __m512i *sc, int n, const int k, struct lines *l)
{
    const int part = k / 2, first = 4 * (k % 2);
    const __m512i u = byte32(sc[2 * n + k / 4], k % 4);
    const __m512i with_bit = _mm512_add_epi8(_mm512_mullo_epi32(u, _mm512_set1_epi32(0x03020100)),
                                             _mm512_set1_epi32(0x1f3f5f7f)); /* 127 - 32 * {0, 1, 2, 3} */
    const __m512i without = _mm512_sub_epi8(
        with_bit, _mm512_sub_epi8(_mm512_mullo_epi32(u, _mm512_set1_epi32(0x04040404)), _mm512_set1_epi8(-128)));
    const __m512i bit = _mm512_set1_epi8((char)(1 << (4 * n + part)));
    UNROLL
    for (int j = 0; j < 4; j++) {
        const __m512i index = two_bits_index(w->q[n][first + j], part);
        const __mmask64 third = _mm512_test_epi8_mask(_mm512_loadu_si512(w->hmask[first + j]), bit);
        l->q[j] = _mm512_mask_shuffle_epi8(_mm512_shuffle_epi8(without, index), third, with_bit, index);
    }
}
#endif

INLINE void scales_iq4_xs(const struct colibri_x16_iq4_xs *w, __m512i *scale, __m512i *pair)
{
    (void)pair;
    const __m512i low = _mm512_loadu_si512(w->scales_l);
    const __m512i high = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)w->scales_h));
    UNROLL
    for (int s = 0; s < 8; s++) {
        const __m512i l4 = _mm512_and_si512(_mm512_srli_epi32(low, (unsigned)(4 * s)), _mm512_set1_epi32(15));
        const __m512i h2 = _mm512_and_si512(_mm512_srli_epi32(high, (unsigned)(2 * s)), _mm512_set1_epi32(3));
        const __m512i sc = _mm512_sub_epi32(_mm512_or_si512(l4, _mm512_slli_epi32(h2, 4)), _mm512_set1_epi32(32));
        scale[s] = scale_form(sc);
    }
}

INLINE void unpack_iq4_xs(const struct colibri_x16_iq4_xs *w, int b, const int k, struct lines *l)
{
    (void)k;
    unpack_nibbles(w->q[b], l);
    lookup_iq4(l);
}

#if VNNI
#include "single256.h"
#endif

#define NAME        q4_k
#define CHUNKS      4
#define SUBS        2
#define OFFSET      0
#define CHAIN       8
#define SIGNED      0
#define HAS_MIN     1
#define PAIRS       4
#define START       0
#define FOLD        0
#define FOLD_OFFSET 0
#define PREFETCH    0
#include "tile256.h"

#define NAME        q5_k
#define CHUNKS      4
#define SUBS        2
#define OFFSET      0
#define CHAIN       4
#define SIGNED      0
#define HAS_MIN     1
#define PAIRS       4
#define START       0
#define FOLD        0
#define FOLD_OFFSET 0
#define PREFETCH    0
#include "tile256.h"

#define NAME        q6_k
#define CHUNKS      2
#define SUBS        8
#define OFFSET      32
#define CHAIN       2
#define SIGNED      0
#define HAS_MIN     0
#define PAIRS       (VNNI ? 0 : 8)
#define START       (VNNI ? 2 : 0)
#define FOLD        0
#define FOLD_OFFSET 0
#define PREFETCH    1
#include "tile256.h"

#define NAME        q2_k
#define CHUNKS      2
#define SUBS        8
#define OFFSET      0
#define CHAIN       4
#define SIGNED      0
#define HAS_MIN     1
#define PAIRS       8
#define START       0
#define FOLD        VNNI
#define FOLD_OFFSET 0
#define PREFETCH    0
#include "tile256.h"

#define NAME        q3_k
#define CHUNKS      2
#define SUBS        8
#define OFFSET      4
#define CHAIN       4
#define SIGNED      0
#define HAS_MIN     0
#define PAIRS       8
#define START       0
#define FOLD        VNNI
#define FOLD_OFFSET 127
#define PREFETCH    0
#include "tile256.h"

#define NAME        iq4_xs
#define CHUNKS      8
#define SUBS        1
#define OFFSET      (VNNI ? 128 : 0)
#define CHAIN       1
#define SIGNED      1
#define HAS_MIN     0
#define PAIRS       0
#define START       (VNNI ? 1 : 0)
#define FOLD        0
#define FOLD_OFFSET 0
#define PREFETCH    0
#include "tile256.h"

#define SCRATCH SIDE_BYTES
const struct colibri_matmul TABLE[] = {
    X16_MATMUL(Q4_K, q4_k, COLIBRI_ACT_Q8X256), X16_MATMUL(Q5_K, q5_k, COLIBRI_ACT_Q8X256),
    X16_MATMUL(Q6_K, q6_k, COLIBRI_ACT_Q8X256), X16_MATMUL(Q2_K, q2_k, COLIBRI_ACT_Q8X256),
    X16_MATMUL(Q3_K, q3_k, COLIBRI_ACT_Q8X256), X16_MATMUL(IQ4_XS, iq4_xs, COLIBRI_ACT_Q8X256),
};
