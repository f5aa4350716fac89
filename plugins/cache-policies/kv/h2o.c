/* h2o: half of the budget goes to the last positions, half to the "heavy hitters": those that have drawn the most
 * attention in total, each KV head deciding for itself.
 *
 * Source: Zhang et al., "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language Models",
 * arXiv:2306.14048. There one position leaves at each step; here the host asks when a page of them is over the budget.
 * Query heads that share a KV head share a cache, so their attention is added. */
#include <stdio.h>
#include <stdlib.h>

#include "colibri/kv_select.h"

enum { RECENT };

static const struct colibri_param params[] = {
    [RECENT] = {"recent", 0, 1, 0.5, 0, "share of the budget that goes to the last positions"},
};

struct h2o {
    double recent;
};

static void *create(const struct colibri_kv_config *config, char *why, size_t why_size)
{
    struct h2o *s = malloc(sizeof *s);
    if (!s) {
        snprintf(why, why_size, "out of memory");
        return NULL;
    }
    s->recent = colibri_kv_param(config, params, RECENT);
    return s;
}

/* The host keeps the sums. */
static void reset(void *self)
{
    (void)self;
}

static void score(void *self, const struct colibri_kv_view *view, float *out)
{
    const struct h2o *s = self;
    for (uint32_t i = 0; i < view->n; i++)
        out[i] = colibri_kv_number(view->prob_sum[i]);
    colibri_kv_mark_ends(view, colibri_kv_ends_of(view, 0, colibri_kv_share(view, 0, s->recent)), out);
}

static const struct colibri_kv_strategy strategy = {
    .struct_size = sizeof strategy,
    .flags = COLIBRI_KV_FLAG_PER_HEAD | COLIBRI_KV_FLAG_DETERMINISTIC,
    .needs = COLIBRI_KV_NEED_PROB_COLSUM,
    .triggers = COLIBRI_KV_AT_PREFILL_END | COLIBRI_KV_AT_CHUNK | COLIBRI_KV_AT_OVER_BUDGET,
    .positions = COLIBRI_KV_POS_ORIGINAL,
    .n_params = sizeof params / sizeof params[0],
    .name = "h2o",
    .summary = "keeps the tokens with the largest sums of attention and the last ones (lossy)",
    .source = "H2O, arXiv:2306.14048",
    .params = params,
    .create = create,
    .destroy = free,
    .reset = reset,
    .score = score,
};

static const void *get(const char *iface, uint32_t index)
{
    return index == 0 && !strcmp(iface, COLIBRI_IFACE_KV_STRATEGY) ? &strategy : NULL;
}

COLIBRI_PLUGIN_DEFINE(colibri_kv_strategy_h2o, NULL, get, .id = "colibri.kv-strategy.h2o",
                      .kinds = COLIBRI_KIND_KV_STRATEGY, .version = "1.0.0", .license = "MIT",
                      .summary = "KV strategy: keeps the heaviest hitters and the last tokens (lossy)");
