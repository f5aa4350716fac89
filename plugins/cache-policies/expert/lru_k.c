/* lru-k: the expert whose k-th last use is longest ago leaves first; those used fewer than k times before all others,
 * by their last use. k = 1 is LRU.
 *
 * Source: O'Neil, O'Neil and Weikum, "The LRU-K page replacement algorithm for database disk buffering", SIGMOD 1993.
 *
 * Adapted: a reference is one token row that an expert was chosen for, at the row's own time; references of one layer
 * at a time, k experts at once, change nothing for a rule that only compares times. Uses within `correlated` tokens of
 * the one before count as one, and the time they took is taken out of the distances, as in the paper. The paper's other
 * use of that period, never to evict inside it, is the host's here: what the current step needs is never offered.
 * References are remembered for all experts, resident or not: there are few, and none is ever new. Scores never fall.
 */
#include "common.h"

enum { MOST_K = 8 };

static const struct colibri_param params[] = {
    {"k", 1, MOST_K, 2, 1, "which use from the end counts"},
    {"correlated", 0, 1000000, 0, 1, "tokens within which uses count as one"},
};

struct lru_k {
    struct grid grid;
    uint32_t k;
    uint64_t correlated;
    struct use {
        uint64_t last;         /* time of the last use; 0: never */
        uint64_t time[MOST_K]; /* start of the last period of correlated uses, of the one before, ...; 0: none */
    } use[];                   /* [n_layers][n_experts] */
};

static void reset(void *self)
{
    struct lru_k *s = self;
    s->grid.row = s->grid.rows = 0;
    memset(s->use, 0, grid_size(&s->grid) * sizeof s->use[0]);
}

static void *create(const struct colibri_policy_config *config, char *why, size_t why_size)
{
    struct lru_k *s = grid_block(config, sizeof *s, sizeof s->use[0], why, why_size);
    if (!s)
        return NULL;
    s->grid.n_layers = config->n_layers;
    s->grid.n_experts = config->n_experts;
    s->k = (uint32_t)param_value(config, params, 0);
    s->correlated = (uint64_t)param_value(config, params, 1);
    return s;
}

static void on_step(void *self, const struct colibri_step *step)
{
    struct lru_k *s = self;
    grid_step(&s->grid, step);
}

static void refer(struct lru_k *s, struct use *u, uint64_t t)
{
    if (u->time[0] && t - u->last > s->correlated * s->grid.n_layers) {
        const uint64_t period = u->last - u->time[0];
        for (uint32_t i = s->k - 1; i > 0; i--)
            u->time[i] = u->time[i - 1] ? u->time[i - 1] + period : 0;
        u->time[0] = t;
    } else if (!u->time[0]) {
        u->time[0] = t;
    }
    u->last = t;
}

static void on_route(void *self, const struct colibri_route *route)
{
    struct lru_k *s = self;
    for (uint32_t r = 0; r < route->n_rows; r++) {
        const uint64_t t = grid_time(&s->grid, route->layer, r);
        for (uint32_t k = 0; k < route->top_k; k++) {
            const uint32_t expert = route->ids[(size_t)r * route->top_k + k];
            if (grid_has(&s->grid, route->layer, expert))
                refer(s, &s->use[grid_number(&s->grid, route->layer, expert)], t);
        }
    }
}

/* Those with fewer than k uses lie below 2^50, ordered by the last one. */
static double score(void *self, uint32_t layer, uint32_t expert)
{
    const struct lru_k *s = self;
    const struct use *u = &s->use[grid_number(&s->grid, layer, expert)];
    const uint64_t kth = u->time[s->k - 1];
    return kth ? 0x1p50 + (double)kth : (double)u->last;
}

static void explain(void *self, uint32_t layer, uint32_t expert, char *out, size_t size)
{
    const struct lru_k *s = self;
    const struct use *u = &s->use[grid_number(&s->grid, layer, expert)];
    const uint64_t kth = u->time[s->k - 1];
    if (kth)
        snprintf(out, size, "lru-k: use %u from the end was %llu tokens ago", s->k,
                 (unsigned long long)grid_rows_since(&s->grid, kth));
    else
        snprintf(out, size, "lru-k: used fewer than %u times", s->k);
}

static const struct colibri_expert_policy policy = {
    .struct_size = sizeof policy,
    .flags = COLIBRI_POLICY_LOSSLESS | COLIBRI_POLICY_DETERMINISTIC | COLIBRI_POLICY_SCORE_RISES,
    .name = "lru-k",
    .summary = "the expert whose k-th last use is longest ago leaves first",
    .source = "O'Neil, O'Neil and Weikum, SIGMOD 1993",
    .params = params,
    .n_params = sizeof params / sizeof params[0],
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

COLIBRI_PLUGIN_DEFINE(colibri_expert_policy_lru_k, NULL, get, .id = "colibri.expert-policy.lru-k",
                      .kinds = COLIBRI_KIND_EXPERT_POLICY, .version = "1.0.0", .license = "MIT",
                      .summary = "Expert policy: the expert whose k-th last use is longest ago leaves first");
