/* RMS normalization (Zhang and Sennrich, 2019), with the mean of squares in 16 virtual lanes. */
#include "ops/ops.h"

#include "colibri/numerics.h"

void clb_ref_rms_norm(float *y, const float *x, const float *w, size_t n, float eps)
{
    float lane[COLIBRI_LANES] = {0};
    for (size_t i = 0; i < n; i += COLIBRI_LANES)
        for (size_t l = 0; l < COLIBRI_LANES; l++) {
            const float v = i + l < n ? x[i + l] : 0.0f;
            lane[l] = fmaf(v, v, lane[l]);
        }
    const float mean = colibri_lanes_sum(lane) / (float)n;
    const float s = 1.0f / sqrtf(mean + eps);
    for (size_t i = 0; i < n; i++) {
        const float v = x[i] * s;
        y[i] = w ? v * w[i] : v;
    }
}
