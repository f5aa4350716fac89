/* Dot products in 16 virtual lanes of float rows (F32, F16, BF16) with F32 rows: tiles of rows x activations. */
#ifndef KERNELS_NEON_DOT_H
#define KERNELS_NEON_DOT_H

#include "simd.h"

/* Elements i .. i+15 of a row. */
INLINE struct lanes load_row16(const void *row, size_t i, const uint32_t type)
{
    struct lanes l;
    if (type == COLIBRI_TYPE_F32) {
        const float *const p = (const float *)row + i;
        UNROLL
        for (int k = 0; k < 4; k++)
            l.v[k] = vld1q_f32(p + 4 * k);
        return l;
    }
    const uint16_t *const p = (const uint16_t *)row + i;
    UNROLL
    for (int k = 0; k < 4; k++) {
        const uint16x4_t h = vld1_u16(p + 4 * k);
        l.v[k] = type == COLIBRI_TYPE_F16 ? vcvt_f32_f16(vreinterpret_f16_u16(h))
                                          : vreinterpretq_f32_u32(vshll_n_u16(h, 16));
    }
    return l;
}

/* The n < 16 elements from i on, zeros behind; nothing beyond them is read. */
INLINE struct lanes load_row_part(const void *row, size_t i, size_t n, const uint32_t type)
{
    if (type == COLIBRI_TYPE_F32) {
        float part[16] = {0};
        memcpy(part, (const float *)row + i, n * sizeof(float));
        return load_row16(part, 0, type);
    }
    uint16_t part[16] = {0};
    memcpy(part, (const uint16_t *)row + i, n * sizeof(uint16_t));
    return load_row16(part, 0, type);
}

INLINE void add_products(struct lanes *acc, const struct lanes *w, const struct lanes *x)
{
    UNROLL
    for (int k = 0; k < 4; k++)
        acc->v[k] = vfmaq_f32(acc->v[k], w->v[k], x->v[k]);
}

/* acc[r * tile + t] = lanes of the dot product of w[r] and x[t] over n elements. */
INLINE void dot_tile(const void *const *w, const float *const *x, size_t n, const int rows, const int tile,
                     const uint32_t type, struct lanes *acc)
{
    UNROLL
    for (int k = 0; k < rows * tile; k++)
        acc[k] = lanes_zero();
    for (size_t i = 0; i < n; i += 16) {
        const size_t left = n - i;
        struct lanes xv[2];
        UNROLL
        for (int t = 0; t < tile; t++)
            xv[t] = left >= 16 ? load_row16(x[t], i, COLIBRI_TYPE_F32) : load_row_part(x[t], i, left, COLIBRI_TYPE_F32);
        UNROLL
        for (int r = 0; r < rows; r++) {
            const struct lanes wv = left >= 16 ? load_row16(w[r], i, type) : load_row_part(w[r], i, left, type);
            UNROLL
            for (int t = 0; t < tile; t++)
                add_products(&acc[r * tile + t], &wv, &xv[t]);
        }
    }
}

#endif
