/* Q5_0 and Q5_1: blocks of 32 weights of 5 bits, with a scale, or a scale and a minimum. */
#include "block32.h"
#include "fit_affine.h"

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

static const struct clb_levels q5_0_levels = {.lo = -16, .hi = 15, .step = 0.3f, .n_steps = 4};
static const struct clb_affine_levels q5_1_levels = {.hi = 31, .step = 0.2f, .low = -6, .high = 8, .any_offset = 1};

static inline void put_q5(uint8_t qs[16], uint8_t qh[4], const float q[32], int offset)
{
    uint32_t high = 0;
    for (size_t i = 0; i < 32; i++)
        high |= (uint32_t)(((int)q[i] + offset) >> 4) << i;
    memcpy(qh, &high, 4);
    for (size_t i = 0; i < 16; i++)
        qs[i] = (uint8_t)((((int)q[i] + offset) & 15) | (((int)q[i + 16] + offset) & 15) << 4);
}

static inline void put_q5_0(const struct clb_fit32 *f, struct colibri_q5_0 *out)
{
    out->d = f->d;
    put_q5(out->qs, out->qh, f->q, 16);
}

static inline void put_q5_1(const struct clb_fit32 *f, struct colibri_q5_1 *out)
{
    out->d = f->d;
    out->m = f->m;
    put_q5(out->qs, out->qh, f->q, 0);
}

CLB_DEFINE_PACK(q5_0, 32)
CLB_DEFINE_PACK(q5_1, 32)
CLB_DEFINE_BLOCK32(q5_0, 0)
CLB_DEFINE_BLOCK32(q5_1, 1)
CLB_DEFINE_QUANTIZE32(q5_0, clb_fit_block32)
CLB_DEFINE_QUANTIZE32(q5_1, clb_fit_affine32)

static const struct colibri_format formats[] = {CLB_FORMAT32(q5_0, COLIBRI_TYPE_Q5_0, "Q5_0"),
                                                CLB_FORMAT32(q5_1, COLIBRI_TYPE_Q5_1, "Q5_1")};

CLB_FORMAT_PLUGIN(q5, formats, "Q5_0, Q5_1: 5-bit weights in blocks of 32");
