/* Expert routing, in the order that GGUF models share: gating function, bias for the selection only, top-k, weights of
 * the unbiased probabilities, optional renormalisation, scale. */
#include <math.h>

#include "colibri/numerics.h"
#include "model/forward_internal.h"
#include "ops/ops.h"

/* Sums of router weights are not divided by less than this (the constant that such models were exported with). */
#define MIN_WEIGHT_SUM 6.103515625e-5f

#define BLOCK      16u
#define MOST_BLOCK 4096u /* hparams: at most 65535 experts */

/* Experts in the order in which they are chosen, as one number each: the value, then the lower id. */
static inline uint64_t order_of(const float *values, const float *bias, uint32_t e)
{
    const float v = bias ? values[e] + bias[e] : values[e];
    const uint32_t bits = colibri_f32_bits((v == v ? v : -INFINITY) + 0.0f); /* -0 becomes +0: they are equal */
    const uint32_t rising = bits ^ (bits >> 31 ? UINT32_MAX : UINT32_C(1) << 31);
    return (uint64_t)rising << 32 | (UINT32_MAX - e);
}

/* The first of a block's experts that comes after `last`; 0: none does. */
static uint64_t block_best(const float *values, const float *bias, uint32_t block, uint32_t n, uint64_t last)
{
    const uint32_t begin = block * BLOCK, end = n - begin < BLOCK ? n : begin + BLOCK;
    uint64_t best = 0;
    for (uint32_t e = begin; e < end; e++) {
        const uint64_t order = order_of(values, bias, e);
        best = order < last && order > best ? order : best;
    }
    return best;
}

/* Each block offers its best; the block that a choice came from is looked at again. */
static void choose(const float *values, const float *bias, uint32_t n, uint32_t k, uint32_t *ids)
{
    const uint32_t n_blocks = (n + BLOCK - 1) / BLOCK;
    uint64_t best[MOST_BLOCK];
    for (uint32_t i = 0; i < n_blocks; i++)
        best[i] = block_best(values, bias, i, n, UINT64_MAX);
    for (uint32_t r = 0; r < k; r++) {
        uint64_t first = 0;
        for (uint32_t i = 0; i < n_blocks; i++)
            first = best[i] > first ? best[i] : first;
        ids[r] = UINT32_MAX - (uint32_t)first;
        best[ids[r] / BLOCK] = block_best(values, bias, ids[r] / BLOCK, n, first);
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
