/* What sliding-window and streaming have in common: everything but how positions count. */
#ifndef KV_WINDOW_H
#define KV_WINDOW_H

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

#endif
