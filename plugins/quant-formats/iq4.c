/* IQ4_NL and IQ4_XS: 4-bit indices into a fixed codebook of 16 levels, denser around zero. IQ4_NL has one scale per
 * block of 32, IQ4_XS a superblock scale and 8 signed 6-bit sub-scales. */
#include "block256.h"
#include "block32.h"
#include "fit256.h"

static const struct clb_field iq4_nl_fields[] = {CLB_FIELD(iq4_nl, d, d, 2), CLB_FIELD(iq4_nl, qs, q, 4)};
static const struct clb_field iq4_xs_fields[] = {CLB_FIELD(iq4_xs, d, d, 2), CLB_FIELD(iq4_xs, scales_h, scales_h, 2),
                                                 CLB_FIELD(iq4_xs, scales_l, scales_l, 4), CLB_FIELD(iq4_xs, qs, q, 4)};

static const int8_t iq4_values[16] = COLIBRI_IQ4_VALUES;

static inline void row_iq4_codes(const uint8_t qs[16], int16_t q[32])
{
    for (size_t i = 0; i < 16; i++) {
        q[i] = iq4_values[qs[i] & 15];
        q[i + 16] = iq4_values[qs[i] >> 4];
    }
}

static inline void row_iq4_nl(const void *block, struct clb_row32 *out)
{
    const struct colibri_iq4_nl *b = block;
    out->d = colibri_f16_f32(b->d);
    row_iq4_codes(b->qs, out->q);
}

static inline void row_iq4_xs(const void *block, struct clb_row256 *out)
{
    const struct colibri_iq4_xs *b = block;
    out->d = colibri_f16_f32(b->d);
    for (size_t s = 0; s < 8; s++) {
        out->sc[s] = (int16_t)(((b->scales_l[s / 2] >> (4 * (s % 2)) & 15) | (b->scales_h >> (2 * s) & 3) << 4) - 32);
        row_iq4_codes(b->qs + 16 * s, out->q + 32 * s);
    }
}

static const struct clb_levels iq4_nl_levels = {
    .lo = -127, .hi = 113, .values = iq4_values, .step = 4.8f, .n_steps = 4};
#define iq4_xs_levels iq4_nl_levels

static inline void put_iq4(uint8_t qs[16], const float q[32])
{
    uint8_t code[32];
    for (size_t i = 0; i < 32; i++) {
        code[i] = 0;
        for (size_t k = 1; k < 16; k++)
            code[i] = (uint8_t)(code[i] + ((int)q[i] >= iq4_values[k]));
    }
    for (size_t i = 0; i < 16; i++)
        qs[i] = (uint8_t)(code[i] | code[i + 16] << 4);
}

static inline void put_iq4_nl(const struct clb_fit32 *f, struct colibri_iq4_nl *out)
{
    out->d = f->d;
    put_iq4(out->qs, f->q);
}

static inline void put_iq4_xs(const struct clb_scaled256 *f, struct colibri_iq4_xs *out)
{
    out->d = f->d;
    out->scales_h = 0;
    memset(out->scales_l, 0, sizeof(out->scales_l));
    for (size_t s = 0; s < 8; s++) {
        const int v = f->sc[s] + 32;
        out->scales_l[s / 2] = (uint8_t)(out->scales_l[s / 2] | (v & 15) << (4 * (s % 2)));
        out->scales_h = (uint16_t)(out->scales_h | v >> 4 << (2 * s));
        put_iq4(out->qs + 16 * s, f->q + 32 * s);
    }
}

CLB_DEFINE_PACK(iq4_nl, 32)
CLB_DEFINE_PACK(iq4_xs, 256)
CLB_DEFINE_BLOCK32(iq4_nl, 0)
CLB_DEFINE_BLOCK256(iq4_xs, 8, 0)
CLB_DEFINE_QUANTIZE32(iq4_nl, clb_fit_block32)
CLB_DEFINE_QUANTIZE256(iq4_xs, scaled256, 8, -32)

static const struct colibri_format formats[] = {CLB_FORMAT32(iq4_nl, COLIBRI_TYPE_IQ4_NL, "IQ4_NL"),
                                                CLB_FORMAT256(iq4_xs, COLIBRI_TYPE_IQ4_XS, "IQ4_XS")};

CLB_FORMAT_PLUGIN(iq4, formats, "IQ4_NL, IQ4_XS: 4-bit non-linear weights");
