/* Q4_K: superblocks of 256 weights of 4 bits, 8 sub-blocks with 6-bit scales and minimums. */
#include "block256.h"
#include "fit256.h"
#include "kscales.h"

static const struct clb_field q4_k_fields[] = {CLB_FIELD(q4_k, d, d, 2), CLB_FIELD(q4_k, dmin, dmin, 2),
                                               CLB_FIELD(q4_k, scales, s, 4), CLB_FIELD(q4_k, qs, q, 4)};

static inline void row_q4_k(const void *block, struct clb_row256 *out)
{
    const struct colibri_q4_k *b = block;
    out->d = colibri_f16_f32(b->d);
    out->dmin = colibri_f16_f32(b->dmin);
    clb_get_scales_mins(b->scales, out->sc, out->m);
    for (size_t c = 0; c < 4; c++)
        for (size_t i = 0; i < 32; i++) {
            const uint8_t byte = b->qs[32 * c + i];
            out->q[64 * c + i] = byte & 15;
            out->q[64 * c + 32 + i] = byte >> 4;
        }
}

static const struct clb_affine_levels q4_k_levels = {.hi = 15, .step = 0.2f, .low = -6, .high = 8};

static inline void put_q4_k(const struct clb_affine256 *f, struct colibri_q4_k *out)
{
    out->d = f->d;
    out->dmin = f->dmin;
    clb_put_scales_mins(out->scales, f->sc, f->m);
    for (size_t c = 0; c < 4; c++)
        for (size_t i = 0; i < 32; i++)
            out->qs[32 * c + i] = (uint8_t)((int)f->q[64 * c + i] | (int)f->q[64 * c + 32 + i] << 4);
}

CLB_DEFINE_PACK(q4_k, 256)
CLB_DEFINE_BLOCK256(q4_k, 8, 1)
CLB_DEFINE_QUANTIZE256(q4_k, affine256, 8, 63)

static const struct colibri_format formats[] = {CLB_FORMAT256(q4_k, COLIBRI_TYPE_Q4_K, "Q4_K")};

CLB_FORMAT_PLUGIN(q4_k, formats, "Q4_K: 4-bit weights in superblocks of 256");
