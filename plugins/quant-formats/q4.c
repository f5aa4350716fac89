/* Q4_0 and Q4_1: blocks of 32 weights of 4 bits, with a scale, or a scale and a minimum. */
#include "block32.h"

static const struct clb_field q4_0_fields[] = {CLB_FIELD(q4_0, d, d, 2), CLB_FIELD(q4_0, qs, q, 4)};
static const struct clb_field q4_1_fields[] = {CLB_FIELD(q4_1, d, d, 2), CLB_FIELD(q4_1, m, m, 2),
                                               CLB_FIELD(q4_1, qs, q, 4)};

static inline void row_q4_0(const void *block, struct clb_row32 *out)
{
    const struct colibri_q4_0 *b = block;
    out->d = colibri_f16_f32(b->d);
    for (size_t i = 0; i < 16; i++) {
        out->q[i] = (int16_t)((b->qs[i] & 15) - 8);
        out->q[i + 16] = (int16_t)((b->qs[i] >> 4) - 8);
    }
}

static inline void row_q4_1(const void *block, struct clb_row32 *out)
{
    const struct colibri_q4_1 *b = block;
    out->d = colibri_f16_f32(b->d);
    out->m = colibri_f16_f32(b->m);
    for (size_t i = 0; i < 16; i++) {
        out->q[i] = b->qs[i] & 15;
        out->q[i + 16] = b->qs[i] >> 4;
    }
}

CLB_DEFINE_PACK(q4_0, 32)
CLB_DEFINE_PACK(q4_1, 32)
CLB_DEFINE_BLOCK32(q4_0, 0)
CLB_DEFINE_BLOCK32(q4_1, 1)

static const struct colibri_format formats[] = {CLB_FORMAT32(q4_0, COLIBRI_TYPE_Q4_0, "Q4_0"),
                                                CLB_FORMAT32(q4_1, COLIBRI_TYPE_Q4_1, "Q4_1")};

CLB_FORMAT_PLUGIN(q4, formats, "Q4_0, Q4_1: 4-bit weights in blocks of 32");
