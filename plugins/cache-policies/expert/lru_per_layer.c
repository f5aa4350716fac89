/* lru-per-layer: every layer has the same share of the pool; the layer that holds most above its share gives up its
 * expert that was used longest ago.
 *
 * Source: Eliseev and Mazur, "Fast inference of Mixture-of-Experts language models with offloading", arXiv:2312.17238,
 * 2023 (a small LRU cache per layer).
 *
 * Adapted to one pool for all layers: n_slots / n_layers each, the first layers one more if that leaves a rest. The
 * layer that is being routed counts as one above what it holds, since its missing expert is about to come in; so once
 * the pool is full it evicts its own. A fetch ahead for another layer is not announced before its victim is chosen: it
 * takes the slot of the layer that is being routed, and that one takes it back at its next miss. Time is counted in
 * token rows, as in lru. In pools of one layer this is lru. */
#include "common.h"

struct per_layer {
    struct grid grid;
    uint32_t n_slots, routed; /* routed: UINT32_MAX at first */
    uint64_t now;             /* latest time given */
    uint32_t *held;           /* [n_layers]: experts that are here */
    uint64_t *time;           /* [n_layers][n_experts] of the last use; 0: never */
};

static void reset(void *self)
{
    struct per_layer *s = self;
    s->grid.row = s->grid.rows = s->now = 0;
    s->routed = UINT32_MAX;
    memset(s->held, 0, s->grid.n_layers * sizeof s->held[0]);
    memset(s->time, 0, grid_size(&s->grid) * sizeof s->time[0]);
}

static void *create(const struct colibri_policy_config *config, char *why, size_t why_size)
{
    const size_t fixed = sizeof(struct per_layer) + config->n_layers * sizeof(uint32_t);
    struct per_layer *s = grid_block(config, fixed, sizeof s->time[0], why, why_size);
    if (!s)
        return NULL;
    s->grid.n_layers = config->n_layers;
    s->grid.n_experts = config->n_experts;
    s->n_slots = config->n_slots;
    s->time = (uint64_t *)(s + 1);
    s->held = (uint32_t *)(s->time + grid_size(&s->grid));
    reset(s);
    return s;
}

static void on_step(void *self, const struct colibri_step *step)
{
    struct per_layer *s = self;
    grid_step(&s->grid, step);
}

static void on_route(void *self, const struct colibri_route *route)
{
    struct per_layer *s = self;
    s->routed = route->layer;
    for (uint32_t r = 0; r < route->n_rows; r++) {
        s->now = grid_time(&s->grid, route->layer, r);
        for (uint32_t k = 0; k < route->top_k; k++) {
            const uint32_t expert = route->ids[(size_t)r * route->top_k + k];
            if (grid_has(&s->grid, route->layer, expert))
                s->time[grid_number(&s->grid, route->layer, expert)] = s->now;
        }
    }
}

/* What was fetched ahead counts as used now. */
static void on_insert(void *self, uint32_t layer, uint32_t expert, uint32_t cause)
{
    struct per_layer *s = self;
    if (!grid_has(&s->grid, layer, expert))
        return;
    s->held[layer]++;
    if (cause != COLIBRI_CAUSE_DEMAND)
        s->time[grid_number(&s->grid, layer, expert)] = s->now;
}

static void on_evict(void *self, uint32_t layer, uint32_t expert, uint32_t uses, int prefetched_unused)
{
    struct per_layer *s = self;
    (void)uses;
    (void)prefetched_unused;
    if (grid_has(&s->grid, layer, expert) && s->held[layer])
        s->held[layer]--;
}

static uint32_t share(const struct per_layer *s, uint32_t layer)
{
    return s->n_slots / s->grid.n_layers + (layer < s->n_slots % s->grid.n_layers);
}

static uint32_t excess(const struct per_layer *s, uint32_t layer)
{
    const uint32_t holds = s->held[layer] + (layer == s->routed), may = share(s, layer);
    return holds > may ? holds - may : 0;
}

static double score(void *self, uint32_t layer, uint32_t expert)
{
    const struct per_layer *s = self;
    const double time = (double)s->time[grid_number(&s->grid, layer, expert)];
    return time - excess(s, layer) * 0x1p40; /* time stays below: 2^40 rows times layers */
}

static void rebudget(void *self, uint32_t n_slots, const uint32_t *layer_slots)
{
    struct per_layer *s = self;
    (void)layer_slots;
    s->n_slots = n_slots;
}

static void explain(void *self, uint32_t layer, uint32_t expert, char *out, size_t size)
{
    const struct per_layer *s = self;
    const uint64_t time = s->time[grid_number(&s->grid, layer, expert)];
    char used[64] = "never used";
    if (time)
        snprintf(used, sizeof used, "last used %llu tokens ago", (unsigned long long)grid_rows_since(&s->grid, time));
    snprintf(out, size, "lru-per-layer: its layer holds %u of a share of %u; %s", s->held[layer], share(s, layer),
             used);
}

static const struct colibri_expert_policy policy = {
    .struct_size = sizeof policy,
    .flags = COLIBRI_POLICY_LOSSLESS | COLIBRI_POLICY_DETERMINISTIC,
    .name = "lru-per-layer",
    .summary = "every layer has the same share of the pool, in it the oldest leaves",
    .source = "per-layer LRU: Eliseev and Mazur, arXiv:2312.17238, 2023",
    .create = create,
    .destroy = free,
    .reset = reset,
    .on_step = on_step,
    .on_route = on_route,
    .on_insert = on_insert,
    .on_evict = on_evict,
    .score = score,
    .rebudget = rebudget,
    .explain = explain,
};

static const void *get(const char *iface, uint32_t index)
{
    return index == 0 && !strcmp(iface, COLIBRI_IFACE_EXPERT_POLICY) ? &policy : NULL;
}

COLIBRI_PLUGIN_DEFINE(colibri_expert_policy_lru_per_layer, NULL, get, .id = "colibri.expert-policy.lru-per-layer",
                      .kinds = COLIBRI_KIND_EXPERT_POLICY, .version = "1.0.0", .license = "MIT",
                      .summary = "Expert policy: every layer has the same share of the pool, in it the oldest leaves");
