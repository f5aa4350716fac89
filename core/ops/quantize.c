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

/* colibri_f16_f32 without a branch, so that the compiler can vectorise it: the exponent's bias is made up for by a
 * product, which is exact, for subnormals too. */
void clb_ref_f16_to_f32(const colibri_f16 *x, float *out, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const uint32_t sign = (uint32_t)(x[i] & 0x8000u) << 16, size = (uint32_t)(x[i] & 0x7fffu) << 13;
        const uint32_t special = 0u - (uint32_t)(size >= 0x0f800000u), nan = 0u - (uint32_t)(size > 0x0f800000u);
        const uint32_t number = colibri_f32_bits(colibri_bits_f32(size) * 0x1p112f);
        out[i] = colibri_bits_f32(sign | (number & ~special) | (special & (size | 0x7f800000u)) | (nan & 0x400000u));
    }
}
