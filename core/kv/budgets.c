/* How many positions each (layer, KV head) may keep, and whether it keeps more. */
#include "base/clock.h"
#include "kv/internal.h"

/* What a head keeps at least: the protected positions and the newest. */
static uint32_t least(const clb_kv_seq *seq)
{
    const uint32_t n = seq->n_protected < seq->position ? seq->n_protected : seq->position;
    return n + 1;
}

/* What the strategy says, within what was planned. */
static uint32_t wanted(const clb_kv_seq *seq, uint32_t layer, uint32_t head)
{
    const struct colibri_kv_strategy *s = seq->strategy;
    const uint32_t b = s->budget && !seq->gives_up ? s->budget(seq->self, layer, head, seq->position) : seq->budget;
    return b < seq->demand.head_budget ? b : seq->demand.head_budget;
}

void clb_kv_budgets(clb_kv_seq *seq)
{
    const uint32_t n_kv_heads = seq->cache->layout.n_kv_heads, floor = least(seq);
    uint64_t sum = 0, count = 0;
    if (!seq->traits.evicts)
        return;
    seq->given_up = seq->gives_up;
    const uint64_t began = clb_now_ns();
    for (uint32_t layer = 0; layer < seq->cache->layout.n_layers; layer++) {
        uint32_t *const b = &seq->budgets[(size_t)layer * n_kv_heads];
        for (uint32_t head = 0; clb_kv_layer_evicts(seq, layer) && head < n_kv_heads; head++) {
            /* Heads that get one answer have one budget, whatever a second call would say. */
            b[head] = head && !seq->traits.per_head ? b[0] : wanted(seq, layer, head);
            b[head] = b[head] > floor ? b[head] : floor;
            sum += b[head];
            count++;
        }
        if (seq->strategy->budget && !seq->gives_up)
            clb_kv_check_time(seq, began);
    }
    const uint64_t allowed = count * seq->budget, floors = count * floor;
    if (sum <= allowed)
        return;
    /* Too much in all: each keeps its least and a share of the rest. */
    const double share = allowed > floors ? (double)(allowed - floors) / (double)(sum - floors) : 0;
    for (uint32_t i = 0; i < clb_kv_n_heads_all(seq); i++)
        if (clb_kv_layer_evicts(seq, i / n_kv_heads))
            seq->budgets[i] = floor + (uint32_t)((double)(seq->budgets[i] - floor) * share);
}

bool clb_kv_allots(const clb_kv_seq *seq)
{
    return CLB_KV_HAS(seq->strategy, allot) && !seq->given_up;
}

uint64_t clb_kv_layer_budget(const clb_kv_seq *seq, uint32_t layer)
{
    const uint32_t n_kv_heads = seq->cache->layout.n_kv_heads;
    uint64_t sum = 0;
    for (uint32_t head = 0; head < n_kv_heads; head++)
        sum += seq->budgets[(size_t)layer * n_kv_heads + head];
    return sum;
}

static uint64_t layer_kept(const clb_kv_seq *seq, uint32_t layer)
{
    const uint32_t n_kv_heads = seq->cache->layout.n_kv_heads;
    uint64_t sum = 0;
    for (uint32_t head = 0; head < n_kv_heads; head++)
        sum += seq->heads[(size_t)layer * n_kv_heads + head].n;
    return sum;
}

bool clb_kv_overflows(const clb_kv_seq *seq, uint32_t layer, uint32_t head, uint32_t n_rows)
{
    const size_t i = (size_t)layer * seq->cache->layout.n_kv_heads + head;
    if (!clb_kv_layer_evicts(seq, layer))
        return false;
    /* Where heads share a budget they overflow together. */
    const uint32_t heads = clb_kv_allots(seq) ? seq->cache->layout.n_kv_heads : 1;
    const uint64_t n = heads > 1 ? layer_kept(seq, layer) : seq->heads[i].n;
    const uint64_t budget = heads > 1 ? clb_kv_layer_budget(seq, layer) : seq->budgets[i];
    if (n <= budget)
        return false;
    if (n_rows == 0)
        return true;
    return (seq->traits.triggers & COLIBRI_KV_AT_OVER_BUDGET) &&
           n + (uint64_t)n_rows * heads > budget + (uint64_t)seq->cache->layout.page_tokens * heads;
}
