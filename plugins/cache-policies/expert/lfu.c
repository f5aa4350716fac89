/* lfu: the expert that was used least often leaves first; among equals the one used longest ago.
 *
 * Source: folklore (least frequently used).
 *
 * A use is one token row that an expert was chosen for, counted since create or reset, whether the expert was
 * resident or not ("perfect LFU"): counting only since the last insertion forgets what eviction should remember, and
 * was worse on traces (docs/writing-an-expert-policy.md). Counting rows makes the result independent of how a prompt
 * was cut into passes. It never forgets: when the topic changes, use frequency-weighted. */
#include "common.h"

struct lfu {
    struct grid grid;
    struct use {
        uint64_t count;
        uint64_t last; /* 1 + row of the last use; 0: never */
    } use[];           /* [n_layers][n_experts] */
};

static void reset(void *self)
{
    struct lfu *s = self;
    s->grid.row = s->grid.rows = 0;
    memset(s->use, 0, grid_size(&s->grid) * sizeof s->use[0]);
}

static void *create(const struct colibri_policy_config *config, char *why, size_t why_size)
{
    struct lfu *s = grid_block(config, sizeof *s, sizeof s->use[0], why, why_size);
    if (s) {
        s->grid.n_layers = config->n_layers;
        s->grid.n_experts = config->n_experts;
    }
    return s;
}

static void on_step(void *self, const struct colibri_step *step)
{
    struct lfu *s = self;
    grid_step(&s->grid, step);
}

static void on_route(void *self, const struct colibri_route *route)
{
    struct lfu *s = self;
    for (uint32_t r = 0; r < route->n_rows; r++)
        for (uint32_t k = 0; k < route->top_k; k++) {
            const uint32_t expert = route->ids[(size_t)r * route->top_k + k];
            if (!grid_has(&s->grid, route->layer, expert))
                continue;
            struct use *u = &s->use[grid_number(&s->grid, route->layer, expert)];
            u->count++;
            u->last = 1 + s->grid.row + r;
        }
}

/* The count, and below the point the last use. Exact up to 2^20 uses and 2^32 tokens; after that ties are coarser. */
static double score(void *self, uint32_t layer, uint32_t expert)
{
    const struct lfu *s = self;
    const struct use *u = &s->use[grid_number(&s->grid, layer, expert)];
    return (double)u->count + (double)(u->last < UINT32_MAX ? u->last : UINT32_MAX) * 0x1p-32;
}

static void explain(void *self, uint32_t layer, uint32_t expert, char *out, size_t size)
{
    const struct lfu *s = self;
    const struct use *u = &s->use[grid_number(&s->grid, layer, expert)];
    snprintf(out, size, "lfu: used by %llu tokens", (unsigned long long)u->count);
}

static const struct colibri_expert_policy policy = {
    .struct_size = sizeof policy,
    .flags = COLIBRI_POLICY_LOSSLESS | COLIBRI_POLICY_DETERMINISTIC | COLIBRI_POLICY_SCORE_RISES,
    .name = "lfu",
    .summary = "the expert used least often so far leaves first",
    .source = "folklore",
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

COLIBRI_PLUGIN_DEFINE(colibri_expert_policy_lfu, NULL, get, .id = "colibri.expert-policy.lfu",
                      .kinds = COLIBRI_KIND_EXPERT_POLICY, .version = "1.0.0", .license = "MIT",
                      .summary = "Expert policy: the expert used least often so far leaves first");
