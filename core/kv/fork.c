/* Another sequence with the same tokens: pages by reference, everything else by copy. */
#include <stdlib.h>
#include <string.h>

#include "kv/internal.h"

static int copy_head(clb_kv_seq *to, clb_kv_seq *from, uint32_t i, clb_error *err)
{
    clb_kv_cache *cache = to->cache;
    clb_kv_head *h = &to->heads[i];
    const clb_kv_head *f = &from->heads[i];
    if (!clb_kv_reserve_head(to, i / cache->layout.n_kv_heads, h, f->n))
        return CLB_NOMEM(err, "tables of the KV cache");
    h->n = f->n;
    h->cur = f->cur;
    for (; h->n_pages < f->n_pages; h->n_pages++) {
        clb_kv_pool_share(&cache->pool, f->k_pages[h->n_pages]);
        h->k_pages[h->n_pages] = f->k_pages[h->n_pages];
        h->v_pages[h->n_pages] = f->v_pages[h->n_pages];
        to->n_pages++;
    }
    if (h->positions && f->n)
        memcpy(h->positions, f->positions, f->n * sizeof f->positions[0]);
    for (int b = 0; b < 2; b++) { /* only [cur] outlives a pass */
        if (b == f->cur && h->sum[b] && f->n)
            memcpy(h->sum[b], f->sum[b], f->n * sizeof f->sum[b][0]);
        if (b == f->cur && h->max[b] && f->n)
            memcpy(h->max[b], f->max[b], f->n * sizeof f->max[b][0]);
    }
    if (f->q_ring) /* else it was never written */
        memcpy(h->q_ring, f->q_ring, from->traits.window_w * clb_kv_query_floats(from) * sizeof f->q_ring[0]);
    return COLIBRI_OK;
}

static int copy_state(clb_kv_seq *to, const clb_kv_seq *from, clb_error *err)
{
    const struct colibri_kv_strategy *s = from->strategy;
    /* It has no state: a new one is like the old one, and is made for as many positions, whatever its budgets are now. */
    if (!s->fork)
        return clb_kv_instance_create(to, &from->options, err);
    to->self = s->fork(from->self);
    if (!to->self)
        return clb_fail(err, COLIBRI_E_UNSUPPORTED, "KV strategy %s cannot copy its state: this sequence cannot be forked",
                        s->name);
    return COLIBRI_OK;
}

int clb_kv_seq_fork(clb_kv_seq *from, clb_kv_seq **out, clb_error *err)
{
    clb_kv_cache *cache = from->cache;
    const uint32_t n = clb_kv_n_heads_all(from);
    int rc = COLIBRI_OK;
    *out = NULL;
    if (from->pass_rows)
        return clb_fail(err, COLIBRI_E_INTERNAL, "KV cache: a fork inside a pass");
    if (from->traits.stateful && !from->strategy->fork)
        return clb_fail(err, COLIBRI_E_UNSUPPORTED,
                        "KV strategy %s follows what is added and dropped and cannot copy that: its sequences cannot be "
                        "forked",
                        from->strategy->name);
    clb_kv_seq *to = calloc(1, sizeof *to);
    if (!to)
        return CLB_NOMEM(err, "KV sequence");
    *to = *from;
    /* What belongs to one sequence alone; scratch is made when it is wanted. */
    to->self = NULL;
    to->n_reserved = 0;
    to->blocks = NULL;
    to->n_blocks = to->cap_blocks = 0;
    to->n_pages = to->n_recent = 0;
    to->scratch_cap = 0;
    to->keep = NULL;
    to->kept = to->into = NULL;
    to->score = to->weight = to->merged = to->layer_sum = to->layer_max = to->cs = to->row = NULL;
    memset(&to->across, 0, sizeof to->across);
    memset(&to->last, 0, sizeof to->last);
    to->heads = calloc(n, sizeof to->heads[0]);
    to->budgets = malloc(n * sizeof to->budgets[0]);
    cache->n_seqs++;
    to->number = cache->n_made++;
    if (!to->heads || !to->budgets) {
        rc = CLB_NOMEM(err, "KV sequence");
        goto done;
    }
    memcpy(to->budgets, from->budgets, n * sizeof to->budgets[0]);
    from->shares = to->shares = true;
    for (uint32_t i = 0; i < n; i++)
        CLB_GO(copy_head(to, from, i, err));
    CLB_GO(clb_kv_recent_copy(to, from, err));
    if (!clb_kv_hold_same(to, from)) {
        rc = CLB_NOMEM(err, "KV sequence");
        goto done;
    }
    CLB_GO(copy_state(to, from, err));
    *out = to;
done:
    if (rc)
        clb_kv_seq_destroy(to);
    return rc;
}
