/* Forks for sequences that agree on everything but the budget: what comes before a strategy's first decision is
 * computed once. */
#include "kv/internal.h"

static bool undecided(const clb_kv_seq *seq)
{
    return !seq->selections && !seq->evicted && !seq->bad_answers && !seq->gives_up && !seq->traits.stateful;
}

/* As at the end of a pass that held the end of the prompt. Shared pages are copied before rows of them move. */
static int end_prompt(clb_kv_seq *seq, clb_error *err)
{
    const uint32_t triggers = seq->traits.triggers;
    const uint32_t trigger =
        triggers & COLIBRI_KV_AT_PREFILL_END ? COLIBRI_KV_AT_PREFILL_END : triggers & COLIBRI_KV_AT_CHUNK;
    if (!trigger || !seq->traits.evicts)
        return COLIBRI_OK;
    if (clb_kv_pool_available(&seq->cache->pool) < seq->n_pages)
        return clb_fail(err, COLIBRI_E_NOMEM, "the KV cache is full: a fork of %u tokens needs %llu pages, %u are free",
                        seq->position, (unsigned long long)seq->n_pages, clb_kv_pool_available(&seq->cache->pool));
    if (!clb_kv_reserve_scratch(seq, seq->position))
        return CLB_NOMEM(err, "tables of the KV cache");
    clb_kv_budgets(seq);
    clb_kv_evict(seq, 0, trigger);
    clb_kv_recent_close(seq);
    clb_kv_pool_trim(&seq->cache->pool);
    return COLIBRI_OK;
}

int clb_kv_seq_fork_late(clb_kv_seq *from, uint32_t budget, clb_kv_seq **out, clb_error *err)
{
    *out = NULL;
    if (!undecided(from))
        return clb_fail(err, COLIBRI_E_UNSUPPORTED,
                        "KV strategy %s has decided something already or keeps state: another budget would not be what "
                        "it is from the start",
                        from->strategy->name);
    if (from->traits.evicts && from->n_protected >= budget)
        return clb_fail(err, COLIBRI_E_USAGE, "%u protected positions leave nothing of the KV budget of %u",
                        from->n_protected, budget);
    clb_kv_seq *seq;
    CLB_TRY(clb_kv_seq_fork(from, &seq, err));
    /* The instance was made for another budget, and has no state that would be lost. */
    seq->strategy->destroy(seq->self);
    seq->self = NULL;
    seq->budget = seq->options.budget = budget;
    int rc = clb_kv_strategy_create(seq, &seq->options, err);
    if (!rc)
        rc = end_prompt(seq, err);
    if (rc)
        clb_kv_seq_destroy(seq);
    else
        *out = seq;
    return rc;
}
