/* Softmax with the largest element subtracted, the sum in 16 virtual lanes, and a true division. */
#include "ops/ops.h"

#include "colibri/numerics.h"

void clb_ref_softmax(float *x, size_t n)
{
    float max = -INFINITY;
    for (size_t i = 0; i < n; i++)
        max = x[i] > max ? x[i] : max;
    float lane[COLIBRI_LANES] = {0};
    for (size_t i = 0; i < n; i++) {
        x[i] = colibri_expf(x[i] - max);
        lane[i % COLIBRI_LANES] += x[i]; /* adding the zeros beyond n would change nothing: exp is never -0 */
    }
    const float sum = colibri_lanes_sum(lane);
    for (size_t i = 0; i < n; i++)
        x[i] = x[i] / sum;
}
