/* Q5_K: superblocks of 256 weights of 5 bits, 8 sub-blocks with 6-bit scales and minimums. */
#include "block256.h"
#include "fit256.h"
#include "kscales.h"

static const struct clb_field q5_k_fields[] = {CLB_FIELD(q5_k, d, d, 2), CLB_FIELD(q5_k, dmin, dmin, 2),
                                               CLB_FIELD(q5_k, scales, s, 4), CLB_FIELD(q5_k, qh, qh, 4),
                                               CLB_FIELD(q5_k, qs, q, 4)};

static inline void row_q5_k(const void *block, struct clb_row256 *out)
{
    const struct colibri_q5_k *b = block;
    out->d = colibri_f16_f32(b->d);
    out->dmin = colibri_f16_f32(b->dmin);
    clb_get_scales_mins(b->scales, out->sc, out->m);
    for (size_t c = 0; c < 4; c++)
        for (size_t i = 0; i < 32; i++) {
            const uint8_t byte = b->qs[32 * c + i];
            const int high = b->qh[i] >> (2 * c);
            out->q[64 * c + i] = (int16_t)((byte & 15) | (high & 1) << 4);
            out->q[64 * c + 32 + i] = (int16_t)((byte >> 4) | (high >> 1 & 1) << 4);
        }
}

static const struct clb_affine_levels q5_k_levels = {.hi = 31, .step = 0.2f, .low = -6, .high = 8};

static inline void put_q5_k(const struct clb_affine256 *f, struct colibri_q5_k *out)
{
    out->d = f->d;
    out->dmin = f->dmin;
    clb_put_scales_mins(out->scales, f->sc, f->m);
    memset(out->qh, 0, sizeof(out->qh));
    for (size_t c = 0; c < 4; c++)
        for (size_t i = 0; i < 32; i++) {
            const int q0 = (int)f->q[64 * c + i], q1 = (int)f->q[64 * c + 32 + i];
            out->qs[32 * c + i] = (uint8_t)((q0 & 15) | (q1 & 15) << 4);
            out->qh[i] = (uint8_t)(out->qh[i] | (q0 >> 4 | q1 >> 4 << 1) << (2 * c));
        }
}

CLB_DEFINE_PACK(q5_k, 256)
CLB_DEFINE_BLOCK256(q5_k, 8, 1)
CLB_DEFINE_QUANTIZE256(q5_k, affine256, 8, 63)

static const struct colibri_format formats[] = {CLB_FORMAT256(q5_k, COLIBRI_TYPE_Q5_K, "Q5_K")};

CLB_FORMAT_PLUGIN(q5_k, formats, "Q5_K: 5-bit weights in superblocks of 256");
