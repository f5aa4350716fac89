/* One sequence: creation, reset, truncation, figures. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "kv/index.h"

int clb_kv_seq_create(clb_kv_cache *cache, const clb_kv_seq_options *options, clb_kv_seq **out, clb_error *err)
{
    int rc = COLIBRI_OK;
    const struct colibri_kv_strategy *s = options->strategy;
    *out = NULL;
    if (options->ctx == 0)
        return clb_fail(err, COLIBRI_E_USAGE, "KV cache: a context of 0 positions");
    clb_kv_seq *seq = calloc(1, sizeof *seq);
    if (!seq)
        return CLB_NOMEM(err, "KV sequence");
    seq->cache = cache;
    seq->options = *options;
    seq->strategy = s;
    seq->traits = clb_kv_traits_of(s, options->child, options->positions);
    seq->future = options->future;
    seq->n_protected_always = seq->n_protected = options->n_protected;
    seq->max_rows = options->max_rows;
    seq->misbehaved = options->misbehaved;
    seq->misbehaved_ctx = options->misbehaved_ctx;
    seq->ctx = options->ctx;
    seq->n_exact = UINT32_MAX;
    seq->budget = options->budget ? options->budget : options->ctx;
    seq->heads = calloc(clb_kv_n_heads_all(seq), sizeof seq->heads[0]);
    seq->budgets = calloc(clb_kv_n_heads_all(seq), sizeof seq->budgets[0]);
    cache->n_seqs++;
    seq->number = cache->n_made++;
    if (!seq->heads || !seq->budgets) {
        rc = CLB_NOMEM(err, "KV sequence");
        goto done;
    }
    if (seq->traits.evicts && seq->n_protected >= seq->budget) {
        rc = clb_fail(err, COLIBRI_E_USAGE,
                      "%u protected positions leave nothing of the KV budget of %u; raise kv-budget or lower kv-protect",
                      seq->n_protected, seq->budget);
        goto done;
    }
    CLB_GO(clb_kv_strategy_create(seq, options, err));
    *out = seq;
done:
    if (rc)
        clb_kv_seq_destroy(seq);
    return rc;
}

void clb_kv_seq_destroy(clb_kv_seq *seq)
{
    if (!seq)
        return;
    clb_kv_unreserve(seq);
    clb_kv_hold_only(seq, 0);
    free(seq->blocks);
    for (uint32_t i = 0; seq->heads && i < clb_kv_n_heads_all(seq); i++) {
        clb_kv_head *h = &seq->heads[i];
        clb_kv_head_shrink(seq, h, 0);
        clb_kv_recent_free(seq, h);
        free(h->k_pages);
        free(h->v_pages);
        free(h->positions);
        free(h->q_ring);
        clb_kv_pick_free(h);
        for (int b = 0; b < 2; b++) {
            free(h->sum[b]);
            free(h->max[b]);
        }
    }
    clb_kv_pool_trim(&seq->cache->pool);
    if (seq->self)
        seq->strategy->destroy(seq->self);
    free(seq->keep);
    free(seq->kept);
    free(seq->score);
    free(seq->into);
    free(seq->weight);
    free(seq->merged);
    clb_kv_queries_free(seq);
    clb_kv_across_free(seq);
    free(seq->row);
    free(seq->layer_sum);
    free(seq->layer_max);
    free(seq->heads);
    free(seq->budgets);
    seq->cache->n_seqs--;
    free(seq);
}

void clb_kv_head_shrink(clb_kv_seq *seq, clb_kv_head *head, uint32_t n)
{
    const uint32_t pages = (uint32_t)clb_kv_pages_for(seq, n);
    while (head->n_pages > pages) {
        clb_kv_pool_give(&seq->cache->pool, head->k_pages[--head->n_pages]);
        seq->n_pages--;
    }
}

void clb_kv_cut(clb_kv_seq *seq, uint32_t n)
{
    clb_kv_unreserve(seq);
    clb_kv_hold_only(seq, n / seq->cache->layout.page_tokens);
    seq->shares = seq->shares && n;
    for (uint32_t i = 0; i < clb_kv_n_heads_all(seq); i++) {
        seq->heads[i].n = n;
        seq->heads[i].next_n = 0;
        /* Another block may come in place of what leaves. */
        if (seq->heads[i].n_minmax > n / seq->cache->layout.page_tokens)
            seq->heads[i].n_minmax = n / seq->cache->layout.page_tokens;
        clb_kv_head_shrink(seq, &seq->heads[i], n);
        clb_kv_recent_shrink(seq, &seq->heads[i], n);
    }
    clb_kv_pool_trim(&seq->cache->pool);
    seq->position = n;
    seq->n_exact = n <= seq->n_exact ? UINT32_MAX : seq->n_exact;
    seq->n_prompt = seq->n_prompt < n ? seq->n_prompt : n;
    seq->steps = 0;
    seq->pass_rows = 0;
}

void clb_kv_seq_reset(clb_kv_seq *seq)
{
    clb_kv_cut(seq, 0);
    seq->evicted = seq->selections = seq->bad_answers = 0;
    seq->gives_up = seq->given_up = seq->lost = false;
    seq->n_protected = seq->n_protected_always;
    seq->n_system = 0;
    seq->q_first = seq->q_top = 0;
    seq->strategy->reset(seq->self);
}

int clb_kv_seq_truncate(clb_kv_seq *seq, uint32_t n_positions, clb_error *err)
{
    const struct colibri_kv_strategy *s = seq->strategy;
    if (seq->pass_rows)
        return clb_fail(err, COLIBRI_E_INTERNAL, "KV cache: truncation inside a pass");
    if (n_positions > seq->position)
        return clb_fail(err, COLIBRI_E_USAGE, "KV cache: cannot cut to %u positions, there are %u", n_positions,
                        seq->position);
    if (n_positions == seq->position)
        return COLIBRI_OK;
    if (n_positions == 0) {
        clb_kv_seq_reset(seq);
        return COLIBRI_OK;
    }
    if (seq->evicted)
        return clb_fail(err, COLIBRI_E_UNSUPPORTED,
                        "KV cache: strategy %s has dropped positions, so the first %u tokens cannot be used again",
                        s->name, n_positions);
    if (seq->traits.evicts &&
        ((seq->traits.needs & (COLIBRI_KV_NEED_PROB_COLSUM | COLIBRI_KV_NEED_PROB_MAX | CLB_KV_NEEDS_QUERIES)) ||
         seq->traits.stateful))
        return clb_fail(err, COLIBRI_E_UNSUPPORTED,
                        "KV cache: strategy %s remembers later tokens, so the first %u cannot be used again", s->name,
                        n_positions);
    if (!clb_kv_recent_can_cut(seq, n_positions))
        return clb_fail(err, COLIBRI_E_UNSUPPORTED,
                        "KV cache: the unquantized copies of the window before token %u are gone (--kv-recent 0 has none)",
                        n_positions);
    clb_kv_cut(seq, n_positions);
    return COLIBRI_OK;
}

uint32_t clb_kv_seq_position(const clb_kv_seq *seq)
{
    return seq->position;
}

uint32_t clb_kv_seq_needs(const clb_kv_seq *seq)
{
    return seq->traits.evicts ? seq->traits.needs : 0;
}

void clb_kv_seq_stats(const clb_kv_seq *seq, clb_kv_stats *out)
{
    *out = (clb_kv_stats){
        .seen = seq->position,
        .kept_min = UINT64_MAX,
        .evicted_sum = seq->evicted,
        .selections = seq->selections,
        .bad_answers = seq->bad_answers,
        .bytes = seq->n_pages * seq->cache->pool.page_bytes + seq->n_recent * seq->cache->recent.page_bytes,
    };
    for (uint32_t i = 0; i < clb_kv_n_heads_all(seq); i++) {
        const uint64_t n = seq->heads[i].n;
        out->kept_min = n < out->kept_min ? n : out->kept_min;
        out->kept_max = n > out->kept_max ? n : out->kept_max;
        out->kept_sum += n;
    }
}

uint32_t clb_kv_seq_positions(const clb_kv_seq *seq, uint32_t layer, uint32_t kv_head, uint32_t *out, uint32_t cap)
{
    const clb_kv_head *h = &seq->heads[(size_t)layer * seq->cache->layout.n_kv_heads + kv_head];
    for (uint32_t i = 0; i < h->n && i < cap; i++)
        out[i] = clb_kv_layer_evicts(seq, layer) ? h->positions[i] : i;
    return h->n;
}

bool clb_kv_seq_compact(const clb_kv_seq *seq)
{
    return seq->traits.positions == COLIBRI_KV_POS_COMPACT;
}

int clb_kv_seq_protect(clb_kv_seq *seq, uint32_t n, clb_error *err)
{
    if (seq->traits.evicts && n >= seq->budget)
        return clb_fail(err, COLIBRI_E_LIMIT,
                        "the system prompt has %u tokens, which leaves nothing of the KV budget of %u positions; raise "
                        "--kv-budget",
                        n, seq->budget);
    seq->n_system = n;
    seq->n_protected = n > seq->n_protected_always ? n : seq->n_protected_always;
    return COLIBRI_OK;
}

/* Nothing of the layer is dropped when a pass begins. */
static bool unbounded(const clb_kv_seq *seq, uint32_t layer)
{
    return !clb_kv_layer_evicts(seq, layer) || !(seq->traits.triggers & COLIBRI_KV_AT_OVER_BUDGET);
}

bool clb_kv_seq_full(const clb_kv_seq *seq)
{
    const uint32_t n_kv_heads = seq->cache->layout.n_kv_heads;
    for (uint32_t layer = 0; layer < seq->cache->layout.n_layers; layer++)
        for (uint32_t head = 0; unbounded(seq, layer) && head < n_kv_heads; head++)
            if (seq->heads[(size_t)layer * n_kv_heads + head].n >= seq->ctx)
                return true;
    return false;
}

uint32_t clb_kv_seq_number(const clb_kv_seq *seq)
{
    return seq->number;
}
