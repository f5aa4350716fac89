/* Shared by the vector operations and attention. */
#ifndef KERNELS_AVX2_VECOPS_H
#define KERNELS_AVX2_VECOPS_H

#include "simd.h"

void clb_avx2_attention(const struct colibri_attention_args *a);

INLINE float max_lane(__m256 v)
{
    __m128 t = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    t = _mm_max_ps(t, _mm_movehl_ps(t, t));
    return _mm_cvtss_f32(_mm_max_ss(t, _mm_movehdup_ps(t)));
}

/* Largest of n elements, from -inf; a NaN is passed over (max_ps returns its second operand then). The result may be
 * either zero if the largest are zeros of both signs. */
INLINE float max_of(const float *x, size_t n)
{
    __m256 max = _mm256_set1_ps(-INFINITY);
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        max = _mm256_max_ps(_mm256_loadu_ps(x + i), max);
    float m = max_lane(max);
    for (; i < n; i++)
        m = x[i] > m ? x[i] : m;
    return m;
}

INLINE float exp1(float x)
{
    return _mm256_cvtss_f32(exp256(_mm256_set1_ps(x)));
}

/* p[i] = exp(x[i] - max) for n elements; returns their sum in 16 lanes. p may be x. */
INLINE float exp_sum(const float *x, size_t n, float max, float *p)
{
    const __m256 m = _mm256_set1_ps(max);
    struct lanes lane = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const __m256 lo = exp_below(_mm256_sub_ps(_mm256_loadu_ps(x + i), m));
        const __m256 hi = exp_below(_mm256_sub_ps(_mm256_loadu_ps(x + i + 8), m));
        _mm256_storeu_ps(p + i, lo);
        _mm256_storeu_ps(p + i + 8, hi);
        lane.lo = _mm256_add_ps(lane.lo, lo);
        lane.hi = _mm256_add_ps(lane.hi, hi);
    }
    if (i < n) {
        const size_t left = n - i;
        const __m256i mlo = first8(left), mhi = first8(left > 8 ? left - 8 : 0);
        const __m256 lo =
            _mm256_and_ps(_mm256_castsi256_ps(mlo), exp_below(_mm256_sub_ps(_mm256_maskload_ps(x + i, mlo), m)));
        const __m256 hi =
            _mm256_and_ps(_mm256_castsi256_ps(mhi), exp_below(_mm256_sub_ps(_mm256_maskload_ps(x + i + 8, mhi), m)));
        _mm256_maskstore_ps(p + i, mlo, lo);
        _mm256_maskstore_ps(p + i + 8, mhi, hi);
        lane.lo = _mm256_add_ps(lane.lo, lo);
        lane.hi = _mm256_add_ps(lane.hi, hi);
    }
    return lanes_sum(lane);
}

#endif
