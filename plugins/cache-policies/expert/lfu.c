/* lfu: the expert that was used least often leaves first; among equals the one used longest ago.
 *
 * Source: folklore (least frequently used).
 *
 * A use is one token row that an expert was chosen for, counted since create or reset, whether the expert was
 * resident or not ("perfect LFU"): counting only since the last insertion forgets what eviction should remember, and
 * was worse on traces (docs/writing-an-expert-policy.md). Counting rows makes the result independent of how a prompt
 * was cut into passes. It never forgets: when the topic changes, use frequency-weighted. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "colibri/expert_policy.h"

struct lfu {
    uint32_t n_layers, n_experts;
    uint64_t row, rows; /* token rows before this pass, and of it */
    uint64_t *routed;   /* [n_layers]: times that the layer was routed */
    struct use {
        uint64_t count;
        uint64_t last; /* 1 + row of the last use; 0: never */
        uint64_t hold; /* fetched ahead: stays until its layer was routed this often */
    } use[];           /* [n_layers][n_experts] */
};

static void reset(void *self)
{
    struct lfu *s = self;
    s->row = s->rows = 0;
    memset(s->routed, 0, s->n_layers * sizeof s->routed[0]);
    memset(s->use, 0, (size_t)s->n_layers * s->n_experts * sizeof s->use[0]);
}

static void destroy(void *self)
{
    struct lfu *s = self;
    free(s->routed);
    free(s);
}

static void *create(const struct colibri_policy_config *config, char *why, size_t why_size)
{
    const uint64_t n = (uint64_t)config->n_layers * config->n_experts;
    struct lfu *s = n && n < SIZE_MAX / 64 ? malloc(sizeof *s + (size_t)n * sizeof s->use[0]) : NULL;
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
    reset(s);
    return s;
}

static struct use *use_of(struct lfu *s, uint32_t layer, uint32_t expert)
{
    return &s->use[(size_t)layer * s->n_experts + expert];
}

static void on_step(void *self, const struct colibri_step *step)
{
    struct lfu *s = self;
    s->row += s->rows;
    s->rows = step->n_rows ? step->n_rows : 1;
}

static void on_route(void *self, const struct colibri_route *route)
{
    struct lfu *s = self;
    if (route->layer >= s->n_layers)
        return;
    s->routed[route->layer]++;
    for (uint32_t r = 0; r < route->n_rows; r++)
        for (uint32_t k = 0; k < route->top_k; k++) {
            const uint32_t expert = route->ids[(size_t)r * route->top_k + k];
            if (expert >= s->n_experts)
                continue;
            struct use *u = use_of(s, route->layer, expert);
            u->count++;
            u->last = 1 + s->row + r;
        }
}

/* What was fetched ahead has its turn before its count speaks. */
static void on_insert(void *self, uint32_t layer, uint32_t expert, uint32_t cause)
{
    struct lfu *s = self;
    if (cause == COLIBRI_CAUSE_PREFETCH && layer < s->n_layers && expert < s->n_experts)
        use_of(s, layer, expert)->hold = s->routed[layer] + 1;
}

/* The count, and below the point the age: distinct as long as count x tokens stays under 2^52. */
static double score(void *self, uint32_t layer, uint32_t expert)
{
    struct lfu *s = self;
    const struct use *u = use_of(s, layer, expert);
    const double held = s->routed[layer] < u->hold ? 0x1p62 : 0.0;
    return held + (double)u->count + (double)u->last / (double)(s->row + s->rows + 1);
}

static void explain(void *self, uint32_t layer, uint32_t expert, char *out, size_t size)
{
    struct lfu *s = self;
    const struct use *u = use_of(s, layer, expert);
    snprintf(out, size, "lfu: used by %llu tokens%s", (unsigned long long)u->count,
             s->routed[layer] < u->hold ? ", fetched ahead for its next turn" : "");
}

static const struct colibri_expert_policy policy = {
    .struct_size = sizeof policy,
    .flags = COLIBRI_POLICY_LOSSLESS | COLIBRI_POLICY_DETERMINISTIC,
    .name = "lfu",
    .summary = "the expert used least often so far leaves first",
    .source = "folklore",
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

COLIBRI_PLUGIN_DEFINE(colibri_expert_policy_lfu, NULL, get, .id = "colibri.expert-policy.lfu",
                      .kinds = COLIBRI_KIND_EXPERT_POLICY, .version = "1.0.0", .license = "MIT",
                      .summary = "Expert policy: the expert used least often so far leaves first");
