/* mru: the expert that was used most recently leaves first. A control that is right for one thing only: going round a
 * set that is a little larger than the cache, where lru misses every time.
 *
 * Source: Chou and DeWitt, "An evaluation of buffer management strategies for relational database systems", VLDB 1985.
 *
 * An expert that was never used (fetched ahead) leaves last. */
#include "common.h"

struct mru {
    struct grid grid;
    uint64_t stamp[]; /* [n_layers][n_experts]: time of the last use (common.h), 0: never */
};

static void reset(void *self)
{
    struct mru *s = self;
    s->grid.row = s->grid.rows = 0;
    memset(s->stamp, 0, grid_size(&s->grid) * sizeof s->stamp[0]);
}

static void *create(const struct colibri_policy_config *config, char *why, size_t why_size)
{
    struct mru *s = grid_block(config, sizeof *s, sizeof s->stamp[0], why, why_size);
    if (!s)
        return NULL;
    s->grid = (struct grid){config->n_layers, config->n_experts, 0, 0};
    return s;
}

static void on_step(void *self, const struct colibri_step *step)
{
    struct mru *s = self;
    grid_step(&s->grid, step);
}

static void on_route(void *self, const struct colibri_route *route)
{
    struct mru *s = self;
    for (uint32_t r = 0; r < route->n_rows; r++)
        for (uint32_t k = 0; k < route->top_k; k++) {
            const uint32_t expert = route->ids[(size_t)r * route->top_k + k];
            if (grid_has(&s->grid, route->layer, expert))
                s->stamp[grid_number(&s->grid, route->layer, expert)] = grid_time(&s->grid, route->layer, r);
        }
}

static double score(void *self, uint32_t layer, uint32_t expert)
{
    const struct mru *s = self;
    return -(double)s->stamp[grid_number(&s->grid, layer, expert)];
}

static void explain(void *self, uint32_t layer, uint32_t expert, char *out, size_t size)
{
    const struct mru *s = self;
    const uint64_t t = s->stamp[grid_number(&s->grid, layer, expert)];
    if (t)
        snprintf(out, size, "mru: last used %llu tokens ago", (unsigned long long)grid_rows_since(&s->grid, t));
    else
        snprintf(out, size, "mru: never used");
}

static const struct colibri_expert_policy policy = {
    .struct_size = sizeof policy,
    .flags = COLIBRI_POLICY_LOSSLESS | COLIBRI_POLICY_DETERMINISTIC,
    .name = "mru",
    .summary = "the expert used most recently leaves first",
    .source = "Chou and DeWitt, VLDB 1985",
    .create = create,
    .destroy = free,
    .reset = reset,
    .on_step = on_step,
    .on_route = on_route,
    .score = score,
    .explain = explain,
};

static const void *get(const char *iface, uint32_t index)
{
    return index == 0 && !strcmp(iface, COLIBRI_IFACE_EXPERT_POLICY) ? &policy : NULL;
}

COLIBRI_PLUGIN_DEFINE(colibri_expert_policy_mru, NULL, get, .id = "colibri.expert-policy.mru",
                      .kinds = COLIBRI_KIND_EXPERT_POLICY, .version = "1.0.0", .license = "MIT",
                      .summary = "Expert policy: the expert used most recently leaves first");
