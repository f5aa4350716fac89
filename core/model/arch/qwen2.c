/* Qwen2 and Qwen2.5: biases on Q, K and V, none on the output projection. */
#include "model/arch.h"

const clb_arch clb_arch_qwen2 = {
    .name = "qwen2",
    .rope_neox = true,
    .qkv_bias = CLB_REQUIRED,
};
