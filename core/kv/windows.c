/* What a sequence that takes a prefix needs beside its pages where K or V is quantized: F16 copies of the last
 * positions.
 *
 * A block may have a window: the copies of its own positions, in pages of the common pool, chopped as it comes. A
 * prefix can be taken up to the end of a block if that one has a window and those before it, as far back as the next
 * row reads copies (kv.h). Windows are worth less than blocks: without one, a prefix is taken up to a block before. So
 * those inside a known text go before any block does; those where a text ends, or where somebody has gone on from
 * already, go with their block, or when a pass has no room else. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "kv/index.h"

uint32_t clb_kv_window_pages(const clb_kv_cache *cache)
{
    const uint64_t page = cache->pool.page_bytes, bytes = clb_kv_block_pages(cache) * cache->recent.page_bytes;
    return (uint32_t)((bytes + page - 1) / page);
}

/* Blocks before its end whose copies the next row reads. */
static uint32_t reach(const clb_kv_cache *cache)
{
    const uint32_t p = clb_kv_page_tokens(cache);
    return (cache->layout.recent + p - 1) / p;
}

static uint32_t *pages_of(const clb_kv_cache *cache, clb_kv_block *b)
{
    return clb_kv_pages_of(cache, b) + clb_kv_block_pages(cache);
}

/* Copies of one (layer, KV head) into the window, or out of it. */
static void pour(const clb_kv_cache *cache, clb_kv_block *b, uint32_t head, uint8_t *out, const uint8_t *in)
{
    const uint64_t page = cache->pool.page_bytes, bytes = cache->recent.page_bytes, from = head * bytes;
    for (uint64_t done = 0, n; done < bytes; done += n) {
        const uint64_t at = from + done, left = bytes - done;
        uint64_t room;
        void *const here = clb_kv_pool_byte(&cache->pool, pages_of(cache, b)[at / page], at % page, &room);
        n = left < room ? left : room;
        if (out)
            memcpy(out + done, here, (size_t)n);
        else
            memcpy(here, in + done, (size_t)n);
    }
}

/* ---- the two lists ---- */

static void unlink_window(clb_kv_index *x, clb_kv_block *b)
{
    *(b->window_older ? &b->window_older->window_newer : &x->windows[b->window_list].oldest) = b->window_newer;
    *(b->window_newer ? &b->window_newer->window_older : &x->windows[b->window_list].newest) = b->window_older;
    b->window_older = b->window_newer = NULL;
}

static void link_window(clb_kv_index *x, clb_kv_block *b, enum clb_kv_window_list list)
{
    b->window_list = (uint8_t)list;
    b->window_older = x->windows[list].newest;
    *(x->windows[list].newest ? &x->windows[list].newest->window_newer : &x->windows[list].oldest) = b;
    x->windows[list].newest = b;
}

void clb_kv_window_forget(clb_kv_cache *cache, clb_kv_block *b)
{
    if (!b->has_window)
        return;
    unlink_window(cache->index, b);
    for (uint32_t i = 0; i < clb_kv_window_pages(cache); i++)
        clb_kv_pool_give(&cache->pool, clb_kv_pool_page(&cache->pool, pages_of(cache, b)[i]));
    b->has_window = false;
    cache->index->n_windows--;
}

bool clb_kv_window_drop(clb_kv_cache *cache, enum clb_kv_window_list list)
{
    clb_kv_block *const b = cache->index->windows[list].oldest;
    if (b)
        clb_kv_window_forget(cache, b);
    return b != NULL;
}

/* ---- giving ---- */

/* b is held. One inside a text takes the place of another one at most, one at its end that of idle blocks, too. */
static void attach(clb_kv_cache *cache, clb_kv_block *b, const void *const *pages, enum clb_kv_window_list list)
{
    const uint32_t n = clb_kv_window_pages(cache);
    if (clb_kv_pool_available(&cache->pool) < n)
        clb_kv_window_drop(cache, CLB_KV_WINDOW_INNER);
    if (clb_kv_pool_available(&cache->pool) < n && list == CLB_KV_WINDOW_LIKELY)
        clb_kv_make_room(cache, NULL, n);
    if (clb_kv_pool_available(&cache->pool) < n)
        return;
    const void *last = NULL;
    for (uint32_t i = 0; i < n; i++)
        pages_of(cache, b)[i] = clb_kv_pool_number(&cache->pool, last = clb_kv_pool_take(&cache->pool, last));
    for (uint32_t head = 0; head < clb_kv_block_pages(cache); head++)
        pour(cache, b, head, NULL, pages[head]);
    b->has_window = true;
    link_window(cache->index, b, list);
    cache->index->n_windows++;
}

void clb_kv_window_offer(clb_kv_seq *seq, clb_kv_block *b, uint32_t at, uint32_t n_known)
{
    clb_kv_cache *cache = seq->cache;
    clb_kv_index *x = cache->index;
    const uint32_t n = reach(cache);
    if (!clb_kv_recent_on(seq))
        return;
    clb_kv_block *const past = at >= n ? seq->blocks[at - n] : NULL; /* the text goes on beyond its reach */
    if (past && past->has_window && past->window_list == CLB_KV_WINDOW_LIKELY && !past->window_taken) {
        unlink_window(x, past);
        link_window(x, past, CLB_KV_WINDOW_INNER);
    }
    if (b->has_window && (b->window_in_folder || !x->disk))
        return;
    const void **const pages = (const void **)x->pages;
    for (uint32_t head = 0; head < clb_kv_block_pages(cache); head++)
        if (!(pages[head] = clb_kv_recent_page(seq, head, at)))
            return;
    clb_kv_window_store(cache, b, pages);
    if (!b->has_window)
        attach(cache, b, pages, at + n < n_known ? CLB_KV_WINDOW_INNER : CLB_KV_WINDOW_LIKELY);
}

/* ---- taking ---- */

static bool copies_of(clb_kv_cache *cache, clb_kv_block *b, void *const *pages)
{
    if (!b->has_window) {
        if (!clb_kv_window_load(cache, b, pages))
            return false;
        attach(cache, b, (const void *const *)pages, CLB_KV_WINDOW_LIKELY);
        return true;
    }
    for (uint32_t head = 0; head < clb_kv_block_pages(cache); head++)
        pour(cache, b, head, pages[head], NULL);
    return true;
}

/* Somebody goes on from there: others will, too. */
static void taken(clb_kv_cache *cache, clb_kv_block *b)
{
    b->window_taken = true;
    clb_kv_window_touch(cache, b);
    if (!b->has_window)
        return;
    unlink_window(cache->index, b);
    link_window(cache->index, b, CLB_KV_WINDOW_LIKELY);
}

static void give_back(clb_kv_cache *cache, clb_kv_window *w, uint32_t keep)
{
    const uint32_t n = clb_kv_block_pages(cache);
    while (w->n_blocks > keep) {
        w->n_blocks--;
        for (uint32_t head = 0; head < n; head++)
            clb_kv_pool_give(&cache->recent, w->pages[(size_t)w->n_blocks * n + head]);
    }
}

uint32_t clb_kv_window_gather(clb_kv_seq *seq, clb_kv_block *const *chain, uint32_t first, uint32_t end,
                              clb_kv_window *out)
{
    clb_kv_cache *cache = seq->cache;
    const uint32_t p = clb_kv_page_tokens(cache), n = clb_kv_block_pages(cache), most = reach(cache);
    *out = (clb_kv_window){0};
    if (!clb_kv_recent_on(seq) || end == first)
        return end;
    if ((uint64_t)most * n > clb_kv_pool_available(&cache->recent))
        return first;
    void **const pages = malloc((size_t)most * n * sizeof *pages);
    if (!pages)
        return first;
    for (uint32_t i = 0; i < most * n; i++)
        pages[i] = clb_kv_pool_take(&cache->recent, NULL);
    out->pages = (const void **)pages;
    out->n_blocks = most;
    while (end > first) {
        uint32_t from = clb_kv_recent_first_block(cache, end * p), at = end;
        assert(end - from <= most);
        while (at > from && copies_of(cache, at - 1 < first ? seq->blocks[at - 1] : chain[at - 1 - first],
                                      pages + (size_t)(at - 1 - from) * n))
            at--;
        if (at == from) {
            for (; at < end; at++)
                taken(cache, at < first ? seq->blocks[at] : chain[at - first]);
            out->first = from;
            give_back(cache, out, end - from);
            return end;
        }
        end = at - 1; /* what lacks it is in the reach of every end behind it */
    }
    clb_kv_window_done(cache, out);
    return first;
}

bool clb_kv_window_adopt(clb_kv_seq *seq, clb_kv_window *w)
{
    if (!w->pages)
        return true;
    if (!clb_kv_recent_adopt(seq, w->first, w->n_blocks, w->pages))
        return false;
    free(w->pages);
    *w = (clb_kv_window){0};
    return true;
}

void clb_kv_window_done(clb_kv_cache *cache, clb_kv_window *w)
{
    if (w->pages)
        give_back(cache, w, 0);
    free(w->pages);
    *w = (clb_kv_window){0};
}
