/* The table of scalar vector operations. */
#include "ops/ops.h"

static const struct colibri_vecops reference = {
    .struct_size = sizeof(struct colibri_vecops),
    .max_ulp = COLIBRI_EXACT,
    .rank = INT32_MIN,
    .attention_takes = COLIBRI_ATTN_TAKES_Q8_0 | COLIBRI_ATTN_TAKES_Q4_0 | COLIBRI_ATTN_TAKES_RECENT,
    .name = "reference",
    .rms_norm = clb_ref_rms_norm,
    .rope = clb_ref_rope,
    .softmax = clb_ref_softmax,
    .swiglu = clb_ref_swiglu,
    .add = clb_ref_add,
    .axpy = clb_ref_axpy,
    .scale = clb_ref_scale,
    .act_q8x32 = clb_ref_act_q8x32,
    .act_q8x256 = clb_ref_act_q8x256,
    .f32_to_f16 = clb_ref_f32_to_f16,
    .attention = clb_ref_attention,
    .axpy_x16 = clb_ref_axpy_x16,
    .f16_to_f32 = clb_ref_f16_to_f32,
};

const struct colibri_vecops *clb_vecops_reference(void)
{
    return &reference;
}
