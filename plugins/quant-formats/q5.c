/* Q5_0 and Q5_1: blocks of 32 weights of 5 bits, with a scale, or a scale and a minimum. */
#include "block32.h"

static const struct clb_field q5_0_fields[] = {CLB_FIELD(q5_0, d, d, 2), CLB_FIELD_NIBBLES(q5_0, qh, qh),
                                               CLB_FIELD(q5_0, qs, q, 4)};
static const struct clb_field q5_1_fields[] = {CLB_FIELD(q5_1, d, d, 2), CLB_FIELD(q5_1, m, m, 2),
                                               CLB_FIELD_NIBBLES(q5_1, qh, qh), CLB_FIELD(q5_1, qs, q, 4)};

/* Nibbles and fifth bits to 0..31, minus `offset`. */
static inline void row_q5(const uint8_t qs[16], const uint8_t qh[4], int offset, int16_t q[32])
{
    const uint32_t high = clb_load32(qh);
    for (size_t i = 0; i < 16; i++) {
        q[i] = (int16_t)((qs[i] & 15) + (int)(high >> i & 1u) * 16 - offset);
        q[i + 16] = (int16_t)((qs[i] >> 4) + (int)(high >> (i + 16) & 1u) * 16 - offset);
    }
}

static inline void row_q5_0(const void *block, struct clb_row32 *out)
{
    const struct colibri_q5_0 *b = block;
    out->d = colibri_f16_f32(b->d);
    row_q5(b->qs, b->qh, 16, out->q);
}

static inline void row_q5_1(const void *block, struct clb_row32 *out)
{
    const struct colibri_q5_1 *b = block;
    out->d = colibri_f16_f32(b->d);
    out->m = colibri_f16_f32(b->m);
    row_q5(b->qs, b->qh, 0, out->q);
}

CLB_DEFINE_PACK(q5_0, 32)
CLB_DEFINE_PACK(q5_1, 32)
CLB_DEFINE_BLOCK32(q5_0, 0)
CLB_DEFINE_BLOCK32(q5_1, 1)

static const struct colibri_format formats[] = {CLB_FORMAT32(q5_0, COLIBRI_TYPE_Q5_0, "Q5_0"),
                                                CLB_FORMAT32(q5_1, COLIBRI_TYPE_Q5_1, "Q5_1")};

CLB_FORMAT_PLUGIN(q5, formats, "Q5_0, Q5_1: 5-bit weights in blocks of 32");
