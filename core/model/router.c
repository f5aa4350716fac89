/* Expert routing, in the order that GGUF models share: gating function, bias for the selection only, top-k, weights of
 * the unbiased probabilities, optional renormalisation, scale. */
#include <math.h>

#include "model/forward_internal.h"
#include "ops/ops.h"

/* Sums of router weights are not divided by less than this (the constant that such models were exported with). */
#define MIN_WEIGHT_SUM 6.103515625e-5f

static float selection_value(const float *values, const float *bias, uint32_t e)
{
    const float v = bias ? values[e] + bias[e] : values[e];
    return v == v ? v : -INFINITY;
}

static void choose(const float *values, const float *bias, uint32_t n, uint32_t k, uint32_t *ids)
{
    for (uint32_t r = 0; r < k; r++) {
        uint32_t best = UINT32_MAX;
        float best_value = 0.0f;
        for (uint32_t e = 0; e < n; e++) {
            bool taken = false;
            for (uint32_t i = 0; i < r && !taken; i++)
                taken = ids[i] == e;
            if (taken)
                continue;
            const float v = selection_value(values, bias, e);
            if (best == UINT32_MAX || v > best_value) {
                best = e;
                best_value = v;
            }
        }
        ids[r] = best;
    }
}

void clb_route_row(const clb_hparams *hp, const struct colibri_vecops *ops, const float *select_bias, float *probs,
                   uint32_t *ids, float *gates)
{
    const uint32_t n = hp->n_experts, k = hp->top_k;
    switch (hp->gating) {
    case CLB_GATING_SOFTMAX:
        ops->softmax(probs, n);
        break;
    case CLB_GATING_SIGMOID:
        for (uint32_t e = 0; e < n; e++)
            probs[e] = clb_sigmoid(probs[e]);
        break;
    case CLB_GATING_SOFTMAX_TOPK:
        break;
    }
    choose(probs, select_bias, n, k, ids);
    for (uint32_t r = 0; r < k; r++)
        gates[r] = probs[ids[r]];
    if (hp->gating == CLB_GATING_SOFTMAX_TOPK)
        ops->softmax(gates, k);
    if (hp->norm_topk) {
        float sum = 0.0f;
        for (uint32_t r = 0; r < k; r++)
            sum += gates[r];
        sum = sum > MIN_WEIGHT_SUM ? sum : MIN_WEIGHT_SUM;
        for (uint32_t r = 0; r < k; r++)
            gates[r] = gates[r] / sum;
    }
    if (hp->expert_scale != 1.0f)
        for (uint32_t r = 0; r < k; r++)
            gates[r] *= hp->expert_scale;
}
