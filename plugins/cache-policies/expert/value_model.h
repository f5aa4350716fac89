/* How much an expert will be worth: an estimate, learned while the model runs, of discount^t, t being the number of
 * token rows until its layer chooses it again, 0 for the very next row. Belady's rule needs t itself; what can be
 * known of it lies in four things:
 *
 *   how often the expert was chosen, at three half-lives (1, 8 and 64 rows),
 *   how many others of its layer were chosen since (its place in the layer's LRU order),
 *   which experts its layer chose for the row before      (matrix `same`),
 *   which experts the layer before chose for the same row (matrix `cross`, known from the moment of that routing).
 *
 * They add up to a log-odds. All weights are learned by gradient steps of the logistic loss towards a target that looks
 * one row ahead and takes the own estimate for the rest: 1 if the expert is chosen, else discount times the new
 * estimate (temporal differences: Sutton, Machine Learning 3, 1988). Weights that many share take AdaGrad's steps
 * (Duchi et al., JMLR 12, 2011), once per pass, so that estimates of all layers come from the same weights.
 *
 * The start values were fitted on routing traces of one small model (topics code, prose, zh), the rest is learned
 * on the spot. Only additions, multiplications, divisions and square roots of floats: every CPU learns the same.
 *
 * A row costs about 20 passes over the experts of a layer. Rows of several sequences may come mixed: what a sequence's
 * last row chose is kept for SEQUENCES of them. */
#ifndef EXPERT_POLICY_VALUE_MODEL_H
#define EXPERT_POLICY_VALUE_MODEL_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "colibri/expert_policy.h"

enum { COUNTS = 3, FEATURES = COUNTS + 1, SEQUENCES = 8, MOST_EXPERTS = 1 << 12 };
enum weight { W_BIAS = FEATURES, W_SAME, W_CROSS, WEIGHTS };

#define COUNT_FLOOR   (-6.0f) /* log2 of the smallest count that is told from none */
#define MATRIX_RATE   0.6f    /* step of a sum of top_k matrix entries, at first */
#define MATRIX_SLOWER 100.0f  /* uses after which the step is smaller by sqrt(2) */
#define WEIGHT_RATE   0.15f   /* AdaGrad's step of the features' weights */
#define TRUST_RATE    0.02f   /* and of the two matrices' weights */

struct value_row {              /* scratch, [n_experts] each */
    float *before[FEATURES];    /* features before the row */
    float *base, *same, *cross; /* log-odds before it: features, and what the matrices add */
    float *base_now, *same_now; /* after it */
    float *chosen, *target, *error;
};

struct value_model {
    uint32_t n_layers, n_experts, top_k;
    float discount;
    float weight[WEIGHTS], gradient[WEIGHTS], squares[WEIGHTS];
    uint32_t lessons;    /* rows in gradient */
    float *feature;      /* [n_layers][FEATURES][n_experts]; counts as log2 */
    int32_t *place;      /* [n_layers][n_experts]: others chosen more recently */
    float *value;        /* [n_layers][n_experts]: the estimate, 0 ... 1 */
    float *miss_all;     /* scratch [n_experts] */
    float *same, *cross; /* [n_layers][from expert][to expert] */
    uint32_t *uses;      /* [n_layers][n_experts]: rows */
    uint32_t *last;      /* [n_layers][SEQUENCES][top_k] */
    uint32_t *owner;     /* [n_layers][SEQUENCES]: 1 + the sequence whose row that was; 0: none */
    uint8_t *routed;     /* [n_layers] */
    float *scratch;
    struct value_row row;
};

/* Exact at both ends of each octave, 0.2 % off in between; 2^-30 ... 2^31. Bounds are kept in integers: compilers turn
 * this into vector code without being told to forget about NaN. Log-odds are far from the range of an int32_t. */
static inline float value_exp2(float x)
{
    const float shifted = x + 64.0f; /* positive, but for what the bounds catch: conversion rounds down */
    const int32_t whole = (int32_t)shifted;
    const float part = shifted - (float)whole;
    const int32_t low = whole < 64 - 30 ? 64 - 30 : whole, bounded = low > 64 + 30 ? 64 + 30 : low;
    const union {
        int32_t i;
        float f;
    } power = {(bounded - 64 + 127) * (1 << 23)};
    return power.f * (1.0f + part * (0.6565f + 0.3435f * part));
}

/* A straight line between powers of two. */
static inline float value_log2(float x)
{
    const union {
        float f;
        int32_t i;
    } bits = {x};
    return (float)(bits.i - 0x3f800000) * (1.0f / 8388608.0f);
}

static inline float value_chance(float log_odds)
{
    return 1.0f / (1.0f + value_exp2(-log_odds));
}

static inline void value_reset(struct value_model *m)
{
    static const float start[WEIGHTS] = {0.10f, 0.0f, 0.75f, -0.05f, -2.0f, 1.0f, 1.0f};
    const size_t n = (size_t)m->n_layers * m->n_experts;
    memcpy(m->weight, start, sizeof start);
    memset(m->gradient, 0, sizeof m->gradient);
    memset(m->squares, 0, sizeof m->squares);
    m->lessons = 0;
    for (size_t i = 0; i < n; i++) {
        const size_t layer = i / m->n_experts, expert = i % m->n_experts;
        float *f = m->feature + layer * FEATURES * m->n_experts + expert;
        for (uint32_t c = 0; c < COUNTS; c++)
            f[c * m->n_experts] = COUNT_FLOOR;
        f[COUNTS * m->n_experts] = value_log2((float)m->n_experts);
        m->place[i] = (int32_t)expert;
        m->value[i] = 0.0f;
        m->uses[i] = 0;
    }
    memset(m->same, 0, n * m->n_experts * sizeof *m->same);
    memset(m->cross, 0, n * m->n_experts * sizeof *m->cross);
    memset(m->owner, 0, (size_t)m->n_layers * SEQUENCES * sizeof *m->owner);
    memset(m->routed, 0, m->n_layers);
}

static inline void value_close(struct value_model *m)
{
    free(m->feature);
    free(m->place);
    free(m->value);
    free(m->same);
    free(m->cross);
    free(m->uses);
    free(m->last);
    free(m->owner);
    free(m->routed);
    free(m->scratch);
}

/* False: no memory, or sizes beyond reason. The discount is set by the caller. */
static inline int value_open(struct value_model *m, uint32_t n_layers, uint32_t n_experts, uint32_t top_k)
{
    memset(m, 0, sizeof *m);
    const uint64_t n = (uint64_t)n_layers * n_experts, squares = n * n_experts;
    if (!n || !top_k || top_k > n_experts || n_experts > MOST_EXPERTS || squares > (UINT64_C(1) << 28))
        return 0;
    m->n_layers = n_layers;
    m->n_experts = n_experts;
    m->top_k = top_k;
    float **rows[] = {&m->row.before[0], &m->row.before[1], &m->row.before[2], &m->row.before[3], &m->row.base,
                      &m->row.same,      &m->row.cross,     &m->row.base_now,  &m->row.same_now,  &m->row.chosen,
                      &m->row.target,    &m->row.error,     &m->miss_all};
    enum { ROWS = sizeof rows / sizeof rows[0] };
    m->feature = malloc((size_t)n * FEATURES * sizeof *m->feature);
    m->place = malloc((size_t)n * sizeof *m->place);
    m->value = malloc((size_t)n * sizeof *m->value);
    m->same = malloc((size_t)squares * sizeof *m->same);
    m->cross = malloc((size_t)squares * sizeof *m->cross);
    m->uses = malloc((size_t)n * sizeof *m->uses);
    m->last = malloc((size_t)n_layers * SEQUENCES * top_k * sizeof *m->last);
    m->owner = malloc((size_t)n_layers * SEQUENCES * sizeof *m->owner);
    m->routed = malloc(n_layers);
    m->scratch = malloc((size_t)ROWS * n_experts * sizeof *m->scratch);
    if (!m->feature || !m->place || !m->value || !m->same || !m->cross || !m->uses || !m->last || !m->owner ||
        !m->routed || !m->scratch) {
        value_close(m);
        return 0;
    }
    for (size_t i = 0; i < ROWS; i++)
        *rows[i] = m->scratch + i * n_experts;
    return 1;
}

/* Once per pass: what the last pass taught. The mean of its rows, so that a long prompt does not make the steps after
 * it small. */
static inline void value_learn(struct value_model *m)
{
    const float share = m->lessons ? 1.0f / (float)m->lessons : 0.0f;
    m->lessons = 0;
    for (uint32_t i = 0; i < WEIGHTS; i++) {
        const float g = m->gradient[i] * share;
        m->gradient[i] = 0.0f;
        if (!(g < 0.0f || g > 0.0f))
            continue;
        m->squares[i] += g * g;
        m->weight[i] -= (i < W_SAME ? WEIGHT_RATE : TRUST_RATE) * g / sqrtf(m->squares[i]);
        if (i >= W_SAME && m->weight[i] < 0.0f)
            m->weight[i] = 0.0f;
    }
}

static inline void value_features(const struct value_model *m, uint32_t layer, float *restrict out)
{
    const uint32_t n = m->n_experts;
    const float *f = m->feature + (size_t)layer * FEATURES * n;
    const float w0 = m->weight[0], w1 = m->weight[1], w2 = m->weight[2], w3 = m->weight[3], bias = m->weight[W_BIAS];
    for (uint32_t e = 0; e < n; e++)
        out[e] = bias + w0 * f[e] + w1 * f[n + e] + w2 * f[2 * n + e] + w3 * f[3 * n + e];
}

/* Sum of the rows of a layer's matrix that belong to these experts. */
static inline void value_sum(const struct value_model *m, const float *matrix, uint32_t layer, const uint32_t *from,
                             float *restrict out)
{
    const uint32_t n = m->n_experts;
    memset(out, 0, n * sizeof *out);
    for (uint32_t k = 0; k < m->top_k; k++) {
        const float *restrict row = matrix + ((size_t)layer * n + from[k]) * n;
        for (uint32_t e = 0; e < n; e++)
            out[e] += row[e];
    }
}

static inline void value_step(struct value_model *m, float *matrix, uint32_t layer, const uint32_t *from,
                              uint32_t from_layer, const float *restrict error)
{
    const uint32_t n = m->n_experts;
    for (uint32_t k = 0; k < m->top_k; k++) {
        float *restrict row = matrix + ((size_t)layer * n + from[k]) * n;
        const float used = (float)m->uses[(size_t)from_layer * n + from[k]];
        const float rate = MATRIX_RATE / (float)m->top_k / sqrtf(1.0f + used / MATRIX_SLOWER);
        for (uint32_t e = 0; e < n; e++)
            row[e] -= rate * error[e];
    }
}

/* Features after a row that chose ids. */
static inline void value_count(struct value_model *m, uint32_t layer, const uint32_t *ids)
{
    static const float fade[COUNTS] = {1.0f, 1.0f / 8, 1.0f / 64}; /* log2 lost per row */
    const uint32_t n = m->n_experts;
    float *f = m->feature + (size_t)layer * FEATURES * n;
    for (uint32_t c = 0; c < COUNTS; c++) {
        float *restrict count = f + c * n;
        for (uint32_t k = 0; k < m->top_k; k++) /* fades with the others */
            count[ids[k]] = value_log2(1.0f + value_exp2(count[ids[k]] - fade[c])) + fade[c];
        for (uint32_t e = 0; e < n; e++) {
            const float less = count[e] - fade[c];
            count[e] = less < COUNT_FLOOR ? COUNT_FLOOR : less;
        }
    }
    int32_t *restrict place = m->place + (size_t)layer * n;
    for (uint32_t k = m->top_k; k-- > 0;) {
        const int32_t was = place[ids[k]];
        for (uint32_t e = 0; e < n; e++)
            place[e] += place[e] < was;
        place[ids[k]] = 0;
        m->uses[(size_t)layer * n + ids[k]]++;
    }
    const int32_t shared = (int32_t)m->top_k - 1; /* the chosen ones of a row have no order among themselves */
    for (uint32_t e = 0; e < n; e++)
        f[COUNTS * n + e] = value_log2((float)((place[e] < shared ? shared : place[e]) - shared + 1));
}

/* One row: learn from it, then count it. before: what the sequence's previous row chose here; beside: what the layer
 * before chose for this row; either may be NULL. */
static inline void value_one_row(struct value_model *m, uint32_t layer, const uint32_t *ids, const uint32_t *before,
                                 const uint32_t *beside, uint32_t beside_layer)
{
    const uint32_t n = m->n_experts;
    struct value_row *r = &m->row;
    const int learn = m->routed[layer];
    const float trust_same = m->weight[W_SAME], trust_cross = m->weight[W_CROSS], discount = m->discount;
    if (learn) {
        for (uint32_t i = 0; i < FEATURES; i++)
            memcpy(r->before[i], m->feature + ((size_t)layer * FEATURES + i) * n, n * sizeof(float));
        value_features(m, layer, r->base);
        if (before)
            value_sum(m, m->same, layer, before, r->same);
        else
            memset(r->same, 0, n * sizeof(float));
    }
    value_count(m, layer, ids);
    if (!learn)
        return;
    value_features(m, layer, r->base_now);
    value_sum(m, m->same, layer, ids, r->same_now);
    for (uint32_t e = 0; e < n; e++)
        r->target[e] = discount * value_chance(r->base_now[e] + trust_same * r->same_now[e]);
    for (uint32_t k = 0; k < m->top_k; k++)
        r->target[ids[k]] = 1.0f;

    for (uint32_t e = 0; e < n; e++)
        r->error[e] = value_chance(r->base[e] + trust_same * r->same[e]) - r->target[e];
    float g[W_CROSS] = {0};
    for (uint32_t e = 0; e < n; e++) {
        for (uint32_t i = 0; i < FEATURES; i++)
            g[i] += r->error[e] * r->before[i][e];
        g[W_BIAS] += r->error[e];
        g[W_SAME] += r->error[e] * r->same[e];
    }
    for (uint32_t i = 0; i < W_CROSS; i++)
        m->gradient[i] += g[i];
    m->lessons++;
    /* A matrix learns as if it were trusted fully: how far it is trusted is another question. */
    if (before) {
        for (uint32_t e = 0; e < n; e++)
            r->error[e] = value_chance(r->base[e] + r->same[e]) - r->target[e];
        value_step(m, m->same, layer, before, layer, r->error);
    }
    if (beside) {
        float sum = 0.0f;
        value_sum(m, m->cross, layer, beside, r->cross);
        for (uint32_t e = 0; e < n; e++)
            r->base[e] += trust_same * r->same[e];
        for (uint32_t e = 0; e < n; e++)
            r->error[e] = value_chance(r->base[e] + trust_cross * r->cross[e]) - r->target[e];
        for (uint32_t e = 0; e < n; e++)
            sum += r->error[e] * r->cross[e];
        m->gradient[W_CROSS] += sum;
        for (uint32_t e = 0; e < n; e++)
            r->error[e] = value_chance(r->base[e] + r->cross[e]) - r->target[e];
        value_step(m, m->cross, layer, beside, beside_layer, r->error);
    }
}

/* Estimates of a layer's experts for the next rows of the sequences in `seen` (bits of their places): the chance that
 * at least one of them chooses. beside: the layer whose choice for these rows is known already; >= n_layers: none. */
static inline void value_estimate(struct value_model *m, uint32_t layer, uint32_t seen, uint32_t beside)
{
    const uint32_t n = m->n_experts;
    const float trust_same = m->weight[W_SAME], trust_cross = m->weight[W_CROSS];
    float *restrict none = m->miss_all, *restrict base = m->row.base_now;
    value_features(m, layer, base);
    for (uint32_t e = 0; e < n; e++)
        none[e] = 1.0f;
    for (uint32_t q = 0; q < SEQUENCES; q++) {
        if (!(seen & (1u << q)))
            continue;
        const size_t at = (size_t)layer * SEQUENCES + q;
        float *restrict odds = m->row.same_now, *restrict cross = m->row.cross;
        memset(odds, 0, n * sizeof *odds);
        memset(cross, 0, n * sizeof *cross);
        if (m->owner[at])
            value_sum(m, m->same, layer, m->last + at * m->top_k, odds);
        if (beside < m->n_layers)
            value_sum(m, m->cross, layer, m->last + ((size_t)beside * SEQUENCES + q) * m->top_k, cross);
        for (uint32_t e = 0; e < n; e++)
            none[e] *= 1.0f - value_chance(base[e] + trust_same * odds[e] + trust_cross * cross[e]);
    }
    float *restrict value = m->value + (size_t)layer * n;
    for (uint32_t e = 0; e < n; e++)
        value[e] = 1.0f - none[e];
}

/* One more than it is never 0, which marks an empty place. */
static inline uint32_t value_sequence(const struct colibri_route *route, uint32_t row)
{
    return COLIBRI_HAS(route, row_sequence) && route->row_sequence ? route->row_sequence[row] & 0x7fffffffu : 0;
}

/* All rows of a layer's visit; then new estimates for it and for the layer that comes next. */
static inline void value_route(struct value_model *m, const struct colibri_route *route)
{
    const uint32_t layer = route->layer, k = m->top_k;
    const uint32_t previous = layer ? layer - 1 : m->n_layers - 1, next = layer + 1 < m->n_layers ? layer + 1 : 0;
    uint32_t last_row[SEQUENCES] = {0}, seen = 0;
    for (uint32_t r = 0; r < route->n_rows; r++)
        last_row[value_sequence(route, r) % SEQUENCES] = r;
    for (uint32_t r = 0; r < route->n_rows; r++) {
        const uint32_t *ids = route->ids + (size_t)r * k;
        const uint32_t sequence = value_sequence(route, r), q = sequence % SEQUENCES;
        const size_t at = (size_t)layer * SEQUENCES + q, other = (size_t)previous * SEQUENCES + q;
        const uint32_t *before = m->owner[at] == sequence + 1 ? m->last + at * k : NULL;
        /* The layer before keeps a sequence's last row of this pass; the last layer, that of the pass before. */
        const int fits = layer ? last_row[q] == r : !(seen & (1u << q));
        const uint32_t *beside =
            m->n_layers > 1 && fits && m->owner[other] == sequence + 1 ? m->last + other * k : NULL;
        value_one_row(m, layer, ids, before, beside, previous);
        memcpy(m->last + at * k, ids, k * sizeof *ids);
        m->owner[at] = sequence + 1;
        m->routed[layer] = 1;
        seen |= 1u << q;
    }
    value_estimate(m, layer, seen, UINT32_MAX);
    if (m->n_layers > 1 && m->routed[next])
        value_estimate(m, next, seen, layer);
}

#endif
