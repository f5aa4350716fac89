/* The numerics contract in code: the scalar definitions that every kernel must equal bit for bit.
 *
 * All functions are header-only and use IEEE single operations in a written order: `fmaf` is one fused
 * operation, everything else rounds after each operator (compile with -ffp-contract=off). NaN *payloads* and
 * NaN signs are outside the contract: a NaN equals any NaN.
 *
 * Virtual lanes: a reduction over n elements keeps 16 partial results; element i belongs to lane i % 16, and a
 * last incomplete line is extended with zeros that take part in the arithmetic. The lanes are combined by
 * colibri_lanes_sum: lane i with i+8, then i+4, i+2, i+1. */
#ifndef COLIBRI_NUMERICS_H
#define COLIBRI_NUMERICS_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "colibri/blocks.h"

#define COLIBRI_LANES 16
/* Attention reduces kept positions in segments of this many, then combines segments in order. */
#define COLIBRI_ATTN_SEGMENT 512u

static inline float colibri_bits_f32(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static inline uint32_t colibri_f32_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

/* Exact. */
static inline float colibri_f16_f32(colibri_f16 h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    const uint32_t exp = (h >> 10) & 31u;
    uint32_t man = h & 0x3ffu;
    if (exp == 31u)
        return colibri_bits_f32(sign | 0x7f800000u | (man ? 0x400000u : 0u) | (man << 13));
    if (exp)
        return colibri_bits_f32(sign | ((exp + 112u) << 23) | (man << 13));
    if (!man)
        return colibri_bits_f32(sign);
    uint32_t e = 113u; /* subnormal: shift the leading one into place */
    while (!(man & 0x400u)) {
        man <<= 1;
        e--;
    }
    return colibri_bits_f32(sign | (e << 23) | ((man & 0x3ffu) << 13));
}

/* Round to nearest, ties to even; overflow to infinity. */
static inline colibri_f16 colibri_f32_f16(float f)
{
    const uint32_t u = colibri_f32_bits(f);
    const uint32_t sign = (u >> 16) & 0x8000u;
    const uint32_t abs = u & 0x7fffffffu;
    if (abs > 0x7f800000u)
        return (colibri_f16)(sign | 0x7e00u | ((abs >> 13) & 0x3ffu));
    if (abs >= 0x477ff000u) /* 65520 and above round to infinity */
        return (colibri_f16)(sign | 0x7c00u);
    if (abs < 0x38800000u) { /* below 2^-14: subnormal, in units of 2^-24; the sum below rounds to even */
        const float r = colibri_bits_f32(abs) + 0.5f;
        return (colibri_f16)(sign | (colibri_f32_bits(r) - 0x3f000000u));
    }
    const uint32_t odd = (abs >> 13) & 1u;
    return (colibri_f16)(sign | ((abs - 0x38000000u + 0xfffu + odd) >> 13));
}

static inline float colibri_bf16_f32(uint16_t h)
{
    return colibri_bits_f32((uint32_t)h << 16);
}

/* MXFP4's shared exponent, halved (see COLIBRI_MXFP4_VALUES): 2^(e - 128). Exact, subnormals included. */
static inline float colibri_e8m0_half(uint8_t e)
{
    return colibri_bits_f32(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23);
}

static inline float colibri_lanes_sum(const float lane[16])
{
    float t[8];
    for (int i = 0; i < 8; i++)
        t[i] = lane[i] + lane[i + 8];
    for (int i = 0; i < 4; i++)
        t[i] = t[i] + t[i + 4];
    for (int i = 0; i < 2; i++)
        t[i] = t[i] + t[i + 2];
    return t[0] + t[1];
}

/* exp(x): range reduction by ln 2 in two parts and a degree-6 polynomial, all in fma; relative error below
 * 2e-7 on [-87, 88]. Below -87.33654 the result is 0, above 88.37626 +inf; NaN stays NaN. The coefficients are
 * the Taylor-like minimax set listed here; they are part of the contract. */
#define COLIBRI_EXP_LOG2E 1.44269504088896341f
#define COLIBRI_EXP_LN2_HI 0.693359375f
#define COLIBRI_EXP_LN2_LO -2.12194440e-4f
#define COLIBRI_EXP_C6 1.9875691500e-4f
#define COLIBRI_EXP_C5 1.3981999507e-3f
#define COLIBRI_EXP_C4 8.3334519073e-3f
#define COLIBRI_EXP_C3 4.1665795894e-2f
#define COLIBRI_EXP_C2 1.6666665459e-1f
#define COLIBRI_EXP_C1 5.0000001201e-1f
#define COLIBRI_EXP_MIN -87.33654f
#define COLIBRI_EXP_MAX 88.37626f
#define COLIBRI_EXP_ROUND 12582912.0f /* 1.5 * 2^23: adding and subtracting it rounds to the nearest even integer */

static inline float colibri_expf(float x)
{
    if (x < COLIBRI_EXP_MIN)
        return 0.0f;
    if (x > COLIBRI_EXP_MAX)
        return INFINITY;
    if (x != x)
        return x;
    const float biased = fmaf(x, COLIBRI_EXP_LOG2E, COLIBRI_EXP_ROUND);
    const float n = biased - COLIBRI_EXP_ROUND;
    float r = fmaf(n, -COLIBRI_EXP_LN2_HI, x);
    r = fmaf(n, -COLIBRI_EXP_LN2_LO, r);
    float p = COLIBRI_EXP_C6;
    p = fmaf(p, r, COLIBRI_EXP_C5);
    p = fmaf(p, r, COLIBRI_EXP_C4);
    p = fmaf(p, r, COLIBRI_EXP_C3);
    p = fmaf(p, r, COLIBRI_EXP_C2);
    p = fmaf(p, r, COLIBRI_EXP_C1);
    p = fmaf(p, r * r, r);
    p = p + 1.0f;
    /* n is in [-126, 127] inside the limits above: 2^n is a normal number */
    const uint32_t pow2 = (colibri_f32_bits(biased) + 127u) << 23;
    return p * colibri_bits_f32(pow2);
}

static inline float colibri_silu(float x)
{
    return x / (1.0f + colibri_expf(-x));
}

/* ---- float dot products: 16 virtual lanes over columns ------------------------------------------------ */

static inline float colibri_dot_f32(const float *w, const float *x, size_t n)
{
    float lane[16] = {0};
    for (size_t i = 0; i < n; i += 16)
        for (size_t l = 0; l < 16; l++) {
            const int in = i + l < n;
            lane[l] = fmaf(in ? w[i + l] : 0.0f, in ? x[i + l] : 0.0f, lane[l]);
        }
    return colibri_lanes_sum(lane);
}

static inline float colibri_dot_f16(const colibri_f16 *w, const float *x, size_t n)
{
    float lane[16] = {0};
    for (size_t i = 0; i < n; i += 16)
        for (size_t l = 0; l < 16; l++) {
            const int in = i + l < n;
            lane[l] = fmaf(in ? colibri_f16_f32(w[i + l]) : 0.0f, in ? x[i + l] : 0.0f, lane[l]);
        }
    return colibri_lanes_sum(lane);
}

static inline float colibri_dot_bf16(const uint16_t *w, const float *x, size_t n)
{
    float lane[16] = {0};
    for (size_t i = 0; i < n; i += 16)
        for (size_t l = 0; l < 16; l++) {
            const int in = i + l < n;
            lane[l] = fmaf(in ? colibri_bf16_f32(w[i + l]) : 0.0f, in ? x[i + l] : 0.0f, lane[l]);
        }
    return colibri_lanes_sum(lane);
}

/* ---- activation quantization --------------------------------------------------------------------------
 * amax = max |x|; d = amax / 127, q = nearest-even(x * (127 / amax)). A block whose amax is below
 * COLIBRI_ACT_TINY is zero; a block with an infinity or NaN has d = NaN and q = 0, so that the result of every
 * row that meets it is NaN instead of a plausible number. */
#define COLIBRI_ACT_TINY 1e-30f

static inline float colibri_act_block(const float *x, int8_t *q, size_t n)
{
    float amax = 0.0f;
    int bad = 0;
    for (size_t i = 0; i < n; i++) {
        const float a = fabsf(x[i]);
        bad |= !(a < INFINITY);
        amax = a > amax ? a : amax;
    }
    if (bad || amax < COLIBRI_ACT_TINY) {
        memset(q, 0, n);
        return bad ? NAN : 0.0f;
    }
    const float inv = 127.0f / amax;
    for (size_t i = 0; i < n; i++) {
        const float r = x[i] * inv + COLIBRI_EXP_ROUND; /* |x * inv| <= 127.00001: rounds to nearest even */
        q[i] = (int8_t)(int32_t)(r - COLIBRI_EXP_ROUND);
    }
    return amax / 127.0f;
}

static inline void colibri_act_q8x32_row(const float *x, struct colibri_act_q8x32 *out, size_t n)
{
    for (size_t b = 0; b < n / 32; b++) {
        int32_t sum = 0;
        out[b].d = colibri_act_block(x + 32 * b, out[b].q, 32);
        for (int i = 0; i < 32; i++)
            sum += out[b].q[i];
        out[b].sum = sum;
    }
}

static inline void colibri_act_q8x256_row(const float *x, struct colibri_act_q8x256 *out, size_t n)
{
    for (size_t b = 0; b < n / 256; b++) {
        out[b].d = colibri_act_block(x + 256 * b, out[b].q, 256);
        out[b].reserved = 0;
        for (int s = 0; s < 16; s++) {
            int sum = 0;
            for (int i = 0; i < 16; i++)
                sum += out[b].q[16 * s + i];
            out[b].bsum[s] = (int16_t)sum;
        }
    }
}

#endif
