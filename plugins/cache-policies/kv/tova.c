/* tova: the positions that the newest query looks at the most stay; all heads of a layer decide together.
 *
 * Source: Oren et al., "Transformers are Multi-State RNNs" (Token Omission Via Attention), arXiv:2401.06104: the
 * attention of the last query, averaged over the heads of a layer; no sinks and no window. There one position leaves at
 * each step, here the lowest of a page of them when they are over the budget, ranked by one query. The newest position
 * stays in any case, as it nearly always would. */
#include "colibri/kv_select.h"

/* Stateless; the host wants a non-NULL instance. */
static const char instance[] = "tova";

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
    for (uint32_t i = 0; i < view->n; i++)
        out[i] = colibri_kv_number(view->prob_last[i]);
    colibri_kv_mark_ends(view, colibri_kv_ends_of(view, 0, 1), out);
}

static const struct colibri_kv_strategy strategy = {
    .struct_size = sizeof strategy,
    .flags = COLIBRI_KV_FLAG_DETERMINISTIC,
    .needs = COLIBRI_KV_NEED_PROB_LAST_W,
    .triggers = COLIBRI_KV_AT_PREFILL_END | COLIBRI_KV_AT_CHUNK | COLIBRI_KV_AT_OVER_BUDGET,
    .window_w = 1,
    .positions = COLIBRI_KV_POS_ORIGINAL,
    .name = "tova",
    .summary = "keeps the tokens that the newest one looks at the most (lossy)",
    .source = "TOVA, arXiv:2401.06104",
    .create = create,
    .destroy = destroy,
    .reset = destroy,
    .score = score,
};

static const void *get(const char *iface, uint32_t index)
{
    return index == 0 && !strcmp(iface, COLIBRI_IFACE_KV_STRATEGY) ? &strategy : NULL;
}

COLIBRI_PLUGIN_DEFINE(colibri_kv_strategy_tova, NULL, get, .id = "colibri.kv-strategy.tova",
                      .kinds = COLIBRI_KIND_KV_STRATEGY, .version = "1.0.0", .license = "MIT",
                      .summary = "KV strategy: keeps what the newest query looks at (lossy)");
