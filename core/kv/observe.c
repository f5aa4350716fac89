/* What the rows of a pass tell a strategy: the attention that each position drew. */
#include <assert.h>
#include <string.h>

#include "colibri/numerics.h"
#include "kv/internal.h"

/* exp(x) for x <= 0 with the coefficients of colibri_expf, but each step rounded: the same bits on every CPU without
 * a call of fmaf per step, and the compiler can vectorise it. Off by less than 1e-6: strategies rank by it, no
 * logit depends on it directly. */
static inline float exp_rounded(float x)
{
    const float biased = x * COLIBRI_EXP_LOG2E + COLIBRI_EXP_ROUND;
    const float n = biased - COLIBRI_EXP_ROUND;
    const float r = (x - n * COLIBRI_EXP_LN2_HI) - n * COLIBRI_EXP_LN2_LO;
    float p = COLIBRI_EXP_C6;
    p = p * r + COLIBRI_EXP_C5;
    p = p * r + COLIBRI_EXP_C4;
    p = p * r + COLIBRI_EXP_C3;
    p = p * r + COLIBRI_EXP_C2;
    p = p * r + COLIBRI_EXP_C1;
    p = p * (r * r) + r;
    p = p + 1.0f;
    p = p * colibri_bits_f32((colibri_f32_bits(biased) + 127u) << 23);
    /* a mask, not a branch, which would keep the loops below scalar: what is too small for the above is 0 */
    return colibri_bits_f32(colibri_f32_bits(p) & (0u - (uint32_t)(x >= COLIBRI_EXP_MIN)));
}

void clb_kv_add_probs(float *restrict sum, const float *restrict s, float max, float total, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        sum[i] += exp_rounded(s[i] - max) / total;
}

static void max_probs(float *restrict best, const float *restrict s, float max, float total, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const float p = exp_rounded(s[i] - max) / total;
        best[i] = p > best[i] ? p : best[i];
    }
}

void clb_kv_extend(float *next, const float *now, uint32_t from, uint32_t n_before, uint32_t n)
{
    if (from < n_before) {
        memcpy(next + from, now + from, (n_before - from) * sizeof next[0]);
        from = n_before;
    }
    for (uint32_t i = from; i < n; i++)
        next[i] = 0.0f;
}

void clb_kv_observe(clb_kv_seq *seq, uint32_t layer, uint32_t kv_head, const float *scores, size_t stride,
                    const float *max_sum, uint32_t n_heads, uint32_t n)
{
    clb_kv_head *h = &seq->heads[(size_t)layer * seq->cache->layout.n_kv_heads + kv_head];
    if (!clb_kv_layer_evicts(seq, layer) || !(clb_kv_seq_needs(seq) & (COLIBRI_KV_NEED_PROB_COLSUM | COLIBRI_KV_NEED_PROB_MAX)))
        return;
    assert(seq->pass_rows && n >= h->next_n && n > h->n && n <= h->n + seq->pass_rows);
    float *sum = h->sum[!h->cur], *max = h->max[!h->cur];
    if (sum)
        clb_kv_extend(sum, h->sum[h->cur], h->next_n, h->n, n);
    if (max)
        clb_kv_extend(max, h->max[h->cur], h->next_n, h->n, n);
    h->next_n = n;
    for (uint32_t q = 0; q < n_heads; q++) {
        const float m = max_sum[2 * q], total = max_sum[2 * q + 1];
        if (!(total > 0.0f)) /* not a distribution: nothing to learn from it */
            continue;
        if (sum)
            clb_kv_add_probs(sum, scores + q * stride, m, total, n);
        if (max)
            max_probs(max, scores + q * stride, m, total, n);
    }
}
