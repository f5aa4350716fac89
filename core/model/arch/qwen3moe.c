/* Qwen3-MoE: Qwen3's attention; softmax router, always renormalised (there is no key), no shared expert. */
#include "model/arch.h"

const clb_arch clb_arch_qwen3moe = {
    .name = "qwen3moe",
    .rope_neox = true,
    .qk_norm = CLB_QK_NORM_HEAD,
    .moe_required = true,
    .norm_topk = true,
};
