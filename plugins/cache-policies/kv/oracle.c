/* oracle: a control. The positions stay that later queries will look at the most, which is known only where the same
 * text is evaluated a second time. No method can know this; how far one is from it tells what is left to gain.
 *
 * Source: none needed; the bound in the sense of Belady's algorithm for caches, though not a strict one: attention is
 * that of the undisturbed run, and a greedy choice by sums is not the best set for the result. */
#include "colibri/kv_select.h"

/* Stateless; the host wants a non-NULL instance. */
static const char instance[] = "oracle";

static void *create(const struct colibri_kv_config *config, char *why, size_t why_size)
{
    (void)config;
    (void)why;
    (void)why_size;
    return (void *)(uintptr_t)instance;
}

static void destroy(void *self)
{
    (void)self;
}

static void score(void *self, const struct colibri_kv_view *view, float *out)
{
    (void)self;
    /* where the host lost sight of the future, the last positions stay, as ties do */
    for (uint32_t i = 0; i < view->n; i++)
        out[i] = view->prob_future ? colibri_kv_number(view->prob_future[i]) : 0.0f;
    colibri_kv_mark_ends(view, colibri_kv_ends_of(view, 0, 1), out);
}

static const struct colibri_kv_strategy strategy = {
    .struct_size = sizeof strategy,
    .flags = COLIBRI_KV_FLAG_PER_HEAD | COLIBRI_KV_FLAG_DETERMINISTIC,
    .needs = COLIBRI_KV_NEED_FUTURE,
    .triggers = COLIBRI_KV_AT_PREFILL_END | COLIBRI_KV_AT_CHUNK | COLIBRI_KV_AT_OVER_BUDGET,
    .positions = COLIBRI_KV_POS_ORIGINAL,
    .name = "oracle",
    .summary = "keeps the tokens that later ones will look at the most: a control for comparisons (lossy)",
    .source = "the bound of Belady, applied to attention",
    .create = create,
    .destroy = destroy,
    .reset = destroy,
    .score = score,
};

static const void *get(const char *iface, uint32_t index)
{
    return index == 0 && !strcmp(iface, COLIBRI_IFACE_KV_STRATEGY) ? &strategy : NULL;
}

COLIBRI_PLUGIN_DEFINE(colibri_kv_strategy_oracle, NULL, get, .id = "colibri.kv-strategy.oracle",
                      .kinds = COLIBRI_KIND_KV_STRATEGY, .version = "1.0.0", .license = "MIT",
                      .summary = "KV strategy: keeps what later queries will look at (a control, lossy)");
