/* MXFP4 (OCP Microscaling): blocks of 32 E2M1 weights with a shared power-of-two scale. */
#include "block32.h"
#include "fit.h"

static const struct clb_field mxfp4_fields[] = {CLB_FIELD(mxfp4, e, e, 1), CLB_FIELD(mxfp4, qs, q, 4)};

static const int8_t mxfp4_values[16] = COLIBRI_MXFP4_VALUES; /* doubled; the scale is halved */

static inline void row_mxfp4(const void *block, struct clb_row32 *out)
{
    const struct colibri_mxfp4 *b = block;
    out->d = colibri_e8m0_half(b->e);
    for (size_t i = 0; i < 16; i++) {
        out->q[i] = mxfp4_values[b->qs[i] & 15];
        out->q[i + 16] = mxfp4_values[b->qs[i] >> 4];
    }
}

/* Codes of 32 weights under scale byte e, and the error they leave. */
static inline double choose_mxfp4(const float *x, const float *w, int e, uint8_t code[32])
{
    const double inv = ldexp(1.0, 128 - e), d = ldexp(1.0, e - 128); /* in double: the scale may be subnormal */
    double err = 0.0;
    for (size_t i = 0; i < 32; i++) {
        const double v = fabs((double)x[i] * inv);
        int k = 0;
        for (int j = 0; j < 7; j++)
            k += v > 0.5 * (mxfp4_values[j] + mxfp4_values[j + 1]);
        const double left = fabs((double)x[i]) - d * mxfp4_values[k];
        code[i] = (uint8_t)(k && x[i] < 0.0f ? k + 8 : k);
        err += (double)w[i] * left * left;
    }
    return err;
}

/* The exponent that keeps the greatest weight in the top binade (the rule of the specification), one above or one
 * below it, whichever leaves the smallest error. */
static int quantize_mxfp4(const float *in, void *blocks, size_t n, const float *importance)
{
    struct colibri_mxfp4 *out = blocks;
    for (size_t b = 0; b < n / 32; b++) {
        const float *x = in + 32 * b;
        float w[32], amax = 0.0f;
        uint8_t code[32] = {0};
        const int rc = clb_fit_weights(x, importance ? importance + 32 * b : NULL, 32, w, &amax);
        if (rc)
            return rc;
        out[b].e = 0;
        if (amax > 0.0f) {
            int exp;
            frexpf(amax, &exp); /* amax = m * 2^exp, m in [0.5, 1): its binade is exp - 1, that of 4 and 6 is 2 */
            const int centre = exp - 1 - 2 + 127;
            double best = INFINITY;
            static const int offsets[] = {0, -1, 1};
            for (size_t k = 0; k < 3; k++) {
                const int e = centre + offsets[k];
                uint8_t other[32];
                if (e < 0 || e > 252) /* above 252 the greatest code overflows a float */
                    continue;
                const double err = choose_mxfp4(x, w, e, other);
                if (err < best) {
                    best = err;
                    out[b].e = (uint8_t)e;
                    memcpy(code, other, sizeof(code));
                }
            }
        }
        for (size_t i = 0; i < 16; i++)
            out[b].qs[i] = (uint8_t)(code[i] | code[i + 16] << 4);
    }
    return COLIBRI_OK;
}

CLB_DEFINE_PACK(mxfp4, 32)
CLB_DEFINE_BLOCK32(mxfp4, 0)

static const struct colibri_format formats[] = {CLB_FORMAT32(mxfp4, COLIBRI_TYPE_MXFP4, "MXFP4")};

CLB_FORMAT_PLUGIN(mxfp4, formats, "MXFP4: 4-bit floats in blocks of 32");
