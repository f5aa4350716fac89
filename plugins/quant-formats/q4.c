/* Q4_0 and Q4_1: blocks of 32 weights of 4 bits, with a scale, or a scale and a minimum. */
#include "block32.h"
#include "fit_affine.h"

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

static const struct clb_levels q4_0_levels = {.lo = -8, .hi = 7, .step = 0.3f, .n_steps = 4};
static const struct clb_affine_levels q4_1_levels = {.hi = 15, .step = 0.2f, .low = -6, .high = 8, .any_offset = 1};

static inline void put_q4(uint8_t qs[16], const float q[32], int offset)
{
    for (size_t i = 0; i < 16; i++)
        qs[i] = (uint8_t)(((int)q[i] + offset) | ((int)q[i + 16] + offset) << 4);
}

static inline void put_q4_0(const struct clb_fit32 *f, struct colibri_q4_0 *out)
{
    out->d = f->d;
    put_q4(out->qs, f->q, 8);
}

static inline void put_q4_1(const struct clb_fit32 *f, struct colibri_q4_1 *out)
{
    out->d = f->d;
    out->m = f->m;
    put_q4(out->qs, f->q, 0);
}

CLB_DEFINE_PACK(q4_0, 32)
CLB_DEFINE_PACK(q4_1, 32)
CLB_DEFINE_BLOCK32(q4_0, 0)
CLB_DEFINE_BLOCK32(q4_1, 1)
CLB_DEFINE_QUANTIZE32(q4_0, clb_fit_block32)
CLB_DEFINE_QUANTIZE32(q4_1, clb_fit_affine32)

static const struct colibri_format formats[] = {CLB_FORMAT32(q4_0, COLIBRI_TYPE_Q4_0, "Q4_0"),
                                                CLB_FORMAT32(q4_1, COLIBRI_TYPE_Q4_1, "Q4_1")};

CLB_FORMAT_PLUGIN(q4, formats, "Q4_0, Q4_1: 4-bit weights in blocks of 32");
