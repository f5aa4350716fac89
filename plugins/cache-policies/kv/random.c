/* random: a control. Each position gets a number out of nowhere when it is written, and the highest stay: at any time
 * what is kept is a uniform sample of all positions so far. A method that is not better than this has learned nothing.
 *
 * Source: reservoir sampling by random keys (Knuth, The Art of Computer Programming, vol. 2, 3.4.2); the numbers are
 * those of splitmix64 over seed, layer, KV head and position, so that nothing needs to be remembered. */
#include <stdio.h>
#include <stdlib.h>

#include "colibri/kv_select.h"

enum { SINKS, RECENT };

static const struct colibri_param params[] = {
    [SINKS] = {"sinks", 0, 65536, 0, 1, "first positions that always stay"},
    [RECENT] = {"recent", 0, 1, 0, 0, "share of the rest of the budget that goes to the last positions"},
};

struct random_keys {
    uint64_t seed;
    uint32_t sinks;
    double recent;
};

static void *create(const struct colibri_kv_config *config, char *why, size_t why_size)
{
    struct random_keys *s = malloc(sizeof *s);
    if (!s) {
        snprintf(why, why_size, "out of memory");
        return NULL;
    }
    *s = (struct random_keys){config->seed, (uint32_t)colibri_kv_param(config, params, SINKS),
                              colibri_kv_param(config, params, RECENT)};
    return s;
}

static void reset(void *self)
{
    (void)self;
}

static uint64_t mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static void score(void *self, const struct colibri_kv_view *view, float *out)
{
    const struct random_keys *s = self;
    const uint64_t head = mix(mix(s->seed) ^ ((uint64_t)view->layer << 32 | view->kv_head));
    for (uint32_t i = 0; i < view->n; i++)
        out[i] = (float)(mix(head ^ view->positions[i]) >> 40);
    colibri_kv_mark_ends(view, colibri_kv_ends_of(view, s->sinks, colibri_kv_share(view, s->sinks, s->recent)), out);
}

static const struct colibri_kv_strategy strategy = {
    .struct_size = sizeof strategy,
    .flags = COLIBRI_KV_FLAG_PER_HEAD | COLIBRI_KV_FLAG_DETERMINISTIC,
    .triggers = COLIBRI_KV_AT_PREFILL_END | COLIBRI_KV_AT_CHUNK | COLIBRI_KV_AT_OVER_BUDGET,
    .positions = COLIBRI_KV_POS_ORIGINAL,
    .n_params = sizeof params / sizeof params[0],
    .name = "random",
    .summary = "keeps a uniform random sample of all tokens: a control for comparisons (lossy)",
    .source = "reservoir sampling, TAOCP vol. 2, 3.4.2",
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

COLIBRI_PLUGIN_DEFINE(colibri_kv_strategy_random, NULL, get, .id = "colibri.kv-strategy.random",
                      .kinds = COLIBRI_KIND_KV_STRATEGY, .version = "1.0.0", .license = "MIT",
                      .summary = "KV strategy: keeps a random sample (a control, lossy)");
