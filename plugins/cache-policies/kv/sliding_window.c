/* sliding-window: the first few positions ("attention sinks") and the last ones stay.
 *
 * Source: Xiao et al., "Efficient Streaming Language Models with Attention Sinks", arXiv:2309.17453. There the kept
 * tokens are renumbered, as `streaming` does; here they keep their original positions, so a model still must not run
 * past the positions that it was trained for.
 *
 * The host cuts a page of positions at a time, so the window is between `window` and `window` + one page long. */
#include <stdio.h>
#include <stdlib.h>

#include "colibri/kv_select.h"

enum { SINKS, WINDOW };

static const struct colibri_param params[] = {
    [SINKS] = {"sinks", 0, 65536, 4, 1, "first positions that always stay"},
    [WINDOW] = {"window", 0, 16777216, 0, 1, "last positions that stay; 0: the budget less the sinks"},
};

struct window {
    uint32_t sinks, window;
};

static void *create(const struct colibri_kv_config *config, char *why, size_t why_size)
{
    const uint32_t sinks = (uint32_t)colibri_kv_param(config, params, SINKS);
    const uint32_t window = (uint32_t)colibri_kv_param(config, params, WINDOW);
    if (sinks >= config->budget || window > config->budget - sinks) {
        snprintf(why, why_size,
                 "%u sinks and a window of %u positions exceed the budget of %u; raise kv-budget or lower "
                 "sinks or window",
                 sinks, window ? window : 1, config->budget);
        return NULL;
    }
    struct window *s = malloc(sizeof *s);
    if (!s) {
        snprintf(why, why_size, "out of memory");
        return NULL;
    }
    *s = (struct window){sinks, window ? window : config->budget - sinks};
    return s;
}

/* Nothing is remembered but the parameters. */
static void reset(void *self)
{
    (void)self;
}

static uint32_t budget(void *self, uint32_t layer, uint32_t kv_head, uint64_t n_seen)
{
    const struct window *s = self;
    (void)layer;
    (void)kv_head;
    (void)n_seen;
    return s->sinks + s->window;
}

static int select_positions(void *self, const struct colibri_kv_view *view, uint8_t *keep)
{
    const struct window *s = self;
    const struct colibri_kv_ends ends = colibri_kv_ends_of(view, s->sinks, s->window);
    for (uint32_t i = 0; i < view->n; i++)
        keep[i] = (uint8_t)colibri_kv_in_ends(view, ends, i);
    return COLIBRI_OK;
}

static const struct colibri_kv_strategy strategy = {
    .struct_size = sizeof strategy,
    .flags = COLIBRI_KV_FLAG_DETERMINISTIC,
    .triggers = COLIBRI_KV_AT_PREFILL_END | COLIBRI_KV_AT_CHUNK | COLIBRI_KV_AT_OVER_BUDGET,
    .positions = COLIBRI_KV_POS_ORIGINAL,
    .n_params = sizeof params / sizeof params[0],
    .name = "sliding-window",
    .summary = "keeps the first few tokens and the last ones (lossy)",
    .source = "StreamingLLM, arXiv:2309.17453",
    .params = params,
    .create = create,
    .destroy = free,
    .reset = reset,
    .budget = budget,
    .select = select_positions,
};

static const void *get(const char *iface, uint32_t index)
{
    return index == 0 && !strcmp(iface, COLIBRI_IFACE_KV_STRATEGY) ? &strategy : NULL;
}

COLIBRI_PLUGIN_DEFINE(colibri_kv_strategy_sliding_window, NULL, get, .id = "colibri.kv-strategy.sliding-window",
                      .kinds = COLIBRI_KIND_KV_STRATEGY, .version = "1.0.0", .license = "MIT",
                      .summary = "KV strategy: keeps the first few tokens and the last ones (lossy)");
