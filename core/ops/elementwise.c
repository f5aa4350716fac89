/* Element-wise sums and scalings of the residual stream and of expert outputs. */
#include "ops/ops.h"

#include "colibri/numerics.h"

void clb_ref_add(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = y[i] + x[i];
}

void clb_ref_axpy(float *y, const float *x, float s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = fmaf(s, x[i], y[i]);
}

void clb_ref_axpy_x16(float *y, const float *x, size_t group_stride, const float *s, uint32_t n_s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < n_s; k++)
            y[i] = fmaf(s[k], x[i / 16 * group_stride + 16 * (size_t)k + i % 16], y[i]);
}

void clb_ref_scale(float *y, float s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = y[i] * s;
}
