/* The cache: its layout, its sizes, and its pool. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "colibri/numerics.h"
#include "kv/internal.h"
#include "ops/kv_quant.h"

enum { MAX_DIM = 1 << 16, MAX_PAGE_TOKENS = 1 << 16, MAX_HEADS = 1 << 20 };

static uint64_t round64(uint64_t n)
{
    return (n + 63) / 64 * 64;
}

/* A group has the positions of a segment, for which attention reads first all keys, then all values. Longer stretches
 * are read no faster (docs/kv.md). */
clb_kv_page_shape clb_kv_shape(const clb_kv_layout *l)
{
    const uint32_t run = COLIBRI_ATTN_SEGMENT / l->page_tokens;
    return (clb_kv_page_shape){
        .first_bytes = round64(l->page_tokens * (uint64_t)clb_kv_row_bytes(l->k_type, l->k_dim)),
        .second_bytes = round64(l->page_tokens * (uint64_t)clb_kv_row_bytes(l->v_type, l->v_dim)),
        .run = run ? run : 1,
    };
}

uint64_t clb_kv_page_bytes(const clb_kv_layout *layout)
{
    const clb_kv_page_shape s = clb_kv_shape(layout);
    return s.first_bytes + s.second_bytes;
}

uint64_t clb_kv_bytes(const clb_kv_layout *layout, uint64_t n_positions)
{
    const uint64_t pages = n_positions / layout->page_tokens + (n_positions % layout->page_tokens != 0);
    uint64_t bytes;
    if (__builtin_mul_overflow(pages, (uint64_t)layout->n_layers * layout->n_kv_heads, &bytes) ||
        __builtin_mul_overflow(bytes, clb_kv_page_bytes(layout), &bytes))
        return UINT64_MAX;
    return bytes;
}

uint64_t clb_kv_most_positions(const clb_kv_layout *layout, const clb_kv_traits *traits, uint32_t ctx, uint32_t budget,
                               uint32_t max_rows)
{
    bool bounded = traits->evicts && (traits->triggers & COLIBRI_KV_AT_OVER_BUDGET);
    for (uint32_t i = 0; layout->evictable && i < layout->n_layers; i++)
        bounded = bounded && layout->evictable[i];
    if (!bounded)
        return ctx;
    const uint64_t slack = max_rows > layout->page_tokens ? max_rows : layout->page_tokens;
    /* Budgets that differ between heads may each begin another page. */
    return (budget ? budget : ctx) + slack + (traits->own_budgets ? layout->page_tokens - 1 : 0);
}

static int check_type(const char *what, uint32_t type, uint32_t dim, const char *setting, clb_error *err)
{
    const bool quantized = type == COLIBRI_TYPE_Q8_0 || type == COLIBRI_TYPE_Q4_0;
    if (!quantized && type != COLIBRI_TYPE_F16 && type != COLIBRI_TYPE_F32)
        return clb_fail(err, COLIBRI_E_UNSUPPORTED,
                        "KV cache: element type %u of %s is none of F16, F32, Q8_0 and Q4_0", type, what);
    if (quantized && dim % CLB_KV_QUANT_BLOCK)
        return clb_fail(err, COLIBRI_E_UNSUPPORTED,
                        "%s %s does not apply: it takes blocks of %u elements, and a head of the model's %s has %u; "
                        "use f16",
                        setting, clb_kv_type_name(type), CLB_KV_QUANT_BLOCK, what, dim);
    return COLIBRI_OK;
}

static int check(const clb_kv_layout *l, clb_error *err)
{
    CLB_TRY(check_type("K", l->k_type, l->k_dim, "--kv-type-k", err));
    CLB_TRY(check_type("V", l->v_type, l->v_dim, "--kv-type-v", err));
    if (l->recent % 16)
        return clb_fail(err, COLIBRI_E_USAGE,
                        "KV cache: a recent window of %u positions (--kv-recent) is not a multiple of 16", l->recent);
    if (l->page_tokens == 0 || l->page_tokens % 16 || l->page_tokens > MAX_PAGE_TOKENS)
        return clb_fail(err, COLIBRI_E_USAGE, "KV cache: a page of %u positions is not a multiple of 16 up to %d",
                        l->page_tokens, MAX_PAGE_TOKENS);
    if (l->n_layers == 0 || l->n_kv_heads == 0 || l->n_heads < l->n_kv_heads || l->n_heads % l->n_kv_heads ||
        (uint64_t)l->n_layers * l->n_kv_heads > MAX_HEADS)
        return clb_fail(err, COLIBRI_E_UNSUPPORTED, "KV cache: cannot serve %u layers with %u heads and %u KV heads",
                        l->n_layers, l->n_heads, l->n_kv_heads);
    if (l->k_dim == 0 || l->k_dim > MAX_DIM || l->v_dim == 0 || l->v_dim > MAX_DIM)
        return clb_fail(err, COLIBRI_E_UNSUPPORTED, "KV cache: head dimensions %u (K) and %u (V) are not in 1..%d",
                        l->k_dim, l->v_dim, MAX_DIM);
    return COLIBRI_OK;
}

int clb_kv_cache_create(const clb_kv_layout *layout, uint64_t max_bytes, const clb_log *log, clb_kv_cache **out,
                        clb_error *err)
{
    int rc = COLIBRI_OK;
    *out = NULL;
    CLB_TRY(check(layout, err));
    clb_kv_cache *cache = calloc(1, sizeof *cache);
    uint8_t *evictable = malloc(layout->n_layers);
    if (!cache || !evictable) {
        rc = CLB_NOMEM(err, "KV cache");
        goto done;
    }
    if (layout->evictable)
        memcpy(evictable, layout->evictable, layout->n_layers);
    else
        memset(evictable, 1, layout->n_layers);
    cache->layout = *layout;
    cache->layout.evictable = evictable;
    cache->log = log;
    cache->k_row = clb_kv_row_bytes(layout->k_type, layout->k_dim);
    cache->v_row = clb_kv_row_bytes(layout->v_type, layout->v_dim);
    const clb_kv_page_shape shape = clb_kv_shape(layout);
    CLB_GO(clb_kv_pool_open(&cache->pool, &shape, max_bytes, err));
    CLB_GO(clb_kv_recent_pool_open(cache, layout->recent_bytes ? layout->recent_bytes : max_bytes, err));
    *out = cache;
done:
    if (rc) {
        if (cache)
            clb_kv_pool_close(&cache->pool);
        free(evictable);
        free(cache);
    }
    return rc;
}

void clb_kv_cache_destroy(clb_kv_cache *cache)
{
    if (!cache)
        return;
    assert(cache->n_seqs == 0);
    clb_kv_index_free(cache);
    clb_kv_pool_close(&cache->pool);
    clb_kv_pool_close(&cache->recent);
    free((void *)(uintptr_t)cache->layout.evictable);
    free(cache->rank_cs);
    free(cache);
}

uint64_t clb_kv_cache_used_bytes(const clb_kv_cache *cache)
{
    return cache->pool.n_used * cache->pool.page_bytes + cache->recent.n_used * cache->recent.page_bytes;
}

uint64_t clb_kv_cache_peak_bytes(const clb_kv_cache *cache)
{
    return cache->pool.peak * cache->pool.page_bytes + cache->recent.peak * cache->recent.page_bytes;
}

void clb_kv_cache_reset_peak(clb_kv_cache *cache)
{
    cache->pool.peak = cache->pool.n_used;
    cache->recent.peak = cache->recent.n_used;
}
