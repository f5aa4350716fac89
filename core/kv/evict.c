/* The host side of a KV strategy: budgets, its answers and their validation, and moving the survivors together. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "colibri/kv_select.h"
#include "kv/internal.h"

enum fault {
    FAULT_NONE = -1,
    FAULT_STATUS,
    FAULT_FLAGS,
    FAULT_BEYOND,
    FAULT_NOTHING,
    FAULT_TOO_MANY,
    FAULT_NEWEST,
    FAULT_NAN
};

static const char *const fault_text[] = {
    [FAULT_STATUS] = "select returned an error",
    [FAULT_FLAGS] = "select wrote a flag that is neither 0 nor 1",
    [FAULT_BEYOND] = "select wrote beyond the last position",
    [FAULT_NOTHING] = "select kept no position",
    [FAULT_TOO_MANY] = "select kept more positions than allowed",
    [FAULT_NEWEST] = "select dropped the newest position",
    [FAULT_NAN] = "score left or wrote a value that is not a number",
};

enum { GUARD = 0xa5 };

void clb_kv_budgets(clb_kv_seq *seq)
{
    const struct colibri_kv_strategy *s = seq->strategy;
    const uint32_t n_kv_heads = seq->cache->layout.n_kv_heads;
    uint64_t sum = 0, count = 0;
    if (!seq->traits.evicts)
        return;
    for (uint32_t layer = 0; layer < seq->cache->layout.n_layers; layer++)
        for (uint32_t head = 0; clb_kv_layer_evicts(seq, layer) && head < n_kv_heads; head++) {
            uint32_t *b = &seq->budgets[(size_t)layer * n_kv_heads + head];
            *b = s->budget ? s->budget(seq->self, layer, seq->traits.per_head ? head : 0, seq->position) : seq->budget;
            *b = *b ? *b : 1;
            sum += *b;
            count++;
        }
    const uint64_t allowed = count * seq->budget;
    if (sum <= allowed)
        return;
    /* Too much in all: each keeps one position and its share of the rest. */
    for (uint32_t i = 0; i < clb_kv_n_heads_all(seq); i++)
        if (clb_kv_layer_evicts(seq, i / n_kv_heads)) {
            const double share = (double)(allowed - count) / (double)(sum - count);
            seq->budgets[i] = 1 + (uint32_t)((double)(seq->budgets[i] - 1) * share);
        }
}

bool clb_kv_overflows(const clb_kv_seq *seq, uint32_t layer, uint32_t head, uint32_t n_rows)
{
    const size_t i = (size_t)layer * seq->cache->layout.n_kv_heads + head;
    const uint32_t n = seq->heads[i].n;
    if (!clb_kv_layer_evicts(seq, layer) || n <= seq->budgets[i])
        return false;
    if (n_rows == 0)
        return true;
    return (seq->traits.triggers & COLIBRI_KV_AT_OVER_BUDGET) &&
           (uint64_t)n + n_rows > (uint64_t)seq->budgets[i] + seq->cache->layout.page_tokens;
}

/* What view->opaque points to. */
struct reader {
    const clb_kv_cache *cache;
    const clb_kv_head *head;
};

static void read_k(const struct colibri_kv_view *view, uint32_t i, float *out)
{
    const struct reader *r = view->opaque;
    if (i < view->n) /* the strategy's mistake must not become ours */
        clb_kv_read_k(r->cache, r->head, i, out);
    else
        memset(out, 0, r->cache->layout.k_dim * sizeof out[0]);
}

static void read_v(const struct colibri_kv_view *view, uint32_t i, float *out)
{
    const struct reader *r = view->opaque;
    if (i < view->n)
        clb_kv_read_v(r->cache, r->head, i, out);
    else
        memset(out, 0, r->cache->layout.v_dim * sizeof out[0]);
}

/* Probabilities over all heads of a layer, for a strategy that gives one answer for them. */
static void layer_probs(clb_kv_seq *seq, uint32_t layer, uint32_t n)
{
    const uint32_t n_kv_heads = seq->cache->layout.n_kv_heads;
    const clb_kv_head *h = &seq->heads[(size_t)layer * n_kv_heads];
    if (h->sum[0])
        memcpy(seq->layer_sum, h->sum[h->cur], n * sizeof(float));
    if (h->max[0])
        memcpy(seq->layer_max, h->max[h->cur], n * sizeof(float));
    for (uint32_t head = 1; head < n_kv_heads; head++) {
        const float *sum = h[head].sum[h[head].cur], *max = h[head].max[h[head].cur];
        for (uint32_t i = 0; sum && i < n; i++)
            seq->layer_sum[i] += sum[i];
        for (uint32_t i = 0; max && i < n; i++)
            seq->layer_max[i] = max[i] > seq->layer_max[i] ? max[i] : seq->layer_max[i];
    }
}

/* The strategy's answer in seq->keep. */
static enum fault ask(clb_kv_seq *seq, const struct colibri_kv_view *view)
{
    const struct colibri_kv_strategy *s = seq->strategy;
    const uint32_t n = view->n;
    uint32_t kept = 0;
    if (!s->select) {
        for (uint32_t i = 0; i < n; i++)
            seq->score[i] = NAN;
        s->score(seq->self, view, seq->score);
        for (uint32_t i = 0; i < n; i++)
            if (seq->score[i] != seq->score[i])
                return FAULT_NAN;
        seq->score[n - 1] = INFINITY;
        colibri_kv_keep_top(seq->score, n, view->n_keep, seq->keep);
        return FAULT_NONE;
    }
    memset(seq->keep, 0, n);
    seq->keep[n] = GUARD;
    if (s->select(seq->self, view, seq->keep) != COLIBRI_OK)
        return FAULT_STATUS;
    if (seq->keep[n] != GUARD)
        return FAULT_BEYOND;
    for (uint32_t i = 0; i < n; i++) {
        if (seq->keep[i] > 1)
            return FAULT_FLAGS;
        kept += seq->keep[i];
    }
    if (kept == 0)
        return FAULT_NOTHING;
    if (kept > view->n_keep)
        return FAULT_TOO_MANY;
    return seq->keep[n - 1] ? FAULT_NONE : FAULT_NEWEST;
}

static void report(clb_kv_seq *seq, enum fault fault)
{
    const uint32_t bit = 1u << fault;
    seq->bad_answers++;
    if (seq->faults_reported & bit)
        return;
    seq->faults_reported |= bit;
    if (seq->misbehaved)
        seq->misbehaved(seq->misbehaved_ctx, seq->strategy->name, fault_text[fault]);
    else
        clb_logf(seq->cache->log, COLIBRI_LOG_WARN, "KV strategy %s: %s; the newest positions stay instead",
                 seq->strategy->name, fault_text[fault]);
}

/* Indexes that stay, ascending, in seq->kept; returns how many: 1 .. n_keep. */
static uint32_t select_rows(clb_kv_seq *seq, uint32_t layer, uint32_t head, uint32_t n_keep)
{
    const clb_kv_head *h = &seq->heads[(size_t)layer * seq->cache->layout.n_kv_heads + head];
    const uint32_t needs = seq->traits.needs, n = h->n;
    const struct reader reader = {seq->cache, h};
    const bool one_answer = !seq->traits.per_head;
    uint32_t n_kept = 0;
    if (one_answer)
        layer_probs(seq, layer, n);
    const struct colibri_kv_view view = {
        .struct_size = sizeof view,
        .layer = layer,
        .kv_head = head,
        .n = n,
        .n_keep = n_keep,
        .n_prompt = seq->n_prompt,
        .next_position = seq->position,
        .positions = h->positions,
        .prob_sum = one_answer && h->sum[0] ? seq->layer_sum : h->sum[h->cur],
        .prob_max = one_answer && h->max[0] ? seq->layer_max : h->max[h->cur],
        .read_k = needs & COLIBRI_KV_NEED_K_POST_ROPE ? read_k : NULL,
        .read_v = needs & COLIBRI_KV_NEED_V ? read_v : NULL,
        .opaque = &reader,
    };
    seq->selections++;
    const enum fault fault = ask(seq, &view);
    if (fault != FAULT_NONE) {
        report(seq, fault);
        memset(seq->keep, 0, n - n_keep);
        memset(seq->keep + (n - n_keep), 1, n_keep);
    }
    for (uint32_t i = 0; i < n; i++)
        if (seq->keep[i])
            seq->kept[n_kept++] = i;
    assert(n_kept >= 1 && n_kept <= n_keep);
    return n_kept;
}

void clb_kv_evict(clb_kv_seq *seq, uint32_t n_rows)
{
    const uint32_t n_kv_heads = seq->cache->layout.n_kv_heads;
    uint32_t n_kept = 0;
    if (!seq->traits.evicts)
        return;
    for (uint32_t layer = 0; layer < seq->cache->layout.n_layers; layer++)
        for (uint32_t head = 0; head < n_kv_heads; head++) {
            /* One answer serves all heads of a layer: they then hold the same positions and overflow together. */
            const bool shared = !seq->traits.per_head && head > 0;
            if (!(shared ? n_kept > 0 : clb_kv_overflows(seq, layer, head, n_rows))) {
                n_kept = 0;
                continue;
            }
            if (!shared)
                n_kept = select_rows(seq, layer, head, seq->budgets[(size_t)layer * n_kv_heads + head]);
            clb_kv_compact(seq, layer, head, n_kept);
        }
}
