/* Formats with blocks of 32 columns and one scale (Q4_0, Q5_0, Q8_0, IQ4_NL, MXFP4), or scale and minimum (Q4_1,
 * Q5_1): dequantization and the exact dot product, from the format's row decode function.
 *
 * The exact dot product of a row, blocks b in column order, acc starting at +0:
 *   isum = sum of q * x                          exact: |q| <= 128, |x| <= 128, 32 terms: |isum| <= 2^19
 *   acc  = fmaf(d_w * d_x, (float)isum, acc)
 *   acc  = fmaf(m_w * d_x, (float)xsum, acc)     formats with a minimum only; xsum = sum of x, |xsum| <= 2^12 */
#ifndef CLB_QUANT_FORMATS_BLOCK32_H
#define CLB_QUANT_FORMATS_BLOCK32_H

#include "pack.h"

/* A row block as integers: weight c is d * q[c] (+ m). 16-bit, so that baseline multiply-add instructions apply. */
struct clb_row32 {
    float d, m;
    int16_t q[32];
};

typedef void clb_row32_fn(const void *block, struct clb_row32 *out);

CLB_INLINE void clb_dequantize32(const void *blocks, float *out, size_t n, size_t block_bytes, int has_min,
                                 clb_row32_fn *decode)
{
    for (size_t b = 0; b < n / 32; b++) {
        struct clb_row32 w;
        decode((const char *)blocks + b * block_bytes, &w);
        for (size_t i = 0; i < 32; i++) {
            const float v = w.d * (float)w.q[i];
            out[32 * b + i] = has_min ? v + w.m : v;
        }
    }
}

/* One block's step of the exact dot product. xq: the block's activations, widened. */
CLB_INLINE float clb_step32(const struct clb_row32 *w, const struct colibri_act_q8x32 *x, const int16_t xq[32],
                            int has_min, float acc)
{
    acc = fmaf(w->d * x->d, (float)clb_idot(w->q, xq, 32), acc);
    return has_min ? fmaf(w->m * x->d, (float)x->sum, acc) : acc;
}

CLB_INLINE float clb_dot32(const void *row, const void *act, size_t n_cols, size_t block_bytes, int has_min,
                           clb_row32_fn *decode)
{
    const struct colibri_act_q8x32 *x = act;
    float acc = 0.0f;
    for (size_t b = 0; b < n_cols / 32; b++) {
        struct clb_row32 w;
        int16_t xq[32];
        decode((const char *)row + b * block_bytes, &w);
        clb_widen(x[b].q, xq, 32);
        acc = clb_step32(&w, &x[b], xq, has_min, acc);
    }
    return acc;
}

CLB_INLINE void clb_matmul32(const struct colibri_matmul_args *a, const struct clb_field *fields, size_t n_fields,
                             size_t block_bytes, int has_min, clb_row32_fn *decode)
{
    const size_t n_blocks = a->n_cols / 32;
    const size_t g_end = clb_group_end(a);
    for (size_t g = a->group_begin; g < g_end; g++) {
        const char *group = (const char *)a->w + g * a->group_stride;
        for (size_t t0 = 0; t0 < a->n_x; t0 += CLB_TILE) {
            const size_t n_t = clb_min_size(CLB_TILE, a->n_x - t0);
            float acc[CLB_TILE][16] = {{0}};
            for (size_t b = 0; b < n_blocks; b++) {
                _Alignas(4) unsigned char raw[16][sizeof(struct colibri_q8_0)];
                struct clb_row32 w[16];
                clb_unpack(fields, n_fields, block_bytes, 1, group + b * block_bytes * 16, 16, raw, sizeof(raw[0]));
                for (size_t r = 0; r < 16; r++)
                    decode(raw[r], &w[r]);
                for (size_t t = 0; t < n_t; t++) {
                    const struct colibri_act_q8x32 *x = clb_act_row(a, t0 + t);
                    int16_t xq[32];
                    clb_widen(x[b].q, xq, 32);
                    for (size_t r = 0; r < 16; r++)
                        acc[t][r] = clb_step32(&w[r], &x[b], xq, has_min, acc[t][r]);
                }
            }
            clb_store_tile(a, g, t0, n_t, acc);
        }
    }
}

/* dequantize_, dot_, matmul_ and act_ <type>() of the format interface, from row_<type>() and <type>_fields. */
#define CLB_DEFINE_BLOCK32(type, has_min)                                                                              \
    static void dequantize_##type(const void *blocks, float *out, size_t n)                                            \
    {                                                                                                                  \
        clb_dequantize32(blocks, out, n, sizeof(struct colibri_##type), has_min, row_##type);                          \
    }                                                                                                                  \
    static float dot_##type(const void *row, const void *act, size_t n_cols)                                           \
    {                                                                                                                  \
        return clb_dot32(row, act, n_cols, sizeof(struct colibri_##type), has_min, row_##type);                        \
    }                                                                                                                  \
    static void matmul_##type(const struct colibri_matmul_args *args)                                                  \
    {                                                                                                                  \
        clb_matmul32(args, type##_fields, sizeof(type##_fields) / sizeof(type##_fields[0]),                            \
                     sizeof(struct colibri_##type), has_min, row_##type);                                              \
    }                                                                                                                  \
    static void act_##type(const float *x, void *act, size_t n)                                                        \
    {                                                                                                                  \
        colibri_act_q8x32_row(x, act, n);                                                                              \
    }

#define CLB_FORMAT32(type, id, text)                                                                                   \
    {                                                                                                                  \
        .struct_size = sizeof(struct colibri_format), .gguf_type = id, .name = text, .block_elems = 32,                \
        .block_bytes = sizeof(struct colibri_##type), .layout = COLIBRI_LAYOUT_X16, .act_block_elems = 32,             \
        .act_block_bytes = sizeof(struct colibri_act_q8x32), .act = COLIBRI_ACT_Q8X32,                                 \
        .dequantize = dequantize_##type, .quantize = quantize_##type, .pack = pack_##type, .unpack = unpack_##type,    \
        .quantize_act = act_##type, .dot = dot_##type, .matmul = matmul_##type,                                        \
    }

#endif
