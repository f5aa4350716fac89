/* Shared by the vector operations and attention. */
#ifndef KERNELS_NEON_VECOPS_H
#define KERNELS_NEON_VECOPS_H

#include "simd.h"

void clb_neon_attention(const struct colibri_attention_args *a);

/* Largest of n elements, from -inf; a NaN is passed over. The result may be either zero if the largest are zeros of
 * both signs. */
INLINE float max_of(const float *x, size_t n)
{
    float32x4_t max = vdupq_n_f32(-INFINITY);
    size_t i = 0;
    for (; i + 4 <= n; i += 4)
        max = max_pass_nan(vld1q_f32(x + i), max);
    float m = vmaxvq_f32(max);
    for (; i < n; i++)
        m = x[i] > m ? x[i] : m;
    return m;
}

INLINE float exp1(float x)
{
    return vgetq_lane_f32(exp4(vdupq_n_f32(x)), 0);
}

/* p[i] = exp(x[i] - max) for n elements; returns their sum in 16 lanes. p may be x. */
INLINE float exp_sum(const float *x, size_t n, float max, float *p)
{
    const float32x4_t m = vdupq_n_f32(max);
    struct lanes lane = lanes_zero();
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        UNROLL
        for (int k = 0; k < 4; k++) {
            const float32x4_t e = exp4(vsubq_f32(vld1q_f32(x + i + 4 * k), m));
            vst1q_f32(p + i + 4 * k, e);
            lane.v[k] = vaddq_f32(lane.v[k], e);
        }
    }
    float rest[16] = {0};
    for (size_t k = 0; i + k < n; k++)
        rest[k] = p[i + k] = exp1(x[i + k] - max);
    if (i < n) {
        UNROLL
        for (int k = 0; k < 4; k++)
            lane.v[k] = vaddq_f32(lane.v[k], vld1q_f32(rest + 4 * k));
    }
    return lanes_sum(&lane);
}

#endif
