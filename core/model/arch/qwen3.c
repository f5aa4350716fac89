/* Qwen3 (dense): RMS norm of each Q and K head before rope; heads * head size may differ from the width. */
#include "model/arch.h"

const clb_arch clb_arch_qwen3 = {
    .name = "qwen3",
    .rope_neox = true,
    .qk_norm = CLB_QK_NORM_HEAD,
};
