/* Where top-p ends depends on the sum of all weights, which clb_candidates_cut adds up from the largest down, with
 * roundings that another order would not repeat. So the sum is not repeated but bounded, from weights that are quick to
 * compute: as `weight / sum` and what is added up of it are monotone in the sum, roundings included, the cut is certain
 * where both bounds give the same one. Where they do not, all is sorted. */
#include "engine/sampler_select.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "colibri/numerics.h"

#define FEW     256u
#define BLOCK   256u
#define LN2     0.69314718056
#define DEEPEST 87.0f /* below it colibri_expf is 0 */
#define MARGIN  1e-3  /* more than all roundings of logits and their logarithms */
#define OCTAVE  126   /* weights are sorted into octaves; the last one is of all that are smaller */

/* quick_exp is off by 6.5e-6 of colibri_expf's value at most, for every float in [-87.3, 0], and by less than 2e-38
 * below. This leaves room for the additions, too. */
#define ERROR_PART 2e-5
#define ERROR_EACH 1e-37

size_t clb_candidates_cut(const struct clb_candidate *c, size_t n, double top_p, double min_p, double *weights)
{
    double total = 0.0;
    if (top_p >= 1.0 && min_p <= 0.0)
        return n;
    for (size_t i = 0; i < n; i++) {
        weights[i] = (double)colibri_expf(c[i].logit - c[0].logit);
        total += weights[i];
    }
    size_t kept = n;
    if (top_p < 1.0) {
        double mass = 0.0;
        for (size_t i = 0; i < n; i++) {
            mass += weights[i] / total;
            if (mass >= top_p) {
                kept = i + 1;
                break;
            }
        }
    }
    if (min_p > 0.0)
        while (kept > 1 && weights[kept - 1] < min_p * weights[0])
            kept--;
    return kept;
}

/* ---- sorting ---- */

/* Rises where clb_by_logit's order of logits does; both zeros are one. */
static uint32_t key_of(float logit)
{
    const uint32_t bits = colibri_f32_bits(logit + 0.0f);
    return bits >> 31 ? bits : ~bits & 0x7fffffffu;
}

/* By digits of 8 bits, the last one first. Equal logits keep their order, which is that of ids. */
static void sort(struct clb_candidate *c, size_t n, double *room)
{
    _Static_assert(sizeof(struct clb_candidate) == sizeof(double), "weights are the second buffer");
    if (n <= FEW) {
        qsort(c, n, sizeof *c, clb_by_logit);
        return;
    }
    size_t count[4][256] = {{0}};
    for (size_t i = 0; i < n; i++)
        for (unsigned d = 0; d < 4; d++)
            count[d][key_of(c[i].logit) >> 8 * d & 255]++;
    struct clb_candidate *from = c, *to = (struct clb_candidate *)(void *)room;
    for (unsigned d = 0; d < 4; d++) {
        size_t at = 0;
        for (unsigned k = 0; k < 256; k++) {
            const size_t here = count[d][k];
            count[d][k] = at;
            at += here;
        }
        for (size_t i = 0; i < n; i++)
            to[count[d][key_of(from[i].logit) >> 8 * d & 255]++] = from[i];
        struct clb_candidate *const t = from;
        from = to;
        to = t;
    }
}

/* ---- the sum of all weights ---- */

/* exp(x) for x <= 0, in a form that compilers make vectors of: 2^y = 2^whole * 2^part, part in (-1, 0], by a polynomial
 * of the fourth degree. */
static float quick_exp(float x)
{
    float y = x * 1.44269504f;
    y = y < -125.99f ? -125.99f : y;
    const int32_t whole = (int32_t)y;
    const float part = y - (float)whole;
    float p = 0.0067670828f;
    p = p * part + 0.0530740657f;
    p = p * part + 0.2393410653f;
    p = p * part + 0.6930301785f;
    p = p * part + 0.9999973774f;
    return p * colibri_bits_f32((uint32_t)(whole + 127) << 23);
}

/* The weights' sum by octaves: [k] of those in [2^-k, 2^-k+1), about. */
static void weigh(const struct clb_candidate *c, size_t n, float best, double octave[OCTAVE + 1])
{
    for (size_t at = 0; at < n; at += BLOCK) {
        float w[BLOCK];
        const size_t m = n - at < BLOCK ? n - at : BLOCK;
        for (size_t i = 0; i < m; i++)
            w[i] = quick_exp(c[at + i].logit - best);
        for (size_t i = 0; i < m; i++) {
            const uint32_t exponent = colibri_f32_bits(w[i]) >> 23;
            octave[exponent < 127 ? 127 - exponent > OCTAVE ? OCTAVE : 127 - exponent : 0] += (double)w[i];
        }
    }
}

/* How far below the best logit the candidates are that can count; INFINITY: all of them. *low and *high: bounds of the
 * sum of all weights. *by_min_p: what is farther is below min-p for certain. */
static float depth_of(const struct clb_candidate *c, size_t n, float best, double top_p, double min_p, double *low,
                      double *high, bool *by_min_p)
{
    double depth = INFINITY, octave[OCTAVE + 1] = {0}, total = 0.0, mass = 0.0;
    *by_min_p = min_p > 0.0;
    if (min_p > 0.0)
        depth = (min_p < 1.0 ? -log(min_p) : 0.0) + MARGIN;
    if (top_p >= 1.0)
        return (float)depth;
    weigh(c, n, best, octave);
    for (size_t k = 0; k <= OCTAVE; k++)
        total += octave[k];
    *low = total * (1.0 - ERROR_PART) - (double)n * ERROR_EACH;
    *high = total * (1.0 + ERROR_PART) + (double)n * ERROR_EACH;
    size_t k = 0;
    while (k <= OCTAVE && mass < top_p * *high * (1.0 + ERROR_PART))
        mass += octave[k++];
    const double enough = (k ? (double)(k - 1) * LN2 : 0.0) + MARGIN;
    if (k <= OCTAVE && enough < depth) {
        depth = enough;
        *by_min_p = false;
    }
    return (float)depth;
}

/* Where top-p ends in the first n candidates, all others being smaller: false if it cannot be told. *kept is n + 1 if
 * it ends behind them. */
static bool find_end(const double *weights, size_t n, double top_p, double low, double high, size_t *kept)
{
    double most = 0.0, least = 0.0;
    for (size_t i = 0; i < n; i++) {
        most += weights[i] / low;
        least += weights[i] / high;
        if (most >= top_p) {
            *kept = i + 1;
            return least >= top_p;
        }
    }
    *kept = n + 1;
    return true;
}

/* Brings those that are at most so far below the best one to the front; all keep their order. */
static size_t divide(struct clb_candidate *c, size_t n, float best, float depth, double *room)
{
    struct clb_candidate *const far = (struct clb_candidate *)(void *)room;
    size_t n_near = 0, n_far = 0;
    for (size_t i = 0; i < n; i++) {
        const struct clb_candidate x = c[i];
        const bool near = best - x.logit <= depth;
        c[n_near] = x;
        far[n_far] = x;
        n_near += near;
        n_far += !near;
    }
    memcpy(c + n_near, far, n_far * sizeof *c);
    return n_near;
}

size_t clb_candidates_select(struct clb_candidate *c, size_t n, size_t best, double top_p, double min_p,
                             double *weights)
{
    const float top = c[best].logit;
    double low = 1.0, high = 1.0;
    float depth = INFINITY;
    bool by_min_p = false;
    size_t n_near = n;
    if (n > FEW && isfinite(top) && (top_p < 1.0 || min_p > 0.0))
        depth = depth_of(c, n, top, top_p, min_p, &low, &high, &by_min_p);
    if (depth < DEEPEST)
        n_near = divide(c, n, top, depth, weights);
    sort(c, n_near, weights);
    if (n_near < n) {
        size_t kept = n_near + 1;
        for (size_t i = 0; i < n_near; i++)
            weights[i] = (double)colibri_expf(c[i].logit - c[0].logit);
        if ((top_p >= 1.0 || find_end(weights, n_near, top_p, low, high, &kept)) && (kept <= n_near || by_min_p)) {
            kept = kept <= n_near ? kept : n_near;
            while (min_p > 0.0 && kept > 1 && weights[kept - 1] < min_p * weights[0])
                kept--;
            return kept;
        }
        sort(c + n_near, n - n_near, weights);
    }
    return clb_candidates_cut(c, n, top_p, min_p, weights);
}
