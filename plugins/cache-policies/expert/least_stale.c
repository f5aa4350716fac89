/* least-stale: what this pass went past without using leaves first. Experts of layers that are still to come in this
 * pass are the last to leave.
 *
 * Source: Hoang et al., "SpecMD: a comprehensive study on speculative expert prefetching", arXiv:2602.03921, 2026:
 * layers are visited in a fixed order, so an expert that the pass went past is of no use before the next pass, however
 * recently it was used, while evicting one that lies ahead may cost a read in a moment ("collision miss").
 *
 * Adapted, in the words of this host: an expert is stale if its layer's last visit did not choose it. They leave in
 * this order: 0  stale, and its layer was visited in this pass 1  stale, and its layer is still to come in this pass 2
 * chosen in this pass 3  chosen in the last pass, and its layer is still to come in this one; or fetched ahead and
 * inside each group the one used longest ago first, k chosen at once being of equal age, then the later layer, whose
 * turn comes last. A pass is the host's pass, also one of many rows: whatever a prompt chose is fresh. So this policy
 * does depend on how a prompt is cut into passes. Made for pools that hold little more than one pass needs; with more
 * slots it takes too much from the first layers (docs/writing-an-expert-policy.md). */
#include "common.h"

struct stale {
    struct grid grid;
    uint64_t pass;    /* from 1 */
    uint64_t *visits; /* [n_layers]: the pass in which the layer was last visited */
    struct use {
        uint64_t pass;  /* of the last use */
        uint64_t token; /* 1 + row of the last use */
    } * use;            /* [n_layers][n_experts] */
};

static void reset(void *self)
{
    struct stale *s = self;
    s->grid.row = s->grid.rows = s->pass = 0;
    memset(s->visits, 0, s->grid.n_layers * sizeof s->visits[0]);
    memset(s->use, 0, grid_size(&s->grid) * sizeof s->use[0]);
}

static void *create(const struct colibri_policy_config *config, char *why, size_t why_size)
{
    const size_t fixed = sizeof(struct stale) + config->n_layers * sizeof(uint64_t);
    struct stale *s = grid_block(config, fixed, sizeof s->use[0], why, why_size);
    if (!s)
        return NULL;
    s->grid.n_layers = config->n_layers;
    s->grid.n_experts = config->n_experts;
    s->visits = (uint64_t *)(s + 1);
    s->use = (struct use *)(s->visits + config->n_layers);
    return s;
}

static void on_step(void *self, const struct colibri_step *step)
{
    struct stale *s = self;
    grid_step(&s->grid, step);
    s->pass++;
}

static void on_route(void *self, const struct colibri_route *route)
{
    struct stale *s = self;
    if (route->layer >= s->grid.n_layers)
        return;
    s->visits[route->layer] = s->pass;
    for (uint32_t r = 0; r < route->n_rows; r++)
        for (uint32_t k = 0; k < route->top_k; k++) {
            const uint32_t expert = route->ids[(size_t)r * route->top_k + k];
            if (expert < s->grid.n_experts)
                s->use[grid_number(&s->grid, route->layer, expert)] = (struct use){s->pass, 1 + s->grid.row + r};
        }
}

static void on_insert(void *self, uint32_t layer, uint32_t expert, uint32_t cause)
{
    struct stale *s = self;
    if (cause != COLIBRI_CAUSE_DEMAND && grid_has(&s->grid, layer, expert))
        s->use[grid_number(&s->grid, layer, expert)] = (struct use){s->visits[layer], s->grid.row + s->grid.rows};
}

static int group(const struct stale *s, uint32_t layer, uint32_t expert)
{
    const int fresh = s->use[grid_number(&s->grid, layer, expert)].pass == s->visits[layer];
    return 2 * fresh + (s->visits[layer] != s->pass);
}

static double score(void *self, uint32_t layer, uint32_t expert)
{
    const struct stale *s = self;
    const uint64_t token = s->use[grid_number(&s->grid, layer, expert)].token;
    return group(s, layer, expert) * 0x1p50 + (double)token * s->grid.n_layers - (double)layer;
}

static void explain(void *self, uint32_t layer, uint32_t expert, char *out, size_t size)
{
    static const char *const name[] = {"stale, and this pass went past it", "stale, but still to come in this pass",
                                       "chosen in this pass", "fresh, and still to come in this pass"};
    snprintf(out, size, "least-stale: %s", name[group(self, layer, expert)]);
}

static const struct colibri_expert_policy policy = {
    .struct_size = sizeof policy,
    .flags = COLIBRI_POLICY_LOSSLESS | COLIBRI_POLICY_DETERMINISTIC,
    .name = "least-stale",
    .summary = "what this pass went past without using leaves first",
    .source = "Hoang et al., SpecMD, arXiv:2602.03921, 2026",
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

COLIBRI_PLUGIN_DEFINE(colibri_expert_policy_least_stale, NULL, get, .id = "colibri.expert-policy.least-stale",
                      .kinds = COLIBRI_KIND_EXPERT_POLICY, .version = "1.0.0", .license = "MIT",
                      .summary = "Expert policy: what this pass went past without using leaves first");
