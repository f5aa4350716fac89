/* important-tokens: the system prompt, the first few positions and the recent ones stay, and between them those that
 * have drawn the most attention so far, each KV head deciding for itself.
 *
 * Source: a hybrid of H2O (arXiv:2306.14048: the rank by attention), StreamingLLM (arXiv:2309.17453: the sinks) and the
 * plain rule that instructions outlive the talk. Sums of attention favour old positions, which more queries have seen,
 * so by default the rank is attention per query; `mean` = 0 ranks by the sum, as h2o does. The default of `recent` is
 * measured: docs/writing-a-kv-strategy.md.
 *
 * The host protects a system prompt that it knows of, if it is told to (kv-protect); `system` does it here, up to a
 * share of the budget, so that a long one cannot crowd out the conversation. */
#include <stdio.h>
#include <stdlib.h>

#include "colibri/kv_select.h"

enum { SINKS, RECENT, MEAN, SYSTEM };

static const struct colibri_param params[] = {
    [SINKS] = {"sinks", 0, 65536, 4, 1, "first positions that always stay"},
    [RECENT] = {"recent", 0, 1, 0.75, 0, "share of the rest of the budget that goes to the last positions"},
    [MEAN] = {"mean", 0, 1, 1, 1, "1: rank by attention per query; 0: by the sum over all queries"},
    [SYSTEM] = {"system", 0, 1, 0.5, 0, "share of the budget that the system prompt may take to stay as a whole"},
};

struct important {
    uint32_t sinks;
    double recent, system;
    int mean;
};

static void *create(const struct colibri_kv_config *config, char *why, size_t why_size)
{
    const struct important s = {(uint32_t)colibri_kv_param(config, params, SINKS),
                                colibri_kv_param(config, params, RECENT), colibri_kv_param(config, params, SYSTEM),
                                colibri_kv_param(config, params, MEAN) != 0};
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
    const uint32_t n_system = COLIBRI_HAS(view, n_system) ? view->n_system : 0;
    const uint32_t most = (uint32_t)(s->system * view->n_keep);
    const uint32_t system = n_system < most ? n_system : most; /* of a longer one, the beginning */
    const uint32_t first = s->sinks > system ? s->sinks : system;
    const struct colibri_kv_ends ends = colibri_kv_ends_of(view, first, colibri_kv_share(view, first, s->recent));
    for (uint32_t i = 0; i < view->n; i++) {
        /* the newest has been seen by its own query alone */
        const float queries = s->mean ? (float)(view->next_position - view->positions[i]) : 1.0f;
        out[i] = colibri_kv_number(view->prob_sum[i]) / queries;
    }
    colibri_kv_mark_ends(view, ends, out);
}

static const struct colibri_kv_strategy strategy = {
    .struct_size = sizeof strategy,
    .flags = COLIBRI_KV_FLAG_PER_HEAD | COLIBRI_KV_FLAG_DETERMINISTIC,
    .needs = COLIBRI_KV_NEED_PROB_COLSUM,
    .triggers = COLIBRI_KV_AT_PREFILL_END | COLIBRI_KV_AT_CHUNK | COLIBRI_KV_AT_OVER_BUDGET,
    .positions = COLIBRI_KV_POS_ORIGINAL,
    .n_params = sizeof params / sizeof params[0],
    .name = "important-tokens",
    .summary = "keeps the system prompt, the first and last tokens, and those that drew the most attention (lossy)",
    .source = "H2O, arXiv:2306.14048; StreamingLLM, arXiv:2309.17453",
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
