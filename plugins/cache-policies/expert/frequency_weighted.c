/* frequency-weighted: the expert with the smallest recent frequency leaves first. Each use weighs 2^(-age / half-life),
 * age in tokens: LRU is the limit of a short half-life, LFU that of a long one.
 *
 * Source: Lee et al., "LRFU: a spectrum of policies that subsumes the least recently used and least frequently
 * used policies", IEEE Transactions on Computers 50(12), 2001; for experts the same idea is known as LFRU.
 *
 * A use is one token row that an expert was chosen for, resident or not, at the row's own time: how a prompt was cut
 * into passes does not matter. Nothing is ever decayed: a use at time t adds 2^(t / half-life) instead, which orders
 * experts the same way in O(1) per use. Before that number grows out of range all sums are divided by a
 * power of two, once in SHIFT half-lives. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "colibri/expert_policy.h"

enum { SHIFT = 512 }; /* sums stay far below 2^1023 */

/* Measured: docs/writing-an-expert-policy.md. */
static const struct colibri_param params[] = {
    {"half-life", 1, 1000000, 32, 1, "tokens after which a use counts half"},
};

struct fw {
    uint32_t n_layers, n_experts;
    uint64_t half_life;
    uint64_t row, rows; /* token rows before this pass, and of it */
    uint64_t origin;    /* the row at which a use adds 1 */
    uint64_t *routed;   /* [n_layers]: times that the layer was routed */
    struct use {
        double sum;
        uint64_t hold; /* fetched ahead: stays until its layer was routed this often */
    } use[];           /* [n_layers][n_experts] */
};

static void reset(void *self)
{
    struct fw *s = self;
    s->row = s->rows = s->origin = 0;
    memset(s->routed, 0, s->n_layers * sizeof s->routed[0]);
    for (size_t i = 0; i < (size_t)s->n_layers * s->n_experts; i++)
        s->use[i] = (struct use){0.0, 0};
}

static void destroy(void *self)
{
    struct fw *s = self;
    free(s->routed);
    free(s);
}

static void *create(const struct colibri_policy_config *config, char *why, size_t why_size)
{
    const uint64_t n = (uint64_t)config->n_layers * config->n_experts;
    struct fw *s = n && n < SIZE_MAX / 64 ? malloc(sizeof *s + (size_t)n * sizeof s->use[0]) : NULL;
    if (s && !(s->routed = malloc(config->n_layers * sizeof s->routed[0]))) {
        free(s);
        s = NULL;
    }
    if (!s) {
        snprintf(why, why_size, "no memory for %u layers of %u experts", config->n_layers, config->n_experts);
        return NULL;
    }
    s->n_layers = config->n_layers;
    s->n_experts = config->n_experts;
    s->half_life = (uint64_t)(config->params ? config->params[0] : params[0].value);
    reset(s);
    return s;
}

static struct use *use_of(struct fw *s, uint32_t layer, uint32_t expert)
{
    return &s->use[(size_t)layer * s->n_experts + expert];
}

/* What a use at `row` adds. May be 0 for a row long before the origin: its weight is below anything that matters. */
static double gain(const struct fw *s, uint64_t row)
{
    return exp2(((double)row - (double)s->origin) / (double)s->half_life);
}

static void keep_in_range(struct fw *s, uint64_t row)
{
    while (row >= s->origin + SHIFT * s->half_life) {
        s->origin += SHIFT * s->half_life;
        for (size_t i = 0; i < (size_t)s->n_layers * s->n_experts; i++)
            s->use[i].sum = ldexp(s->use[i].sum, -SHIFT);
    }
}

static void on_step(void *self, const struct colibri_step *step)
{
    struct fw *s = self;
    s->row += s->rows;
    s->rows = step->n_rows ? step->n_rows : 1;
}

static void on_route(void *self, const struct colibri_route *route)
{
    struct fw *s = self;
    if (route->layer >= s->n_layers)
        return;
    s->routed[route->layer]++;
    for (uint32_t r = 0; r < route->n_rows; r++) {
        keep_in_range(s, s->row + r);
        const double g = gain(s, s->row + r);
        for (uint32_t k = 0; k < route->top_k; k++) {
            const uint32_t expert = route->ids[(size_t)r * route->top_k + k];
            if (expert < s->n_experts)
                use_of(s, route->layer, expert)->sum += g;
        }
    }
}

/* What was fetched ahead has its turn before its frequency speaks. */
static void on_insert(void *self, uint32_t layer, uint32_t expert, uint32_t cause)
{
    struct fw *s = self;
    if (cause == COLIBRI_CAUSE_PREFETCH && layer < s->n_layers && expert < s->n_experts)
        use_of(s, layer, expert)->hold = s->routed[layer] + 1;
}

static double score(void *self, uint32_t layer, uint32_t expert)
{
    struct fw *s = self;
    const struct use *u = use_of(s, layer, expert);
    return s->routed[layer] < u->hold ? INFINITY : u->sum;
}

static void explain(void *self, uint32_t layer, uint32_t expert, char *out, size_t size)
{
    struct fw *s = self;
    const struct use *u = use_of(s, layer, expert);
    snprintf(out, size, "frequency-weighted: worth %.4g uses now (half-life %llu tokens)%s",
             u->sum / gain(s, s->row + (s->rows ? s->rows - 1 : 0)), (unsigned long long)s->half_life,
             s->routed[layer] < u->hold ? ", fetched ahead for its next turn" : "");
}

static const struct colibri_expert_policy policy = {
    .struct_size = sizeof policy,
    .flags = COLIBRI_POLICY_LOSSLESS | COLIBRI_POLICY_DETERMINISTIC,
    .name = "frequency-weighted",
    .summary = "the expert with the smallest recent frequency leaves first",
    .source = "LRFU: Lee et al., IEEE Transactions on Computers 50(12), 2001",
    .params = params,
    .n_params = sizeof params / sizeof params[0],
    .create = create,
    .destroy = destroy,
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

COLIBRI_PLUGIN_DEFINE(colibri_expert_policy_frequency_weighted, NULL, get,
                      .id = "colibri.expert-policy.frequency-weighted", .kinds = COLIBRI_KIND_EXPERT_POLICY,
                      .version = "1.0.0", .license = "MIT",
                      .summary = "Expert policy: the expert with the smallest recent frequency leaves first");
