/* Granite-MoE: Granite's multipliers; softmax over the chosen experts' logits, which equals softmax over all with
 * renormalisation; an ungated shared expert is optional. */
#include "model/arch/granite_common.h"

const clb_arch clb_arch_granitemoe = {
    .name = "granitemoe",
    .rope_neox = false,
    .qkv_bias = CLB_OPTIONAL,
    .out_bias = CLB_OPTIONAL,
    .moe_required = true,
    .norm_topk = true,
    .configure = granite_configure,
};
