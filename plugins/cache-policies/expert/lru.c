/* lru: the expert that was used longest ago leaves first.
 *
 * Source: folklore (least recently used); per-layer LRU of experts: Eliseev and Mazur, "Fast Inference of
 * Mixture-of-Experts Language Models with Offloading", arXiv:2312.17238.
 *
 * Time is counted in token rows, not in calls: row r of a pass is later than row r - 1, and inside one token
 * layer l + 1 is later than layer l. So after a long prompt, which touches nearly every expert, the order is
 * that of the last tokens. The policy does not care whether the pool is global or per layer: it only compares
 * what the host offers. Experts of equal age: the host's tie rule, the lower number first. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "colibri/expert_policy.h"

struct lru {
    uint32_t n_layers, n_experts;
    uint64_t row;     /* token rows before this pass */
    uint64_t rows;    /* of this pass */
    uint64_t now;     /* latest stamp given */
    uint64_t stamp[]; /* [n_layers][n_experts]: 1 + row * n_layers + layer of the last use; 0: never */
};

static void reset(void *self)
{
    struct lru *s = self;
    s->row = s->rows = s->now = 0;
    for (size_t i = 0; i < (size_t)s->n_layers * s->n_experts; i++)
        s->stamp[i] = 0;
}

static void *create(const struct colibri_policy_config *config, char *why, size_t why_size)
{
    const uint64_t n = (uint64_t)config->n_layers * config->n_experts;
    struct lru *s = n && n < SIZE_MAX / 16 ? malloc(sizeof *s + (size_t)n * sizeof s->stamp[0]) : NULL;
    if (!s) {
        snprintf(why, why_size, "no memory for %u layers of %u experts", config->n_layers, config->n_experts);
        return NULL;
    }
    s->n_layers = config->n_layers;
    s->n_experts = config->n_experts;
    reset(s);
    return s;
}

static void destroy(void *self)
{
    free(self);
}

static void on_step(void *self, const struct colibri_step *step)
{
    struct lru *s = self;
    s->row += s->rows;
    s->rows = step->n_rows ? step->n_rows : 1;
}

/* The only work per use: a replay spends most of its time here. An expert that was fetched ahead may carry a later
 * stamp than an early row of a long pass; stamps never fall. */
static void on_route(void *self, const struct colibri_route *route)
{
    struct lru *s = self;
    if (route->layer >= s->n_layers)
        return;
    uint64_t *stamp = &s->stamp[(size_t)route->layer * s->n_experts];
    const uint32_t *id = route->ids;
    uint64_t t = 1 + s->row * s->n_layers + route->layer;
    for (uint32_t r = 0; r < route->n_rows; r++, t += s->n_layers)
        for (uint32_t k = 0; k < route->top_k; k++, id++)
            if (*id < s->n_experts && stamp[*id] < t)
                stamp[*id] = t;
    if (route->n_rows && s->now < t - s->n_layers)
        s->now = t - s->n_layers;
}

/* What was fetched ahead counts as used now: it must not leave before its turn has come. */
static void on_insert(void *self, uint32_t layer, uint32_t expert, uint32_t cause)
{
    struct lru *s = self;
    if (cause == COLIBRI_CAUSE_DEMAND || layer >= s->n_layers || expert >= s->n_experts)
        return; /* demanded: on_route knows better, which row it was */
    uint64_t *stamp = &s->stamp[(size_t)layer * s->n_experts + expert];
    if (*stamp < s->now)
        *stamp = s->now;
}

static double score(void *self, uint32_t layer, uint32_t expert)
{
    const struct lru *s = self;
    return (double)s->stamp[(size_t)layer * s->n_experts + expert];
}

static void explain(void *self, uint32_t layer, uint32_t expert, char *out, size_t size)
{
    const struct lru *s = self;
    const uint64_t t = s->stamp[(size_t)layer * s->n_experts + expert];
    if (t)
        snprintf(out, size, "lru: last used %llu tokens ago",
                 (unsigned long long)(s->row + (s->rows ? s->rows - 1 : 0) - (t - 1) / s->n_layers));
    else
        snprintf(out, size, "lru: never used");
}

static const struct colibri_expert_policy policy = {
    .struct_size = sizeof policy,
    .flags = COLIBRI_POLICY_LOSSLESS | COLIBRI_POLICY_DETERMINISTIC | COLIBRI_POLICY_SCORE_RISES,
    .name = "lru",
    .summary = "the expert used longest ago leaves first",
    .source = "folklore; per-layer LRU of experts: arXiv:2312.17238",
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

COLIBRI_PLUGIN_DEFINE(colibri_expert_policy_lru, NULL, get, .id = "colibri.expert-policy.lru",
                      .kinds = COLIBRI_KIND_EXPERT_POLICY, .version = "1.0.0", .license = "MIT",
                      .summary = "Expert policy: the expert used longest ago leaves first");
