#include "ops/kv_quant.h"

#include <stdbool.h>
#include <string.h>

#include "colibri/numerics.h"

enum { N = CLB_KV_QUANT_BLOCK, LANES = 8 };

#define LARGEST_F16 0x7bffu
#define NAN_F16     0x7e00u

/* Largest magnitude, or NaN if not all are finite. */
static float largest(const float *x)
{
    uint32_t lane[LANES] = {0}; /* magnitudes order like their bits, with infinities and NaN above all */
    for (uint32_t i = 0; i < N; i += LANES)
        for (uint32_t l = 0; l < LANES; l++) {
            const uint32_t a = colibri_f32_bits(x[i + l]) & 0x7fffffffu;
            lane[l] = a > lane[l] ? a : lane[l];
        }
    uint32_t most = 0;
    for (uint32_t l = 0; l < LANES; l++)
        most = lane[l] > most ? lane[l] : most;
    return most < 0x7f800000u ? colibri_bits_f32(most) : NAN;
}

static colibri_f16 scale_of(float d)
{
    const colibri_f16 h = colibri_f32_f16(d);
    return (h & 0x7fffu) > LARGEST_F16 ? (colibri_f16)((h & 0x8000u) | LARGEST_F16) : h;
}

/* Nearest whole numbers of x / d within [low, high], as floats. */
static void codes_of(const float *restrict x, float d, float low, float high, float *restrict codes)
{
    const float inverse = d != 0 ? 1.0f / d : 0.0f; /* the smallest F16 is 2^-24: finite */
    for (uint32_t i = 0; i < N; i++) {
        float c = x[i] * inverse;
        c = c > low ? c : low; /* before rounding: the rounding constant serves small numbers only */
        c = c < high ? c : high;
        codes[i] = (c + COLIBRI_EXP_ROUND) - COLIBRI_EXP_ROUND;
    }
}

void clb_kv_quant_q8_0(const float *x, struct colibri_q8_0 *out, size_t n)
{
    for (; n; n -= N, x += N, out++) {
        const float amax = largest(x);
        float codes[N];
        if (amax != amax) {
            *out = (struct colibri_q8_0){.d = NAN_F16};
            continue;
        }
        out->d = scale_of(amax / 127.0f);
        codes_of(x, colibri_f16_f32(out->d), -127.0f, 127.0f, codes);
        for (uint32_t i = 0; i < N; i++)
            out->qs[i] = (int8_t)(int32_t)codes[i];
    }
}

/* Codes for scale d; returns the sum of squared errors. */
static float try_q4_0(const float *restrict x, colibri_f16 scale, float *restrict codes)
{
    const float d = colibri_f16_f32(scale);
    float lane[LANES] = {0}, sum = 0;
    codes_of(x, d, -8.0f, 7.0f, codes);
    for (uint32_t i = 0; i < N; i += LANES)
        for (uint32_t l = 0; l < LANES; l++) {
            const float e = x[i + l] - d * codes[i + l];
            lane[l] += e * e;
        }
    for (uint32_t l = 0; l < LANES; l++)
        sum += lane[l];
    return sum;
}

void clb_kv_quant_q4_0(const float *x, struct colibri_q4_0 *out, size_t n)
{
    for (; n; n -= N, x += N, out++) {
        const float amax = largest(x);
        float m = 0, first[N], second[N];
        if (amax != amax) {
            *out = (struct colibri_q4_0){.d = NAN_F16};
            memset(out->qs, 0x88, sizeof out->qs); /* code 0 */
            continue;
        }
        for (uint32_t i = N; i-- > 0;)
            m = fabsf(x[i]) == amax ? x[i] : m;
        const colibri_f16 eight = scale_of(m / -8.0f), more = scale_of(m / -8.5f);
        const float e = try_q4_0(x, eight, first);
        const bool better = try_q4_0(x, more, second) < e;
        const float *const codes = better ? second : first;
        out->d = better ? more : eight;
        for (uint32_t i = 0; i < N / 2; i++)
            out->qs[i] = (uint8_t)((uint32_t)((int32_t)codes[i] + 8) | (uint32_t)((int32_t)codes[i + N / 2] + 8) << 4);
    }
}

void clb_kv_widen_q8_0(const struct colibri_q8_0 *in, float *x, size_t n)
{
    for (; n; n -= N, x += N, in++) {
        const float d = colibri_f16_f32(in->d);
        for (uint32_t i = 0; i < N; i++)
            x[i] = d * (float)in->qs[i];
    }
}

void clb_kv_widen_q4_0(const struct colibri_q4_0 *in, float *x, size_t n)
{
    for (; n; n -= N, x += N, in++) {
        const float d = colibri_f16_f32(in->d);
        for (uint32_t i = 0; i < N / 2; i++) {
            x[i] = d * (float)((int32_t)(in->qs[i] & 15u) - 8);
            x[i + N / 2] = d * (float)((int32_t)(in->qs[i] >> 4) - 8);
        }
    }
}
