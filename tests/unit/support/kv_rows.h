/* Rows of K and V that tell by themselves which sequence, layer, head and position they belong to. */
#ifndef TEST_KV_ROWS_H
#define TEST_KV_ROWS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "colibri/numerics.h"
#include "kv/kv.h"

/* Exact in F16: 11-bit whole numbers. */
static inline float kv_rows_value(uint32_t tag, uint32_t layer, uint32_t head, uint32_t position, uint32_t d, int is_v)
{
    uint32_t x = tag * 0x9e3779b1u ^ layer * 0x85ebca6bu ^ head * 0xc2b2ae35u ^ position * 0x27d4eb2fu ^ d * 0x165667b1u;
    x ^= (uint32_t)is_v * 0xdeadbeefu;
    x = (x ^ (x >> 15)) * 0x2c1b3c6du;
    x = (x ^ (x >> 12)) * 0x297a2d39u;
    return (float)((x ^ (x >> 15)) % 4096u) - 2048.0f;
}

/* Writes rows 0..n of the open pass; their positions are those that follow clb_kv_seq_position. */
static inline void kv_rows_write_row(clb_kv_seq *seq, const clb_kv_layout *l, uint32_t tag, uint32_t row)
{
    float *k = calloc((size_t)l->n_kv_heads * (l->k_dim + l->v_dim), sizeof k[0]);
    float *v = k + (size_t)l->n_kv_heads * l->k_dim;
    const uint32_t position = clb_kv_seq_position(seq) + row;
    assert_non_null(k);
    for (uint32_t layer = 0; layer < l->n_layers; layer++) {
        for (uint32_t h = 0; h < l->n_kv_heads; h++) {
            for (uint32_t d = 0; d < l->k_dim; d++)
                k[h * l->k_dim + d] = kv_rows_value(tag, layer, h, position, d, 0);
            for (uint32_t d = 0; d < l->v_dim; d++)
                v[h * l->v_dim + d] = kv_rows_value(tag, layer, h, position, d, 1);
        }
        clb_kv_write(seq, layer, row, k, v);
    }
    free(k);
}

static inline void kv_rows_write(clb_kv_seq *seq, const clb_kv_layout *l, uint32_t tag, uint32_t n)
{
    for (uint32_t row = 0; row < n; row++)
        kv_rows_write_row(seq, l, tag, row);
}

static inline float kv_rows_read(const clb_kv_layout *l, const void *const *pages, uint32_t dim, uint32_t i, uint32_t d)
{
    const char *page = pages[i / l->page_tokens];
    const size_t at = (size_t)(i % l->page_tokens) * dim + d;
    return l->k_type == COLIBRI_TYPE_F32 ? ((const float *)(const void *)page)[at]
                                       : colibri_f16_f32(((const colibri_f16 *)(const void *)page)[at]);
}

/* Kept row i must be that of `position`. */
static inline void kv_rows_check(const clb_kv_view *view, const clb_kv_layout *l, uint32_t tag, uint32_t layer,
                                 uint32_t head, uint32_t i, uint32_t position)
{
    for (uint32_t d = 0; d < l->k_dim; d++)
        if (kv_rows_read(l, view->k_pages, l->k_dim, i, d) != kv_rows_value(tag, layer, head, position, d, 0))
            fail_msg("K of layer %u head %u, kept row %u (position %u) differs at %u", layer, head, i, position, d);
    for (uint32_t d = 0; d < l->v_dim; d++)
        if (kv_rows_read(l, view->v_pages, l->v_dim, i, d) != kv_rows_value(tag, layer, head, position, d, 1))
            fail_msg("V of layer %u head %u, kept row %u (position %u) differs at %u", layer, head, i, position, d);
}

static inline void *kv_rows_create(const struct colibri_kv_config *config, char *why, size_t why_size)
{
    (void)config;
    (void)why;
    (void)why_size;
    return malloc(1);
}

static inline void kv_rows_reset(void *self)
{
    *(char *)self = 0;
}

static const struct colibri_kv_strategy kv_rows_full __attribute__((unused)) = {
    .struct_size = sizeof(struct colibri_kv_strategy),
    .flags = COLIBRI_KV_FLAG_KEEPS_ALL,
    .name = "test-full",
    .create = kv_rows_create,
    .destroy = free,
    .reset = kv_rows_reset,
};

#endif
