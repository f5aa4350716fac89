/* For KV strategies: what nearly every one of them does. Nothing here needs memory of its own. */
#ifndef COLIBRI_KV_SELECT_H
#define COLIBRI_KV_SELECT_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "colibri/kv_strategy.h"

/* Whole numbers in the order of the floats: NaN below everything, -0 equal to +0. */
static inline uint32_t colibri_kv_rank_key(float x)
{
    uint32_t u;
    if (x != x)
        return 0;
    x = x + 0.0f;
    memcpy(&u, &x, 4);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* keep[i] = 1 for the n_keep highest of score[0..n), else 0. Equal scores: the later index stays, so the result depends on
 * nothing but the scores. (Radix selection of the n_keep-th key, 8 bits a pass.) */
static inline void colibri_kv_keep_top(const float *score, uint32_t n, uint32_t n_keep, uint8_t *keep)
{
    uint32_t want = n_keep, prefix = 0, mask = 0;
    if (n_keep >= n) {
        memset(keep, 1, n);
        return;
    }
    for (int shift = 24; shift >= 0; shift -= 8) {
        uint32_t count[256] = {0};
        uint32_t digit = 255;
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t key = colibri_kv_rank_key(score[i]);
            if ((key & mask) == prefix)
                count[(key >> shift) & 255u]++;
        }
        while (count[digit] < want)
            want -= count[digit--];
        prefix |= digit << shift;
        mask |= UINT32_C(255) << shift;
    }
    for (uint32_t i = n; i-- > 0;) {
        const uint32_t key = colibri_kv_rank_key(score[i]);
        keep[i] = key > prefix || (key == prefix && want > 0);
        want -= key == prefix && want > 0;
    }
}

/* Parameter i: as the user set it, or its default. */
static inline double colibri_kv_param(const struct colibri_kv_config *config, const struct colibri_param *params, int i)
{
    return config->params ? config->params[i] : params[i].value;
}

/* A score that the host accepts: what is not a number ranks last. */
static inline float colibri_kv_number(float x)
{
    return x == x ? x : -INFINITY;
}

/* Entries that stay whatever the ranking says: the first and the last so many, together at most n_keep and at most n. */
struct colibri_kv_ends {
    uint32_t first, last;
};

/* The protected entries and those of the positions below `sinks`; the newest one and, as far as there is room, the
 * last `recent`. */
static inline struct colibri_kv_ends colibri_kv_ends_of(const struct colibri_kv_view *view, uint32_t sinks,
                                                        uint32_t recent)
{
    const uint32_t most = view->n_keep < view->n ? view->n_keep : view->n;
    struct colibri_kv_ends e = {0, recent ? recent : 1};
    while (e.first < view->n && view->positions[e.first] < sinks)
        e.first++;
    if (COLIBRI_HAS(view, n_protected) && view->n_protected > e.first)
        e.first = view->n_protected;
    if (e.first + 1 > most)
        e.first = most ? most - 1 : 0;
    if (e.last > most - e.first)
        e.last = most - e.first;
    return e;
}

static inline int colibri_kv_in_ends(const struct colibri_kv_view *view, struct colibri_kv_ends e, uint32_t i)
{
    return i < e.first || view->n - i <= e.last;
}

/* The last so many of n_keep that a share of what the first ones leave amounts to. */
static inline uint32_t colibri_kv_share(const struct colibri_kv_view *view, uint32_t sinks, double share)
{
    const uint32_t first = colibri_kv_ends_of(view, sinks, 1).first;
    return view->n_keep > first ? (uint32_t)(share * (view->n_keep - first)) : 0;
}

/* Scores of those that stay. */
static inline void colibri_kv_mark_ends(const struct colibri_kv_view *view, struct colibri_kv_ends e, float *out)
{
    for (uint32_t i = 0; i < e.first; i++)
        out[i] = INFINITY;
    for (uint32_t i = view->n - e.last; i < view->n; i++)
        out[i] = INFINITY;
}

/* out[i]: mean (with zeros beyond the ends) or maximum of the `kernel` values around x[i]; kernel is odd. What is not a
 * number counts as 0. */
static inline void colibri_kv_pool(const float *x, uint32_t n, uint32_t kernel, int max, float *out)
{
    const uint32_t half = kernel / 2;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t from = i > half ? i - half : 0, to = n - i > half ? i + half + 1 : n;
        float sum = 0, best = 0;
        for (uint32_t j = from; j < to; j++) {
            const float v = x[j] == x[j] ? x[j] : 0.0f;
            sum += v;
            best = j == from || v > best ? v : best;
        }
        out[i] = max ? best : sum / (float)kernel;
    }
}

#endif
