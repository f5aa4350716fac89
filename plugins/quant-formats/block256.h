/* Superblocks of 256 columns with integer sub-scales (Q2_K to Q6_K, IQ4_XS): dequantization and the exact dot product,
 * from the format's row decode function.
 *
 * The exact dot product of a row, superblocks in column order, acc starting at +0:
 *   isum = sum over sub-blocks of sc * (sum of q * x)
 *   msum = sum over sub-blocks of m * (sum of x)
 *   acc  = fmaf(d * d_x, (float)isum, acc)
 *   acc  = fmaf(-(dmin * d_x), (float)msum, acc)     Q2_K, Q4_K, Q5_K only
 * Both sums are exact for any bytes. With |x| <= 128 and 256 columns:
 *   isum  Q6_K 128 * 32 * 128 * 256 = 2^27 is the largest (IQ4_XS 32 * 127, Q5_K 63 * 31, Q4_K 63 * 15, Q3_K 32 * 4,
 *         Q2_K 15 * 3 in place of 128 * 32)
 *   msum  63 * 128 * 256 < 2^21
 * and |sc * q| <= 128 * 32 = 2^12 fits 16 bits, which is how the loop below folds the sub-scales into the weights. */
#ifndef CLB_QUANT_FORMATS_BLOCK256_H
#define CLB_QUANT_FORMATS_BLOCK256_H

#include "pack.h"

/* A row superblock as integers: weight c of sub-block s is d * sc[s] * q[c] - dmin * m[s]. */
struct clb_row256 {
    float d, dmin;
    int16_t sc[16], m[16];
    int16_t q[256];
};

typedef void clb_row256_fn(const void *block, struct clb_row256 *out);

CLB_INLINE void clb_dequantize256(const void *blocks, float *out, size_t n, size_t block_bytes, size_t n_sub,
                                  int has_min, clb_row256_fn *decode)
{
    for (size_t b = 0; b < n / 256; b++) {
        struct clb_row256 w;
        decode((const char *)blocks + b * block_bytes, &w);
        for (size_t s = 0; s < n_sub; s++) {
            const float scale = w.d * (float)w.sc[s], min = has_min ? w.dmin * (float)w.m[s] : 0.0f;
            for (size_t i = s * (256 / n_sub); i < (s + 1) * (256 / n_sub); i++) {
                const float v = scale * (float)w.q[i];
                out[256 * b + i] = has_min ? v - min : v;
            }
        }
    }
}

CLB_INLINE void clb_fold_scales(struct clb_row256 *w, size_t n_sub)
{
    for (size_t s = 0; s < n_sub; s++)
        for (size_t i = s * (256 / n_sub); i < (s + 1) * (256 / n_sub); i++)
            w->q[i] = (int16_t)(w->q[i] * w->sc[s]);
}

/* One superblock's step of the exact dot product. w: scales folded in; xq, the activations, widened. */
CLB_INLINE float clb_step256(const struct clb_row256 *w, const struct colibri_act_q8x256 *x, const int16_t xq[256],
                             size_t n_sub, int has_min, float acc)
{
    acc = fmaf(w->d * x->d, (float)clb_idot(w->q, xq, 256), acc);
    if (!has_min)
        return acc;
    int32_t msum = 0;
    for (size_t s = 0; s < 16; s++)
        msum += w->m[s * n_sub / 16] * x->bsum[s];
    return fmaf(-(w->dmin * x->d), (float)msum, acc);
}

CLB_INLINE float clb_dot256(const void *row, const void *act, size_t n_cols, size_t block_bytes, size_t n_sub,
                            int has_min, clb_row256_fn *decode)
{
    const struct colibri_act_q8x256 *x = act;
    float acc = 0.0f;
    for (size_t b = 0; b < n_cols / 256; b++) {
        struct clb_row256 w;
        int16_t xq[256];
        decode((const char *)row + b * block_bytes, &w);
        clb_fold_scales(&w, n_sub);
        clb_widen(x[b].q, xq, 256);
        acc = clb_step256(&w, &x[b], xq, n_sub, has_min, acc);
    }
    return acc;
}

CLB_INLINE void clb_matmul256(const struct colibri_matmul_args *a, const struct clb_field *fields, size_t n_fields,
                              size_t block_bytes, size_t n_sub, int has_min, clb_row256_fn *decode)
{
    const size_t n_blocks = a->n_cols / 256;
    const size_t g_end = clb_group_end(a);
    for (size_t g = a->group_begin; g < g_end; g++) {
        const char *group = (const char *)a->w + g * a->group_stride;
        for (size_t t0 = 0; t0 < a->n_x; t0 += CLB_TILE) {
            const size_t n_t = clb_min_size(CLB_TILE, a->n_x - t0);
            float acc[CLB_TILE][16] = {{0}};
            for (size_t b = 0; b < n_blocks; b++) {
                _Alignas(4) unsigned char raw[16][sizeof(struct colibri_q6_k)];
                struct clb_row256 w[16];
                clb_unpack(fields, n_fields, block_bytes, 1, group + b * block_bytes * 16, 16, raw, sizeof(raw[0]));
                for (size_t r = 0; r < 16; r++) {
                    decode(raw[r], &w[r]);
                    clb_fold_scales(&w[r], n_sub);
                }
                for (size_t t = 0; t < n_t; t++) {
                    const struct colibri_act_q8x256 *x = clb_act_row(a, t0 + t);
                    int16_t xq[256];
                    clb_widen(x[b].q, xq, 256);
                    for (size_t r = 0; r < 16; r++)
                        acc[t][r] = clb_step256(&w[r], &x[b], xq, n_sub, has_min, acc[t][r]);
                }
            }
            clb_store_tile(a, g, t0, n_t, acc);
        }
    }
}

/* dequantize_, dot_, matmul_ and act_<type>() of the format interface, from row_<type>() and <type>_fields. */
#define CLB_DEFINE_BLOCK256(type, n_sub, has_min)                                                                      \
    static void dequantize_##type(const void *blocks, float *out, size_t n)                                            \
    {                                                                                                                  \
        clb_dequantize256(blocks, out, n, sizeof(struct colibri_##type), n_sub, has_min, row_##type);                  \
    }                                                                                                                  \
    static float dot_##type(const void *row, const void *act, size_t n_cols)                                           \
    {                                                                                                                  \
        return clb_dot256(row, act, n_cols, sizeof(struct colibri_##type), n_sub, has_min, row_##type);                \
    }                                                                                                                  \
    static void matmul_##type(const struct colibri_matmul_args *args)                                                  \
    {                                                                                                                  \
        clb_matmul256(args, type##_fields, sizeof(type##_fields) / sizeof(type##_fields[0]),                           \
                      sizeof(struct colibri_##type), n_sub, has_min, row_##type);                                      \
    }                                                                                                                  \
    static void act_##type(const float *x, void *act, size_t n)                                                        \
    {                                                                                                                  \
        colibri_act_q8x256_row(x, act, n);                                                                             \
    }

#define CLB_FORMAT256(type, id, text)                                                                                  \
    {                                                                                                                  \
        .struct_size = sizeof(struct colibri_format), .gguf_type = id, .name = text, .block_elems = 256,               \
        .block_bytes = sizeof(struct colibri_##type), .layout = COLIBRI_LAYOUT_X16, .act_block_elems = 256,            \
        .act_block_bytes = sizeof(struct colibri_act_q8x256), .act = COLIBRI_ACT_Q8X256,                               \
        .dequantize = dequantize_##type, .quantize = quantize_##type, .pack = pack_##type, .unpack = unpack_##type,    \
        .quantize_act = act_##type, .dot = dot_##type, .matmul = matmul_##type,                                        \
    }

#endif
