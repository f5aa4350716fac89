/* The same searches (fit.h) for values scale * q + offset with unsigned levels q = 0..hi. */
#ifndef CLB_QUANT_FORMATS_FIT_AFFINE_H
#define CLB_QUANT_FORMATS_FIT_AFFINE_H

#include "fit.h"

struct clb_affine_levels {
    int hi;
    float step; /* grid: hi + low * step .. hi + high * step levels over the range of the weights */
    int low, high;
    int any_offset; /* 0: the offset is at most 0 (it is stored as a minimum to subtract) */
};

struct clb_affine {
    float scale, offset;
};

/* Sums over w of y = x - base and one choice of levels; they decide about scale and offset. Subtracting the smallest
 * weight first keeps the sums accurate for weights that are far from zero. */
struct clb_affine_sums {
    float w, y, q, yq, qq;
};

CLB_INLINE void clb_affine_sums(int hi, const float *y, const float *w, size_t n, float inv, float offset,
                                struct clb_affine_sums *s)
{
    float sq[32], syq[32], sqq[32];
    for (size_t i = 0; i < n; i++) {
        const float q = clb_round_to((y[i] - offset) * inv, 0.0f, (float)hi);
        sq[i] = w[i] * q;
        syq[i] = sq[i] * y[i];
        sqq[i] = sq[i] * q;
    }
    s->q = clb_fold(sq, n);
    s->yq = clb_fold(syq, n);
    s->qq = clb_fold(sqq, n);
}

/* The best scale >= 0 and offset for the levels behind s, the offset at most `max_offset`. Returns what they take off
 * the error of all-zero values, -infinity for a negative scale. */
CLB_INLINE float clb_affine_solve(const struct clb_affine_sums *s, float max_offset, struct clb_affine *out)
{
    const float det = s->w * s->qq - s->q * s->q;
    float scale = 0.0f, offset = s->y / s->w;
    if (det > 0.0f) {
        scale = (s->w * s->yq - s->y * s->q) / det;
        offset = (s->qq * s->y - s->q * s->yq) / det;
    }
    if (offset > max_offset) {
        offset = max_offset;
        scale = s->qq > 0.0f ? (s->yq - offset * s->q) / s->qq : 0.0f;
    }
    *out = (struct clb_affine){scale, offset};
    if (!(scale >= 0.0f))
        return -INFINITY;
    return 2.0f * (scale * s->yq + offset * s->y) - scale * scale * s->qq - 2.0f * scale * offset * s->q -
           offset * offset * s->w;
}

/* The best scale and offset for n weights (16 or 32). */
CLB_INLINE struct clb_affine clb_fit_affine(const struct clb_affine_levels *lv, const float *x, const float *w,
                                            size_t n)
{
    float base = x[0], max = x[0], y[32], sum[32];
    for (size_t i = 1; i < n; i++) {
        base = x[i] < base ? x[i] : base;
        max = x[i] > max ? x[i] : max;
    }
    if (!lv->any_offset && base > 0.0f)
        base = 0.0f;
    struct clb_affine_sums s = {0};
    for (size_t i = 0; i < n; i++) {
        y[i] = x[i] - base;
        sum[i] = w[i];
    }
    s.w = clb_fold(sum, n);
    for (size_t i = 0; i < n; i++)
        sum[i] = w[i] * y[i];
    s.y = clb_fold(sum, n);
    const float max_offset = lv->any_offset ? INFINITY : -base;
    struct clb_affine best = {0.0f, s.y / s.w < max_offset ? s.y / s.w : max_offset};
    float best_gain = -INFINITY;
    const float range = max - base;
    for (int k = lv->low; k <= lv->high && range > CLB_FIT_TINY; k++) {
        struct clb_affine a;
        clb_affine_sums(lv->hi, y, w, n, ((float)lv->hi + lv->step * (float)k) / range, 0.0f, &s);
        const float gain = clb_affine_solve(&s, max_offset, &a);
        if (gain > best_gain) {
            best_gain = gain;
            best = a;
        }
    }
    for (int i = 0; i < 4 && best.scale > 0.0f; i++) {
        struct clb_affine a;
        clb_affine_sums(lv->hi, y, w, n, 1.0f / best.scale, best.offset, &s);
        const float gain = clb_affine_solve(&s, max_offset, &a);
        if (!(gain > best_gain))
            break;
        best_gain = gain;
        best = a;
    }
    best.offset += base;
    return best;
}

/* Levels q[] for a given scale and offset, and the error they leave. */
CLB_INLINE float clb_choose_affine(int hi, const float *x, const float *w, size_t n, float scale, float offset,
                                   float *q)
{
    const float inv = scale > 0.0f ? 1.0f / scale : 0.0f;
    float err[32];
    for (size_t i = 0; i < n; i++) {
        q[i] = clb_round_to((x[i] - offset) * inv, 0.0f, (float)hi);
        const float e = x[i] - scale * q[i] - offset;
        err[i] = w[i] * e * e;
    }
    return clb_fold(err, n);
}

/* f16 scale and offset of 32 weights. E_LIMIT if one of the two is out of f16's range. */
CLB_INLINE int clb_fit_affine32(const struct clb_affine_levels *lv, const float *x, const float *w,
                                struct clb_fit32 *out)
{
    const struct clb_affine a = clb_fit_affine(lv, x, w, 32);
    const colibri_f16 d = colibri_f32_f16(a.scale), m = colibri_f32_f16(a.offset);
    if (clb_f16_is_inf(d) || clb_f16_is_inf(m))
        return COLIBRI_E_LIMIT;
    float err = clb_choose_affine(lv->hi, x, w, 32, colibri_f16_f32(d), colibri_f16_f32(m), out->q);
    out->d = d;
    out->m = m;
    for (int k = -1; k <= 1; k += 2) { /* the neighbours of the rounded scale may fit their own levels better */
        const colibri_f16 near = (colibri_f16)(d + k);
        float q[32];
        if (d == 0 || clb_f16_is_inf(near))
            continue;
        const float e = clb_choose_affine(lv->hi, x, w, 32, colibri_f16_f32(near), colibri_f16_f32(m), q);
        if (e < err) {
            err = e;
            out->d = near;
            memcpy(out->q, q, sizeof(q));
        }
    }
    if (err > clb_zero_error(x, w, 32)) /* numbers that f16 barely holds may have been rounded up a lot */
        *out = (struct clb_fit32){0};
    return COLIBRI_OK;
}

#endif
