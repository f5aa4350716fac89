/* A quantization format: how weights are encoded, packed and multiplied exactly.
 *
 * The format owns the scalar reference of its dot product: `matmul` defines the bits that every EXACT kernel of
 * this format returns, and serves where no kernel fits. All functions are reentrant and allocate nothing.
 * [any-thread] */
#ifndef COLIBRI_FORMAT_H
#define COLIBRI_FORMAT_H

#include "colibri/kernel.h"

struct colibri_format {
    uint32_t struct_size;
    uint32_t gguf_type;                       /* tensor type id in GGUF files */
    const char *name;                         /* "Q4_K" */
    uint32_t block_elems, block_bytes;        /* of a GGUF row block */
    uint32_t layout;                          /* enum colibri_layout of the form that is multiplied */
    uint32_t act_block_elems, act_block_bytes;
    const char *act;                          /* COLIBRI_ACT_* */

    /* n elements (a multiple of block_elems) between GGUF row blocks and floats. dequantize equals ggml's
     * dequantization bit for bit. quantize: importance is NULL or n weights >= 0 for the squared errors;
     * inputs that are not finite are refused with COLIBRI_E_FORMAT, sizes that the format cannot express with
     * COLIBRI_E_LIMIT. Output bytes are deterministic. Row blocks, here and below, are aligned like their struct. */
    void (*dequantize)(const void *blocks, float *out, size_t n);
    int (*quantize)(const float *in, void *blocks, size_t n, const float *importance);

    /* Between n_rows <= 16 GGUF rows (row_stride bytes apart) and one packed group of 16 * bytes-of-a-row.
     * Missing rows are zero bytes. Lossless. NULL for COLIBRI_LAYOUT_ROWS. */
    void (*pack)(const void *rows, size_t row_stride, uint32_t n_rows, uint32_t n_cols, void *group);
    void (*unpack)(const void *group, uint32_t n_rows, uint32_t n_cols, void *rows, size_t row_stride);

    /* n floats (a multiple of act_block_elems) to activations. For COLIBRI_ACT_F32 a copy. */
    void (*quantize_act)(const float *x, void *act, size_t n);

    /* Exact reference: dot product of one GGUF row with one activation row. */
    float (*dot)(const void *row, const void *act, size_t n_cols);
    /* Exact reference on `layout`; equals `dot` for every row. */
    void (*matmul)(const struct colibri_matmul_args *args);
};

#endif
