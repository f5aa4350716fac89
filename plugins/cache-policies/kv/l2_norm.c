/* l2-norm: keys with the smallest norms stay; they tend to draw the most attention.
 *
 * Source: Devoto et al., "A Simple and Effective L2 Norm-Based Strategy for KV Cache Compression", arXiv:2406.11430.
 * It needs no attention, and rotation does not change a norm. The authors leave the first two layers alone; here a
 * budget holds for every layer. */
#include <stdio.h>
#include <stdlib.h>

#include "colibri/kv_select.h"

struct l2_norm {
    uint32_t dim;
    float key[];
};

static void *create(const struct colibri_kv_config *config, char *why, size_t why_size)
{
    struct l2_norm *s = malloc(sizeof *s + config->head_dim * sizeof s->key[0]);
    if (!s) {
        snprintf(why, why_size, "out of memory");
        return NULL;
    }
    s->dim = config->head_dim;
    return s;
}

static void reset(void *self)
{
    (void)self;
}

static void score(void *self, const struct colibri_kv_view *view, float *out)
{
    struct l2_norm *s = self;
    for (uint32_t i = 0; i < view->n; i++) {
        float sum = 0;
        view->read_k(view, i, s->key);
        for (uint32_t d = 0; d < s->dim; d++)
            sum += s->key[d] * s->key[d];
        out[i] = colibri_kv_number(-sqrtf(sum));
    }
    colibri_kv_mark_ends(view, colibri_kv_ends_of(view, 0, 1), out);
}

static const struct colibri_kv_strategy strategy = {
    .struct_size = sizeof strategy,
    .flags = COLIBRI_KV_FLAG_PER_HEAD | COLIBRI_KV_FLAG_DETERMINISTIC,
    .needs = COLIBRI_KV_NEED_K_POST_ROPE,
    .triggers = COLIBRI_KV_AT_PREFILL_END | COLIBRI_KV_AT_CHUNK | COLIBRI_KV_AT_OVER_BUDGET,
    .positions = COLIBRI_KV_POS_ORIGINAL,
    .name = "l2-norm",
    .summary = "keeps the tokens whose keys have the smallest norms (lossy)",
    .source = "L2 norm, arXiv:2406.11430",
    .create = create,
    .destroy = free,
    .reset = reset,
    .score = score,
};

static const void *get(const char *iface, uint32_t index)
{
    return index == 0 && !strcmp(iface, COLIBRI_IFACE_KV_STRATEGY) ? &strategy : NULL;
}

COLIBRI_PLUGIN_DEFINE(colibri_kv_strategy_l2_norm, NULL, get, .id = "colibri.kv-strategy.l2-norm",
                      .kinds = COLIBRI_KIND_KV_STRATEGY, .version = "1.0.0", .license = "MIT",
                      .summary = "KV strategy: keeps the keys with the smallest norms (lossy)");
