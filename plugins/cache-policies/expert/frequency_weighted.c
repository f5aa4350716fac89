/* frequency-weighted: the expert with the smallest recent frequency leaves first. Each use weighs 2^(-age / half-life),
 * age in tokens: LRU is the limit of a short half-life, LFU that of a long one.
 *
 * Source: Lee et al., "LRFU: a spectrum of policies that subsumes the least recently used and least frequently
 * used policies", IEEE Transactions on Computers 50(12), 2001.
 *
 * A use is one token row that an expert was chosen for, resident or not, at the row's own time: how a prompt was cut
 * into passes does not matter. Nothing is ever decayed: a use at time t adds 2^(t / half-life) instead, which orders
 * experts the same way in O(1) per use. The sums are kept as logarithms, so they never overflow, and a score never
 * falls. */
#include "common.h"

/* Measured: docs/writing-an-expert-policy.md. */
static const struct colibri_param params[] = {
    {"half-life", 1, 1000000, 32, 1, "tokens after which a use counts half"},
};

struct fw {
    struct grid grid;
    double half_life;
    double sum[]; /* [n_layers][n_experts]: log2 of the sum of 2^(row / half-life) over the uses */
};

static void reset(void *self)
{
    struct fw *s = self;
    s->grid.row = s->grid.rows = 0;
    for (size_t i = 0; i < grid_size(&s->grid); i++)
        s->sum[i] = -INFINITY;
}

static void *create(const struct colibri_policy_config *config, char *why, size_t why_size)
{
    struct fw *s = grid_block(config, sizeof *s, sizeof s->sum[0], why, why_size);
    if (!s)
        return NULL;
    s->grid.n_layers = config->n_layers;
    s->grid.n_experts = config->n_experts;
    s->half_life = param_value(config, params, 0);
    reset(s);
    return s;
}

static void on_step(void *self, const struct colibri_step *step)
{
    struct fw *s = self;
    grid_step(&s->grid, step);
}

static void on_route(void *self, const struct colibri_route *route)
{
    struct fw *s = self;
    for (uint32_t r = 0; r < route->n_rows; r++) {
        const double t = (double)(s->grid.row + r) / s->half_life;
        for (uint32_t k = 0; k < route->top_k; k++) {
            const uint32_t expert = route->ids[(size_t)r * route->top_k + k];
            if (!grid_has(&s->grid, route->layer, expert))
                continue;
            double *sum = &s->sum[grid_number(&s->grid, route->layer, expert)];
            *sum = log2_sum(*sum, t);
        }
    }
}

static double score(void *self, uint32_t layer, uint32_t expert)
{
    const struct fw *s = self;
    return s->sum[grid_number(&s->grid, layer, expert)];
}

static void explain(void *self, uint32_t layer, uint32_t expert, char *out, size_t size)
{
    const struct fw *s = self;
    const double now = (double)(s->grid.row + (s->grid.rows ? s->grid.rows - 1 : 0)) / s->half_life;
    snprintf(out, size, "frequency-weighted: worth %.4g uses now (half-life %.0f tokens)",
             exp2(s->sum[grid_number(&s->grid, layer, expert)] - now), s->half_life);
}

static const struct colibri_expert_policy policy = {
    .struct_size = sizeof policy,
    .flags = COLIBRI_POLICY_LOSSLESS | COLIBRI_POLICY_DETERMINISTIC | COLIBRI_POLICY_SCORE_RISES,
    .name = "frequency-weighted",
    .summary = "the expert with the smallest recent frequency leaves first",
    .source = "LRFU: Lee et al., IEEE Transactions on Computers 50(12), 2001",
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

COLIBRI_PLUGIN_DEFINE(colibri_expert_policy_frequency_weighted, NULL, get,
                      .id = "colibri.expert-policy.frequency-weighted", .kinds = COLIBRI_KIND_EXPERT_POLICY,
                      .version = "1.0.0", .license = "MIT",
                      .summary = "Expert policy: the expert with the smallest recent frequency leaves first");
