/* gate-average: the expert with the smallest recent average of gate weights leaves first.
 *
 * Source: "Minus Recent Score" of HybriMoE (Zhong et al., arXiv:2504.05897, 2025): after every token an expert's score
 * becomes a * g + (1 - a) * score, where g is its gate weight if it is among the highest of the token, else 0.
 *
 * Adapted: g is the gate weight of the experts that were chosen (what a routing trace records, so that replay and
 * engine agree), not of a wider top-p of the router's scores; a is given as a half-life in tokens, a = 1 - 2^(-1 /
 * half-life). Old scores are not decayed: a use at row t adds g * 2^(t / half-life), kept as a logarithm, which orders
 * experts the same way in O(1) per use, and never falls. Rows count at their own time, however they were cut into
 * passes. */
#include "common.h"

/* Measured: docs/writing-an-expert-policy.md. */
static const struct colibri_param params[] = {
    {"half-life", 1, 1000000, 32, 1, "tokens after which a gate weight counts half"},
};

struct average {
    struct grid grid;
    double half_life;
    double sum[]; /* [n_layers][n_experts]: log2 of the sum of gate * 2^(row / half-life) over the uses */
};

static void reset(void *self)
{
    struct average *s = self;
    s->grid.row = s->grid.rows = 0;
    for (size_t i = 0; i < grid_size(&s->grid); i++)
        s->sum[i] = -INFINITY;
}

static void *create(const struct colibri_policy_config *config, char *why, size_t why_size)
{
    struct average *s = grid_block(config, sizeof *s, sizeof s->sum[0], why, why_size);
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
    struct average *s = self;
    grid_step(&s->grid, step);
}

static void on_route(void *self, const struct colibri_route *route)
{
    struct average *s = self;
    for (uint32_t r = 0; r < route->n_rows; r++) {
        const double t = (double)(s->grid.row + r) / s->half_life;
        for (uint32_t k = 0; k < route->top_k; k++) {
            const size_t i = (size_t)r * route->top_k + k;
            const uint32_t expert = route->ids[i];
            const double gate = (double)route->gates[i];
            if (!grid_has(&s->grid, route->layer, expert) || !(gate > 0) || isinf(gate))
                continue; /* some routers give weights of 0; a broken model may give anything */
            double *sum = &s->sum[grid_number(&s->grid, route->layer, expert)];
            *sum = log2_sum(*sum, t + log2(gate));
        }
    }
}

static double score(void *self, uint32_t layer, uint32_t expert)
{
    const struct average *s = self;
    return s->sum[grid_number(&s->grid, layer, expert)];
}

static void explain(void *self, uint32_t layer, uint32_t expert, char *out, size_t size)
{
    const struct average *s = self;
    const double now = (double)(s->grid.row + (s->grid.rows ? s->grid.rows - 1 : 0)) / s->half_life;
    const double share = 1 - exp2(-1 / s->half_life);
    snprintf(out, size, "gate-average: %.4g (half-life %.0f tokens)",
             share * exp2(s->sum[grid_number(&s->grid, layer, expert)] - now), s->half_life);
}

static const struct colibri_expert_policy policy = {
    .struct_size = sizeof policy,
    .flags = COLIBRI_POLICY_LOSSLESS | COLIBRI_POLICY_DETERMINISTIC | COLIBRI_POLICY_SCORE_RISES,
    .name = "gate-average",
    .summary = "the expert with the smallest recent sum of gate weights leaves first",
    .source = "Minus Recent Score of HybriMoE, arXiv:2504.05897, 2025",
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

COLIBRI_PLUGIN_DEFINE(colibri_expert_policy_gate_average, NULL, get, .id = "colibri.expert-policy.gate-average",
                      .kinds = COLIBRI_KIND_EXPERT_POLICY, .version = "1.0.0", .license = "MIT",
                      .summary = "Expert policy: the expert with the smallest recent sum of gate weights leaves first");
