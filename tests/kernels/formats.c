/* Formats as the words of blocks.h describe them, one element at a time: slow, obvious, and written without a look at
 * the format plugins, so that an error would have to be made twice to stay hidden. */
#include "check.h"

#include <stdlib.h>

#define FMT32(id, text, type, halves)                                                                                  \
    {                                                                                                                  \
        COLIBRI_TYPE_##id, text, COLIBRI_LAYOUT_X16, 32, sizeof(struct colibri_x16_##type), COLIBRI_ACT_Q8X32,         \
            sizeof(struct colibri_act_q8x32), halves                                                                   \
    }
#define FMT256(id, text, type, halves)                                                                                 \
    {                                                                                                                  \
        COLIBRI_TYPE_##id, text, COLIBRI_LAYOUT_X16, 256, sizeof(struct colibri_x16_##type), COLIBRI_ACT_Q8X256,       \
            sizeof(struct colibri_act_q8x256), halves                                                                  \
    }

static const struct fmt formats[] = {
    {COLIBRI_TYPE_F32, "F32", COLIBRI_LAYOUT_ROWS, 1, 4, COLIBRI_ACT_F32, 4, 0},
    {COLIBRI_TYPE_F16, "F16", COLIBRI_LAYOUT_ROWS, 1, 2, COLIBRI_ACT_F32, 4, 0},
    {COLIBRI_TYPE_BF16, "BF16", COLIBRI_LAYOUT_ROWS, 1, 2, COLIBRI_ACT_F32, 4, 0},
    FMT32(Q4_0, "Q4_0", q4_0, 16),
    FMT32(Q4_1, "Q4_1", q4_1, 32),
    FMT32(Q5_0, "Q5_0", q5_0, 16),
    FMT32(Q5_1, "Q5_1", q5_1, 32),
    FMT32(Q8_0, "Q8_0", q8_0, 16),
    FMT32(IQ4_NL, "IQ4_NL", iq4_nl, 16),
    FMT32(MXFP4, "MXFP4", mxfp4, 0),
    FMT256(Q2_K, "Q2_K", q2_k, 32),
    FMT256(Q3_K, "Q3_K", q3_k, 16),
    FMT256(Q4_K, "Q4_K", q4_k, 32),
    FMT256(Q5_K, "Q5_K", q5_k, 32),
    FMT256(Q6_K, "Q6_K", q6_k, 16),
    FMT256(IQ4_XS, "IQ4_XS", iq4_xs, 16),
};

const struct fmt *fmt_find(uint32_t type)
{
    for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++)
        if (formats[i].type == type)
            return &formats[i];
    return NULL;
}

size_t fmt_row_bytes(const struct fmt *f, uint32_t cols)
{
    return f->layout == COLIBRI_LAYOUT_ROWS ? cols * f->block_bytes : cols / f->block_cols * (f->block_bytes / 16);
}

size_t fmt_act_bytes(const struct fmt *f, uint32_t cols)
{
    return cols / f->block_cols * f->act_bytes;
}

/* ---- codes -------------------------------------------------------------------------------------------------- */

static int nibble(unsigned byte, bool high)
{
    return (int)(high ? byte >> 4 : byte & 15u);
}

/* Integer value of column c of row r: the code with its offset taken off. */
static int code32(uint32_t type, const void *block, uint32_t r, uint32_t c)
{
    static const int8_t iq4[16] = COLIBRI_IQ4_VALUES, mxfp4[16] = COLIBRI_MXFP4_VALUES;
    const uint32_t quad = c / 4, at = 4 * r + c % 4;
    const uint32_t line = quad % 4;
    const bool high = c >= 16;
    switch (type) {
    case COLIBRI_TYPE_Q4_0:
        return nibble(((const struct colibri_x16_q4_0 *)block)->q[line][at], high) - 8;
    case COLIBRI_TYPE_Q4_1:
        return nibble(((const struct colibri_x16_q4_1 *)block)->q[line][at], high);
    case COLIBRI_TYPE_Q5_0: {
        const struct colibri_x16_q5_0 *const b = block;
        return nibble(b->q[line][at], high) + 16 * (int)(b->qh[quad] >> at & 1) - 16;
    }
    case COLIBRI_TYPE_Q5_1: {
        const struct colibri_x16_q5_1 *const b = block;
        return nibble(b->q[line][at], high) + 16 * (int)(b->qh[quad] >> at & 1);
    }
    case COLIBRI_TYPE_Q8_0:
        return ((const struct colibri_x16_q8_0 *)block)->q[quad][at];
    case COLIBRI_TYPE_IQ4_NL:
        return iq4[nibble(((const struct colibri_x16_iq4_nl *)block)->q[line][at], high)];
    case COLIBRI_TYPE_MXFP4:
        return mxfp4[nibble(((const struct colibri_x16_mxfp4 *)block)->q[line][at], high)];
    default:
        abort();
    }
}

static int code256(uint32_t type, const void *block, uint32_t r, uint32_t c)
{
    static const int8_t iq4[16] = COLIBRI_IQ4_VALUES;
    const uint32_t at = 4 * r + c % 4;
    const uint32_t chunk = c / 64, half = c / 128, part = c % 128 / 32, quad32 = c % 32 / 4;
    switch (type) {
    case COLIBRI_TYPE_Q4_K:
        return nibble(((const struct colibri_x16_q4_k *)block)->q[chunk][quad32][at], c % 64 >= 32);
    case COLIBRI_TYPE_Q5_K: {
        const struct colibri_x16_q5_k *const b = block;
        return nibble(b->q[chunk][quad32][at], c % 64 >= 32) + 16 * (b->qh[quad32][at] >> (c / 32) & 1);
    }
    case COLIBRI_TYPE_Q6_K: {
        const struct colibri_x16_q6_k *const b = block;
        const unsigned low = b->ql[half][quad32 + (part == 1 || part == 3 ? 8 : 0)][at];
        return nibble(low, part >= 2) + 16 * (b->qh[half][quad32][at] >> (2 * part) & 3) - 32;
    }
    case COLIBRI_TYPE_Q2_K:
        return ((const struct colibri_x16_q2_k *)block)->q[half][quad32][at] >> (2 * part) & 3;
    case COLIBRI_TYPE_Q3_K: {
        const struct colibri_x16_q3_k *const b = block;
        const int low = b->q[half][quad32][at] >> (2 * part) & 3;
        return low + (b->hmask[quad32][at] >> (c / 32) & 1 ? 0 : -4);
    }
    case COLIBRI_TYPE_IQ4_XS:
        return iq4[nibble(((const struct colibri_x16_iq4_xs *)block)->q[c / 32][c % 16 / 4][at], c % 32 >= 16)];
    default:
        abort();
    }
}

/* ---- sub-scales --------------------------------------------------------------------------------------------- */

static void row_scale_bytes(const uint32_t s[3][16], uint32_t r, uint8_t out[12])
{
    for (uint32_t i = 0; i < 12; i++)
        out[i] = (uint8_t)(s[i / 4][r] >> (8 * (i % 4)));
}

/* 6-bit scale and minimum j of 8 in the 12 bytes of Q4_K and Q5_K. */
static void scale_min_k4(const uint8_t s[12], uint32_t j, int *scale, int *min)
{
    if (j < 4) {
        *scale = s[j] & 63;
        *min = s[j + 4] & 63;
    } else {
        *scale = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
        *min = s[j + 4] >> 4 | (s[j] >> 6) << 4;
    }
}

/* Integer scale and minimum that hold for column c of row r. */
static void sub_scale(uint32_t type, const void *block, uint32_t r, uint32_t c, int *scale, int *min)
{
    uint8_t s[12];
    *min = 0;
    switch (type) {
    case COLIBRI_TYPE_Q4_K:
        row_scale_bytes(((const struct colibri_x16_q4_k *)block)->s, r, s);
        scale_min_k4(s, c / 32, scale, min);
        break;
    case COLIBRI_TYPE_Q5_K:
        row_scale_bytes(((const struct colibri_x16_q5_k *)block)->s, r, s);
        scale_min_k4(s, c / 32, scale, min);
        break;
    case COLIBRI_TYPE_Q6_K:
        *scale = ((const struct colibri_x16_q6_k *)block)->scales[c / 16][r];
        break;
    case COLIBRI_TYPE_Q2_K: {
        const unsigned v = ((const struct colibri_x16_q2_k *)block)->scales[c / 16][r];
        *scale = (int)(v & 15u);
        *min = (int)(v >> 4);
        break;
    }
    case COLIBRI_TYPE_Q3_K: {
        const uint32_t j = c / 16;
        row_scale_bytes(((const struct colibri_x16_q3_k *)block)->s, r, s);
        const int low = nibble(s[j % 8], j >= 8), high = s[8 + j % 4] >> (2 * (j / 4)) & 3;
        *scale = low + 16 * high - 32;
        break;
    }
    case COLIBRI_TYPE_IQ4_XS: {
        const struct colibri_x16_iq4_xs *const b = block;
        const uint32_t j = c / 32;
        *scale = (int)(b->scales_l[r] >> (4 * j) & 15u) + 16 * (b->scales_h[r] >> (2 * j) & 3) - 32;
        break;
    }
    default:
        abort();
    }
}

/* ---- products ----------------------------------------------------------------------------------------------- */

static float half_at(const void *block, size_t index)
{
    colibri_f16 h;
    memcpy(&h, (const char *)block + 2 * index, 2);
    return colibri_f16_f32(h);
}

static float row_d(const struct fmt *f, const void *block, uint32_t r)
{
    if (f->type == COLIBRI_TYPE_MXFP4)
        return colibri_e8m0_half(((const struct colibri_x16_mxfp4 *)block)->e[r]);
    return half_at(block, r);
}

static bool has_min(const struct fmt *f)
{
    return f->n_half == 32;
}

/* One row, unpacked once for all its activation rows. */
struct row {
    int16_t code[4096];
    int16_t scale[4096 / 16], min[4096 / 16]; /* of 16 columns each */
    float d[4096 / 32], m[4096 / 32];
};

static void decode_row(const struct fmt *f, const void *group, uint32_t r, uint32_t cols, struct row *out)
{
    for (uint32_t c = 0; c < cols; c++) {
        const uint32_t b = c / f->block_cols;
        const void *const block = (const char *)group + b * f->block_bytes;
        const uint32_t in = c % f->block_cols;
        int scale = 1, min = 0;
        if (f->block_cols == 256)
            sub_scale(f->type, block, r, in, &scale, &min);
        out->code[c] = (int16_t)(f->block_cols == 32 ? code32(f->type, block, r, in) : code256(f->type, block, r, in));
        out->scale[c / 16] = (int16_t)scale;
        out->min[c / 16] = (int16_t)min;
        out->d[b] = row_d(f, block, r);
        out->m[b] = has_min(f) ? half_at(block, 16 + r) : 0.0f;
    }
}

static float dot_row(const struct fmt *f, const struct row *w, const void *act, uint32_t cols)
{
    float acc = 0.0f;
    for (uint32_t b = 0; b < cols / f->block_cols; b++) {
        int32_t isum = 0, msum = 0;
        float dx;
        if (f->block_cols == 32) {
            const struct colibri_act_q8x32 *const x = (const struct colibri_act_q8x32 *)act + b;
            for (uint32_t c = 0; c < 32; c++)
                isum += w->code[32 * b + c] * x->q[c];
            dx = x->d;
            acc = fmaf(w->d[b] * dx, (float)isum, acc);
            if (has_min(f))
                acc = fmaf(w->m[b] * dx, (float)x->sum, acc);
        } else {
            const struct colibri_act_q8x256 *const x = (const struct colibri_act_q8x256 *)act + b;
            for (uint32_t s = 0; s < 16; s++) {
                int32_t sum = 0;
                for (uint32_t c = 16 * s; c < 16 * s + 16; c++)
                    sum += w->code[256 * b + c] * x->q[c];
                isum += w->scale[16 * b + s] * sum;
                msum += w->min[16 * b + s] * x->bsum[s];
            }
            dx = x->d;
            acc = fmaf(w->d[b] * dx, (float)isum, acc);
            if (has_min(f))
                acc = fmaf(-(w->m[b] * dx), (float)msum, acc);
        }
    }
    return acc;
}

void fmt_matmul(const struct fmt *f, const struct colibri_matmul_args *a)
{
    static _Thread_local struct row row;
    for (uint32_t g = a->group_begin; g < a->group_end; g++)
        for (uint32_t r = 0; r < 16 && 16 * g + r < a->n_rows; r++) {
            const char *const group = (const char *)a->w + (size_t)g * a->group_stride;
            const char *const in_rows = group + r * (a->group_stride / 16);
            if (f->layout == COLIBRI_LAYOUT_X16)
                decode_row(f, group, r, a->n_cols, &row);
            for (uint32_t t = 0; t < a->n_x; t++) {
                const void *const x = (const char *)a->x + (a->x_index ? a->x_index[t] : t) * a->x_stride;
                float *const y = a->y + (size_t)t * a->y_stride + 16 * (size_t)g + r;
                if (f->type == COLIBRI_TYPE_F32)
                    *y = colibri_dot_f32((const void *)in_rows, x, a->n_cols);
                else if (f->type == COLIBRI_TYPE_F16)
                    *y = colibri_dot_f16((const void *)in_rows, x, a->n_cols);
                else if (f->type == COLIBRI_TYPE_BF16)
                    *y = colibri_dot_bf16((const void *)in_rows, x, a->n_cols);
                else
                    *y = dot_row(f, &row, x, a->n_cols);
            }
        }
}

/* ---- random contents ---------------------------------------------------------------------------------------- */

static colibri_f16 random_half(struct rng *r, uint32_t kind)
{
    const colibri_f16 sign = (colibri_f16)(rng_next(r) & 0x8000u);
    switch (kind) {
    case 0: /* ordinary scales, 2^-12 .. 2^-5 */
        return (colibri_f16)(sign | (rng_range(r, 3, 10) << 10) | rng_below(r, 1024));
    case 1: /* subnormal or zero */
        return (colibri_f16)(sign | (rng_below(r, 3) ? rng_below(r, 1024) : 0));
    case 2: /* large */
        return (colibri_f16)(sign | (rng_range(r, 20, 30) << 10) | rng_below(r, 1024));
    default: /* ordinary, with some zeros, infinities and NaN */
        return (colibri_f16)(rng_below(r, 16) ? random_half(r, 0)
                                              : sign | (rng_below(r, 2) ? 0 : 0x7c00u | rng_below(r, 2)));
    }
}

void fill_weights(struct rng *r, const struct fmt *f, void *w, size_t bytes)
{
    if (f->layout == COLIBRI_LAYOUT_ROWS) {
        const bool specials = r->number % 4 == 0;
        if (f->type == COLIBRI_TYPE_F32) {
            rng_floats(r, w, bytes / 4, specials);
            return;
        }
        for (size_t i = 0; i < bytes / 2; i += 64) {
            float x[64];
            rng_floats(r, x, 64, specials);
            for (size_t k = 0; k < 64 && i + k < bytes / 2; k++)
                ((uint16_t *)w)[i + k] =
                    f->type == COLIBRI_TYPE_F16 ? colibri_f32_f16(x[k]) : (uint16_t)(colibri_f32_bits(x[k]) >> 16);
        }
        return;
    }
    static const uint8_t extreme[] = {0x00, 0xff, 0x80, 0x7f, 0x0f, 0xf0, 0x81};
    static const uint32_t kinds[] = {0, 1, 2, 3, 3};
    const uint32_t codes = r->number / 5 % 3, halves = kinds[r->number % 5];
    for (size_t at = 0; at + f->block_bytes <= bytes; at += f->block_bytes) {
        char *const block = (char *)w + at;
        if (codes == 0)
            memset(block, extreme[rng_below(r, sizeof(extreme))], f->block_bytes);
        else
            rng_bytes(r, block, f->block_bytes);
        for (size_t i = 0; i < f->n_half; i++) {
            const colibri_f16 h = random_half(r, halves);
            memcpy(block + 2 * i, &h, 2);
        }
        if (f->type == COLIBRI_TYPE_MXFP4 && halves == 0)
            for (size_t i = 0; i < 16; i++)
                block[i] = (char)rng_range(r, 110, 126);
    }
}

void fill_ordinary(struct rng *r, const struct fmt *f, void *w, size_t w_bytes, void *x, uint32_t cols)
{
    for (size_t i = 0; f->layout == COLIBRI_LAYOUT_ROWS && i < w_bytes / f->block_bytes; i++) {
        const float v = rng_unit(r);
        const uint32_t u = colibri_f32_bits(v);
        const colibri_f16 h = f->type == COLIBRI_TYPE_F16 ? colibri_f32_f16(v) : (uint16_t)(u >> 16);
        memcpy((char *)w + i * f->block_bytes, f->block_bytes == 4 ? (const void *)&u : &h, f->block_bytes);
    }
    for (size_t at = 0; f->layout == COLIBRI_LAYOUT_X16 && at + f->block_bytes <= w_bytes; at += f->block_bytes) {
        char *const block = (char *)w + at;
        rng_bytes(r, block, f->block_bytes);
        for (size_t i = 0; i < f->n_half; i++) {
            const colibri_f16 h = random_half(r, 0);
            memcpy(block + 2 * i, &h, 2);
        }
        for (size_t i = 0; f->type == COLIBRI_TYPE_MXFP4 && i < 16; i++)
            block[i] = (char)rng_range(r, 110, 126);
    }
    float in[4096];
    for (uint32_t i = 0; i < cols; i++)
        in[i] = rng_unit(r);
    if (f->act_bytes == 4)
        memcpy(x, in, cols * sizeof(float));
    else if (f->block_cols == 32)
        colibri_act_q8x32_row(in, x, cols);
    else
        colibri_act_q8x256_row(in, x, cols);
}

void fill_activations(struct rng *r, const struct fmt *f, void *x, size_t stride, uint32_t rows, uint32_t cols)
{
    const bool specials = r->number % 3 == 1;
    const uint32_t codes = r->number / 2 % 4;
    for (uint32_t t = 0; t < rows; t++) {
        char *const row = (char *)x + t * stride;
        if (f->act_bytes == 4) {
            rng_floats(r, (float *)(void *)row, cols, specials);
            continue;
        }
        for (uint32_t b = 0; b < cols / f->block_cols; b++) {
            int8_t q[256];
            const int8_t all = (int8_t)(rng_below(r, 3) * 127 - 127);
            for (uint32_t c = 0; c < f->block_cols; c++)
                q[c] = codes == 0   ? all
                       : codes == 1 ? (rng_below(r, 2) ? 127 : -127)
                                    : (int8_t)(rng_below(r, 255) - 127);
            const float d = specials && rng_below(r, 8) == 0 ? (rng_below(r, 2) ? NAN : 0.0f)
                                                             : fabsf(rng_unit(r)) * (codes == 3 ? 1e-38f : 0.1f);
            if (f->block_cols == 32) {
                struct colibri_act_q8x32 *const a = (struct colibri_act_q8x32 *)(void *)row + b;
                a->d = d;
                a->sum = 0;
                memcpy(a->q, q, 32);
                for (uint32_t c = 0; c < 32; c++)
                    a->sum += q[c];
            } else {
                struct colibri_act_q8x256 *const a = (struct colibri_act_q8x256 *)(void *)row + b;
                a->d = d;
                a->reserved = 0;
                memcpy(a->q, q, 256);
                for (uint32_t s = 0; s < 16; s++) {
                    int sum = 0;
                    for (uint32_t c = 0; c < 16; c++)
                        sum += q[16 * s + c];
                    a->bsum[s] = (int16_t)sum;
                }
            }
        }
    }
}
