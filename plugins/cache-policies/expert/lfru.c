/* lfru: frequency decides between classes of heat, recency inside a class. The expert of the lowest class leaves first,
 * among equals the one used longest ago.
 *
 * Source: the LFRU of the engine colibri (github.com/JustVugg/colibri, 2026), score = heat << 8 | recency, which lets
 * one expert displace another for its heat only if that is a quarter and a few uses higher, so that near equals do not
 * thrash; the decayed heat is that of LRFU (Lee et al., IEEE Transactions on Computers 50(12), 2001).
 *
 * Adapted: that rule compares pairs; here the same hysteresis makes classes, so that it is an order: class 0 begins at
 * heat 0, each further class where the one before began, plus `margin` percent, plus `step` uses. Heat that differs by
 * less decides nothing, recency does. Heat is the number of token rows that chose the expert, each weighing 2^(-age /
 * half-life), age in tokens at the row's own time: it does not matter how a prompt was cut into passes. Heat falls
 * while it is not used, and with it the class. */
#include "common.h"

/* Measured: docs/writing-an-expert-policy.md. */
static const struct colibri_param params[] = {
    {"half-life", 1, 1000000, 48, 1, "tokens after which a use counts half"},
    {"step", 0.01, 1000, 0.5, 0, "uses that make a difference, on top of the margin"},
    {"margin", 1, 1000, 25, 0, "percent that make a difference"},
};

struct lfru {
    struct grid grid;
    double half_life;
    double scale; /* of heat: margin / step */
    double ratio; /* log2(1 + margin) */
    struct use {
        double heat;  /* at the last use */
        uint64_t row; /* of it */
        uint64_t time;
        uint64_t
            ranked;  /* 1 + the row that `rank` is for: one decision asks for many, and a row makes many decisions */
        double rank; /* class */
    } use[];         /* [n_layers][n_experts] */
};

static void reset(void *self)
{
    struct lfru *s = self;
    s->grid.row = s->grid.rows = 0;
    memset(s->use, 0, grid_size(&s->grid) * sizeof s->use[0]);
}

static void *create(const struct colibri_policy_config *config, char *why, size_t why_size)
{
    struct lfru *s = grid_block(config, sizeof *s, sizeof s->use[0], why, why_size);
    if (!s)
        return NULL;
    s->grid.n_layers = config->n_layers;
    s->grid.n_experts = config->n_experts;
    s->half_life = param_value(config, params, 0);
    const double margin = param_value(config, params, 2) / 100;
    s->scale = margin / param_value(config, params, 1);
    s->ratio = log2(1 + margin);
    return s;
}

static void on_step(void *self, const struct colibri_step *step)
{
    struct lfru *s = self;
    grid_step(&s->grid, step);
}

/* Class c begins at b(c) = step * ((1 + margin)^c - 1) / margin: b(0) = 0, b(c + 1) = (1 + margin) b(c) + step. */
static double class_of(const struct lfru *s, double heat)
{
    return floor(log2(1 + heat * s->scale) / s->ratio);
}

static double heat_at(const struct lfru *s, const struct use *u, uint64_t row)
{
    return u->heat * exp2(-(double)(row - u->row) / s->half_life);
}

static void on_route(void *self, const struct colibri_route *route)
{
    struct lfru *s = self;
    for (uint32_t r = 0; r < route->n_rows; r++)
        for (uint32_t k = 0; k < route->top_k; k++) {
            const uint32_t expert = route->ids[(size_t)r * route->top_k + k];
            if (!grid_has(&s->grid, route->layer, expert))
                continue;
            struct use *u = &s->use[grid_number(&s->grid, route->layer, expert)];
            u->heat = 1 + heat_at(s, u, s->grid.row + r);
            u->row = s->grid.row + r;
            u->ranked = 0;
            u->time = grid_time(&s->grid, route->layer, r);
        }
}

static uint64_t present_row(const struct lfru *s)
{
    return s->grid.row + (s->grid.rows ? s->grid.rows - 1 : 0);
}

/* What was fetched ahead is the youngest of its class. */
static void on_insert(void *self, uint32_t layer, uint32_t expert, uint32_t cause)
{
    struct lfru *s = self;
    if (cause != COLIBRI_CAUSE_DEMAND && grid_has(&s->grid, layer, expert))
        s->use[grid_number(&s->grid, layer, expert)].time = 1 + present_row(s) * s->grid.n_layers;
}

static double score(void *self, uint32_t layer, uint32_t expert)
{
    struct lfru *s = self;
    struct use *u = &s->use[grid_number(&s->grid, layer, expert)];
    const uint64_t row = present_row(s);
    if (u->ranked != row + 1) {
        u->ranked = row + 1;
        u->rank = class_of(s, heat_at(s, u, row));
    }
    return u->rank * 0x1p44 + (double)u->time;
}

static void explain(void *self, uint32_t layer, uint32_t expert, char *out, size_t size)
{
    const struct lfru *s = self;
    const struct use *u = &s->use[grid_number(&s->grid, layer, expert)];
    const double heat = heat_at(s, u, present_row(s));
    char used[64] = "never used";
    if (u->heat > 0)
        snprintf(used, sizeof used, "last used %llu tokens ago", (unsigned long long)(present_row(s) - u->row));
    snprintf(out, size, "lfru: class %.0f (heat %.4g), %s", class_of(s, heat), heat, used);
}

static const struct colibri_expert_policy policy = {
    .struct_size = sizeof policy,
    .flags = COLIBRI_POLICY_LOSSLESS | COLIBRI_POLICY_DETERMINISTIC,
    .name = "lfru",
    .summary = "the lowest class of recent heat leaves first, inside it the oldest",
    .source = "LFRU as colibri (JustVugg) scores it, 2026; heat: LRFU, IEEE Transactions on Computers 50(12), 2001",
    .params = params,
    .n_params = sizeof params / sizeof params[0],
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

COLIBRI_PLUGIN_DEFINE(colibri_expert_policy_lfru, NULL, get, .id = "colibri.expert-policy.lfru",
                      .kinds = COLIBRI_KIND_EXPERT_POLICY, .version = "1.0.0", .license = "MIT",
                      .summary = "Expert policy: the lowest class of recent heat leaves first, inside it the oldest");
