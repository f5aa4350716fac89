/* Forks for sequences that differ in what strategies decide, before any did: what comes before is computed once. */
#include "kv/internal.h"

/* Needs that fill the sequence while it is read; the others are served from its rows when a strategy asks. */
#define FILLING                                                                                                        \
    (COLIBRI_KV_NEED_PROB_COLSUM | COLIBRI_KV_NEED_PROB_MAX | CLB_KV_NEEDS_QUERIES | COLIBRI_KV_NEED_PAGE_MINMAX)

bool clb_kv_traits_alike(const clb_kv_traits *a, const clb_kv_traits *b)
{
    return !a->stateful && !b->stateful && a->evicts == b->evicts && a->positions == b->positions &&
           (a->needs & FILLING) == (b->needs & FILLING) &&
           (a->window_w == b->window_w || !(a->needs & CLB_KV_NEEDS_QUERIES));
}

static bool undecided(const clb_kv_seq *seq)
{
    return !seq->selections && !seq->evicted && !seq->bad_answers && !seq->gives_up;
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

int clb_kv_seq_fork_late(clb_kv_seq *from, const clb_kv_seq_options *o, clb_kv_seq **out, clb_error *err)
{
    const clb_kv_traits traits = clb_kv_traits_of(o->strategy, o->child, o->positions);
    const uint32_t budget = o->budget ? o->budget : from->ctx;
    *out = NULL;
    if (!undecided(from))
        return clb_fail(err, COLIBRI_E_UNSUPPORTED,
                        "KV strategy %s has decided something already: another one, or another budget, would not be "
                        "what it is from the start",
                        from->strategy->name);
    if (!clb_kv_traits_alike(&from->traits, &traits))
        return clb_fail(err, COLIBRI_E_UNSUPPORTED,
                        "what was recorded for KV strategy %s is not what %s needs from the start",
                        from->strategy->name, o->strategy->name);
    if (traits.evicts && o->n_protected >= budget)
        return clb_fail(err, COLIBRI_E_USAGE, "%u protected positions leave nothing of the KV budget of %u",
                        o->n_protected, budget);
    clb_kv_seq *seq;
    CLB_TRY(clb_kv_seq_fork(from, &seq, err));
    seq->strategy->destroy(seq->self); /* it has no state that would be lost */
    seq->self = NULL;
    seq->strategy = o->strategy;
    seq->traits = traits;
    seq->budget = budget;
    seq->future = o->future;
    seq->n_protected_always = seq->n_protected = o->n_protected;
    seq->options.strategy = o->strategy;
    seq->options.params = o->params;
    seq->options.child = o->child;
    seq->options.positions = o->positions;
    seq->options.n_protected = o->n_protected;
    seq->options.future = o->future;
    seq->options.budget = o->budget;
    int rc = clb_kv_strategy_create(seq, &seq->options, err);
    if (!rc)
        rc = end_prompt(seq, err);
    if (rc)
        clb_kv_seq_destroy(seq);
    else
        *out = seq;
    return rc;
}
