/* Q8_0: blocks of 32 weights of 8 bits with a scale. */
#include "block32.h"
#include "fit.h"

static const struct clb_field q8_0_fields[] = {CLB_FIELD(q8_0, d, d, 2), CLB_FIELD(q8_0, qs, q, 4)};

static inline void row_q8_0(const void *block, struct clb_row32 *out)
{
    const struct colibri_q8_0 *b = block;
    out->d = colibri_f16_f32(b->d);
    clb_widen(b->qs, out->q, 32);
}

static const struct clb_levels q8_0_levels = {.lo = -127, .hi = 127, .step = 0.5f, .n_steps = 4};

static inline void put_q8_0(const struct clb_fit32 *f, struct colibri_q8_0 *out)
{
    out->d = f->d;
    for (size_t i = 0; i < 32; i++)
        out->qs[i] = (int8_t)f->q[i];
}

CLB_DEFINE_PACK(q8_0, 32)
CLB_DEFINE_BLOCK32(q8_0, 0)
CLB_DEFINE_QUANTIZE32(q8_0, clb_fit_block32)

static const struct colibri_format formats[] = {CLB_FORMAT32(q8_0, COLIBRI_TYPE_Q8_0, "Q8_0")};

CLB_FORMAT_PLUGIN(q8, formats, "Q8_0: 8-bit weights in blocks of 32");
