/* What several predictors need: a list of guesses in order, chances that are right about how often they are right, and
 * what each sequence's last row chose. */
#ifndef PREDICTOR_COMMON_H
#define PREDICTOR_COMMON_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "colibri/predictor.h"

enum { SEQUENCES = 8 }; /* whose rows are told apart; more of them share places, which costs guesses, not order */

static inline double param_value(const struct colibri_policy_config *config, const struct colibri_param *params,
                                 uint32_t index)
{
    return config->params ? config->params[index] : params[index].value;
}

/* One more than it is never 0, which marks an empty place. */
static inline uint32_t sequence_of(const struct colibri_route *route, uint32_t row)
{
    return COLIBRI_HAS(route, row_sequence) && route->row_sequence ? route->row_sequence[row] & 0x7fffffffu : 0;
}

/* A routing that the arrays of a predictor have room for. */
static inline int route_fits(const struct colibri_route *route, uint32_t n_layers, uint32_t n_experts, uint32_t top_k)
{
    if (route->layer >= n_layers || route->top_k != top_k)
        return 0;
    const size_t n = (size_t)route->n_rows * top_k;
    for (size_t i = 0; i < n; i++)
        if (route->ids[i] >= n_experts)
            return 0;
    return 1;
}

/* ---- what the last rows chose ---- */

struct last_rows {
    uint32_t n_layers, top_k;
    uint32_t *ids;   /* [n_layers][SEQUENCES][top_k] */
    uint32_t *owner; /* [n_layers][SEQUENCES]: 1 + the sequence; 0: none */
};

static inline int last_rows_open(struct last_rows *l, uint32_t n_layers, uint32_t top_k)
{
    *l = (struct last_rows){.n_layers = n_layers, .top_k = top_k};
    l->ids = calloc((size_t)n_layers * SEQUENCES * (top_k ? top_k : 1), sizeof *l->ids);
    l->owner = calloc((size_t)n_layers * SEQUENCES + 1, sizeof *l->owner);
    return l->ids && l->owner;
}

static inline void last_rows_close(struct last_rows *l)
{
    free(l->ids);
    free(l->owner);
}

static inline void last_rows_reset(struct last_rows *l)
{
    memset(l->owner, 0, (size_t)l->n_layers * SEQUENCES * sizeof *l->owner);
}

/* NULL: the sequence has no row there. */
static inline const uint32_t *last_row(const struct last_rows *l, uint32_t layer, uint32_t sequence)
{
    const size_t at = (size_t)layer * SEQUENCES + sequence % SEQUENCES;
    return l->owner[at] == sequence + 1 ? l->ids + at * l->top_k : NULL;
}

static inline void last_row_set(struct last_rows *l, uint32_t layer, uint32_t sequence, const uint32_t *ids)
{
    const size_t at = (size_t)layer * SEQUENCES + sequence % SEQUENCES;
    memcpy(l->ids + at * l->top_k, ids, l->top_k * sizeof *ids);
    l->owner[at] = sequence + 1;
}

/* ---- calibration ---- */

enum { BINS = 32, STEADY = 256 };

/* How often guesses of a kind came true: the mean of the first STEADY, then one that forgets at that pace. */
struct calibration {
    float rate[BINS];
    uint16_t seen[BINS];
};

static inline void calibration_reset(struct calibration *c, float first)
{
    for (uint32_t i = 0; i < BINS; i++) {
        c->rate[i] = first;
        c->seen[i] = 8; /* what the first guess at a rate weighs */
    }
}

static inline void calibration_add(struct calibration *c, uint32_t bin, int true_guess)
{
    if (c->seen[bin] < STEADY)
        c->seen[bin]++;
    c->rate[bin] += ((true_guess ? 1.0f : 0.0f) - c->rate[bin]) / (float)c->seen[bin];
}

/* The rates as a curve that never falls: where bins stand for a score, a better score must not be worth less. */
static inline void calibration_curve(const struct calibration *c, float curve[BINS])
{
    float best = 0.0f;
    for (uint32_t i = 0; i < BINS; i++) {
        best = c->rate[i] > best ? c->rate[i] : best;
        curve[i] = best;
    }
}

/* at: place on the scale of bins, the middle of bin i being i + 0.5. */
static inline float curve_at(const float curve[BINS], float at)
{
    const float x = at - 0.5f;
    if (!(x > 0))
        return curve[0];
    if (x >= BINS - 1)
        return curve[BINS - 1];
    const uint32_t i = (uint32_t)x;
    return curve[i] + (x - (float)i) * (curve[i + 1] - curve[i]);
}

static inline uint32_t bin_at(float at)
{
    return at <= 0 ? 0 : at >= BINS - 1 ? BINS - 1 : (uint32_t)at;
}

/* ---- the list ---- */

struct guesses {
    struct colibri_prediction *out;
    uint32_t n, max;
};

/* Best first; equal ones in the order in which they come. An expert that is there already keeps the better chance. */
static inline void guess_add(struct guesses *g, uint32_t layer, uint32_t expert, float confidence)
{
    if (g->n == g->max && (!g->n || g->out[g->n - 1].confidence >= confidence))
        return;
    uint32_t at = 0;
    while (at < g->n && g->out[at].confidence >= confidence) {
        if (g->out[at].layer == layer && g->out[at].expert == expert)
            return;
        at++;
    }
    uint32_t end = at; /* place that the entries from `at` on move to: an older entry of this expert, or the end */
    while (end < g->n && !(g->out[end].layer == layer && g->out[end].expert == expert))
        end++;
    if (end == g->n) {
        if (g->n < g->max)
            g->n++;
        else
            end--;
    }
    memmove(g->out + at + 1, g->out + at, (end - at) * sizeof *g->out);
    g->out[at] = (struct colibri_prediction){.layer = layer, .expert = expert, .confidence = confidence};
}

#endif
