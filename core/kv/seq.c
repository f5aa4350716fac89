/* One sequence: creation, reset, truncation, figures. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kv/internal.h"

#define NEEDS_SERVED \
    (COLIBRI_KV_NEED_PROB_COLSUM | COLIBRI_KV_NEED_PROB_MAX | COLIBRI_KV_NEED_K_POST_ROPE | COLIBRI_KV_NEED_V)

static const struct {
    uint32_t bit;
    const char *name;
} needs_not_served[] = {
    {COLIBRI_KV_NEED_PROB_LAST_W, "PROB_LAST_W"}, {COLIBRI_KV_NEED_K_PRE_ROPE, "K_PRE_ROPE"},
    {COLIBRI_KV_NEED_Q_LAST_W, "Q_LAST_W"},       {COLIBRI_KV_NEED_Q_STATS, "Q_STATS"},
    {COLIBRI_KV_NEED_WO_NORM, "WO_NORM"},         {COLIBRI_KV_NEED_PAGE_MINMAX, "PAGE_MINMAX"},
    {COLIBRI_KV_NEED_HIDDEN, "HIDDEN"},
};

/* Is the strategy's table usable, and can this host serve it? */
static int check(const struct colibri_kv_strategy *s, clb_error *err)
{
    if (!COLIBRI_HAS(s, fork) || !s->name)
        return clb_fail(err, COLIBRI_E_PLUGIN, "KV strategy: its table is too short (struct_size %u) or has no name",
                        s->struct_size);
    if (!s->create || !s->destroy || !s->reset || (s->n_params && !s->params))
        return clb_fail(err, COLIBRI_E_PLUGIN, "KV strategy %s: create, destroy, reset or the parameter table is missing",
                        s->name);
    if (s->flags & COLIBRI_KV_FLAG_KEEPS_ALL)
        return COLIBRI_OK;
    if (!s->select && !s->score)
        return clb_fail(err, COLIBRI_E_PLUGIN, "KV strategy %s: it evicts, but has neither select nor score", s->name);
    if (!s->triggers || ((s->triggers & COLIBRI_KV_AT_STEPS) && !s->every_steps))
        return clb_fail(err, COLIBRI_E_PLUGIN, "KV strategy %s: it evicts, but %s", s->name,
                        s->triggers ? "every_steps is 0" : "declares no trigger");
    if (s->positions != COLIBRI_KV_POS_ORIGINAL)
        return clb_fail(err, COLIBRI_E_UNSUPPORTED,
                        "KV strategy %s wants compacted positions, which this version does not offer; choose one that "
                        "keeps original positions",
                        s->name);
    if (s->needs & ~NEEDS_SERVED) {
        char list[256] = "";
        for (size_t i = 0; i < sizeof needs_not_served / sizeof needs_not_served[0]; i++)
            if (s->needs & needs_not_served[i].bit)
                snprintf(list + strlen(list), sizeof list - strlen(list), " %s", needs_not_served[i].name);
        return clb_fail(err, COLIBRI_E_UNSUPPORTED, "KV strategy %s needs data that this version does not offer:%s",
                        s->name, *list ? list : " bits that are unknown here");
    }
    if ((s->needs & (COLIBRI_KV_NEED_K_POST_ROPE | COLIBRI_KV_NEED_V)) && !(s->flags & COLIBRI_KV_FLAG_PER_HEAD))
        return clb_fail(err, COLIBRI_E_PLUGIN,
                        "KV strategy %s: rows of K and V belong to one head, so it must declare PER_HEAD", s->name);
    return COLIBRI_OK;
}

static int create_strategy(clb_kv_seq *seq, const clb_kv_seq_options *o, clb_error *err)
{
    const struct colibri_kv_strategy *s = seq->strategy;
    const clb_kv_layout *l = &seq->cache->layout;
    char why[256] = "";
    double *defaults = NULL;
    if (!o->params && s->n_params) {
        defaults = malloc(s->n_params * sizeof defaults[0]);
        if (!defaults)
            return CLB_NOMEM(err, "parameters of a KV strategy");
        for (uint32_t i = 0; i < s->n_params; i++)
            defaults[i] = s->params[i].value;
    }
    const struct colibri_kv_config config = {
        .struct_size = sizeof config,
        .n_layers = l->n_layers,
        .n_kv_heads = l->n_kv_heads,
        .n_heads = l->n_heads,
        .head_dim = l->k_dim,
        .budget = seq->budget,
        .page_tokens = l->page_tokens,
        .evictable = l->evictable,
        .seed = o->seed,
        .params = defaults ? defaults : o->params,
        .host = o->host,
    };
    seq->self = s->create(&config, why, sizeof why);
    free(defaults);
    why[sizeof why - 1] = 0;
    if (!seq->self)
        return clb_fail(err, COLIBRI_E_USAGE, "KV strategy %s: %s", s->name, *why ? why : "refused without a reason");
    return COLIBRI_OK;
}

int clb_kv_seq_create(clb_kv_cache *cache, const clb_kv_seq_options *options, clb_kv_seq **out, clb_error *err)
{
    int rc = COLIBRI_OK;
    const struct colibri_kv_strategy *s = options->strategy;
    *out = NULL;
    CLB_TRY(check(s, err));
    if (options->ctx == 0)
        return clb_fail(err, COLIBRI_E_USAGE, "KV cache: a context of 0 positions");
    clb_kv_seq *seq = calloc(1, sizeof *seq);
    if (!seq)
        return CLB_NOMEM(err, "KV sequence");
    seq->cache = cache;
    seq->strategy = s;
    seq->misbehaved = options->misbehaved;
    seq->misbehaved_ctx = options->misbehaved_ctx;
    seq->ctx = options->ctx;
    seq->budget = options->budget ? options->budget : options->ctx;
    seq->evicts = !(s->flags & COLIBRI_KV_FLAG_KEEPS_ALL);
    seq->per_head = s->flags & COLIBRI_KV_FLAG_PER_HEAD;
    seq->heads = calloc(clb_kv_n_heads_all(seq), sizeof seq->heads[0]);
    seq->budgets = calloc(clb_kv_n_heads_all(seq), sizeof seq->budgets[0]);
    cache->n_seqs++;
    seq->number = cache->n_made++;
    if (!seq->heads || !seq->budgets) {
        rc = CLB_NOMEM(err, "KV sequence");
        goto done;
    }
    CLB_GO(create_strategy(seq, options, err));
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
    for (uint32_t i = 0; seq->heads && i < clb_kv_n_heads_all(seq); i++) {
        clb_kv_head *h = &seq->heads[i];
        clb_kv_head_shrink(seq, h, 0);
        free(h->k_pages);
        free(h->v_pages);
        free(h->positions);
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

/* Positions >= n leave every head. */
static void cut(clb_kv_seq *seq, uint32_t n)
{
    for (uint32_t i = 0; i < clb_kv_n_heads_all(seq); i++) {
        seq->heads[i].n = n;
        seq->heads[i].next_n = 0;
        clb_kv_head_shrink(seq, &seq->heads[i], n);
    }
    clb_kv_pool_trim(&seq->cache->pool);
    seq->position = n;
    seq->n_prompt = seq->n_prompt < n ? seq->n_prompt : n;
    seq->steps = 0;
    seq->pass_rows = 0;
}

void clb_kv_seq_reset(clb_kv_seq *seq)
{
    cut(seq, 0);
    seq->evicted = seq->selections = seq->bad_answers = 0;
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
    if (seq->evicts && ((s->needs & (COLIBRI_KV_NEED_PROB_COLSUM | COLIBRI_KV_NEED_PROB_MAX)) || s->on_append))
        return clb_fail(err, COLIBRI_E_UNSUPPORTED,
                        "KV cache: strategy %s remembers later tokens, so the first %u cannot be used again", s->name,
                        n_positions);
    cut(seq, n_positions);
    return COLIBRI_OK;
}

uint32_t clb_kv_seq_position(const clb_kv_seq *seq)
{
    return seq->position;
}

uint32_t clb_kv_seq_needs(const clb_kv_seq *seq)
{
    return seq->evicts ? seq->strategy->needs : 0;
}

void clb_kv_seq_stats(const clb_kv_seq *seq, clb_kv_stats *out)
{
    *out = (clb_kv_stats){
        .seen = seq->position,
        .kept_min = UINT64_MAX,
        .evicted_sum = seq->evicted,
        .selections = seq->selections,
        .bad_answers = seq->bad_answers,
        .bytes = seq->n_pages * seq->cache->pool.page_bytes,
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

uint32_t clb_kv_seq_number(const clb_kv_seq *seq)
{
    return seq->number;
}
