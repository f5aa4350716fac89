/* Rows of keys and values in their pages: storing, reading and finding them. */
#include <assert.h>
#include <string.h>

#include "colibri/numerics.h"
#include "kv/index.h"
#include "ops/hadamard.h"
#include "ops/kv_quant.h"
#include "ops/ops.h"

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

bool clb_kv_type_quantized(uint32_t type)
{
    return type == COLIBRI_TYPE_Q8_0 || type == COLIBRI_TYPE_Q4_0;
}

uint64_t clb_kv_position_bytes(const clb_kv_layout *layout)
{
    return clb_kv_row_bytes(layout->k_type, layout->k_dim) + clb_kv_row_bytes(layout->v_type, layout->v_dim);
}

size_t clb_kv_row_bytes(uint32_t type, uint32_t dim)
{
    switch (type) {
    case COLIBRI_TYPE_F32:
        return (size_t)dim * sizeof(float);
    case COLIBRI_TYPE_Q8_0:
        return (size_t)dim / CLB_KV_QUANT_BLOCK * sizeof(struct colibri_q8_0);
    case COLIBRI_TYPE_Q4_0:
        return (size_t)dim / CLB_KV_QUANT_BLOCK * sizeof(struct colibri_q4_0);
    default:
        return (size_t)dim * sizeof(colibri_f16);
    }
}

static void store_part(const clb_kv_cache *cache, uint32_t type, void *out, const float *x, uint32_t n)
{
    const struct colibri_vecops *ops = cache->layout.ops;
    switch (type) {
    case COLIBRI_TYPE_F32:
        memcpy(out, x, n * sizeof x[0]);
        return;
    case COLIBRI_TYPE_Q8_0:
        clb_kv_quant_q8_0(x, out, n);
        return;
    case COLIBRI_TYPE_Q4_0:
        clb_kv_quant_q4_0(x, out, n);
        return;
    default:
        if (ops && ops->f32_to_f16)
            ops->f32_to_f16(x, out, n);
        else
            clb_ref_f32_to_f16(x, out, n);
    }
}

/* A row to its place and, unless that is NULL, as F16 to another one; block by block if it is turned. */
static void store_row(const clb_kv_cache *cache, uint32_t type, bool turn, void *out, void *recent, const float *x,
                      uint32_t dim)
{
    float turned[CLB_HADAMARD_MOST];
    const uint32_t step = turn ? clb_hadamard_block(dim) : dim;
    for (uint32_t i = 0; i < dim; i += step) {
        const float *from = x + i;
        if (turn) {
            memcpy(turned, from, step * sizeof turned[0]);
            clb_hadamard(turned, step);
            from = turned;
        }
        store_part(cache, type, (uint8_t *)out + clb_kv_row_bytes(type, i), from, step);
        if (recent)
            store_part(cache, COLIBRI_TYPE_F16, (colibri_f16 *)recent + i, from, step);
    }
}

static void load_row(const clb_kv_cache *cache, uint32_t type, bool turn, const void *in, uint32_t dim, float *x)
{
    const struct colibri_vecops *ops = cache->layout.ops;
    switch (type) {
    case COLIBRI_TYPE_F32:
        memcpy(x, in, dim * sizeof x[0]);
        break;
    case COLIBRI_TYPE_Q8_0:
        clb_kv_widen_q8_0(in, x, dim);
        break;
    case COLIBRI_TYPE_Q4_0:
        clb_kv_widen_q4_0(in, x, dim);
        break;
    default:
        if (ops && ops->f16_to_f32)
            ops->f16_to_f32(in, x, dim);
        else
            clb_ref_f16_to_f32(in, x, dim);
    }
    if (turn)
        clb_hadamard(x, dim);
}

static uint8_t *place(const clb_kv_cache *cache, const void *const *pages, uint32_t i, size_t row)
{
    const uint32_t p = cache->layout.page_tokens;
    return (uint8_t *)(uintptr_t)pages[i / p] + i % p * row;
}

void clb_kv_read_k(const clb_kv_cache *cache, const clb_kv_head *head, uint32_t i, float *out)
{
    const clb_kv_layout *l = &cache->layout;
    load_row(cache, l->k_type, l->turn_k, place(cache, head->k_pages, i, cache->k_row), l->k_dim, out);
}

void clb_kv_read_v(const clb_kv_cache *cache, const clb_kv_head *head, uint32_t i, float *out)
{
    const clb_kv_layout *l = &cache->layout;
    load_row(cache, l->v_type, l->turn_v, place(cache, head->v_pages, i, cache->v_row), l->v_dim, out);
}

void clb_kv_read_recent_v(const clb_kv_cache *cache, const clb_kv_head *head, uint32_t i, float *out)
{
    const clb_kv_layout *l = &cache->layout;
    assert(i >= head->recent_first && head->n_recent);
    load_row(cache, COLIBRI_TYPE_F16, l->turn_v,
             place(cache, head->v_recent, i - head->recent_first, cache->v_recent_row), l->v_dim, out);
}

static void store_k(const clb_kv_cache *cache, const clb_kv_head *h, uint32_t i, const float *k)
{
    const clb_kv_layout *l = &cache->layout;
    uint8_t *const recent = h->k_recent ? place(cache, h->k_recent, i - h->recent_first, cache->k_recent_row) : NULL;
    store_row(cache, l->k_type, l->turn_k, place(cache, h->k_pages, i, cache->k_row), recent, k, l->k_dim);
}

static void store_v(const clb_kv_cache *cache, const clb_kv_head *h, uint32_t i, const float *v)
{
    const clb_kv_layout *l = &cache->layout;
    uint8_t *const recent = h->v_recent && i >= h->recent_first
                                ? place(cache, h->v_recent, i - h->recent_first, cache->v_recent_row)
                                : NULL;
    store_row(cache, l->v_type, l->turn_v, place(cache, h->v_pages, i, cache->v_row), recent, v, l->v_dim);
}

void clb_kv_change_v(clb_kv_seq *seq, clb_kv_head *head, uint32_t i, const float *v)
{
    store_v(seq->cache, head, i, v);
}

void clb_kv_write(clb_kv_seq *seq, uint32_t layer, uint32_t i, const float *k, const float *v)
{
    const clb_kv_cache *cache = seq->cache;
    const clb_kv_layout *l = &cache->layout;
    assert(layer < l->n_layers && i < seq->pass_rows);
    for (uint32_t head = 0; head < l->n_kv_heads; head++) {
        const clb_kv_head *h = &seq->heads[(size_t)layer * l->n_kv_heads + head];
        store_k(cache, h, h->n + i, k + (size_t)head * l->k_dim);
        store_v(cache, h, h->n + i, v + (size_t)head * l->v_dim);
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
    const void *const *const k = h->k_recent, *const *const v = h->v_recent;
    if (h->picked) { /* copies of pages that were not chosen do not count; of a prefix they begin with a page */
        const uint32_t p = seq->cache->layout.page_tokens, from = k ? clb_kv_picks_from(seq) - h->recent_first / p : 0;
        return (clb_kv_view){.k_pages = h->k_picked,
                             .v_pages = h->v_picked,
                             .n_before = h->n - h->n_skipped,
                             .k_recent = k ? k + from : NULL,
                             .v_recent = k ? v + from : NULL,
                             .recent_first = k ? h->recent_first + from * p - h->n_skipped : 0};
    }
    return (clb_kv_view){.k_pages = h->k_pages,
                         .v_pages = h->v_pages,
                         .n_before = h->n,
                         .k_recent = k,
                         .v_recent = v,
                         .recent_first = h->recent_first};
}
