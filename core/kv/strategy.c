/* A sequence's strategy: is its table usable, can this host serve it, and its instance. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "kv/internal.h"

#define QUERIES (COLIBRI_KV_NEED_Q_LAST_W | COLIBRI_KV_NEED_Q_STATS | COLIBRI_KV_NEED_PROB_LAST_W)
#define NEEDS_SERVED                                                                                                   \
    (COLIBRI_KV_NEED_PROB_COLSUM | COLIBRI_KV_NEED_PROB_MAX | COLIBRI_KV_NEED_K_POST_ROPE |                            \
     COLIBRI_KV_NEED_K_PRE_ROPE | COLIBRI_KV_NEED_V | QUERIES | COLIBRI_KV_NEED_PAGE_MINMAX | COLIBRI_KV_NEED_FUTURE)

static const struct {
    uint32_t bit;
    const char *name;
} needs_not_served[] = {
    {COLIBRI_KV_NEED_WO_NORM, "WO_NORM"},
    {COLIBRI_KV_NEED_HIDDEN, "HIDDEN"},
};

static int check_table(const struct colibri_kv_strategy *s, clb_error *err)
{
    if (!COLIBRI_HAS(s, fork) || !s->name)
        return clb_fail(err, COLIBRI_E_PLUGIN, "KV strategy: its table is too short (struct_size %u) or has no name",
                        s->struct_size);
    if (!s->create || !s->destroy || !s->reset || (s->n_params && !s->params))
        return clb_fail(err, COLIBRI_E_PLUGIN, "KV strategy %s: create, destroy, reset or the parameter table is missing",
                        s->name);
    if (!(s->flags & COLIBRI_KV_FLAG_KEEPS_ALL) && !s->select && !s->score)
        return clb_fail(err, COLIBRI_E_PLUGIN, "KV strategy %s: it evicts, but has neither select nor score", s->name);
    if (CLB_KV_HAS(s, allot) && (s->select || !s->score))
        return clb_fail(err, COLIBRI_E_PLUGIN, "KV strategy %s: allot works on scores: it needs score, and no select",
                        s->name);
    if (s->needs & ~NEEDS_SERVED) {
        char list[256] = "";
        for (size_t i = 0; i < sizeof needs_not_served / sizeof needs_not_served[0]; i++)
            if (s->needs & needs_not_served[i].bit)
                snprintf(list + strlen(list), sizeof list - strlen(list), " %s", needs_not_served[i].name);
        return clb_fail(err, COLIBRI_E_UNSUPPORTED, "KV strategy %s needs data that this version does not offer:%s",
                        s->name, *list ? list : " bits that are unknown here");
    }
    return COLIBRI_OK;
}

/* The host calls the outermost strategy only: what a wrapper does not hand on never happens. */
static int check_handed_on(const struct colibri_kv_strategy *outer, const struct colibri_kv_strategy *inner,
                           clb_error *err)
{
    const char *const lost = inner->budget && !outer->budget         ? "budget"
                             : inner->on_append && !outer->on_append ? "on_append"
                             : inner->on_evict && !outer->on_evict   ? "on_evict"
                                                                     : NULL;
    return lost ? clb_fail(err, COLIBRI_E_PLUGIN,
                           "KV strategy %s: %s has %s, and a wrapper without it keeps it from working (kv_wrap.h has "
                           "colibri_kv_wrap_%s)",
                           outer->name, inner->name, lost, lost)
                : COLIBRI_OK;
}

static int check_chain(const clb_kv_seq *seq, const clb_kv_seq_options *o, clb_error *err)
{
    const struct colibri_kv_strategy *s = o->strategy;
    const clb_kv_traits *t = &seq->traits;
    for (const struct colibri_kv_child *c = o->child;; c = c->child) {
        CLB_TRY(check_table(s, err));
        if (!c != !(s->flags & COLIBRI_KV_FLAG_WRAPPER))
            return clb_fail(err, COLIBRI_E_USAGE,
                            c ? "KV strategy %s is no wrapper: it takes no other strategy behind it"
                              : "KV strategy %s is a wrapper: name the strategy that it wraps, as in %s/h2o",
                            s->name, s->name);
        if (!c)
            break;
        CLB_TRY(check_handed_on(s, c->strategy, err));
        s = c->strategy;
    }
    const struct colibri_kv_strategy *const outer = o->strategy;
    if (CLB_KV_HAS(outer, pick_pages)) {
        if (t->evicts)
            return clb_fail(err, COLIBRI_E_PLUGIN, "KV strategy %s: it picks pages, so it must declare KEEPS_ALL",
                            outer->name);
        if (t->positions == COLIBRI_KV_POS_COMPACT)
            return clb_fail(err, COLIBRI_E_USAGE,
                            "KV strategy %s drops nothing, so its positions cannot be compacted (kv-positions)",
                            outer->name);
    } else if (t->needs & COLIBRI_KV_NEED_PAGE_MINMAX) {
        return clb_fail(err, COLIBRI_E_PLUGIN, "KV strategy %s: PAGE_MINMAX is for strategies with pick_pages",
                        outer->name);
    }
    if (!t->evicts)
        return COLIBRI_OK;
    if (!t->triggers || ((t->triggers & COLIBRI_KV_AT_STEPS) && !t->every_steps))
        return clb_fail(err, COLIBRI_E_PLUGIN, "KV strategy %s: it evicts, but %s", outer->name,
                        t->triggers ? "every_steps is 0" : "declares no trigger");
    if ((t->needs & (COLIBRI_KV_NEED_K_POST_ROPE | COLIBRI_KV_NEED_K_PRE_ROPE | COLIBRI_KV_NEED_V)) && !t->per_head)
        return clb_fail(err, COLIBRI_E_PLUGIN,
                        "KV strategy %s: rows of K and V belong to one head, so it must declare PER_HEAD", outer->name);
    if ((CLB_KV_HAS(outer, allot) || CLB_KV_HAS(outer, merge)) && !t->per_head)
        return clb_fail(err, COLIBRI_E_PLUGIN, "KV strategy %s: allot and merge work on heads, so it must declare PER_HEAD",
                        outer->name);
    if ((t->needs & QUERIES) && !t->window_w)
        return clb_fail(err, COLIBRI_E_PLUGIN, "KV strategy %s: it wants the last queries, but window_w is 0",
                        outer->name);
    if ((t->needs & COLIBRI_KV_NEED_FUTURE) && !o->future)
        return clb_fail(err, COLIBRI_E_UNSUPPORTED,
                        "KV strategy %s needs to know the future: it works in colibri evaluate and colibri compare "
                        "--strategies only",
                        outer->name);
    return COLIBRI_OK;
}

/* ---- its instance ------------------------------------------------------------------------------------------ */

int clb_kv_probe_open(const clb_kv_layout *l, const clb_kv_seq_options *o, uint32_t max_positions, clb_kv_probe *out,
                      clb_error *err)
{
    const struct colibri_kv_strategy *s = o->strategy;
    const clb_kv_traits traits = clb_kv_traits_of(s, o->child, o->positions);
    *out = (clb_kv_probe){.config = {
                              .struct_size = sizeof out->config,
                              .n_layers = l->n_layers,
                              .n_kv_heads = l->n_kv_heads,
                              .n_heads = l->n_heads,
                              .head_dim = l->k_dim,
                              .budget = o->budget ? o->budget : o->ctx,
                              .page_tokens = l->page_tokens,
                              .evictable = l->evictable,
                              .seed = o->seed,
                              .params = o->params,
                              .host = o->host,
                              .v_dim = l->v_dim,
                              .max_positions = max_positions,
                              .n_rot = l->n_rot,
                              .neox = l->rope_neox,
                              .inv_freq = l->inv_freq,
                              .attention_scale = l->attention_scale,
                              .positions = (uint32_t)traits.positions,
                              .window_w = traits.window_w,
                              .child = o->child,
                          }};
    if (!o->params && s->n_params) {
        out->defaults = malloc(s->n_params * sizeof out->defaults[0]);
        for (uint32_t i = 0; out->defaults && i < s->n_params; i++)
            out->defaults[i] = s->params[i].value;
        out->config.params = out->defaults;
    }
    if (l->n_rot && !l->inv_freq) /* nothing is rotated yet */
        out->config.inv_freq = out->no_freq = calloc(l->n_rot, sizeof out->no_freq[0]);
    if ((!out->config.params && s->n_params) || (l->n_rot && !out->config.inv_freq)) {
        clb_kv_probe_close(out);
        return CLB_NOMEM(err, "parameters of a KV strategy");
    }
    return COLIBRI_OK;
}

void clb_kv_probe_close(clb_kv_probe *p)
{
    free(p->defaults);
    free(p->no_freq);
    *p = (clb_kv_probe){0};
}

static void *make(const struct colibri_kv_strategy *s, const struct colibri_kv_config *config, clb_error *err)
{
    char why[256] = "";
    void *const self = s->create(config, why, sizeof why);
    why[sizeof why - 1] = 0;
    if (!self)
        clb_fail(err, COLIBRI_E_USAGE, "KV strategy %s: %s", s->name, *why ? why : "refused without a reason");
    return self;
}

int clb_kv_probe_budgets(const clb_kv_layout *l, const clb_kv_seq_options *o, uint32_t max_positions, uint32_t *out,
                         clb_error *err)
{
    const struct colibri_kv_strategy *s = o->strategy;
    const bool per_head = clb_kv_traits_of(s, o->child, o->positions).per_head;
    clb_kv_probe p;
    CLB_TRY(clb_kv_probe_open(l, o, max_positions, &p, err));
    void *const self = make(s, &p.config, err);
    const uint32_t budget = p.config.budget;
    const uint64_t seen[] = {0, budget, 2 * (uint64_t)budget, o->ctx, UINT32_MAX}, began = clb_now_ns();
    bool slow = false;
    *out = budget;
    for (uint32_t layer = 0; self && layer < l->n_layers && !slow; layer++) {
        for (uint32_t head = 0; (!l->evictable || l->evictable[layer]) && head < (per_head ? l->n_kv_heads : 1); head++)
            for (size_t i = 0; i < sizeof seen / sizeof *seen; i++) {
                const uint32_t b = s->budget(self, layer, head, seen[i]);
                *out = b > *out ? b : *out;
            }
        slow = clb_now_ns() - began > CLB_KV_CALL_MOST_NS;
    }
    if (self)
        s->destroy(self);
    clb_kv_probe_close(&p);
    if (slow)
        return clb_fail(err, COLIBRI_E_PLUGIN, "KV strategy %s took more than two seconds to say its budgets", s->name);
    return self ? COLIBRI_OK : COLIBRI_E_USAGE;
}

int clb_kv_instance_create(clb_kv_seq *seq, const clb_kv_seq_options *o, clb_error *err)
{
    clb_kv_seq_options now = *o;
    clb_kv_probe p;
    now.ctx = seq->ctx;
    now.budget = seq->budget;
    CLB_TRY(clb_kv_probe_open(&seq->cache->layout, &now, seq->demand.longest, &p, err));
    seq->self = make(o->strategy, &p.config, err);
    clb_kv_probe_close(&p);
    return seq->self ? COLIBRI_OK : COLIBRI_E_USAGE;
}

int clb_kv_strategy_create(clb_kv_seq *seq, const clb_kv_seq_options *o, clb_error *err)
{
    clb_kv_seq_options now = *o;
    now.ctx = seq->ctx;
    now.budget = seq->budget;
    CLB_TRY(check_chain(seq, o, err));
    CLB_TRY(clb_kv_demand_make(&seq->cache->layout, &now, &seq->demand, err));
    return clb_kv_instance_create(seq, o, err);
}
