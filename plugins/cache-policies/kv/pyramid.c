/* pyramid: a wrapper. Early layers get more of the budget than late ones, in equal steps; what stays in a layer is the
 * wrapped strategy's choice: `--kv-strategy pyramid/snapkv`.
 *
 * Source: Cai et al., "PyramidKV: Dynamic KV Cache Compression based on Pyramidal Information Funneling",
 * arXiv:2406.02069. Of the budget less the observation window, the last layer gets 1 / beta and the first one so much
 * that the mean is the budget; if that is more than the text has, the first gets the text and the others the rest.
 * Defaults of its code: beta 20, window 64. The paper wraps SnapKV alone. */
#include "colibri/kv_wrap.h"

enum { BETA, WINDOW, N_PARAMS };

static const struct colibri_param params[] = {
    [BETA] = {"beta", 1, 1000, 20, 0, "the last layer's share is 1 / beta of the mean; 1: all layers alike"},
    [WINDOW] = {"window", 0, 65536, 64, 1, "positions that every layer gets besides, at most half of the budget"},
};

struct pyramid {
    struct colibri_kv_wrap wrap;
    double beta;
    uint32_t window, n_layers; /* n_layers: that evict */
    float *scratch;            /* [max_positions] */
    uint32_t *rank;            /* [all layers]: among those */
};

static void destroy(void *self)
{
    struct pyramid *s = self;
    colibri_kv_wrap_close(&s->wrap);
    free(s->scratch);
    free(s->rank);
    free(s);
}

static void *create(const struct colibri_kv_config *config, char *why, size_t why_size)
{
    struct pyramid *s = calloc(1, sizeof *s);
    const uint32_t window = (uint32_t)colibri_kv_param(config, params, WINDOW), half = config->budget / 2;
    if (s) {
        s->beta = colibri_kv_param(config, params, BETA);
        s->window = window < half ? window : half;
        s->scratch = malloc(((size_t)config->max_positions + 1) * sizeof s->scratch[0]);
        s->rank = malloc(((size_t)config->n_layers + 1) * sizeof s->rank[0]);
    }
    if (!s || !s->scratch || !s->rank) {
        snprintf(why, why_size, "out of memory");
        goto failed;
    }
    for (uint32_t layer = 0; layer < config->n_layers; layer++) {
        s->rank[layer] = s->n_layers;
        s->n_layers += !config->evictable || config->evictable[layer];
    }
    /* the child is told the most that a layer gets: a window that it derives from the budget must not be shorter */
    const double share = config->budget - s->window;
    const uint32_t most = s->window + (uint32_t)(2 * share - share / s->beta);
    if (!colibri_kv_wrap_open(&s->wrap, config, N_PARAMS, most, 0, why, why_size))
        return s;
failed:
    if (s) {
        free(s->scratch);
        free(s->rank);
    }
    free(s);
    return NULL;
}

static uint32_t budget(void *self, uint32_t layer, uint32_t kv_head, uint64_t n_seen)
{
    const struct pyramid *s = self;
    const double share = s->wrap.budget - s->window;
    const double seen = n_seen > s->window ? (double)(n_seen - s->window) : 0;
    double least = share / s->beta, most = 2 * share - least;
    (void)kv_head;
    if (most > seen) {
        most = seen;
        least = 2 * share - most;
    }
    if (s->n_layers < 2 || least > most) /* one layer, or nothing is over the budget yet */
        return s->wrap.budget;
    return s->window + (uint32_t)(most - s->rank[layer] * (most - least) / (s->n_layers - 1));
}

static int select_positions(void *self, const struct colibri_kv_view *view, uint8_t *keep)
{
    struct pyramid *s = self;
    return view->n <= s->wrap.config.max_positions ? colibri_kv_wrap_select(self, view, s->scratch, keep)
                                                   : COLIBRI_E_INTERNAL;
}

static void *fork_state(void *self)
{
    return colibri_kv_wrap_fork(self, create, destroy);
}

static uint64_t state_bytes(const struct colibri_kv_config *config)
{
    return sizeof(struct pyramid) + ((uint64_t)config->max_positions + config->n_layers + 2) * sizeof(float) +
           colibri_kv_wrap_bytes(config, N_PARAMS);
}

static const struct colibri_kv_strategy strategy = {
    .struct_size = sizeof strategy,
    .flags = COLIBRI_KV_FLAG_WRAPPER | COLIBRI_KV_FLAG_DETERMINISTIC,
    .positions = COLIBRI_KV_POS_ORIGINAL,
    .n_params = sizeof params / sizeof params[0],
    .name = "pyramid",
    .summary = "gives early layers more of the budget than late ones (a wrapper: pyramid/NAME, lossy)",
    .source = "PyramidKV, arXiv:2406.02069",
    .params = params,
    .create = create,
    .destroy = destroy,
    .reset = colibri_kv_wrap_reset,
    .budget = budget,
    .select = select_positions,
    .score = colibri_kv_wrap_score,
    .on_append = colibri_kv_wrap_on_append,
    .on_evict = colibri_kv_wrap_on_evict,
    .fork = fork_state,
    .state_bytes = state_bytes,
};

static const void *get(const char *iface, uint32_t index)
{
    return index == 0 && !strcmp(iface, COLIBRI_IFACE_KV_STRATEGY) ? &strategy : NULL;
}

COLIBRI_PLUGIN_DEFINE(colibri_kv_strategy_pyramid, NULL, get, .id = "colibri.kv-strategy.pyramid",
                      .kinds = COLIBRI_KIND_KV_STRATEGY, .version = "1.0.0", .license = "MIT",
                      .summary = "KV strategy: wrapper: more of the budget for early layers");
