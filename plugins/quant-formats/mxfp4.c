/* MXFP4 (OCP Microscaling): blocks of 32 E2M1 weights with a shared power-of-two scale. */
#include "block32.h"

static const struct clb_field mxfp4_fields[] = {CLB_FIELD(mxfp4, e, e, 1), CLB_FIELD(mxfp4, qs, q, 4)};

static const int8_t mxfp4_values[16] = COLIBRI_MXFP4_VALUES; /* doubled; the scale is halved */

static inline void row_mxfp4(const void *block, struct clb_row32 *out)
{
    const struct colibri_mxfp4 *b = block;
    out->d = colibri_e8m0_half(b->e);
    for (size_t i = 0; i < 16; i++) {
        out->q[i] = mxfp4_values[b->qs[i] & 15];
        out->q[i + 16] = mxfp4_values[b->qs[i] >> 4];
    }
}

CLB_DEFINE_PACK(mxfp4, 32)
CLB_DEFINE_BLOCK32(mxfp4, 0)

static const struct colibri_format formats[] = {CLB_FORMAT32(mxfp4, COLIBRI_TYPE_MXFP4, "MXFP4")};

CLB_FORMAT_PLUGIN(mxfp4, formats, "MXFP4: 4-bit floats in blocks of 32");
