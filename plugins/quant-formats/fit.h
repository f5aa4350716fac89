/* Quantizer searches: which scale (and minimum) makes a run of weights come out closest, for given levels.
 *
 * The error is always the weighted squared error, sum of w * (x - value)^2. A scale is found by trying a grid of scales
 * around the one that maps the extreme weight to the last level. For each, the weights are rounded to levels, and
 * the scale that is best for those levels follows in closed form (weighted least squares). The best candidate is
 * then refined by rounding and solving in turn until nothing changes. Rounding of the scale itself (f16, or 4 to 8 bits
 * inside a superblock) happens afterwards, followed by a new choice of levels, because that is what readers see.
 *
 * Everything is single precision in a fixed order, so the bytes are the same on every machine. Sizes cannot overflow:
 * weights of the error are scaled to at most 1, and |x| is at most CLB_FIT_HUGE. */
#ifndef CLB_QUANT_FORMATS_FIT_H
#define CLB_QUANT_FORMATS_FIT_H

#include "common.h"

#include <stdlib.h>

/* Half of the smallest f16: a block whose weights are all that small is closest to zero in every format with an f16
 * scale, because these formats have no value between 0 and 2^-24. */
#define CLB_FIT_TINY 0x1p-25f
/* No format with an f16 scale reaches weights of this size (65504 * 128 * 128 < 2^30). */
#define CLB_FIT_HUGE 0x1p40f

/* The values that a scale is multiplied with: integers lo..hi, or 16 ascending values. */
struct clb_levels {
    int lo, hi;
    const int8_t *values; /* NULL: integers */
    float step;           /* grid: the extreme weight is mapped to lo - k * step and hi + k * step, */
    int n_steps;          /* for -n_steps <= k <= n_steps */
};

/* A weight's importance counts at least this much of the block's greatest: a run of weights without any importance
 * still gets a sensible scale, and changes nothing for the others. */
#define CLB_FIT_FLOOR 0x1p-30f

/* w[]: the importance relative to its maximum, or all ones. *amax: the greatest |x|.
 * E_FORMAT for weights that are not finite, and for importance that is negative or not finite. */
CLB_INLINE int clb_fit_weights(const float *x, const float *importance, size_t n, float *w, float *amax)
{
    float wmax = 0.0f;
    int bad = 0;
    *amax = 0.0f;
    for (size_t i = 0; i < n; i++) {
        const float a = fabsf(x[i]);
        bad |= !(a < INFINITY);
        *amax = a > *amax ? a : *amax;
        w[i] = importance ? importance[i] : 1.0f;
        bad |= !(w[i] >= 0.0f && w[i] < INFINITY);
        wmax = w[i] > wmax ? w[i] : wmax;
    }
    for (size_t i = 0; importance && i < n; i++) {
        const float r = wmax > 0.0f ? w[i] / wmax : 1.0f;
        w[i] = r > CLB_FIT_FLOOR ? r : CLB_FIT_FLOOR;
    }
    return bad ? COLIBRI_E_FORMAT : COLIBRI_OK;
}

/* The same for formats with an f16 scale: E_LIMIT for sizes no such scale can express. */
CLB_INLINE int clb_fit_input(const float *x, const float *importance, size_t n, float *w)
{
    float amax;
    const int rc = clb_fit_weights(x, importance, n, w, &amax);
    return rc ? rc : amax > CLB_FIT_HUGE ? COLIBRI_E_LIMIT : COLIBRI_OK;
}

/* Sum of n terms, a power of two, in pairs; destroys them. */
CLB_INLINE float clb_fold(float *t, size_t n)
{
    for (size_t h = n / 2; h > 0; h /= 2)
        for (size_t i = 0; i < h; i++)
            t[i] += t[i + h];
    return t[0];
}

/* v is small enough after the clamp for the rounding constant (numerics.h). */
CLB_INLINE float clb_round_to(float v, float lo, float hi)
{
    v = v < lo ? lo : v;
    v = v > hi ? hi : v;
    return (v + COLIBRI_EXP_ROUND) - COLIBRI_EXP_ROUND;
}

CLB_INLINE float clb_nearest(const struct clb_levels *lv, float v)
{
    if (!lv->values)
        return clb_round_to(v, (float)lv->lo, (float)lv->hi);
    float value = lv->values[0]; /* a sum of steps instead of a search: this vectorizes */
    for (int i = 0; i < 15; i++)
        value +=
            v > 0.5f * (float)(lv->values[i] + lv->values[i + 1]) ? (float)(lv->values[i + 1] - lv->values[i]) : 0.0f;
    return value;
}

/* Sums that decide about a scale: of w*x*q and w*q*q. */
struct clb_scale_sums {
    float xq, qq;
};

CLB_INLINE struct clb_scale_sums clb_scale_sums(const struct clb_levels *lv, const float *x, const float *w, size_t n,
                                                float inv)
{
    float xq[32], qq[32];
    for (size_t i = 0; i < n; i++) {
        const float q = clb_nearest(lv, x[i] * inv);
        xq[i] = w[i] * q * x[i];
        qq[i] = w[i] * q * q;
    }
    return (struct clb_scale_sums){clb_fold(xq, n), clb_fold(qq, n)};
}

/* The best scale for n weights (16 or 32), 0 if they are closest to zero. */
CLB_INLINE float clb_fit_scale(const struct clb_levels *lv, const float *x, const float *w, size_t n)
{
    float extreme = 0.0f;
    for (size_t i = 0; i < n; i++)
        extreme = fabsf(x[i]) > fabsf(extreme) ? x[i] : extreme;
    if (fabsf(extreme) <= CLB_FIT_TINY)
        return 0.0f;
    /* error = sum(w x^2) - xq^2 / qq: the greatest xq^2 / qq is best. The extreme weight may become the lowest level or
     * the highest one. */
    float best_gain = 0.0f;
    float best = 0.0f;
    for (int k = -2 * lv->n_steps - 1; k <= 2 * lv->n_steps + 1; k++) {
        const float delta = lv->step * (float)(abs(k) - lv->n_steps - 1);
        if (k == 0)
            continue;
        const float top = k > 0 ? (float)lv->lo - delta : (float)lv->hi + delta;
        const struct clb_scale_sums s = clb_scale_sums(lv, x, w, n, top / extreme);
        if (s.qq > 0.0f && s.xq * s.xq > best_gain * s.qq) {
            best_gain = s.xq * s.xq / s.qq;
            best = s.xq / s.qq;
        }
    }
    for (int i = 0; i < 4 && best != 0.0f; i++) {
        const struct clb_scale_sums s = clb_scale_sums(lv, x, w, n, 1.0f / best);
        if (!(s.qq > 0.0f && s.xq * s.xq > best_gain * s.qq))
            break;
        best_gain = s.xq * s.xq / s.qq;
        best = s.xq / s.qq;
    }
    return best;
}

/* Levels q[] for a given scale, and the error they leave. */
CLB_INLINE float clb_choose_levels(const struct clb_levels *lv, const float *x, const float *w, size_t n, float scale,
                                   float *q)
{
    const float inv = scale != 0.0f ? 1.0f / scale : 0.0f;
    float err[32];
    for (size_t i = 0; i < n; i++) {
        q[i] = clb_nearest(lv, x[i] * inv);
        const float e = x[i] - scale * q[i];
        err[i] = w[i] * e * e;
    }
    return clb_fold(err, n);
}

/* The error of all-zero values. */
CLB_INLINE float clb_zero_error(const float *x, const float *w, size_t n)
{
    float err[256];
    for (size_t i = 0; i < n; i++)
        err[i] = w[i] * x[i] * x[i];
    return clb_fold(err, n);
}

static inline int clb_f16_is_inf(colibri_f16 h)
{
    return (h & 0x7fffu) == 0x7c00u;
}

/* ---- one f16 scale for 32 weights --------------------------------------------------------------------- */

struct clb_fit32 {
    colibri_f16 d, m;
    float q[32]; /* levels */
};

/* E_LIMIT if the scale is out of f16's range. */
CLB_INLINE int clb_fit_block32(const struct clb_levels *lv, const float *x, const float *w, struct clb_fit32 *out)
{
    const colibri_f16 d = colibri_f32_f16(clb_fit_scale(lv, x, w, 32));
    if (clb_f16_is_inf(d))
        return COLIBRI_E_LIMIT;
    float err = clb_choose_levels(lv, x, w, 32, colibri_f16_f32(d), out->q);
    out->d = d;
    for (int k = -1; k <= 1; k += 2) { /* the neighbours of the rounded scale may fit their own levels better */
        const colibri_f16 near = (colibri_f16)(d + k);
        float q[32];
        if ((d & 0x7fffu) == 0 || clb_f16_is_inf(near))
            continue;
        const float e = clb_choose_levels(lv, x, w, 32, colibri_f16_f32(near), q);
        if (e < err) {
            err = e;
            out->d = near;
            memcpy(out->q, q, sizeof(q));
        }
    }
    if (err > clb_zero_error(x, w, 32)) { /* a scale that f16 barely holds may have been rounded up a lot */
        out->d = 0;
        (void)clb_choose_levels(lv, x, w, 32, 0.0f, out->q);
    }
    return COLIBRI_OK;
}

/* quantize_<type>() of the format interface, from <type>_levels, put_<type>(), which writes a fit as a row block, and
 * `fit`, one of clb_fit_block32 and clb_fit_affine32. */
#define CLB_DEFINE_QUANTIZE32(type, fit)                                                                               \
    static int quantize_##type(const float *in, void *blocks, size_t n, const float *importance)                       \
    {                                                                                                                  \
        struct colibri_##type *out = blocks;                                                                           \
        for (size_t b = 0; b < n / 32; b++) {                                                                          \
            const float *x = in + 32 * b;                                                                              \
            float w[32];                                                                                               \
            struct clb_fit32 f;                                                                                        \
            int rc = clb_fit_input(x, importance ? importance + 32 * b : NULL, 32, w);                                 \
            if (!rc)                                                                                                   \
                rc = fit(&type##_levels, x, w, &f);                                                                    \
            if (rc)                                                                                                    \
                return rc;                                                                                             \
            put_##type(&f, &out[b]);                                                                                   \
        }                                                                                                              \
        return COLIBRI_OK;                                                                                             \
    }

#endif
