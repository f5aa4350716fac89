/* Q4_0 in plain C: right on every CPU, and the thing to compare faster ones with. */
#include "kernels.h"

void run_plain(const struct colibri_matmul_args *a)
{
    const uint32_t n_blocks = a->n_cols / 32;
    for (uint32_t g = a->group_begin; g < a->group_end; g++)
        for (uint32_t t = 0; t < a->n_x; t++) {
            const struct colibri_x16_q4_0 *const w = group(a, g);
            const struct colibri_act_q8x32 *const x = activations(a, t);
            float acc[16] = {0};
            for (uint32_t b = 0; b < n_blocks; b++) {
                int32_t isum[16] = {0};
                for (int j = 0; j < 4; j++)          /* a line of 64 bytes: */
                    for (int r = 0; r < 16; r++)     /* 16 rows, */
                        for (int k = 0; k < 4; k++) { /* 4 columns, and 4 more in the high nibbles */
                            const uint8_t byte = w[b].q[j][4 * r + k];
                            isum[r] += (byte & 15) * x[b].q[4 * j + k] + (byte >> 4) * x[b].q[16 + 4 * j + k];
                        }
                for (int r = 0; r < 16; r++) {
                    const int32_t sum = isum[r] - 8 * x[b].sum; /* codes are 0..15 and mean -8..7 */
                    acc[r] = fmaf(colibri_f16_f32(w[b].d[r]) * x[b].d, (float)sum, acc[r]);
                }
            }
            store(a, g, t, acc);
        }
}
