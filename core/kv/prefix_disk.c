/* Blocks and their windows in a folder. A window is kept like a block that follows its own: one page of F16 copies of
 * every (layer, KV head), under a key of its own. */
#include "base/clock.h"
#include "kv/index.h"

#define TOUCH_EVERY_NS UINT64_C(60000000000)

static clb_prompt_block on_disk(const clb_kv_cache *cache, const clb_kv_block *parent, uint32_t mode,
                                const uint32_t *tokens, XXH128_hash_t hash)
{
    const clb_kv_index *x = cache->index;
    clb_prompt_block d = {
        .depth = parent ? parent->depth + 1 : 0,
        .n_tokens = clb_kv_page_tokens(cache),
        .n_pages = clb_kv_block_pages(cache),
        .tokens = tokens,
        .page_bytes = cache->pool.page_bytes,
        .split = cache->pool.shape.first_bytes,
    };
    XXH128_canonicalFromHash((XXH128_canonical_t *)(void *)d.key, x->roots[mode]);
    XXH128_canonicalFromHash((XXH128_canonical_t *)(void *)d.parent, parent ? parent->hash : x->roots[mode]);
    XXH128_canonicalFromHash((XXH128_canonical_t *)(void *)d.hash, hash);
    return d;
}

static clb_prompt_block window_on_disk(const clb_kv_cache *cache, const clb_kv_block *b)
{
    const XXH128_hash_t both[2] = {cache->index->window_root, b->hash};
    clb_prompt_block d = on_disk(cache, b, b->mode, b->data, XXH3_128bits(both, sizeof both));
    XXH128_canonicalFromHash((XXH128_canonical_t *)(void *)d.key, cache->index->window_root);
    d.page_bytes = cache->recent.page_bytes;
    d.split = 0;
    return d;
}

/* ---- blocks ---- */

clb_kv_block *clb_kv_block_load(clb_kv_cache *cache, clb_kv_block *parent, uint32_t mode, const uint32_t *tokens,
                                XXH128_hash_t hash)
{
    clb_kv_index *x = cache->index;
    const uint32_t n = clb_kv_block_pages(cache);
    if (!x->disk)
        return NULL;
    const clb_prompt_block d = on_disk(cache, parent, mode, tokens, hash);
    if (clb_kv_pool_available(&cache->pool) < n)
        clb_kv_make_room(cache, NULL, n);
    if (clb_kv_pool_available(&cache->pool) < n)
        return NULL;
    for (uint32_t i = 0; i < n; i++) {
        const void *const last = parent ? clb_kv_pool_page(&cache->pool, clb_kv_pages_of(cache, parent)[i]) : NULL;
        x->pages[i] = clb_kv_pool_take(&cache->pool, last);
        x->pages[n + i] = clb_kv_pool_second_of(&cache->pool, x->pages[i]);
    }
    clb_kv_block *b = NULL;
    if (clb_prompt_cache_load(x->disk, &d, x->pages))
        b = clb_kv_block_add(cache, parent, mode, tokens, hash);
    for (uint32_t i = 0; i < n; i++) {
        if (b)
            clb_kv_pages_of(cache, b)[i] = clb_kv_pool_number(&cache->pool, x->pages[i]);
        else
            clb_kv_pool_give(&cache->pool, x->pages[i]);
    }
    if (b) {
        b->touched_ns = clb_now_ns();
        b->holders = 1;
    }
    return b;
}

void clb_kv_block_store(clb_kv_cache *cache, clb_kv_block *b)
{
    clb_kv_index *x = cache->index;
    if (!x->disk)
        return;
    const clb_prompt_block d = on_disk(cache, b->parent, b->mode, b->data, b->hash);
    const uint32_t n = clb_kv_block_pages(cache);
    for (uint32_t i = 0; i < n; i++) {
        x->pages[i] = clb_kv_pool_page(&cache->pool, clb_kv_pages_of(cache, b)[i]);
        x->pages[n + i] = clb_kv_pool_second(&cache->pool, clb_kv_pages_of(cache, b)[i]);
    }
    clb_prompt_cache_store(x->disk, &d, (const void *const *)x->pages);
    b->touched_ns = clb_now_ns();
}

static void touch(const clb_kv_cache *cache, const clb_prompt_block *d, uint64_t *last)
{
    const uint64_t now = clb_now_ns();
    if (now - *last < TOUCH_EVERY_NS)
        return;
    clb_prompt_cache_touch(cache->index->disk, d);
    *last = now;
}

void clb_kv_block_touch(clb_kv_cache *cache, clb_kv_block *b)
{
    if (!cache->index->disk)
        return;
    const clb_prompt_block d = on_disk(cache, b->parent, b->mode, b->data, b->hash);
    touch(cache, &d, &b->touched_ns);
}

/* ---- windows ---- */

bool clb_kv_window_load(clb_kv_cache *cache, clb_kv_block *b, void *const *pages)
{
    if (!cache->index->disk)
        return false;
    const clb_prompt_block d = window_on_disk(cache, b);
    b->window_in_folder = clb_prompt_cache_load(cache->index->disk, &d, pages);
    b->window_touched_ns = clb_now_ns();
    return b->window_in_folder;
}

void clb_kv_window_store(clb_kv_cache *cache, clb_kv_block *b, const void *const *pages)
{
    if (!cache->index->disk || b->window_in_folder)
        return;
    const clb_prompt_block d = window_on_disk(cache, b);
    clb_prompt_cache_store(cache->index->disk, &d, pages);
    b->window_in_folder = true; /* or it cannot be */
    b->window_touched_ns = clb_now_ns();
}

void clb_kv_window_touch(clb_kv_cache *cache, clb_kv_block *b)
{
    if (!cache->index->disk)
        return;
    const clb_prompt_block d = window_on_disk(cache, b);
    touch(cache, &d, &b->window_touched_ns);
}
