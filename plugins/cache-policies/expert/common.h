/* What several expert policies need: the time of a use, the number of an expert, one block of memory, and sums of
 * powers of two that never overflow.
 *
 * A use is one token row that an expert was chosen for, at the row's own time: row r of a pass is later than row r - 1,
 * and inside a row layer l + 1 is later than layer l. So it does not matter how a prompt was cut into passes. */
#ifndef EXPERT_POLICY_COMMON_H
#define EXPERT_POLICY_COMMON_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "colibri/expert_policy.h"

struct grid {
    uint32_t n_layers, n_experts; /* of the pool */
    uint64_t row, rows;           /* token rows before this pass, and of it */
};

static inline size_t grid_size(const struct grid *g)
{
    return (size_t)g->n_layers * g->n_experts;
}

static inline int grid_has(const struct grid *g, uint32_t layer, uint32_t expert)
{
    return layer < g->n_layers && expert < g->n_experts;
}

static inline size_t grid_number(const struct grid *g, uint32_t layer, uint32_t expert)
{
    return (size_t)layer * g->n_experts + expert;
}

static inline void grid_step(struct grid *g, const struct colibri_step *step)
{
    g->row += g->rows;
    g->rows = step->n_rows ? step->n_rows : 1;
}

/* When row r of this pass goes through the layer; never 0. */
static inline uint64_t grid_time(const struct grid *g, uint32_t layer, uint64_t r)
{
    return 1 + (g->row + r) * g->n_layers + layer;
}

/* Token rows between that time and the last row of this pass. */
static inline uint64_t grid_rows_since(const struct grid *g, uint64_t time)
{
    const uint64_t now = g->row + (g->rows ? g->rows - 1 : 0), then = (time - 1) / g->n_layers;
    return now > then ? now - then : 0;
}

/* A zeroed block: `fixed` bytes, then `each` for every expert. NULL and a reason in why. */
static inline void *grid_block(const struct colibri_policy_config *config, size_t fixed, size_t each, char *why,
                               size_t why_size)
{
    const uint64_t n = (uint64_t)config->n_layers * config->n_experts;
    void *block = n && n < UINT32_MAX && n < SIZE_MAX / 512 ? calloc(1, fixed + (size_t)n * each) : NULL;
    if (!block)
        snprintf(why, why_size, "no memory for %u layers of %u experts", config->n_layers, config->n_experts);
    return block;
}

/* Slots beyond those that one token needs in all layers of the pool. A rule that keeps old experts may have these, but
 * no more: where the rest has less than a token's worth, LRU order evicts every expert just before its turn comes
 * again. */
static inline uint32_t grid_spare(const struct grid *g, uint32_t top_k, uint32_t n_slots)
{
    const uint64_t demand = (uint64_t)g->n_layers * top_k;
    return n_slots > demand ? (uint32_t)(n_slots - demand) : 0;
}

static inline double param_value(const struct colibri_policy_config *config, const struct colibri_param *params,
                                 uint32_t index)
{
    return config->params ? config->params[index] : params[index].value;
}

/* log2(2^a + 2^b); -INFINITY stands for 0. Never below a or b. */
static inline double log2_sum(double a, double b)
{
    const double high = a > b ? a : b, low = a > b ? b : a;
    if (isinf(low))
        return high;
    return high + log1p(exp2(low - high)) / 0.69314718055994530942;
}

#endif
