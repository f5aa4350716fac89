/* Shared by the vector operations and attention. */
#ifndef KERNELS_AVX512_VECOPS_H
#define KERNELS_AVX512_VECOPS_H

#include "simd.h"

void clb_avx512_attention(const struct colibri_attention_args *a);

/* Largest of n elements, from -inf; a NaN is passed over (max_ps returns its second operand then). The result may be
 * either zero if the largest are zeros of both signs. */
INLINE float max_of(const float *x, size_t n)
{
    __m512 max = _mm512_set1_ps(-INFINITY);
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        max = _mm512_max_ps(_mm512_loadu_ps(x + i), max);
    if (i < n)
        max = _mm512_mask_max_ps(max, first16(n - i), _mm512_maskz_loadu_ps(first16(n - i), x + i), max);
    return _mm512_reduce_max_ps(max);
}

#endif
