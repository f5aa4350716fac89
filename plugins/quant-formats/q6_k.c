/* Q6_K: superblocks of 256 weights of 6 bits, 16 sub-blocks with signed 8-bit scales. */
#include "block256.h"
#include "fit256.h"

static const struct clb_field q6_k_fields[] = {CLB_FIELD(q6_k, d, d, 2), CLB_FIELD(q6_k, scales, scales, 1),
                                               CLB_FIELD(q6_k, qh, qh, 4), CLB_FIELD(q6_k, ql, ql, 4)};

static inline void row_q6_k(const void *block, struct clb_row256 *out)
{
    const struct colibri_q6_k *b = block;
    out->d = colibri_f16_f32(b->d);
    clb_widen(b->scales, out->sc, 16);
    for (size_t n = 0; n < 2; n++)
        for (size_t i = 0; i < 32; i++) {
            const uint8_t l0 = b->ql[64 * n + i], l1 = b->ql[64 * n + 32 + i], h = b->qh[32 * n + i];
            int16_t *q = out->q + 128 * n + i;
            q[0] = (int16_t)(((l0 & 15) | (h & 3) << 4) - 32);
            q[32] = (int16_t)(((l1 & 15) | (h >> 2 & 3) << 4) - 32);
            q[64] = (int16_t)(((l0 >> 4) | (h >> 4 & 3) << 4) - 32);
            q[96] = (int16_t)(((l1 >> 4) | (h >> 6) << 4) - 32);
        }
}

static const struct clb_levels q6_k_levels = {.lo = -32, .hi = 31, .step = 0.5f, .n_steps = 4};

static inline void put_q6_k(const struct clb_scaled256 *f, struct colibri_q6_k *out)
{
    out->d = f->d;
    for (size_t s = 0; s < 16; s++)
        out->scales[s] = (int8_t)f->sc[s];
    for (size_t n = 0; n < 2; n++)
        for (size_t i = 0; i < 32; i++) {
            const float *f0 = f->q + 128 * n + i;
            const int q0 = (int)f0[0] + 32, q1 = (int)f0[32] + 32, q2 = (int)f0[64] + 32, q3 = (int)f0[96] + 32;
            out->ql[64 * n + i] = (uint8_t)((q0 & 15) | (q2 & 15) << 4);
            out->ql[64 * n + 32 + i] = (uint8_t)((q1 & 15) | (q3 & 15) << 4);
            out->qh[32 * n + i] = (uint8_t)(q0 >> 4 | q1 >> 4 << 2 | q2 >> 4 << 4 | q3 >> 4 << 6);
        }
}

CLB_DEFINE_PACK(q6_k, 256)
CLB_DEFINE_BLOCK256(q6_k, 16, 0)
CLB_DEFINE_QUANTIZE256(q6_k, scaled256, 16, -128)

static const struct colibri_format formats[] = {CLB_FORMAT256(q6_k, COLIBRI_TYPE_Q6_K, "Q6_K")};

CLB_FORMAT_PLUGIN(q6_k, formats, "Q6_K: 6-bit weights in superblocks of 256");
