/* F32, F16 and BF16: weights as they are, multiplied in row layout (numerics.h: 16 virtual lanes over columns). */
#include "common.h"

static void dequantize_f32(const void *blocks, float *out, size_t n)
{
    memcpy(out, blocks, n * sizeof(float));
}

static void dequantize_f16(const void *blocks, float *out, size_t n)
{
    const colibri_f16 *in = blocks;
    for (size_t i = 0; i < n; i++)
        out[i] = colibri_f16_f32(in[i]);
}

static void dequantize_bf16(const void *blocks, float *out, size_t n)
{
    const uint16_t *in = blocks;
    for (size_t i = 0; i < n; i++)
        out[i] = colibri_bf16_f32(in[i]);
}

static int quantize_f32(const float *in, void *blocks, size_t n, const float *importance)
{
    (void)importance;
    for (size_t i = 0; i < n; i++)
        if (!(fabsf(in[i]) < INFINITY))
            return COLIBRI_E_FORMAT;
    memcpy(blocks, in, n * sizeof(float));
    return COLIBRI_OK;
}

static int quantize_f16(const float *in, void *blocks, size_t n, const float *importance)
{
    colibri_f16 *out = blocks;
    (void)importance;
    for (size_t i = 0; i < n; i++) {
        if (!(fabsf(in[i]) < INFINITY))
            return COLIBRI_E_FORMAT;
        out[i] = colibri_f32_f16(in[i]);
        if ((out[i] & 0x7fffu) == 0x7c00u)
            return COLIBRI_E_LIMIT;
    }
    return COLIBRI_OK;
}

/* Round to nearest, ties to even. */
static int quantize_bf16(const float *in, void *blocks, size_t n, const float *importance)
{
    uint16_t *out = blocks;
    (void)importance;
    for (size_t i = 0; i < n; i++) {
        if (!(fabsf(in[i]) < INFINITY))
            return COLIBRI_E_FORMAT;
        const uint32_t u = colibri_f32_bits(in[i]);
        out[i] = (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
        if ((out[i] & 0x7fffu) == 0x7f80u)
            return COLIBRI_E_LIMIT;
    }
    return COLIBRI_OK;
}

static void act_f32(const float *x, void *act, size_t n)
{
    memcpy(act, x, n * sizeof(float));
}

static float dot_f32(const void *row, const void *act, size_t n_cols)
{
    return colibri_dot_f32(row, act, n_cols);
}

static float dot_f16(const void *row, const void *act, size_t n_cols)
{
    return colibri_dot_f16(row, act, n_cols);
}

static float dot_bf16(const void *row, const void *act, size_t n_cols)
{
    return colibri_dot_bf16(row, act, n_cols);
}

/* The steps of colibri_dot_* for CLB_TILE activation rows at a time, so that a row's weights are widened once.
 * The lanes beyond the last column take part with zeros, as numerics.h asks. */
CLB_INLINE void matmul_rows(const struct colibri_matmul_args *a, size_t elem,
                            void (*widen)(const void *in, float *out, size_t n))
{
    const size_t n_cols = a->n_cols;
    const size_t row_end = clb_min_size(clb_group_end(a) * COLIBRI_GROUP_ROWS, a->n_rows);
    for (size_t row = (size_t)a->group_begin * COLIBRI_GROUP_ROWS; row < row_end; row++) {
        const char *w = (const char *)a->w + row * (a->group_stride / COLIBRI_GROUP_ROWS);
        for (size_t t0 = 0; t0 < a->n_x; t0 += CLB_TILE) {
            const size_t n_t = clb_min_size(CLB_TILE, a->n_x - t0);
            float lane[CLB_TILE][COLIBRI_LANES] = {{0}};
            for (size_t c = 0; c < n_cols; c += COLIBRI_LANES) {
                const size_t n = clb_min_size(COLIBRI_LANES, n_cols - c);
                float wf[COLIBRI_LANES] = {0};
                widen(w + c * elem, wf, n);
                for (size_t t = 0; t < n_t; t++) {
                    float xf[COLIBRI_LANES] = {0};
                    memcpy(xf, (const float *)clb_act_row(a, t0 + t) + c, n * sizeof(float));
                    for (size_t l = 0; l < COLIBRI_LANES; l++)
                        lane[t][l] = fmaf(wf[l], xf[l], lane[t][l]);
                }
            }
            for (size_t t = 0; t < n_t; t++)
                a->y[(t0 + t) * a->y_stride + row] = colibri_lanes_sum(lane[t]);
        }
    }
}

static void matmul_f32(const struct colibri_matmul_args *args)
{
    matmul_rows(args, sizeof(float), dequantize_f32);
}

static void matmul_f16(const struct colibri_matmul_args *args)
{
    matmul_rows(args, sizeof(colibri_f16), dequantize_f16);
}

static void matmul_bf16(const struct colibri_matmul_args *args)
{
    matmul_rows(args, sizeof(uint16_t), dequantize_bf16);
}

#define FLOAT_FORMAT(type, id, text, bytes)                                                                            \
    {                                                                                                                  \
        .struct_size = sizeof(struct colibri_format), .gguf_type = id, .name = text, .block_elems = 1,                 \
        .block_bytes = bytes, .layout = COLIBRI_LAYOUT_ROWS, .act_block_elems = 1, .act_block_bytes = 4,               \
        .act = COLIBRI_ACT_F32, .dequantize = dequantize_##type, .quantize = quantize_##type, .quantize_act = act_f32, \
        .dot = dot_##type, .matmul = matmul_##type,                                                                    \
    }

static const struct colibri_format formats[] = {FLOAT_FORMAT(f32, COLIBRI_TYPE_F32, "F32", 4),
                                                FLOAT_FORMAT(f16, COLIBRI_TYPE_F16, "F16", 2),
                                                FLOAT_FORMAT(bf16, COLIBRI_TYPE_BF16, "BF16", 2)};

CLB_FORMAT_PLUGIN(floats, formats, "F32, F16, BF16: floats in row layout");
