/* Example of a KV strategy outside of Colibri's tree: the recent half of the budget stays whole, what is older is thinned
 * evenly, so that the past gets sparser the longer it is ago.
 *
 * Source: none; made up as an example. docs/writing-a-kv-strategy.md builds this file up step by step. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <colibri/kv_strategy.h>

enum { SINKS };

static const struct colibri_param params[] = {
    [SINKS] = {"sinks", 0, 4096, 4, 1, "first positions that always stay"},
};

struct thin {
    uint32_t sinks;
};

/* May allocate; `config` is gone afterwards, so copy what you keep. */
static void *create(const struct colibri_kv_config *config, char *why, size_t why_size)
{
    const uint32_t sinks = (uint32_t)config->params[SINKS];
    if (config->budget < sinks + 4) {
        snprintf(why, why_size, "%u sinks need a budget of at least %u positions, it is %u; raise kv-budget", sinks,
                 sinks + 4, config->budget);
        return NULL;
    }
    struct thin *s = malloc(sizeof *s);
    if (!s) {
        snprintf(why, why_size, "out of memory");
        return NULL;
    }
    s->sinks = sinks;
    return s;
}

/* Nothing is remembered between selections. */
static void reset(void *self)
{
    (void)self;
}

/* keep[] comes zeroed; at most view->n_keep of view->n may be set, the newest (the last) among them. */
static int select_positions(void *self, const struct colibri_kv_view *view, uint8_t *keep)
{
    const struct thin *s = self;
    uint32_t first = 0;
    while (first < view->n && view->positions[first] < s->sinks && first + 1 < view->n_keep)
        keep[first++] = 1;
    const uint32_t rest = view->n_keep - first;
    const uint32_t recent = rest - rest / 2, room = rest / 2;
    const uint32_t middle = view->n - first - recent; /* > room, or the host would not have asked */
    for (uint32_t i = 0; i < recent; i++)
        keep[view->n - 1 - i] = 1;
    /* Position i of the middle stays where floor(i * room / middle) steps: every other one if half must go. */
    for (uint64_t i = 0; i < middle; i++)
        keep[first + i] = (i + 1) * room / middle > i * room / middle;
    return COLIBRI_OK;
}

static const struct colibri_kv_strategy strategy = {
    .struct_size = sizeof strategy,
    .flags = COLIBRI_KV_FLAG_DETERMINISTIC,
    .triggers = COLIBRI_KV_AT_PREFILL_END | COLIBRI_KV_AT_CHUNK | COLIBRI_KV_AT_OVER_BUDGET,
    .positions = COLIBRI_KV_POS_ORIGINAL,
    .n_params = sizeof params / sizeof params[0],
    .name = "keep-every-other",
    .summary = "thins the older half of what it keeps evenly (lossy)",
    .source = "example",
    .params = params,
    .create = create,
    .destroy = free,
    .reset = reset,
    .select = select_positions,
};

static const void *get(const char *iface, uint32_t index)
{
    return index == 0 && strcmp(iface, COLIBRI_IFACE_KV_STRATEGY) == 0 ? &strategy : NULL;
}

COLIBRI_PLUGIN_DEFINE(org_example_kv_strategy_keep_every_other, NULL, get,
                      .id = "org.example.kv-strategy.keep-every-other", .kinds = COLIBRI_KIND_KV_STRATEGY,
                      .version = "1.0.0", .license = "MIT",
                      .summary = "KV strategy: thins the older half of what it keeps evenly");
