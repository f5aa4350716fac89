/* Activation quantization and the F16 conversion of the KV cache: the definitions are header-only (numerics.h). */
#include "ops/ops.h"

#include "colibri/numerics.h"

void clb_ref_act_q8x32(const float *x, struct colibri_act_q8x32 *out, size_t n)
{
    colibri_act_q8x32_row(x, out, n);
}

void clb_ref_act_q8x256(const float *x, struct colibri_act_q8x256 *out, size_t n)
{
    colibri_act_q8x256_row(x, out, n);
}

void clb_ref_f32_to_f16(const float *x, colibri_f16 *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = colibri_f32_f16(x[i]);
}
