/* layered-lru: the expert that its own layer has not used for most turns leaves first; among equals the one whose layer
 * comes again last.
 *
 * Source: Angelopoulos, Marchal, Obrecht and Simon, "Cache management for Mixture-of-Experts LLMs", arXiv:2509.02408,
 * 2025 (Euro-Par 2025), which extends LRU by the order of layers. Plain LRU in one pool for all layers evicts just what
 * the next layers used one token ago, because that is what was used longest ago.
 *
 * Adapted: age is counted in token rows that the expert's own layer routed since its last use, at the rows' own time,
 * so it does not matter how a prompt was cut into passes. The paper has one expert per layer and row; here k are chosen
 * at once and are of equal age. Of equal age leaves first the one whose layer's next turn is furthest away, then the
 * lower number. What is fetched ahead has age 0. */
#include "common.h"

struct layered {
    struct grid grid;
    uint32_t at;     /* the layer routed last */
    uint64_t *turns; /* [n_layers]: token rows that it routed */
    uint64_t *last;  /* [n_layers][n_experts]: turns of its layer up to its last use; 0: never */
};

static void reset(void *self)
{
    struct layered *s = self;
    s->grid.row = s->grid.rows = 0;
    s->at = 0;
    memset(s->turns, 0, s->grid.n_layers * sizeof s->turns[0]);
    memset(s->last, 0, grid_size(&s->grid) * sizeof s->last[0]);
}

static void *create(const struct colibri_policy_config *config, char *why, size_t why_size)
{
    const size_t fixed = sizeof(struct layered) + config->n_layers * sizeof(uint64_t);
    struct layered *s = grid_block(config, fixed, sizeof s->last[0], why, why_size);
    if (!s)
        return NULL;
    s->grid.n_layers = config->n_layers;
    s->grid.n_experts = config->n_experts;
    s->turns = (uint64_t *)(s + 1);
    s->last = s->turns + config->n_layers;
    return s;
}

static void on_step(void *self, const struct colibri_step *step)
{
    struct layered *s = self;
    grid_step(&s->grid, step);
}

static void on_route(void *self, const struct colibri_route *route)
{
    struct layered *s = self;
    if (route->layer >= s->grid.n_layers)
        return;
    s->at = route->layer;
    for (uint32_t r = 0; r < route->n_rows; r++) {
        const uint64_t turn = ++s->turns[route->layer];
        for (uint32_t k = 0; k < route->top_k; k++) {
            const uint32_t expert = route->ids[(size_t)r * route->top_k + k];
            if (expert < s->grid.n_experts)
                s->last[grid_number(&s->grid, route->layer, expert)] = turn;
        }
    }
}

static void on_insert(void *self, uint32_t layer, uint32_t expert, uint32_t cause)
{
    struct layered *s = self;
    if (cause != COLIBRI_CAUSE_DEMAND && grid_has(&s->grid, layer, expert))
        s->last[grid_number(&s->grid, layer, expert)] = s->turns[layer];
}

static uint64_t age(const struct layered *s, uint32_t layer, uint32_t expert)
{
    return s->turns[layer] - s->last[grid_number(&s->grid, layer, expert)];
}

/* 0: the next layer, ..., n_layers - 1: the present one. */
static uint32_t distance(const struct layered *s, uint32_t layer)
{
    return (layer + s->grid.n_layers - s->at - 1) % s->grid.n_layers;
}

static double score(void *self, uint32_t layer, uint32_t expert)
{
    const struct layered *s = self;
    return -((double)age(s, layer, expert) * s->grid.n_layers + distance(s, layer));
}

static void explain(void *self, uint32_t layer, uint32_t expert, char *out, size_t size)
{
    const struct layered *s = self;
    snprintf(out, size, "layered-lru: unused for %llu turns of its layer, which comes %u layers from now",
             (unsigned long long)age(s, layer, expert), distance(s, layer) + 1);
}

static const struct colibri_expert_policy policy = {
    .struct_size = sizeof policy,
    .flags = COLIBRI_POLICY_LOSSLESS | COLIBRI_POLICY_DETERMINISTIC,
    .name = "layered-lru",
    .summary = "the expert unused for most turns of its own layer leaves first",
    .source = "Angelopoulos et al., arXiv:2509.02408, 2025",
    .create = create,
    .destroy = free,
    .reset = reset,
    .on_step = on_step,
    .on_route = on_route,
    .on_insert = on_insert,
    .score = score,
    .explain = explain,
};

static const void *get(const char *iface, uint32_t index)
{
    return index == 0 && !strcmp(iface, COLIBRI_IFACE_EXPERT_POLICY) ? &policy : NULL;
}

COLIBRI_PLUGIN_DEFINE(colibri_expert_policy_layered_lru, NULL, get, .id = "colibri.expert-policy.layered-lru",
                      .kinds = COLIBRI_KIND_EXPERT_POLICY, .version = "1.0.0", .license = "MIT",
                      .summary = "Expert policy: the expert unused for most turns of its own layer leaves first");
