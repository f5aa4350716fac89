/* Granite (dense): Llama's graph with multipliers on embeddings, scores, branches and logits. */
#include "model/arch/granite_common.h"

const clb_arch clb_arch_granite = {
    .name = "granite",
    .rope_neox = false,
    .qkv_bias = CLB_OPTIONAL,
    .out_bias = CLB_OPTIONAL,
    .configure = granite_configure,
};
