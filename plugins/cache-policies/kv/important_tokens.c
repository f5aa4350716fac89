/* important-tokens: besides the first few positions and the recent ones, those stay that have drawn the most attention so
 * far, each KV head deciding for itself.
 *
 * Source: Zhang et al., "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language Models",
 * arXiv:2306.14048; sinks as in StreamingLLM, arXiv:2309.17453. H2O itself is `recent` = 0.5 and `mean` = 0: it halves the
 * budget between heavy hitters and recent tokens, and ranks by the sum of attention. Sums favour old positions, which
 * more queries have seen, so by default the rank is attention per query. The defaults are measured:
 * docs/writing-a-kv-strategy.md. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "colibri/kv_strategy.h"

enum { SINKS, RECENT, MEAN };

static const struct colibri_param params[] = {
    [SINKS] = {"sinks", 0, 65536, 4, 1, "first positions that always stay"},
    [RECENT] = {"recent", 0, 1, 0.75, 0, "share of the rest of the budget that goes to the last positions"},
    [MEAN] = {"mean", 0, 1, 1, 1, "1: rank by attention per query; 0: by the sum over all queries"},
};

struct important {
    uint32_t sinks;
    double recent;
    int mean;
};

static void *create(const struct colibri_kv_config *config, char *why, size_t why_size)
{
    struct important s = {(uint32_t)params[SINKS].value, params[RECENT].value, params[MEAN].value != 0};
    if (config->params)
        s = (struct important){(uint32_t)config->params[SINKS], config->params[RECENT], config->params[MEAN] != 0};
    if (s.sinks >= config->budget) {
        snprintf(why, why_size, "%u sinks leave nothing of the budget of %u positions; raise kv-budget or lower sinks",
                 s.sinks, config->budget);
        return NULL;
    }
    struct important *self = malloc(sizeof *self);
    if (!self) {
        snprintf(why, why_size, "out of memory");
        return NULL;
    }
    *self = s;
    return self;
}

/* The host keeps the sums; nothing is remembered but the parameters. */
static void reset(void *self)
{
    (void)self;
}

static void score(void *self, const struct colibri_kv_view *view, float *out)
{
    const struct important *s = self;
    const uint32_t rest = view->n_keep > s->sinks ? view->n_keep - s->sinks : 0;
    const uint32_t share = (uint32_t)(s->recent * rest);
    const uint32_t recent = share ? share : 1; /* the newest has been seen by no later query yet */
    for (uint32_t i = 0; i < view->n; i++) {
        const float sum = view->prob_sum[i];
        const float queries = s->mean ? (float)(view->next_position - view->positions[i]) : 1.0f;
        if (view->positions[i] < s->sinks || view->n - i <= recent)
            out[i] = INFINITY;
        else
            out[i] = sum == sum ? sum / queries : -INFINITY; /* attention that was not a number earns nothing */
    }
}

static const struct colibri_kv_strategy strategy = {
    .struct_size = sizeof strategy,
    .flags = COLIBRI_KV_FLAG_PER_HEAD | COLIBRI_KV_FLAG_DETERMINISTIC,
    .needs = COLIBRI_KV_NEED_PROB_COLSUM,
    .triggers = COLIBRI_KV_AT_PREFILL_END | COLIBRI_KV_AT_CHUNK | COLIBRI_KV_AT_OVER_BUDGET,
    .positions = COLIBRI_KV_POS_ORIGINAL,
    .n_params = sizeof params / sizeof params[0],
    .name = "important-tokens",
    .summary = "keeps the tokens that drew the most attention, the first and the last ones (lossy)",
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

COLIBRI_PLUGIN_DEFINE(colibri_kv_strategy_important_tokens, NULL, get, .id = "colibri.kv-strategy.important-tokens",
                      .kinds = COLIBRI_KIND_KV_STRATEGY, .version = "1.0.0", .license = "MIT",
                      .summary = "KV strategy: keeps the tokens that drew the most attention (lossy)");
