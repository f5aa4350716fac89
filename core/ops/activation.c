/* Gated activations. */
#include "ops/ops.h"

#include "colibri/numerics.h"

void clb_ref_swiglu(float *y, const float *g, const float *u, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = colibri_silu(g[i]) * u[i];
}

float clb_sigmoid(float x)
{
    return 1.0f / (1.0f + colibri_expf(-x));
}

void clb_geglu(float *y, const float *g, const float *u, size_t n)
{
    const float two_sqrt_2_over_pi = 1.5957691216057308f;
    for (size_t i = 0; i < n; i++) {
        const float x = g[i];
        const float cubic = fmaf(0.044715f * x * x, x, x);
        y[i] = x / (1.0f + colibri_expf(-(two_sqrt_2_over_pi * cubic))) * u[i];
    }
}

void clb_swiglu_clamped(float *y, const float *g, const float *u, size_t n, float alpha, float limit)
{
    for (size_t i = 0; i < n; i++) {
        const float gc = g[i] > limit ? limit : g[i];
        const float uc = u[i] > limit ? limit : u[i] < -limit ? -limit : u[i];
        y[i] = gc / (1.0f + colibri_expf(-(alpha * gc))) * (uc + 1.0f);
    }
}
