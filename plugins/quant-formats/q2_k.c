/* Q2_K: superblocks of 256 weights of 2 bits, 16 sub-blocks with 4-bit scales and minimums. */
#include "block256.h"

static const struct clb_field q2_k_fields[] = {CLB_FIELD(q2_k, d, d, 2), CLB_FIELD(q2_k, dmin, dmin, 2),
                                               CLB_FIELD(q2_k, scales, scales, 1), CLB_FIELD(q2_k, qs, q, 4)};

static inline void row_q2_k(const void *block, struct clb_row256 *out)
{
    const struct colibri_q2_k *b = block;
    out->d = colibri_f16_f32(b->d);
    out->dmin = colibri_f16_f32(b->dmin);
    for (size_t s = 0; s < 16; s++) {
        out->sc[s] = b->scales[s] & 15;
        out->m[s] = b->scales[s] >> 4;
    }
    for (size_t n = 0; n < 2; n++)
        for (size_t s = 0; s < 4; s++)
            for (size_t i = 0; i < 32; i++)
                out->q[128 * n + 32 * s + i] = b->qs[32 * n + i] >> (2 * s) & 3;
}

CLB_DEFINE_PACK(q2_k, 256)
CLB_DEFINE_BLOCK256(q2_k, 16, 1)

static const struct colibri_format formats[] = {CLB_FORMAT256(q2_k, COLIBRI_TYPE_Q2_K, "Q2_K")};

CLB_FORMAT_PLUGIN(q2_k, formats, "Q2_K: 2-bit weights in superblocks of 256");
