/* OLMoE: Q and K are normed over their full width before the split into heads; router weights are not
 * renormalised; experts' width is the ordinary feed_forward_length. */
#include "model/arch.h"

const clb_arch clb_arch_olmoe = {
    .name = "olmoe",
    .rope_neox = true,
    .qk_norm = CLB_QK_NORM_FULL,
    .output_required = true,
    .moe_required = true,
    .norm_topk = false,
};
