/* Q2_K: superblocks of 256 weights of 2 bits, 16 sub-blocks with 4-bit scales and minimums. */
#include "block256.h"
#include "fit256.h"

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

static const struct clb_affine_levels q2_k_levels = {.hi = 3, .step = 0.15f, .low = -6, .high = 8};

static inline void put_q2_k(const struct clb_affine256 *f, struct colibri_q2_k *out)
{
    out->d = f->d;
    out->dmin = f->dmin;
    for (size_t s = 0; s < 16; s++)
        out->scales[s] = (uint8_t)(f->sc[s] | f->m[s] << 4);
    for (size_t n = 0; n < 2; n++)
        for (size_t i = 0; i < 32; i++) {
            const float *q = f->q + 128 * n + i;
            out->qs[32 * n + i] = (uint8_t)((int)q[0] | (int)q[32] << 2 | (int)q[64] << 4 | (int)q[96] << 6);
        }
}

CLB_DEFINE_PACK(q2_k, 256)
CLB_DEFINE_BLOCK256(q2_k, 16, 1)
CLB_DEFINE_QUANTIZE256(q2_k, affine256, 16, 15)

static const struct colibri_format formats[] = {CLB_FORMAT256(q2_k, COLIBRI_TYPE_Q2_K, "Q2_K")};

CLB_FORMAT_PLUGIN(q2_k, formats, "Q2_K: 2-bit weights in superblocks of 256");
