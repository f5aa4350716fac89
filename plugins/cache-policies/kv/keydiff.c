/* keydiff: keys that differ the most from the mean direction of all keys stay.
 *
 * Source: Park et al., "KeyDiff: Key Similarity-Based KV Cache Eviction for Long-Context LLM Inference in
 * Resource-Constrained Environments", arXiv:2504.15364: the anchor is the mean of the normalised keys, and the rank the
 * cosine between key and anchor, lowest first to stay; no window, no attention. The paper reads prompts in blocks of
 * 128 and evicts after each: that is what the host's chunks do here (`batch` = 128), or the wrapper `block`. */
#include <stdio.h>
#include <stdlib.h>

#include "colibri/kv_select.h"

struct keydiff {
    uint32_t dim;
    float *key, *anchor; /* [dim] */
};

static void *create(const struct colibri_kv_config *config, char *why, size_t why_size)
{
    const size_t dim = config->head_dim;
    struct keydiff *s = malloc(sizeof *s + 2 * dim * sizeof(float));
    if (!s) {
        snprintf(why, why_size, "out of memory");
        return NULL;
    }
    float *const scratch = (float *)(s + 1);
    *s = (struct keydiff){config->head_dim, scratch, scratch + dim};
    return s;
}

static void reset(void *self)
{
    (void)self;
}

static float length(const float *x, uint32_t dim)
{
    float sum = 0;
    for (uint32_t d = 0; d < dim; d++)
        sum += x[d] * x[d];
    return sqrtf(sum);
}

static void score(void *self, const struct colibri_kv_view *view, float *out)
{
    struct keydiff *s = self;
    for (uint32_t d = 0; d < s->dim; d++)
        s->anchor[d] = 0;
    for (uint32_t i = 0; i < view->n; i++) {
        view->read_k(view, i, s->key);
        const float norm = length(s->key, s->dim);
        out[i] = norm; /* for the second round */
        if (norm > 0 && norm < INFINITY)
            for (uint32_t d = 0; d < s->dim; d++)
                s->anchor[d] += s->key[d] / norm;
    }
    /* a sum points where the mean does, and the cosine knows no lengths */
    const float anchor = length(s->anchor, s->dim);
    for (uint32_t i = 0; i < view->n; i++) {
        const float norms = out[i] * anchor;
        float dot = 0;
        view->read_k(view, i, s->key);
        for (uint32_t d = 0; d < s->dim; d++)
            dot += s->key[d] * s->anchor[d];
        out[i] = norms > 0 ? colibri_kv_number(-dot / norms) : norms == 0 ? 0.0f : -INFINITY;
    }
    colibri_kv_mark_ends(view, colibri_kv_ends_of(view, 0, 1), out);
}

static const struct colibri_kv_strategy strategy = {
    .struct_size = sizeof strategy,
    .flags = COLIBRI_KV_FLAG_PER_HEAD | COLIBRI_KV_FLAG_DETERMINISTIC,
    .needs = COLIBRI_KV_NEED_K_POST_ROPE,
    .triggers = COLIBRI_KV_AT_PREFILL_END | COLIBRI_KV_AT_CHUNK | COLIBRI_KV_AT_OVER_BUDGET,
    .positions = COLIBRI_KV_POS_ORIGINAL,
    .name = "keydiff",
    .summary = "keeps the tokens whose keys differ the most from the mean direction (lossy)",
    .source = "KeyDiff, arXiv:2504.15364",
    .create = create,
    .destroy = free,
    .reset = reset,
    .score = score,
};

static const void *get(const char *iface, uint32_t index)
{
    return index == 0 && !strcmp(iface, COLIBRI_IFACE_KV_STRATEGY) ? &strategy : NULL;
}

COLIBRI_PLUGIN_DEFINE(colibri_kv_strategy_keydiff, NULL, get, .id = "colibri.kv-strategy.keydiff",
                      .kinds = COLIBRI_KIND_KV_STRATEGY, .version = "1.0.0", .license = "MIT",
                      .summary = "KV strategy: keeps the keys that differ most from the mean (lossy)");
