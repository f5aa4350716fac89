/* Superblocks of 256 weights: integer sub-scales (and minimums) under one or two f16 scales.
 *
 * Each sub-block is fitted on its own first (fit.h, fit_affine.h). The greatest scale fixes the superblock's scale, the
 * others become integers. Then, alternately: every sub-block takes the integers around its ideal ones that leave the
 * smallest error with levels chosen anew, and the superblock's scales become the least squares solution for the
 * integers chosen. A round is kept only if the total error falls. */
#ifndef CLB_QUANT_FORMATS_FIT256_H
#define CLB_QUANT_FORMATS_FIT256_H

#include "fit.h"
#include "fit_affine.h"

#define CLB_FIT_ROUNDS 3

CLB_INLINE int clb_clamp_int(float v, int lo, int hi)
{
    return (int)clb_round_to(v, (float)lo, (float)hi);
}

/* Nearest f16, but not below |s| where f16 gets coarse (below 2^-14, where Q6_K's scales usually are): the greatest
 * sub-block must stay in reach. */
static inline colibri_f16 clb_f16_reach(float s)
{
    const colibri_f16 h = colibri_f32_f16(s);
    return (h & 0x7fffu) < 0x400u && fabsf(colibri_f16_f32(h)) < fabsf(s) ? (colibri_f16)(h + 1) : h;
}

/* ---- scale only (Q3_K, Q6_K, IQ4_XS): value = d * sc * level, sc in sc_lo .. -sc_lo - 1 ---------------------- */

struct clb_scaled256 {
    colibri_f16 d;
    int16_t sc[16];
    float q[256]; /* levels */
};

/* Integer scales and levels for out->d, near the sub-blocks' ideal scales. Returns the error. */
CLB_INLINE float clb_choose_scaled256(const struct clb_levels *lv, const float *x, const float *w, size_t n_sub,
                                      int sc_lo, const float *ideal, struct clb_scaled256 *out)
{
    const size_t n = 256 / n_sub;
    const float d = colibri_f16_f32(out->d);
    float total = 0.0f;
    for (size_t s = 0; s < n_sub; s++) {
        const int centre = d != 0.0f ? clb_clamp_int(ideal[s] / d, sc_lo, -sc_lo - 1) : 0;
        float best = INFINITY, q[32];
        for (int sc = centre - 1; sc <= centre + 1; sc++) {
            if (sc < sc_lo || sc > -sc_lo - 1)
                continue;
            const float err = clb_choose_levels(lv, x + n * s, w + n * s, n, d * (float)sc, q);
            if (err < best) {
                best = err;
                out->sc[s] = (int16_t)sc;
                memcpy(out->q + n * s, q, n * sizeof(float));
            }
        }
        total += best;
    }
    return total;
}

/* The least squares d for the integers of `in`. */
CLB_INLINE float clb_solve_scaled256(const float *x, const float *w, size_t n_sub, const struct clb_scaled256 *in)
{
    float xa[256], aa[256];
    for (size_t i = 0; i < 256; i++) {
        const float a = (float)in->sc[i / (256 / n_sub)] * in->q[i];
        xa[i] = w[i] * a * x[i];
        aa[i] = w[i] * a * a;
    }
    const float den = clb_fold(aa, 256);
    return den > 0.0f ? clb_fold(xa, 256) / den : 0.0f;
}

CLB_INLINE int clb_fit_scaled256(const struct clb_levels *lv, const float *x, const float *w, size_t n_sub, int sc_lo,
                                 struct clb_scaled256 *out)
{
    const size_t n = 256 / n_sub;
    float ideal[16], extreme = 0.0f;
    for (size_t s = 0; s < n_sub; s++) {
        ideal[s] = clb_fit_scale(lv, x + n * s, w + n * s, n);
        extreme = fabsf(ideal[s]) > fabsf(extreme) ? ideal[s] : extreme;
    }
    out->d = clb_f16_reach(extreme / (float)sc_lo);
    if (clb_f16_is_inf(out->d))
        return COLIBRI_E_LIMIT;
    float err = clb_choose_scaled256(lv, x, w, n_sub, sc_lo, ideal, out);
    for (int round = 0; round < CLB_FIT_ROUNDS && err > 0.0f; round++) {
        struct clb_scaled256 next = {.d = colibri_f32_f16(clb_solve_scaled256(x, w, n_sub, out))};
        if (clb_f16_is_inf(next.d) || next.d == out->d)
            break;
        const float e = clb_choose_scaled256(lv, x, w, n_sub, sc_lo, ideal, &next);
        if (!(e < err))
            break;
        err = e;
        *out = next;
    }
    if (err > clb_zero_error(x, w, 256)) { /* a scale that f16 barely holds may have been rounded up a lot */
        out->d = 0;
        (void)clb_choose_scaled256(lv, x, w, n_sub, sc_lo, ideal, out);
    }
    return COLIBRI_OK;
}

/* ---- scale and minimum (Q2_K, Q4_K, Q5_K): value = d * sc * q - dmin * m, sc and m in 0 .. sc_hi --------------- */

struct clb_affine256 {
    colibri_f16 d, dmin;
    int16_t sc[16], m[16];
    float q[256]; /* levels */
};

/* Integer scales, minimums and levels for out->d and out->dmin, near the sub-blocks' ideal ones. Returns the error. */
CLB_INLINE float clb_choose_affine256(int hi, const float *x, const float *w, size_t n_sub, int sc_hi,
                                      const struct clb_affine *ideal, struct clb_affine256 *out)
{
    const size_t n = 256 / n_sub;
    const float d = colibri_f16_f32(out->d), dmin = colibri_f16_f32(out->dmin);
    float total = 0.0f;
    for (size_t s = 0; s < n_sub; s++) {
        const int sc0 = d > 0.0f ? clb_clamp_int(ideal[s].scale / d, 0, sc_hi) : 0;
        const int m0 = dmin > 0.0f ? clb_clamp_int(-ideal[s].offset / dmin, 0, sc_hi) : 0;
        float best = INFINITY, q[32];
        for (int sc = sc0 > 0 ? sc0 - 1 : 0; sc <= sc0 + 1 && sc <= sc_hi; sc++)
            for (int m = m0 > 0 ? m0 - 1 : 0; m <= m0 + 1 && m <= sc_hi; m++) {
                const float err = clb_choose_affine(hi, x + n * s, w + n * s, n, d * (float)sc, -(dmin * (float)m), q);
                if (err < best) {
                    best = err;
                    out->sc[s] = (int16_t)sc;
                    out->m[s] = (int16_t)m;
                    memcpy(out->q + n * s, q, n * sizeof(float));
                }
            }
        total += best;
    }
    return total;
}

/* The least squares d and dmin for the integers of `in`. */
CLB_INLINE void clb_solve_affine256(const float *x, const float *w, size_t n_sub, const struct clb_affine256 *in,
                                    float *d, float *dmin)
{
    float xa[256], xb[256], aa[256], ab[256], bb[256]; /* a * d - b * dmin */
    for (size_t i = 0; i < 256; i++) {
        const float a = (float)in->sc[i / (256 / n_sub)] * in->q[i], b = (float)in->m[i / (256 / n_sub)];
        xa[i] = w[i] * a * x[i];
        xb[i] = w[i] * b * x[i];
        aa[i] = w[i] * a * a;
        ab[i] = w[i] * a * b;
        bb[i] = w[i] * b * b;
    }
    const float sxa = clb_fold(xa, 256), sxb = clb_fold(xb, 256), saa = clb_fold(aa, 256), sab = clb_fold(ab, 256),
                sbb = clb_fold(bb, 256);
    const float det = saa * sbb - sab * sab;
    *d = det > 0.0f ? (sxa * sbb - sxb * sab) / det : saa > 0.0f ? sxa / saa : 0.0f;
    *dmin = det > 0.0f ? (sxa * sab - sxb * saa) / det : 0.0f;
}

CLB_INLINE int clb_fit_affine256(const struct clb_affine_levels *lv, const float *x, const float *w, size_t n_sub,
                                 int sc_hi, struct clb_affine256 *out)
{
    const size_t n = 256 / n_sub;
    struct clb_affine ideal[16];
    float scale = 0.0f, min = 0.0f;
    for (size_t s = 0; s < n_sub; s++) {
        ideal[s] = clb_fit_affine(lv, x + n * s, w + n * s, n);
        scale = ideal[s].scale > scale ? ideal[s].scale : scale;
        min = -ideal[s].offset > min ? -ideal[s].offset : min;
    }
    out->d = clb_f16_reach(scale / (float)sc_hi);
    out->dmin = clb_f16_reach(min / (float)sc_hi);
    if (clb_f16_is_inf(out->d) || clb_f16_is_inf(out->dmin))
        return COLIBRI_E_LIMIT;
    float err = clb_choose_affine256(lv->hi, x, w, n_sub, sc_hi, ideal, out);
    for (int round = 0; round < CLB_FIT_ROUNDS && err > 0.0f; round++) {
        struct clb_affine256 next;
        float d, dmin;
        clb_solve_affine256(x, w, n_sub, out, &d, &dmin);
        next.d = colibri_f32_f16(d);
        next.dmin = colibri_f32_f16(dmin);
        if (!(d >= 0.0f && dmin >= 0.0f) || clb_f16_is_inf(next.d) || clb_f16_is_inf(next.dmin) ||
            (next.d == out->d && next.dmin == out->dmin))
            break;
        const float e = clb_choose_affine256(lv->hi, x, w, n_sub, sc_hi, ideal, &next);
        if (!(e < err))
            break;
        err = e;
        *out = next;
    }
    if (err > clb_zero_error(x, w, 256)) /* numbers that f16 barely holds may have been rounded up a lot */
        *out = (struct clb_affine256){0};
    return COLIBRI_OK;
}

/* quantize_<type>() of the format interface, from <type>_levels and put_<type>(), which writes a fit as a row
 * superblock. kind: scaled256 (limit: lowest sub-scale) or affine256 (limit: highest sub-scale and minimum). */
#define CLB_DEFINE_QUANTIZE256(type, kind, n_sub, limit)                                                               \
    static int quantize_##type(const float *in, void *blocks, size_t n, const float *importance)                       \
    {                                                                                                                  \
        struct colibri_##type *out = blocks;                                                                           \
        for (size_t b = 0; b < n / 256; b++) {                                                                         \
            const float *x = in + 256 * b;                                                                             \
            float w[256];                                                                                              \
            struct clb_##kind f;                                                                                       \
            int rc = clb_fit_input(x, importance ? importance + 256 * b : NULL, 256, w);                               \
            if (!rc)                                                                                                   \
                rc = clb_fit_##kind(&type##_levels, x, w, n_sub, limit, &f);                                           \
            if (rc)                                                                                                    \
                return rc;                                                                                             \
            put_##type(&f, &out[b]);                                                                                   \
        }                                                                                                              \
        return COLIBRI_OK;                                                                                             \
    }

#endif
