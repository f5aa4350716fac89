/* cam: a wrapper. Before a position leaves, its value goes, in part, to the next one that stays: `--kv-strategy
 * cam/h2o`.
 *
 * Source: Zhang et al., "CaM: Cache Merging for Memory-efficient LLMs Inference", ICML 2024. There the value of what
 * leaves is added to each of the next m that stay, divided by m, with the probability (A_i / mean A of those m, at most
 * 1), A being the attention that a position drew: on average a share of A_i / sum A, so that what later queries draw
 * from there is what they would have drawn from position i. Here m = 1, and the share itself is added instead of a
 * draw, so that the same text gives the same result.
 *
 * There one position leaves at a time; here a page of them does, and what several leave to one target, and that one to
 * the next, would pile up: with full shares perplexity grew without bound. So A is attention per query, not the sum,
 * which favours the old that leave over the young that stay, and a target takes on `most` in all. */
#include "colibri/kv_wrap.h"

enum { MOST, N_PARAMS };

static const struct colibri_param params[] = {
    [MOST] = {"most", 0, 1, 0.5, 0, "of dropped values, what one that stays takes on at most, in all"},
};

struct cam {
    struct colibri_kv_wrap wrap;
    float most;
    float *scratch; /* [max_positions] */
};

static void destroy(void *self)
{
    struct cam *s = self;
    colibri_kv_wrap_close(&s->wrap);
    free(s->scratch);
    free(s);
}

static void *create(const struct colibri_kv_config *config, char *why, size_t why_size)
{
    struct cam *s = calloc(1, sizeof *s);
    float *const scratch = malloc(((size_t)config->max_positions + 1) * sizeof scratch[0]);
    if (!s || !scratch)
        snprintf(why, why_size, "out of memory");
    else if (!colibri_kv_wrap_open(&s->wrap, config, N_PARAMS, config->budget, 0, why, why_size)) {
        s->most = (float)colibri_kv_param(config, params, MOST);
        s->scratch = scratch;
        return s;
    }
    free(scratch);
    free(s);
    return NULL;
}

static int select_positions(void *self, const struct colibri_kv_view *view, uint8_t *keep)
{
    struct cam *s = self;
    return view->n <= s->wrap.config.max_positions ? colibri_kv_wrap_select(self, view, s->scratch, keep)
                                                   : COLIBRI_E_INTERNAL;
}

/* Attention per query that could see it. */
static float rate(const struct colibri_kv_view *view, uint32_t i)
{
    return view->prob_sum[i] / (float)(view->next_position - view->positions[i]);
}

/* What is dropped between two kept positions goes to the later one, which gets `most` in all. */
static int merge(void *self, const struct colibri_kv_view *view, const uint8_t *keep, uint32_t *into, float *weight)
{
    const struct cam *s = self;
    uint32_t from = 0;
    for (uint32_t target = 0; target < view->n; target++) {
        if (!keep[target])
            continue;
        const float drawn = rate(view, target);
        float sum = 0;
        for (uint32_t i = from; i < target; i++) {
            const float share = rate(view, i) / drawn;
            if (!(drawn >= 0) || !(share > 0)) /* nobody looked at it, or not a number */
                continue;
            into[i] = target;
            weight[i] = share < 1 ? share : 1;
            sum += weight[i];
        }
        for (uint32_t i = from; sum > s->most && i < target; i++)
            weight[i] *= s->most / sum;
        from = target + 1;
    }
    return COLIBRI_OK;
}

static void *fork_state(void *self)
{
    return colibri_kv_wrap_fork(self, create, destroy);
}

static uint64_t state_bytes(const struct colibri_kv_config *config)
{
    return sizeof(struct cam) + ((uint64_t)config->max_positions + 1) * sizeof(float) +
           colibri_kv_wrap_bytes(config, N_PARAMS);
}

static const struct colibri_kv_strategy strategy = {
    .struct_size = sizeof strategy,
    .flags = COLIBRI_KV_FLAG_WRAPPER | COLIBRI_KV_FLAG_PER_HEAD | COLIBRI_KV_FLAG_DETERMINISTIC,
    .needs = COLIBRI_KV_NEED_PROB_COLSUM,
    .positions = COLIBRI_KV_POS_ORIGINAL,
    .n_params = sizeof params / sizeof params[0],
    .name = "cam",
    .summary = "merges the values of dropped tokens into kept ones (a wrapper: cam/NAME, lossy)",
    .source = "CaM, ICML 2024",
    .params = params,
    .create = create,
    .destroy = destroy,
    .reset = colibri_kv_wrap_reset,
    .budget = colibri_kv_wrap_budget,
    .select = select_positions,
    .on_append = colibri_kv_wrap_on_append,
    .on_evict = colibri_kv_wrap_on_evict,
    .fork = fork_state,
    .merge = merge,
    .state_bytes = state_bytes,
};

static const void *get(const char *iface, uint32_t index)
{
    return index == 0 && !strcmp(iface, COLIBRI_IFACE_KV_STRATEGY) ? &strategy : NULL;
}

COLIBRI_PLUGIN_DEFINE(colibri_kv_strategy_cam, NULL, get, .id = "colibri.kv-strategy.cam",
                      .kinds = COLIBRI_KIND_KV_STRATEGY, .version = "1.0.0", .license = "MIT",
                      .summary = "KV strategy: wrapper: merges the values of what leaves into what stays");
