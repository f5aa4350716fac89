/* Q3_K: superblocks of 256 weights of 3 bits (2 low bits and an inverted high bit), 16 sub-blocks with signed 6-bit
 * scales. */
#include "block256.h"
#include "fit256.h"
#include "kscales.h"

static const struct clb_field q3_k_fields[] = {CLB_FIELD(q3_k, d, d, 2), CLB_FIELD(q3_k, scales, s, 4),
                                               CLB_FIELD(q3_k, hmask, hmask, 4), CLB_FIELD(q3_k, qs, q, 4)};

static inline void row_q3_k(const void *block, struct clb_row256 *out)
{
    const struct colibri_q3_k *b = block;
    out->d = colibri_f16_f32(b->d);
    clb_get_scales_q3(b->scales, out->sc);
    for (size_t n = 0; n < 2; n++)
        for (size_t s = 0; s < 4; s++)
            for (size_t i = 0; i < 32; i++) {
                const int high = b->hmask[i] >> (4 * n + s) & 1;
                out->q[128 * n + 32 * s + i] = (int16_t)((b->qs[32 * n + i] >> (2 * s) & 3) + 4 * high - 4);
            }
}

static const struct clb_levels q3_k_levels = {.lo = -4, .hi = 3, .step = 0.3f, .n_steps = 4};

static inline void put_q3_k(const struct clb_scaled256 *f, struct colibri_q3_k *out)
{
    out->d = f->d;
    clb_put_scales_q3(out->scales, f->sc);
    memset(out->hmask, 0, sizeof(out->hmask));
    memset(out->qs, 0, sizeof(out->qs));
    for (size_t n = 0; n < 2; n++)
        for (size_t s = 0; s < 4; s++)
            for (size_t i = 0; i < 32; i++) {
                const int q = (int)f->q[128 * n + 32 * s + i] + 4;
                out->qs[32 * n + i] = (uint8_t)(out->qs[32 * n + i] | (q & 3) << (2 * s));
                out->hmask[i] = (uint8_t)(out->hmask[i] | q >> 2 << (4 * n + s));
            }
}

CLB_DEFINE_PACK(q3_k, 256)
CLB_DEFINE_BLOCK256(q3_k, 16, 0)
CLB_DEFINE_QUANTIZE256(q3_k, scaled256, 16, -32)

static const struct colibri_format formats[] = {CLB_FORMAT256(q3_k, COLIBRI_TYPE_Q3_K, "Q3_K")};

CLB_FORMAT_PLUGIN(q3_k, formats, "Q3_K: 3-bit weights in superblocks of 256");
