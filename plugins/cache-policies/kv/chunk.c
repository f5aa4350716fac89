/* chunk: a wrapper. Neighbours stay or go together: each run of `length` positions gets the mean of the scores that the
 * wrapped strategy gives to it: `--kv-strategy chunk/snapkv`.
 *
 * Source: Liu et al., "ChunkKV: Semantic-Preserving KV Cache Compression for Efficient Long-Context LLM Inference",
 * arXiv:2502.00299: chunks of 10, ranked by observed attention. Positions of the text are counted, not what is left of
 * it, so a chunk stays the same chunk. What the wrapped strategy keeps in any case stays by itself; the chunk at the
 * edge of the budget is cut, its end stays, so that the budget is used. Each KV head decides for itself (the authors:
 * all heads together), and the choice of one layer is not reused for the next. */
#include "colibri/kv_wrap.h"

enum { LENGTH, N_PARAMS };

static const struct colibri_param params[] = {
    [LENGTH] = {"length", 1, 65536, 10, 1, "positions of a chunk"},
};

struct chunk {
    struct colibri_kv_wrap wrap;
    uint32_t length;
};

static void destroy(void *self)
{
    struct chunk *s = self;
    colibri_kv_wrap_close(&s->wrap);
    free(s);
}

static void *create(const struct colibri_kv_config *config, char *why, size_t why_size)
{
    struct chunk *s = calloc(1, sizeof *s);
    if (!s)
        snprintf(why, why_size, "out of memory");
    else if (!colibri_kv_wrap_open(&s->wrap, config, N_PARAMS, config->budget, 1, why, why_size)) {
        s->length = (uint32_t)colibri_kv_param(config, params, LENGTH);
        return s;
    }
    free(s);
    return NULL;
}

static void score(void *self, const struct colibri_kv_view *view, float *out)
{
    const struct chunk *s = self;
    colibri_kv_wrap_score(self, view, out);
    for (uint32_t from = 0, to; from < view->n; from = to) {
        double sum = 0;
        uint32_t n = 0;
        for (to = from; to < view->n && view->positions[to] / s->length == view->positions[from] / s->length; to++)
            if (out[to] != INFINITY) { /* one that stays in any case does not carry its neighbours */
                sum += out[to];
                n++;
            }
        const float mean = n ? (float)(sum / n) : 0.0f;
        for (uint32_t i = from; i < to; i++)
            if (out[i] != INFINITY)
                out[i] = mean;
    }
}

static void *fork_state(void *self)
{
    return colibri_kv_wrap_fork(self, create, destroy);
}

static const struct colibri_kv_strategy strategy = {
    .struct_size = sizeof strategy,
    .flags = COLIBRI_KV_FLAG_WRAPPER | COLIBRI_KV_FLAG_DETERMINISTIC,
    .positions = COLIBRI_KV_POS_ORIGINAL,
    .n_params = sizeof params / sizeof params[0],
    .name = "chunk",
    .summary = "lets neighbouring tokens stay or go together (a wrapper: chunk/NAME, lossy)",
    .source = "ChunkKV, arXiv:2502.00299",
    .params = params,
    .create = create,
    .destroy = destroy,
    .reset = colibri_kv_wrap_reset,
    .budget = colibri_kv_wrap_budget,
    .score = score,
    .on_append = colibri_kv_wrap_on_append,
    .on_evict = colibri_kv_wrap_on_evict,
    .fork = fork_state,
};

static const void *get(const char *iface, uint32_t index)
{
    return index == 0 && !strcmp(iface, COLIBRI_IFACE_KV_STRATEGY) ? &strategy : NULL;
}

COLIBRI_PLUGIN_DEFINE(colibri_kv_strategy_chunk, NULL, get, .id = "colibri.kv-strategy.chunk",
                      .kinds = COLIBRI_KIND_KV_STRATEGY, .version = "1.0.0", .license = "MIT",
                      .summary = "KV strategy: wrapper: neighbours stay or go together");
