/* What the units of this plugin share. */
#ifndef KERNELS_H
#define KERNELS_H

#include <colibri/kernel.h>
#include <colibri/numerics.h>

void run_plain(const struct colibri_matmul_args *a); /* plain.c: any CPU */
void run_simd(const struct colibri_matmul_args *a);  /* simd.c: AVX2, FMA, F16C */

/* The blocks of group g: one per 32 columns, 16 rows each. */
static inline const struct colibri_x16_q4_0 *group(const struct colibri_matmul_args *a, uint32_t g)
{
    return (const void *)((const char *)a->w + (size_t)g * a->group_stride);
}

/* The activations that product row t meets. */
static inline const struct colibri_act_q8x32 *activations(const struct colibri_matmul_args *a, uint32_t t)
{
    return (const void *)((const char *)a->x + (size_t)(a->x_index ? a->x_index[t] : t) * a->x_stride);
}

/* The results of group g for product row t; a last group may have fewer than 16 rows. */
static inline void store(const struct colibri_matmul_args *a, uint32_t g, uint32_t t, const float acc[16])
{
    const uint32_t left = a->n_rows - 16 * g;
    memcpy(a->y + t * a->y_stride + (size_t)16 * g, acc, (left < 16 ? left : 16) * sizeof(float));
}

#endif
