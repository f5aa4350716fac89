/* What the dense and the MoE Granite share: four multipliers, and rope that can be off. */
#ifndef CLB_MODEL_ARCH_GRANITE_COMMON_H
#define CLB_MODEL_ARCH_GRANITE_COMMON_H

#include "model/arch.h"

static inline int granite_configure(const clb_gguf *g, const clb_arch *self, clb_hparams *hp, clb_error *err)
{
    float logit_divisor;
    bool finetuned;
    CLB_TRY(clb_arch_f32_or(g, self, "embedding_scale", 1.0f, &hp->embedding_scale, err));
    CLB_TRY(clb_arch_f32_or(g, self, "residual_scale", 1.0f, &hp->residual_scale, err));
    CLB_TRY(clb_arch_f32_or(g, self, "attention.scale", hp->attention_scale, &hp->attention_scale, err));
    CLB_TRY(clb_arch_f32_or(g, self, "logit_scale", 1.0f, &logit_divisor, err));
    CLB_TRY(clb_arch_bool_or(g, self, "rope.scaling.finetuned", true, &finetuned, err));
    if (!(logit_divisor != 0.0f))
        return clb_fail(err, COLIBRI_E_FORMAT, "key %s.logit_scale is 0: logits would be divided by it", self->name);
    hp->logit_scale = 1.0f / logit_divisor;
    hp->rope = finetuned;
    return COLIBRI_OK;
}

#endif
