/* Llama 1-3 and Mixtral. The converter permutes Q and K so that rope pairs are neighbours; Llama 3.x long-context
 * factors arrive as the tensor rope_freqs. Mixtral is the same graph with experts: softmax over all, renormalised. */
#include "model/arch.h"

const clb_arch clb_arch_llama = {
    .name = "llama",
    .rope_neox = false,
    .qkv_bias = CLB_OPTIONAL,
    .out_bias = CLB_OPTIONAL,
    .norm_topk = true,
};
