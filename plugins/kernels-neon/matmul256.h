/* The formats with 256-column superblocks: how codes and sub-scales are read. Compiled twice: for sdot (matmul256.c)
 * and for smmla (matmul256_i8mm.c), which define what matmul32.h says. */
#include "gemm.h"
#include "kernels.h"
#include "simd.h"

/* Byte k of every 32-bit lane as a number. */
INLINE int32x4_t byte32(uint32x4_t words, const int k)
{
    return vreinterpretq_s32_u32(vandq_u32(vshlq_u32(words, vdupq_n_s32(-8 * k)), vdupq_n_u32(0xff)));
}

INLINE uint32x4_t and32(uint32x4_t v, uint32_t mask)
{
    return vandq_u32(v, vdupq_n_u32(mask));
}

/* Four bytes as signed or unsigned numbers. */
INLINE int32x4_t widen_s8(const int8_t *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(v)))));
}

INLINE uint32x4_t widen_u8(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return vmovl_u16(vget_low_u16(vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(v)))));
}

/* Q4_K and Q5_K: 8 scales and 8 minimums of 6 bits. */
INLINE void scales_6bit(const uint32_t s[3][16], const int quarter, int32x4_t *scale, int16x4_t *side)
{
    const uint32x4_t s0 = vld1q_u32(s[0] + 4 * quarter), s1 = vld1q_u32(s[1] + 4 * quarter),
                     s2 = vld1q_u32(s[2] + 4 * quarter);
    const uint32x4_t sc[2] = {and32(s0, 0x3f3f3f3fu),
                              vorrq_u32(and32(s2, 0x0f0f0f0fu), and32(vshrq_n_u32(s0, 2), 0x30303030u))};
    const uint32x4_t mn[2] = {and32(s1, 0x3f3f3f3fu), vorrq_u32(and32(vshrq_n_u32(s2, 4), 0x0f0f0f0fu),
                                                                and32(vshrq_n_u32(s1, 2), 0x30303030u))};
    UNROLL
    for (int k = 0; k < 8; k++) {
        scale[k] = byte32(sc[k / 4], k % 4);
        side[k] = vmovn_s32(byte32(mn[k / 4], k % 4));
    }
}

INLINE void scales_q4_k(const struct colibri_x16_q4_k *w, const int quarter, int32x4_t *scale, int16x4_t *side)
{
    scales_6bit(w->s, quarter, scale, side);
}

INLINE void unpack_q4_k(const struct colibri_x16_q4_k *w, const int quarter, int c, const int k, struct lines *l)
{
    uint8x16_t v[8];
    load_lines(w->q[c], quarter, 8, v);
    UNROLL
    for (int j = 0; j < 8; j++)
        l->q[j] = vreinterpretq_s8_u8(k ? high_nibbles(v[j]) : low_nibbles(v[j]));
}

INLINE void scales_q5_k(const struct colibri_x16_q5_k *w, const int quarter, int32x4_t *scale, int16x4_t *side)
{
    scales_6bit(w->s, quarter, scale, side);
}

/* `value` in the bytes that have `bit` set. */
INLINE uint8x16_t where_bit(uint8x16_t v, uint8x16_t bit, uint8_t value)
{
    return vandq_u8(vtstq_u8(v, bit), vdupq_n_u8(value));
}

INLINE void unpack_q5_k(const struct colibri_x16_q5_k *w, const int quarter, int c, const int k, struct lines *l)
{
    const uint8x16_t bit = vdupq_n_u8((uint8_t)(1 << (2 * c + k)));
    uint8x16_t v[8], high[8];
    load_lines(w->q[c], quarter, 8, v);
    load_lines(w->qh, quarter, 8, high);
    UNROLL
    for (int j = 0; j < 8; j++) {
        const uint8x16_t fifth = where_bit(high[j], bit, 16);
        l->q[j] = vreinterpretq_s8_u8(vorrq_u8(k ? high_nibbles(v[j]) : low_nibbles(v[j]), fifth));
    }
}

INLINE void scales_q6_k(const struct colibri_x16_q6_k *w, const int quarter, int32x4_t *scale, int16x4_t *side)
{
    UNROLL
    for (int s = 0; s < 16; s++) {
        scale[s] = widen_s8(w->scales[s] + 4 * quarter);
        side[s] = vmovn_s32(scale[s]);
    }
}

/* Sub-block k of a half of 128 columns: columns 32 * part + 16 * (k % 2), part = k / 2. */
INLINE void unpack_q6_k(const struct colibri_x16_q6_k *w, const int quarter, int n, const int k, struct lines *l)
{
    const int part = k / 2, first = 4 * (k % 2);
    uint8x16_t low[4], high[4];
    load_lines(w->ql[n] + 8 * (part % 2) + first, quarter, 4, low);
    load_lines(w->qh[n] + first, quarter, 4, high);
    UNROLL
    for (int j = 0; j < 4; j++) {
        const uint8x16_t h = vandq_u8(vshlq_u8(high[j], vdupq_n_s8((int8_t)(4 - 2 * part))), vdupq_n_u8(48));
        l->q[j] = vreinterpretq_s8_u8(vorrq_u8(part < 2 ? low_nibbles(low[j]) : high_nibbles(low[j]), h));
    }
}

/* 2-bit codes of Q2_K and Q3_K. */
INLINE uint8x16_t two_bits(uint8x16_t v, const int part)
{
    return vandq_u8(part ? vshlq_u8(v, vdupq_n_s8((int8_t)(-2 * part))) : v, vdupq_n_u8(3));
}

INLINE void scales_q2_k(const struct colibri_x16_q2_k *w, const int quarter, int32x4_t *scale, int16x4_t *side)
{
    UNROLL
    for (int s = 0; s < 16; s++) {
        const uint32x4_t v = widen_u8(w->scales[s] + 4 * quarter);
        scale[s] = vreinterpretq_s32_u32(and32(v, 15));
        side[s] = vreinterpret_s16_u16(vmovn_u32(vshrq_n_u32(v, 4)));
    }
}

INLINE void unpack_q2_k(const struct colibri_x16_q2_k *w, const int quarter, int n, const int k, struct lines *l)
{
    uint8x16_t v[4];
    load_lines(w->q[n] + 4 * (k % 2), quarter, 4, v);
    UNROLL
    for (int j = 0; j < 4; j++)
        l->q[j] = vreinterpretq_s8_u8(two_bits(v[j], k / 2));
}

/* Scale s of 16: low nibble from byte s % 8 (high half for s >= 8), two bits from byte 8 + s % 4, minus 32. */
INLINE void scales_q3_k(const struct colibri_x16_q3_k *w, const int quarter, int32x4_t *scale, int16x4_t *side)
{
    const uint32x4_t s0 = vld1q_u32(w->s[0] + 4 * quarter), s1 = vld1q_u32(w->s[1] + 4 * quarter),
                     s2 = vld1q_u32(w->s[2] + 4 * quarter);
    const uint32x4_t sc[4] = {
        vorrq_u32(and32(s0, 0x0f0f0f0fu), and32(vshlq_n_u32(s2, 4), 0x30303030u)),
        vorrq_u32(and32(s1, 0x0f0f0f0fu), and32(vshlq_n_u32(s2, 2), 0x30303030u)),
        vorrq_u32(and32(vshrq_n_u32(s0, 4), 0x0f0f0f0fu), and32(s2, 0x30303030u)),
        vorrq_u32(and32(vshrq_n_u32(s1, 4), 0x0f0f0f0fu), and32(vshrq_n_u32(s2, 2), 0x30303030u)),
    };
    UNROLL
    for (int s = 0; s < 16; s++) {
        scale[s] = vsubq_s32(byte32(sc[s / 4], s % 4), vdupq_n_s32(32));
        side[s] = vmovn_s32(scale[s]);
    }
}

/* Two bits plus 4 where the mask bit is set: code + 4 in 0..7. */
INLINE void unpack_q3_k(const struct colibri_x16_q3_k *w, const int quarter, int n, const int k, struct lines *l)
{
    const int part = k / 2, first = 4 * (k % 2);
    const uint8x16_t bit = vdupq_n_u8((uint8_t)(1 << (4 * n + part)));
    uint8x16_t v[4], mask[4];
    load_lines(w->q[n] + first, quarter, 4, v);
    load_lines(w->hmask + first, quarter, 4, mask);
    UNROLL
    for (int j = 0; j < 4; j++)
        l->q[j] = vreinterpretq_s8_u8(vorrq_u8(two_bits(v[j], part), where_bit(mask[j], bit, 4)));
}

INLINE void scales_iq4_xs(const struct colibri_x16_iq4_xs *w, const int quarter, int32x4_t *scale, int16x4_t *side)
{
    const uint32x4_t low = vld1q_u32(w->scales_l + 4 * quarter);
    const uint32x4_t high = vmovl_u16(vld1_u16(w->scales_h + 4 * quarter));
    (void)side;
    UNROLL
    for (int s = 0; s < 8; s++) {
        const uint32x4_t l4 = and32(vshlq_u32(low, vdupq_n_s32(-4 * s)), 15);
        const uint32x4_t h2 = and32(vshlq_u32(high, vdupq_n_s32(-2 * s)), 3);
        scale[s] = vsubq_s32(vreinterpretq_s32_u32(vorrq_u32(l4, vshlq_n_u32(h2, 4))), vdupq_n_s32(32));
    }
}

INLINE void unpack_iq4_xs(const struct colibri_x16_iq4_xs *w, const int quarter, int b, const int k, struct lines *l)
{
    static const int8_t values[16] = COLIBRI_IQ4_VALUES;
    const int8x16_t table = vld1q_s8(values);
    uint8x16_t v[4];
    (void)k;
    load_lines(w->q[b], quarter, 4, v);
    UNROLL
    for (int j = 0; j < 4; j++) {
        l->q[j] = vqtbl1q_s8(table, low_nibbles(v[j]));
        l->q[4 + j] = vqtbl1q_s8(table, high_nibbles(v[j]));
    }
}

#define NAME       q4_k
#define PANEL_FROM 5
#define CHUNKS     4
#define SUBS       2
#define OFFSET     0
#define HAS_MIN    1
#include "tile256.h"

#define NAME       q5_k
#define PANEL_FROM 5
#define CHUNKS     4
#define SUBS       2
#define OFFSET     0
#define HAS_MIN    1
#include "tile256.h"

#define NAME       q6_k
#define PANEL_FROM 5
#define CHUNKS     2
#define SUBS       8
#define OFFSET     32
#define HAS_MIN    0
#include "tile256.h"

/* at most 3 * 15 */
#define NAME        q2_k
#define PANEL_FROM  5
#define CHUNKS      2
#define SUBS        8
#define OFFSET      0
#define HAS_MIN     1
#define SCALE_CODES 1
#include "tile256.h"

/* Codes -4..3 times scales -32..31: all products but 128 fit a signed byte, their negatives all do. */
#define NAME        q3_k
#define PANEL_FROM  5
#define CHUNKS      2
#define SUBS        8
#define OFFSET      4
#define HAS_MIN     0
#define SCALE_CODES (-1)
#include "tile256.h"

#define NAME       iq4_xs
#define PANEL_FROM 5
#define CHUNKS     8
#define SUBS       1
#define OFFSET     0
#define HAS_MIN    0
#include "tile256.h"

const struct colibri_matmul TABLE[N_MATMUL256] = {
    X16_MATMUL(Q4_K, q4_k, COLIBRI_ACT_Q8X256), X16_MATMUL(Q5_K, q5_k, COLIBRI_ACT_Q8X256),
    X16_MATMUL(Q6_K, q6_k, COLIBRI_ACT_Q8X256), X16_MATMUL(Q2_K, q2_k, COLIBRI_ACT_Q8X256),
    X16_MATMUL(Q3_K, q3_k, COLIBRI_ACT_Q8X256), X16_MATMUL(IQ4_XS, iq4_xs, COLIBRI_ACT_Q8X256),
};
