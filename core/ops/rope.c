/* Rotary position embedding (Su et al., 2021) of one head, from a table of cosines and sines. */
#include "ops/ops.h"

#include "colibri/numerics.h"

void clb_ref_rope(float *x, const float *cs, size_t n_rot, int neox)
{
    const size_t half = n_rot / 2;
    for (size_t i = 0; i < half; i++) {
        float *const pa = neox ? x + i : x + 2 * i;
        float *const pb = neox ? x + i + half : x + 2 * i + 1;
        const float a = *pa, b = *pb, c = cs[2 * i], s = cs[2 * i + 1];
        const float bs = b * s, bc = b * c;
        *pa = fmaf(a, c, -bs);
        *pb = fmaf(a, s, bc);
    }
}
