/* Rows of keys and values in their pages: storing, reading and finding them. */
#include <assert.h>
#include <string.h>

#include "colibri/numerics.h"
#include "kv/internal.h"

const char *clb_kv_type_name(uint32_t type)
{
    switch (type) {
    case COLIBRI_TYPE_F32:
        return "f32";
    case COLIBRI_TYPE_Q8_0:
        return "q8_0";
    case COLIBRI_TYPE_Q4_0:
        return "q4_0";
    default:
        return "f16";
    }
}

uint64_t clb_kv_position_bytes(const clb_kv_layout *layout)
{
    return clb_kv_row_bytes(layout->k_type, layout->k_dim) + clb_kv_row_bytes(layout->v_type, layout->v_dim);
}

size_t clb_kv_row_bytes(uint32_t type, uint32_t dim)
{
    return (size_t)dim * (type == COLIBRI_TYPE_F32 ? 4 : 2);
}

static void store_row(const clb_kv_cache *cache, uint32_t type, void *out, const float *x, uint32_t dim)
{
    const struct colibri_vecops *ops = cache->layout.ops;
    if (type == COLIBRI_TYPE_F32) {
        memcpy(out, x, dim * sizeof x[0]);
    } else if (ops && ops->f32_to_f16) {
        ops->f32_to_f16(x, out, dim);
    } else {
        colibri_f16 *h = out;
        for (uint32_t d = 0; d < dim; d++)
            h[d] = colibri_f32_f16(x[d]);
    }
}

static void load_row(uint32_t type, const void *in, uint32_t dim, float *x)
{
    if (type == COLIBRI_TYPE_F32) {
        memcpy(x, in, dim * sizeof x[0]);
    } else {
        const colibri_f16 *h = in;
        for (uint32_t d = 0; d < dim; d++)
            x[d] = colibri_f16_f32(h[d]);
    }
}

static uint8_t *place(const clb_kv_cache *cache, const void *const *pages, uint32_t i, size_t row)
{
    const uint32_t p = cache->layout.page_tokens;
    return (uint8_t *)(uintptr_t)pages[i / p] + i % p * row;
}

void clb_kv_read_k(const clb_kv_cache *cache, const clb_kv_head *head, uint32_t i, float *out)
{
    load_row(cache->layout.k_type, place(cache, head->k_pages, i, cache->k_row), cache->layout.k_dim, out);
}

void clb_kv_read_v(const clb_kv_cache *cache, const clb_kv_head *head, uint32_t i, float *out)
{
    load_row(cache->layout.v_type, place(cache, head->v_pages, i, cache->v_row), cache->layout.v_dim, out);
}

void clb_kv_change_v(clb_kv_seq *seq, clb_kv_head *head, uint32_t i, const float *v)
{
    const clb_kv_cache *cache = seq->cache;
    store_row(cache, cache->layout.v_type, place(cache, head->v_pages, i, cache->v_row), v, cache->layout.v_dim);
}

void clb_kv_write(clb_kv_seq *seq, uint32_t layer, uint32_t i, const float *k, const float *v)
{
    const clb_kv_cache *cache = seq->cache;
    const clb_kv_layout *l = &cache->layout;
    assert(layer < l->n_layers && i < seq->pass_rows);
    for (uint32_t head = 0; head < l->n_kv_heads; head++) {
        const clb_kv_head *h = &seq->heads[(size_t)layer * l->n_kv_heads + head];
        store_row(cache, l->k_type, place(cache, h->k_pages, h->n + i, cache->k_row), k + (size_t)head * l->k_dim,
                  l->k_dim);
        store_row(cache, l->v_type, place(cache, h->v_pages, h->n + i, cache->v_row), v + (size_t)head * l->v_dim,
                  l->v_dim);
    }
}

void clb_kv_write_soon(const clb_kv_seq *seq, uint32_t layer, uint32_t i)
{
    const clb_kv_cache *cache = seq->cache;
    for (uint32_t head = 0; head < cache->layout.n_kv_heads; head++) {
        const clb_kv_head *h = &seq->heads[(size_t)layer * cache->layout.n_kv_heads + head];
        const uint8_t *k = place(cache, h->k_pages, h->n + i, cache->k_row);
        const uint8_t *v = place(cache, h->v_pages, h->n + i, cache->v_row);
        for (size_t b = 0; b < cache->k_row; b += 64)
            __builtin_prefetch(k + b, 1);
        for (size_t b = 0; b < cache->v_row; b += 64)
            __builtin_prefetch(v + b, 1);
    }
}

clb_kv_view clb_kv_view_of(const clb_kv_seq *seq, uint32_t layer, uint32_t kv_head)
{
    const clb_kv_head *h = &seq->heads[(size_t)layer * seq->cache->layout.n_kv_heads + kv_head];
    return (clb_kv_view){.k_pages = h->k_pages, .v_pages = h->v_pages, .n_before = h->n};
}
